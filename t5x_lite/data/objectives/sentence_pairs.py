"""Pairs of texts A and B: BERT's next sentence (Devlin et al., 2019, §3.1 and released code) and
ALBERT's sentence order (Lan et al., 2020, §3.1).

A and B are a stretch of one document, cut where a sentence or a line begins. For next sentence, B
comes from another document in half of the rows. "Sentence" has BERT's meaning: an arbitrary run of
text, often longer than a linguistic sentence.
"""

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int, Integer

from t5x_lite.data.objectives.noise import after, sentence_starts
from t5x_lite.data.objectives.pairs import Mask, Tokens
from t5x_lite.data.rng import RowRng
from t5x_lite.data.tokenizers.vocabulary import Vocabulary

Second = Literal["", "next", "order"]
WindowPairs = Integer[np.ndarray, "rows 2 n"]
PerRow = Int[np.ndarray, "rows"]


class SentencePairs(NamedTuple):
    """A and B of each row, side by side."""

    tokens: Tokens  # A, B, then EOS up to the end of the array
    cut: PerRow  # index where B begins
    lengths: PerRow  # length of A and B together
    labels: PerRow  # 1 if B follows A in the text, else 0


def longest_document(tokens: Tokens, vocabulary: Vocabulary) -> tuple[PerRow, PerRow]:
    """Return where the longest stretch without EOS begins and ends in each window.

    >>> letters = Vocabulary(size=9, ordinary=(range(1, 9),), pad=0, eos=0)
    >>> longest_document(np.array([[5, 0, 6, 7, 8, 0], [5, 6, 7, 0, 8, 1]]), letters)
    (array([2, 0]), array([5, 3]))
    """
    n = tokens.shape[1]
    place = np.arange(n)
    # Length of the stretch that ends at each token.
    last_eos = np.maximum.accumulate(np.where(tokens == vocabulary.eos, place, -1), axis=1)
    lengths = place - last_eos
    end = np.argmax(lengths, axis=1) + 1
    return end - lengths[np.arange(len(tokens)), end - 1], end


def begins_sentence(tokens: Tokens, vocabulary: Vocabulary) -> Mask:
    """Return True for each token that begins a sentence or a line. Whitespace belongs to the text
    after it.
    """
    pieces = vocabulary.describe(tokens)
    # Of several line breaks in a row, only the first begins a line.
    in_blank = after(pieces.blank & pieces.starts_line)
    line = after(pieces.ends_line) | (pieces.starts_line & ~in_blank)
    line[:, 0] = False
    return sentence_starts(pieces) | line


def ends_sentence(tokens: Tokens, vocabulary: Vocabulary) -> Mask:
    """Return True for each token that may end a sentence or a line."""
    pieces = vocabulary.describe(tokens)
    is_line_break = pieces.blank & pieces.starts_line
    return pieces.ends_sentence | pieces.ends_line | is_line_break


def order_pairs(tokens: Tokens, rng: RowRng, vocabulary: Vocabulary) -> SentencePairs:
    """Make pairs of two consecutive texts, swapped in half of the rows."""
    begin, cut, end = _stretches(tokens, rng, vocabulary)
    in_order = rng.integers(2)[:, 0]
    swapped = in_order == 0
    a_begin, a_end = np.where(swapped, cut, begin), np.where(swapped, end, cut)
    b_begin, b_end = np.where(swapped, begin, cut), np.where(swapped, cut, end)
    both = _side_by_side(
        tokens, a_begin, a_end - a_begin, tokens, b_begin, b_end - b_begin, vocabulary.eos
    )
    return SentencePairs(*both, labels=in_order)


