"""Choose the tokens that an objective masks. The main functions return a noise mask, bool
[rows, n]; those that choose spans return `Spans`.

"Words" and "sentences" are runs of tokens. They are numbered from 0 in each row, in int64 arrays
[rows, n].
"""

import numpy as np
from jaxtyping import Int, Integer

from t5x_lite.data.objectives.pairs import Mask, Tokens
from t5x_lite.data.rng import RowRng
from t5x_lite.data.tokenizers.pieces import Pieces
from t5x_lite.data.tokenizers.vocabulary import Vocabulary

Count = Integer[np.ndarray, "rows"]
Ids = Int[np.ndarray, "rows n"]  # the word, sentence or span that each token belongs to
# The masked span of each token, numbered from 0 in each row; -1 for tokens that are not masked
Spans = Ids
_LAST = ~np.uint64(0)  # a sort key that comes after all others


def noise_count(n: int, noise_density: float) -> int:
    """Return how many of n tokens to mask: round(n · noise_density), but at least one, and at most
    n − 1.
    """
    return min(max(round(n * noise_density), 1), n - 1)


def span_count(n: int, noise_density: float, mean_span_length: float) -> int:
    """Return how many spans the masked tokens form: round(masked tokens / mean_span_length), but at
    least one, and at most the number of masked or of unmasked tokens.
    """
    noise = noise_count(n, noise_density)
    return min(max(round(noise / mean_span_length), 1), noise, n - noise)


def random_composition(total: int, parts: int, rng: RowRng) -> Int[np.ndarray, "rows parts"]:
    """Draw `parts` positive lengths that add up to `total`, with all compositions equally likely:
    int64 [rows, parts].
    """
    # Cut the total at parts − 1 different places, out of total − 1 possible ones.
    edges = np.zeros((len(rng), parts + 1), np.int64)
    is_edge = rng.subset(total - 1, parts - 1)
    edges[:, 1:-1] = np.nonzero(is_edge)[1].reshape(len(rng), parts - 1) + 1
    edges[:, -1] = total
    return np.diff(edges, axis=1)


def random_spans(
    n: int, rng: RowRng, noise_density: float, mean_span_length: float, random_roll: bool = False
) -> Mask:
    """Draw noise spans (Raffel et al., 2020, §3.3.4 and their released code). The lengths of spans
    and of gaps are random compositions. They alternate, gap first, so a row begins unmasked and
    ends masked, unless random_roll rotates the mask.
    """
    spans = span_count(n, noise_density, mean_span_length)
    noise = noise_count(n, noise_density)

    # Alternate the lengths: gap, noise, gap, noise, …
    lengths = np.empty((len(rng), 2 * spans), np.int64)
    lengths[:, 1::2] = random_composition(noise, spans, rng)
    lengths[:, 0::2] = random_composition(n - noise, spans, rng)
    is_noise = np.arange(lengths.size) % 2 == 1
    mask = np.repeat(is_noise, lengths.reshape(-1)).reshape(-1, n)
    if random_roll:
        shift = rng.integers(n)
        mask = np.take_along_axis(mask, (np.arange(n) - shift) % n, 1)
    return mask


def iid_noise(n: int, rng: RowRng, noise_density: float) -> Mask:
    """Mask exactly round(n · noise_density) tokens, with all choices equally likely."""
    return rng.subset(n, noise_count(n, noise_density))


def word_starts(tokens: Tokens, vocabulary: Vocabulary) -> Mask:
    """Return True for each token that begins a word. A word includes the space before it.
    Punctuation is a word of its own, and so is each character of a script without spaces between
    words, such as Chinese, Japanese or Thai.
    """
    pieces = vocabulary.describe(tokens)
    starts = pieces.starts_word | (after(pieces.ends_word) & ~pieces.mark)
    starts[:, 0] = True
    return starts


def word_ids(tokens: Tokens, vocabulary: Vocabulary) -> Ids:
    """Return the index of the word that each token belongs to."""
    return np.cumsum(word_starts(tokens, vocabulary), axis=1) - 1


def sentence_ids(tokens: Tokens, vocabulary: Vocabulary) -> Ids:
    """Return the index of the sentence that each token belongs to. A space after . ! or ? belongs
    to the next sentence.
    """
    return np.cumsum(sentence_starts(vocabulary.describe(tokens)), axis=1)


def sentence_starts(pieces: Pieces) -> Mask:
    """Return True for each token that begins a sentence after another one."""
    may_start = pieces.starts_word & (pieces.opening | ~pieces.punctuation)
    starts = after(pieces.ends_sentence) & may_start
    # A point between digits does not end a sentence, even if a vocabulary that does not record
    # spaces (WordPiece) makes the second number look like a new word.
    return starts & ~(after(after(pieces.digit)) & pieces.digit)


