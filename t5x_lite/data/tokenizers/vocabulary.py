"""The ids that objectives and layouts need to know."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np

from t5x_lite.data.tokenizers.pieces import Pieces, PieceTable
from t5x_lite.data.tokenizers.text_models import TextModel
from t5x_lite.errors import BAD_CONFIG, UserError

# Number of sentinels that we append; UL2's densest spans need 127 at 512 inputs and 512 targets
SENTINELS = 256
T5_SENTINELS = 100  # sentinels that T5 appends to its SentencePiece model
# Special tokens that any objective may need, so that all runs of a comparison can share one
# tokenizer.
SPECIALS = ("<pad>", "</s>", "<s>", "[MASK]", "[CLS]", "[SEP]")
SPECIALS += ("[R]", "[S]", "[X]", "<fim_prefix>", "<fim_middle>", "<fim_suffix>")

IntOrArray = TypeVar("IntOrArray", int, np.ndarray)


@dataclass(frozen=True)
class Vocabulary:
    """The ids that objectives and layouts need to know.

    `vocabulary["[MASK]"]` is the id of a special token.
    """

    size: int  # number of ids, special ones included
    ordinary: tuple[range, ...]  # runs of the ids that text encodes to
    pad: int
    eos: int
    bos: int | None = None
    specials: dict[str, int] = field(default_factory=dict)  # name → id, such as [MASK]
    # Number of sentinels; they are the last ids, with <extra_id_0> the very last
    sentinels: int = 0
    # Function that returns the bytes of each id, and None for special ids; a call takes time
    texts: Callable[[], list[bytes | None]] = field(default=list, compare=False, repr=False)

    def __getitem__(self, name: str) -> int:
        if name not in self.specials:
            reason = f"the tokenizer has no {name}; set data.add_specials=True"
            raise UserError(BAD_CONFIG, f"objective: {reason}")
        return self.specials[name]

    @cached_property
    def _pieces(self) -> PieceTable:
        texts = self.texts()
        appended = self.size - len(texts)
        return PieceTable(texts + [None] * appended)

    def describe(self, tokens: np.ndarray) -> Pieces:
        """Return the properties of the text of tokens [rows, n]: [rows, n] each."""
        return self._pieces.describe(tokens)

    def sentinel(self, i: IntOrArray) -> IntOrArray:
        """Return the id of <extra_id_i>: size − 1 − i, as T5 numbers them.

        >>> t5 = Vocabulary(32100, ordinary=(range(3, 32000),), pad=0, eos=1, sentinels=100)
        >>> t5.sentinel(0)
        32099
        """
        return self.size - 1 - i

    @property
    def start(self) -> int:
        """First id that a decoder reads: bos, else pad (as in T5)."""
        return self.pad if self.bos is None else self.bos

    def is_ordinary(self, ids: np.ndarray) -> np.ndarray:
        """Return True where an id stands for text. Numbers that are not ids give False."""
        is_id = (ids >= 0) & (ids < self.size)
        return self._is_ordinary[np.where(is_id, ids, self.size)]

    def extends(self, other: "Vocabulary") -> bool:
        """Return True if each id of the other vocabulary has the same meaning in this one."""
        if self.size < other.size or (self.pad, self.eos, self.bos) != (
            other.pad,
            other.eos,
            other.bos,
        ):
            return False
        # Sentinels are counted from the end, so with another size they have other ids.
        if other.sentinels and (self.size, self.sentinels) != (other.size, other.sentinels):
            return False
        names = {name: self.specials.get(name) for name in other.specials}
        ours, theirs = list(self.texts()), list(other.texts())
        appended = [None] * (other.size - len(theirs))
        ours += [None] * (self.size - len(ours))
        return names == other.specials and ours[: other.size] == theirs + appended

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """All ids that text encodes to: int64 [ids]."""
        return np.concatenate([np.arange(run.start, run.stop) for run in self.ordinary])

    @cached_property
    def _is_ordinary(self) -> np.ndarray:
        flags = np.zeros(self.size + 1, bool)  # the last flag is for numbers that are not ids
        flags[self.ordinary_ids] = True
        return flags


def make_vocabulary(model: TextModel, add_specials: bool) -> Vocabulary:
    """Make the vocabulary of a text model, and keep the model's own special ids.

    Args:
        add_specials: append sentinels, and the SPECIALS that the model lacks, after the model's
            ids, so that any objective can be used.

    Raises:
        UserError: if the model has no end-of-text id.
    """
    specials = dict(model.specials)
    size = model.size

    # Count the sentinels that the model already has, if they are its last ids as in T5.
    sentinels = 0
    while specials.get(f"<extra_id_{sentinels}>") == size - 1 - sentinels:
        sentinels += 1

    if add_specials:
        for name in SPECIALS:
            if name not in specials:
                specials[name] = size
                size += 1
        sentinels = SENTINELS
        size += SENTINELS
    elif model.kind == "sentencepiece" and not sentinels:
        sentinels = T5_SENTINELS
        size += T5_SENTINELS

    if "</s>" not in specials:
        reason = "it has no end-of-text id; set data.add_specials=True"
        raise UserError(BAD_CONFIG, f"data.tokenizer: {reason}")
    eos = specials["</s>"]
    return Vocabulary(
        size=size,
        ordinary=model.ordinary,
        pad=specials.get("<pad>", eos),
        eos=eos,
        bos=specials.get("<s>"),
        specials=specials,
        sentinels=sentinels,
        texts=model.texts,
    )