def next_pairs(tokens: WindowPairs, rng: RowRng, vocabulary: Vocabulary) -> SentencePairs:
    """Make pairs of two consecutive texts. In half of the rows, B is replaced by a text from the
    other window, which comes from another document. It is about as long as the text it replaces.
    """
    window, other = tokens[:, 0], tokens[:, 1]
    begin, cut, end = _stretches(window, rng, vocabulary)
    is_next = rng.integers(2)[:, 0]

    # B from the other window begins where the first sentence of that window begins.
    n = window.shape[1]
    place = np.arange(n)
    is_eos = other == vocabulary.eos
    document_end = np.where(is_eos.any(1), np.argmax(is_eos, axis=1), n)
    breaks = begins_sentence(other, vocabulary) & (place < document_end[:, None])
    b_begin = np.argmax(breaks, axis=1)  # 0 where there is none
    # It ends at the last sentence end that makes it no longer than the text it replaces. If there
    # is none, it ends at the first sentence end where it still fits the row.
    wanted = np.minimum(b_begin + end - cut, document_end)
    ends = breaks & (place > b_begin[:, None])
    before = ends & (place <= wanted[:, None])
    last_before = n - 1 - np.argmax(before[:, ::-1], axis=1)
    first = np.argmax(ends, axis=1)
    fits = ends.any(1) & (first <= b_begin + n - (cut - begin))
    b_end = np.where(before.any(1), last_before, np.where(fits, first, wanted))
    b_end = np.where(wanted == document_end, document_end, b_end)
    b_end = np.maximum(b_end, b_begin + 1)

    from_window = is_next == 1
    b_begin = np.where(from_window, cut, b_begin)
    b_end = np.where(from_window, end, b_end)
    second = np.where(from_window[:, None], window, other)
    both = _side_by_side(
        window, begin, cut - begin, second, b_begin, b_end - b_begin, vocabulary.eos
    )
    return SentencePairs(*both, labels=is_next)


SENTENCE_PAIRS = {"next": next_pairs, "order": order_pairs}


def _stretches(
    tokens: Tokens, rng: RowRng, vocabulary: Vocabulary
) -> tuple[PerRow, PerRow, PerRow]:
    """Choose a stretch of one document in each window. Return where it begins, where it is cut in
    two, and where it ends, [rows] each. All three are places where sentences or lines begin, if
    there are enough of them: the cut takes precedence, then the end, then the beginning.
    """
    rows, n = tokens.shape
    place = np.arange(n)
    begin, end = longest_document(tokens, vocabulary)
    # Take at least two tokens, even of a window with nothing but EOS.
    begin = np.minimum(begin, n - 2)
    end = np.maximum(end, begin + 2)

    breaks = begins_sentence(tokens, vocabulary)
    breaks &= (place > begin[:, None]) & (place < end[:, None])
    count = np.count_nonzero(breaks, axis=1)
    # The window may begin and end in the middle of a sentence. Leave these parts out if enough
    # breaks remain.
    is_whole = ends_sentence(tokens, vocabulary)[np.arange(rows), end - 1]
    trims_end = ~is_whole & (count >= 2)
    trims_begin = (begin == 0) & (count - trims_end >= 2)

    # Number the breaks of each row from 1.
    number = np.cumsum(breaks, axis=1)

    def break_at(k: np.ndarray) -> np.ndarray:
        """Return the place of each row's k-th break."""
        return np.argmax(number >= k[:, None], axis=1)

    inner = count - trims_end - trims_begin
    uniform = rng.uniform(1)[:, 0]
    cut_at_break = break_at((uniform * inner).astype(np.int64) + trims_begin + 1)
    cut_anywhere = begin + 1 + (uniform * (end - begin - 1)).astype(np.int64)
    cut = np.where(inner > 0, cut_at_break, cut_anywhere)
    begin = np.where(trims_begin, break_at(np.ones(rows)), begin)
    end = np.where(trims_end, break_at(count), end)
    return begin, cut, end


def _side_by_side(
    a: Tokens,
    a_begin: PerRow,
    a_length: PerRow,
    b: Tokens,
    b_begin: PerRow,
    b_length: PerRow,
    eos: int,
) -> tuple[Tokens, PerRow, PerRow]:
    """Return A, then B, then EOS up to the width of the windows [rows, n]; the index where B
    begins; and the length of both.
    """
    # Read both texts from where they begin; B's first token comes right after A's last.
    n = a.shape[1]
    place = np.arange(n)
    from_a = np.take_along_axis(a, np.minimum(a_begin[:, None] + place, n - 1), 1)
    b_place = (b_begin - a_length)[:, None] + place
    from_b = np.take_along_axis(b, np.clip(b_place, 0, n - 1), 1)
    lengths = a_length + b_length
    tokens = np.where(place < a_length[:, None], from_a, from_b)
    tokens[place >= lengths[:, None]] = eos
    return tokens, a_length, lengths
