"""Split texts into words with their ids, so that a span of ids can be read back as a span of the
text.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from t5x_lite.data.tokenizers.tokenizer import Tokenizer

# Words and punctuation, each with the whitespace before it: BERT's basic tokens.
_WORD = re.compile(r"\s*(?:\w+|[^\w\s])|\s+$")


@dataclass(frozen=True)
class Words:
    """The ids of a text, or of a window of it, and the words that they belong to.

    Attributes:
        text: the whole text.
        ids: [n] ids of the window.
        word_of_id: [n] index of the word that each id belongs to; −1: none.
        starts, ends: where in the text each word starts (without whitespace) and ends.
    """

    text: str
    ids: np.ndarray
    word_of_id: np.ndarray
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    def at(self, character: int) -> int:
        """Return the index of the last word that starts at or before a character of the text."""
        return max(bisect_right(self.starts, character) - 1, 0)

    def window(self, start: int, room: int) -> "Words":
        """Return `room` ids from `start` on, or fewer at the end. The ids of a word that is cut
        belong to no word.
        """
        part = slice(start, start + room)
        word_of_id = self.word_of_id[part].copy()
        # A word is cut if the id just outside the window belongs to the same word.
        for neighbour, edge in ((start - 1, 0), (start + room, -1)):
            is_inside = len(word_of_id) and 0 <= neighbour < len(self.ids)
            if is_inside and self.word_of_id[neighbour] == word_of_id[edge]:
                word_of_id[word_of_id == word_of_id[edge]] = -1
        return Words(self.text, self.ids[part], word_of_id, self.starts, self.ends)

    def behind(self, offset: int) -> "Words":
        """Return the words of the same ids after `offset` other ids, which belong to no word."""
        none = np.full(offset, -1)
        word_of_id = np.concatenate([none, self.word_of_id])
        return Words(self.text, self.ids, word_of_id, self.starts, self.ends)

    def positions_of(self, first_word: int, last_word: int) -> tuple[int, int]:
        """Return the position of the first id of one word and of the last id of another; −1, −1 if
        one of the words is not in this window.
        """
        firsts = np.flatnonzero(self.word_of_id == first_word)
        lasts = np.flatnonzero(self.word_of_id == last_word)
        if first_word < 0 or not len(firsts) or not len(lasts):
            return -1, -1
        return int(firsts[0]), int(lasts[-1])

    def text_of(self, first: int, last: int) -> str:
        """Return the text from one position to another, in whole words."""
        return self.text[self.starts[self.word_of_id[first]] : self.ends[self.word_of_id[last]]]


def split_words(text: str, tokenizer: Tokenizer) -> Words:
    """Split a text into words with their ids.

    >>> words = split_words("He left in 1876.", Tokenizer())
    >>> words.text_of(*words.positions_of(words.at(11), words.at(14)))
    '1876'
    """
    ids, word_of_id, starts, ends = [], [], [], []
    for found in _WORD.finditer(text):
        word = found[0]
        if not word.strip():
            continue
        of_word = tokenizer.encode(word)
        ids.append(of_word)
        word_of_id.append(np.full(len(of_word), len(starts)))
        starts.append(found.end() - len(word.lstrip()))
        ends.append(found.end())
    if not ids:
        nothing = np.zeros(0, np.int64)
        return Words(text, nothing, nothing, (), ())
    return Words(text, np.concatenate(ids), np.concatenate(word_of_id), tuple(starts), tuple(ends))