def after(flags: Mask) -> Mask:
    """Return True for each token whose predecessor has this property.

    >>> after(np.array([[True, False, True, False]])).tolist()
    [[False, True, False, True]]
    """
    shifted = np.zeros_like(flags)
    shifted[:, 1:] = flags[:, :-1]
    return shifted


def random_tokens(tokens: Tokens, count: Count, rng: RowRng, vocabulary: Vocabulary) -> Mask:
    """Mask `count` [rows] single tokens, none of them special."""
    return rng.subset(vocabulary.is_ordinary(tokens), count)


def whole_words(tokens: Tokens, count: Count, rng: RowRng, vocabulary: Vocabulary) -> Mask:
    """Mask whole words in random order, up to `count` [rows] tokens; a word that no longer fits is
    skipped (BERT's whole word masking, released code of May 2019). Words with special ids are never
    masked.
    """
    words = word_ids(tokens, vocabulary)
    return _whole_units(words, vocabulary.is_ordinary(tokens), count, rng)


def _whole_units(unit_ids: Ids, allowed: Mask, count: Count, rng: RowRng) -> Mask:
    """Mask units (words or spans, numbered from 0 in each row) in random order, up to `count`
    [rows] tokens. A unit is masked as a whole or not at all. A unit with a token that is not
    allowed is never masked.
    """
    rows, n = unit_ids.shape
    flat_ids = unit_ids + n * np.arange(rows)[:, None]
    sizes = np.bincount(flat_ids.reshape(-1), minlength=rows * n).reshape(rows, n)
    forbidden = np.bincount(flat_ids[~allowed], minlength=rows * n).reshape(rows, n)
    usable = (sizes > 0) & (forbidden == 0)
    keys = rng.sort_keys(n)
    keys[~usable] = _LAST  # unusable units come after all others
    order = np.argsort(keys, axis=1)

    # Go through the units of all rows at once: the first unit of each row, then the second, …
    remaining = np.array(count)
    taken = np.zeros((rows, n), bool)
    most_units = usable.sum(1).max()
    for units in order[:, :most_units].T:
        at = np.arange(rows), units
        fits = (sizes[at] <= remaining) & usable[at]
        taken[at] = fits
        remaining -= np.where(fits, sizes[at], 0)
        if not remaining.any():
            break
    return np.take_along_axis(taken, unit_ids, 1)


MAX_SPAN_LENGTH = 10


def geometric_lengths(
    uniform: np.ndarray, p: float = 0.2, longest: int = MAX_SPAN_LENGTH
) -> np.ndarray:
    """Turn uniform numbers into lengths with P(l) ∝ p(1 − p)^(l − 1) on 1 … longest; their mean is
    3.80 for the defaults (SpanBERT: Joshi et al., 2020, §3.1).
    """
    cumulative = np.cumsum(p * (1 - p) ** np.arange(longest))
    return np.searchsorted(cumulative / cumulative[-1], uniform, side="right") + 1


def spans_of_words(tokens: Tokens, count: Count, rng: RowRng, vocabulary: Vocabulary) -> Spans:
    """Mask spans of whole words until `count` [rows] tokens are masked (SpanBERT: Joshi et al.,
    2020, §3.1). Each span draws a length in words and a token that is not masked yet; the word of
    that token is the first of the span. A span is cut off at the end of the row, at a special id,
    and when `count` is reached. Spans that touch are one.
    """
    rows, n = tokens.shape
    allowed = vocabulary.is_ordinary(tokens)
    # Try tokens in the order of random keys. A token is masked once it has been tried, so `count`
    # tries are enough. The low bits of a key are the token's place. The next 32 bits, which hardly
    # affect the order, draw the length of its span.
    place_bits = n.bit_length()
    places = np.uint64((1 << place_bits) - 1)
    keys = rng.sort_keys(n)
    keys[~allowed] |= ~places  # special ids come after all others
    tries = int(count.max())
    first = np.sort(np.partition(keys, min(tries, n - 1), axis=1)[:, :tries], axis=1)
    tried = (first & places).astype(np.int64)
    lengths = geometric_lengths((first >> np.uint64(place_bits)).astype(np.uint32) * 2.0**-32)

    # Treat all rows as one flat text. Find where each word begins, which word each token belongs
    # to, and the barriers where a span must end: special ids and the ends of rows.
    row_begins = np.arange(rows) * n
    starts_word = word_starts(tokens, vocabulary).reshape(-1)
    word_of_token = np.cumsum(starts_word) - 1
    word_begins = np.append(np.flatnonzero(starts_word), np.full(MAX_SPAN_LENGTH, rows * n))
    barriers = np.union1d(np.flatnonzero(~allowed), row_begins + n)

    mask = np.zeros(rows * n, bool)
    remaining = np.array(count)
    for token, length in zip((tried + row_begins[:, None]).T, lengths.T, strict=True):
        if not remaining.any():
            break
        # Begin a span in each row that needs more masked tokens, unless its token is already
        # masked.
        row = np.flatnonzero((remaining > 0) & ~mask[token])
        if not row.size:
            continue
        token = token[row]
        word = word_of_token[token]
        begin = word_begins[word]
        end = word_begins[word + length[row]]
        end = np.minimum(end, barriers[np.searchsorted(barriers, token, side="right")])

        # Mask the tokens of each span that are not masked yet, up to the number that its row still
        # needs.
        sizes = end - begin
        starts = np.cumsum(sizes) - sizes
        span = np.repeat(begin - starts, sizes) + np.arange(sizes.sum())
        is_new = ~mask[span]
        new_so_far = np.cumsum(is_new)
        new_before = new_so_far[starts] - is_new[starts]
        is_new &= new_so_far <= np.repeat(new_before + remaining[row], sizes)
        mask[span[is_new]] = True
        remaining[row] -= np.add.reduceat(is_new, starts, dtype=np.int64)
    mask = mask.reshape(rows, n)
    return _numbered(mask, mask & ~after(mask))


