"""Properties of the text of tokens: where words, sentences and lines begin and end."""

import string
import unicodedata
from functools import lru_cache
from itertools import chain, pairwise, starmap
from typing import NamedTuple

import numpy as np


class Pieces(NamedTuple):
    """Properties of the text of tokens: bool [rows, n] each. Special ids are words."""

    # Begins with whitespace, punctuation, or a character that is a word by itself
    starts_word: np.ndarray
    # Ends with one of these, but is not only whitespace, which belongs to the next word
    ends_word: np.ndarray
    blank: np.ndarray  # only whitespace
    punctuation: np.ndarray  # begins with punctuation
    opening: np.ndarray  # begins with an opening quote or bracket, such as “ or 《
    mark: np.ndarray  # begins with a mark on the character before it, such as an accent
    digit: np.ndarray  # contains a digit
    capital: np.ndarray  # first character, apart from whitespace, is a capital
    ends_sentence: np.ndarray  # last such character ends a sentence, like . ! ? and 。
    starts_line: np.ndarray  # leading whitespace contains a line break
    ends_line: np.ndarray  # trailing whitespace contains one, after some text


_SPECIAL_PIECE = {**dict.fromkeys(Pieces._fields, False), "starts_word": True, "ends_word": True}

# Characters that end sentences: Latin, its full-width forms, Chinese and Japanese, Hindi, Arabic,
# Urdu, Armenian, Ethiopic, Burmese, Khmer. From Unicode's property Sentence_Terminal.
_SENTENCE_ENDS = tuple(".!?…．！？。｡।॥؟۔։።፧။។៕")

# Scripts without spaces between words. Each character, with its marks, counts as a word, as Chinese
# characters do in BERT's released code: without a dictionary, no rule finds the words.
_WITHOUT_BLANKS = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19DF),  # Tai Le, New Tai Lue
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x2E80, 0x2FDF),  # radicals of Chinese characters
    (0x3005, 0x3007),  # 々〆〇
    (0x3040, 0x312F),  # Hiragana, Katakana, Bopomofo
    (0x31F0, 0x31FF),  # Katakana
    (0x3400, 0x4DBF),  # Chinese characters
    (0x4E00, 0x9FFF),
    (0xAA60, 0xAADF),  # Burmese, Tai Viet
    (0xF900, 0xFAFF),  # Chinese characters
    (0xFF66, 0xFF9F),  # half-width Katakana
    (0x1B000, 0x1B16F),  # Kana
    (0x20000, 0x3FFFF),  # Chinese characters
)


def _is_punctuation(character: str) -> bool:
    """Return True for punctuation in any script, and for ASCII symbols such as $ and +."""
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def _is_mark(character: str) -> bool:
    """Return True for a character that belongs to the one before it."""
    return character == "\u200d" or unicodedata.category(character).startswith("M")


def _is_word(character: str) -> bool:
    """Return True for a letter of a script without spaces between words."""
    code = ord(character)
    in_script = any(low <= code <= high for low, high in _WITHOUT_BLANKS)
    return in_script and not _is_mark(character)


def _stands_alone(character: str) -> bool:
    """Return True for a character that is always a word by itself."""
    return _is_punctuation(character) or _is_word(character)


def _describe(text: str) -> dict[str, bool]:
    """Return the properties of a text that is not empty, by their names in Pieces."""
    stripped = text.strip()
    is_blank = not stripped
    leading = text[: len(text) - len(text.lstrip())]
    trailing = text[len(text.rstrip()) :]
    base = text.rstrip("".join(filter(_is_mark, text))) or text  # what the last marks belong to
    return {
        "starts_word": text[0].isspace() or _stands_alone(text[0]),
        "ends_word": not is_blank and (text[-1].isspace() or _stands_alone(base[-1])),
        "blank": is_blank,
        "punctuation": _is_punctuation(text[0]),
        # ASCII does not count: the bracket in "in 2005.[1]" does not begin a sentence.
        "opening": not text[0].isascii() and unicodedata.category(text[0]) in ("Ps", "Pi"),
        "mark": _is_mark(text[0]),
        "digit": any(character.isdigit() for character in stripped),
        "capital": stripped[:1].isupper(),
        "ends_sentence": stripped.endswith(_SENTENCE_ENDS),
        "starts_line": "\n" in leading,
        "ends_line": not is_blank and "\n" in trailing,
    }


def _as_bits(properties: dict[str, bool]) -> int:
    """Return the properties of a piece as a number: one bit each, in the order of Pieces."""
    return sum(properties[name] << bit for bit, name in enumerate(Pieces._fields))


def _begins_inside(piece: bytes) -> bool:
    """Return True if a piece begins inside a character: with a byte 10xxxxxx of UTF-8."""
    return bool(piece) and piece[0] & 0xC0 == 0x80


@lru_cache(1 << 16)
def _describe_together(pieces: tuple[bytes, ...]) -> list[int]:
    """Return the properties of pieces that share characters, as bits.

    Each piece is described by all characters that it has a byte of. But no word or line starts or
    ends inside a character.
    """
    # A byte that belongs to no character becomes a character of its own.
    text = b"".join(pieces).decode(errors="surrogateescape")
    character_ends = np.cumsum([len(c.encode(errors="surrogateescape")) for c in text])
    described = []
    end = 0
    for piece in pieces:
        begin, end = end, end + len(piece)
        first = np.searchsorted(character_ends, begin, side="right")
        last = np.searchsorted(character_ends, end)
        found = _describe(text[first : last + 1])
        if begin not in (0, *character_ends):
            found |= {"starts_word": False, "starts_line": False}
        if end not in character_ends:
            found |= {"ends_word": False, "ends_sentence": False, "ends_line": False}
        described.append(_as_bits(found))
    return described


class PieceTable:
    """The properties of all ids, and of tokens in the rows of a batch.

    Args:
        texts: bytes of each id; None for a special id.
    """

    def __init__(self, texts: list[bytes | None]):
        self._texts = texts
        described = []
        for piece in texts:
            if piece is None:
                described.append(_as_bits(_SPECIAL_PIECE))
            else:
                # An incomplete character counts as a letter, and so does a piece without text.
                described.append(_as_bits(_describe(piece.decode(errors="replace") or "\ufffd")))
        self._properties = np.array(described, np.uint16)
        self._has_text = np.array([piece is not None for piece in texts])
        self._begins_inside = np.array([_begins_inside(piece or b"") for piece in texts])

    def describe(self, tokens: np.ndarray) -> Pieces:
        """Return the properties of tokens [rows, n]: [rows, n] each.

        Tokens that hold parts of one character, as bytes do, are described together.
        """
        properties = self._properties[tokens]
        # A token that begins inside a character continues the token before it, unless there is none
        # in this row or it is special.
        inside = self._begins_inside[tokens]
        inside[:, 0] = False
        inside[:, 1:] &= self._has_text[tokens[:, :-1]]
        if inside.any():
            shared = inside.copy()
            shared[:, :-1] |= inside[:, 1:]
            texts = [self._texts[i] for i in tokens[shared].tolist()]
            starts = np.flatnonzero(~inside[shared]).tolist()
            groups = starmap(slice, pairwise([*starts, len(texts)]))
            described = [_describe_together(tuple(texts[group])) for group in groups]
            properties[shared] = list(chain.from_iterable(described))
        return Pieces(*(properties & (1 << bit) > 0 for bit in range(len(Pieces._fields))))
