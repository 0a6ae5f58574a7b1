"""The ids that objectives and layouts need to know, and what the text of an id is like."""

import string
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from t5x_lite.errors import BAD_CONFIG, Refusal

SENTINELS = 256  # that we append: UL2's densest spans of 512 inputs and 512 targets take 127
T5_SENTINELS = 100  # that T5 appends to its SentencePiece model
# What any objective may need, so that all cells of a comparison can share one tokenizer.
SPECIALS = ("<pad>", "</s>", "<s>", "[MASK]", "[CLS]", "[SEP]")
SPECIALS += ("[R]", "[S]", "[X]", "<fim_prefix>", "<fim_middle>", "<fim_suffix>")


class Pieces(NamedTuple):
    """What the text of each id is like: bool [size] each, all of them false for special ids but the first two."""

    opens: np.ndarray  # begins with a blank or with punctuation, so that a word begins here
    closes: np.ndarray  # ends with one (but is not blank: a blank belongs to the word behind it)
    blank: np.ndarray  # nothing but white space
    punctuation: np.ndarray  # begins with punctuation
    digit: np.ndarray  # holds a digit
    capital: np.ndarray  # begins, blanks aside, with a capital
    ends_sentence: np.ndarray  # ends, blanks aside, with . ! or ?


_PUNCTUATION = tuple(string.punctuation)


def _pieces(texts: list[bytes | None]) -> Pieces:
    made = []
    for piece in texts:
        text = (piece or b"\n").decode(errors="replace")  # a part of a character is a letter
        bare = text.strip()
        blank = not bare
        row = (
            blank or text[0].isspace() or text.startswith(_PUNCTUATION),
            not blank and (text[-1].isspace() or text.endswith(_PUNCTUATION)),
            blank,
            text.startswith(_PUNCTUATION),
            any(c.isdigit() for c in bare),
            bare[:1].isupper(),
            bare.endswith((".", "!", "?")),
        )
        made.append(row if piece is not None else (True, True, *[False] * 5))
    return Pieces(*np.array(made).T)


@dataclass(frozen=True)
class Vocabulary:
    """The ids that objectives and layouts need to know; `vocabulary["[MASK]"]` is the id of a special token."""

    size: int  # of all ids, specials included
    ordinary: tuple[int, int]  # ids that text encodes to lie in [low, high)
    pad: int
    eos: int
    bos: int | None = None
    specials: dict = field(default_factory=dict)  # name → id of the others, such as [MASK]
    sentinels: int = 0  # how many; they are the last ids, <extra_id_0> the very last
    texts: Callable[[], list] = field(default=list, compare=False, repr=False)  # the bytes of each id, None: special

    def __getitem__(self, name: str) -> int:
        if name not in self.specials:
            raise Refusal(BAD_CONFIG, f"objective: the tokenizer has no {name}; set data.add_specials=True")
        return self.specials[name]

    @cached_property
    def pieces(self) -> Pieces:
        """What the text of each id is like."""
        texts = self.texts()
        return _pieces(texts + [None] * (self.size - len(texts)))

    def sentinel(self, i):
        """The id of <extra_id_i>: size − 1 − i, as T5 numbers them (i: int or array)."""
        return self.size - 1 - i

    @property
    def start(self) -> int:
        """What a decoder reads first: bos, else pad (as T5 does)."""
        return self.pad if self.bos is None else self.bos

    def is_ordinary(self, ids: np.ndarray) -> np.ndarray:
        """True where an id stands for text."""
        return (ids >= self.ordinary[0]) & (ids < self.ordinary[1])


def vocabulary(model, add_specials: bool) -> Vocabulary:
    """Of a model of text, whose own special ids it keeps.

    add_specials: append, behind the model's ids, the SPECIALS that it lacks and the sentinels, so that any objective
    can be learned with it.
    """
    names = dict(model.specials)
    size = model.size
    sentinels = 0
    while f"<extra_id_{sentinels}>" in names and names[f"<extra_id_{sentinels}>"] == size - 1 - sentinels:
        sentinels += 1  # as T5 has them
    if add_specials:
        for name in SPECIALS:
            if name not in names:
                names[name] = size
                size += 1
    if add_specials or (model.kind == "sentencepiece" and not sentinels):
        sentinels = SENTINELS if add_specials else T5_SENTINELS
        size += sentinels
    if "</s>" not in names:
        raise Refusal(BAD_CONFIG, "data.tokenizer: it has no end-of-text id; set data.add_specials=True")
    return Vocabulary(
        size=size,
        ordinary=model.ordinary,
        pad=names.get("<pad>", names["</s>"]),
        eos=names["</s>"],
        bos=names.get("<s>"),
        specials=names,
        sentinels=sentinels,
        texts=model.texts,
    )