MAX_SHORT_SPAN_LENGTH = 3


def short_spans(tokens: Tokens, count: Count, rng: RowRng, vocabulary: Vocabulary) -> Spans:
    """Divide each row into spans of 1 to 3 tokens, all lengths equally likely, and mask whole spans
    in random order until `count` [rows] tokens are masked (GPT-BERT: Charpentier and Samuel, 2024).
    The last span is cut off when `count` is reached; a special id ends a span and is never masked.

    The authors' code does this when it first reads a text, but masks the last span whole and rounds
    the count at random. When it reads the text again, tokens that were masked before are masked
    less often, which also cuts spans.
    """
    rows, n = tokens.shape
    lengths = 1 + rng.integers(MAX_SHORT_SPAN_LENGTH, n)
    begins = np.cumsum(lengths, axis=1) - lengths
    starts = np.zeros((rows, n + 1), bool)  # the last column is for spans beyond the row
    np.put_along_axis(starts, np.minimum(begins, n), True, 1)
    starts = starts[:, :n]
    span = np.cumsum(starts, axis=1) - 1

    # Sort tokens by the keys of their spans, then by place, with special ids last.
    keys = np.take_along_axis(rng.sort_keys(n), span, 1)
    keys[~vocabulary.is_ordinary(tokens)] = _LAST
    order = np.argsort(keys, axis=1, kind="stable")
    mask = np.zeros((rows, n), bool)
    np.put_along_axis(mask, order, np.arange(n) < count[:, None], 1)
    return _numbered(mask, mask & (starts | ~after(mask)))


def _numbered(mask: Mask, starts: Mask) -> Spans:
    """Number the spans of a mask, given the tokens at which they start."""
    return np.where(mask, np.cumsum(starts, axis=1) - 1, -1)


def salient_spans(tokens: Tokens, count: Count, rng: RowRng, vocabulary: Vocabulary) -> Mask:
    """Mask names, numbers and dates, as whole spans in random order, up to `count` [rows] tokens
    (salient spans: Guu et al., 2020, §3.4; also used for T5's closed-book results, Roberts et al.,
    2020). The papers used a tagger. The rule here marks words with a digit, and words with a
    capital that do not begin a sentence. Adjacent marked words form one span.
    """
    words, pieces = word_ids(tokens, vocabulary), vocabulary.describe(tokens)
    rows, n = words.shape
    starts_word = np.diff(words, axis=1, prepend=-1) > 0
    starts_word |= after(pieces.blank)

    # A word begins a sentence if only whitespace comes before it, or if it follows the end of
    # another sentence.
    text_position = np.where(pieces.blank, -1, np.arange(n))
    last_text = np.maximum.accumulate(text_position, axis=1)[:, :-1]
    after_end = np.take_along_axis(pieces.ends_sentence, np.maximum(last_text, 0), 1)
    starts_sentence = np.ones((rows, n), bool)
    starts_sentence[:, 1:] = (last_text < 0) | after_end

    # Mark the tokens that belong to a number or begin a name.
    has_digit = pieces.digit.copy()
    inside_number = pieces.punctuation[:, 1:-1] & has_digit[:, :-2] & has_digit[:, 2:]
    has_digit[:, 1:-1] |= inside_number  # punctuation between digits, as in 5.5 and 1,000
    is_name = starts_word & pieces.capital & ~starts_sentence
    is_marked = (has_digit | is_name) & vocabulary.is_ordinary(tokens)

    # A word is salient if one of its tokens is marked. A run of salient words is one span.
    flat_words = words + n * np.arange(rows)[:, None]
    marks = np.bincount(flat_words[is_marked], minlength=rows * n).reshape(rows, n)
    salient = np.take_along_axis(marks > 0, words, 1)
    changes = np.diff(salient, axis=1, prepend=salient[:, :1]) | ~salient
    spans = np.cumsum(changes, axis=1) - ~salient[:, :1]
    return _whole_units(spans, salient, count, rng)
