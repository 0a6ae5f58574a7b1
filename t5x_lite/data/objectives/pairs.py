"""What an objective makes: pairs of inputs and targets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Integer

from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rng import RowRng
from t5x_lite.data.tokenizers.tokenizer import Tokenizer

Tokens = Integer[np.ndarray, "rows n"]
Mask = Bool[np.ndarray, "rows n"]


class Pair(NamedTuple):
    """One pair of Pairs, as plain arrays."""

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    scored: np.ndarray | None
    types: np.ndarray | None
    score_inputs: bool


class SegmentLabels(NamedTuple):
    """What a head predicts of each pair, wherever the pair stands in its row: see data/tasks."""

    values: np.ndarray  # [pairs, k] class numbers, or numbers
    positions: np.ndarray  # [pairs] of the hidden state that the head reads, from the pair's start
    weights: np.ndarray  # [pairs] 0 where there is no label
    groups: np.ndarray  # [pairs] the example of each: several pairs may be answers to one question

    def take(self, order: np.ndarray) -> "SegmentLabels":
        """Those of the pairs at these indices."""
        return SegmentLabels(*(column[order] for column in self))


@dataclass(frozen=True)
class Pairs:
    """One pair a row: inputs that the model reads and targets that it predicts, both ids.

    Attributes:
        inputs, targets: text to text, or aligned: see `scored`.
        weights: of the targets; None: 1 each.
        scored: None for text to text, where the targets are a text of their own. Aligned (masked
            LM): the position in the inputs of each target.
        read: what a decoder reads, both ways, in the place of its targets, as long as they are;
            None: the targets themselves, from left to right.
        score_inputs: of all rows, or bool [rows]: a decoder that reads its inputs causally is
            scored on them too.
        types: of the inputs (BERT's segment A and B).
        labels: [rows] what the sequence label head predicts of the pair as a whole (is B the next
            sentence?).
        segment_labels: what a head predicts of each pair, of which a row may hold several.
    """

    inputs: Ragged
    targets: Ragged
    weights: Ragged | None = None
    scored: Ragged | None = None
    read: Ragged | None = None
    score_inputs: bool | np.ndarray = False
    types: Ragged | None = None
    labels: np.ndarray | None = None
    segment_labels: SegmentLabels | None = None

    def __len__(self) -> int:
        return len(self.inputs.lengths)

    @property
    def target_weights(self) -> Ragged:
        """The weight of each target."""
        if self.weights is not None:
            return self.weights
        return Ragged(np.ones(len(self.targets.values), np.float32), self.targets.lengths)

    def each(self) -> list[Pair]:
        """The pairs one by one."""
        inputs, targets = self.inputs.arrays(), self.targets.arrays()
        weights = self.target_weights.arrays()
        scored = self.scored.arrays() if self.scored else [None] * len(self)
        types = self.types.arrays() if self.types else [None] * len(self)
        score_inputs = np.broadcast_to(self.score_inputs, len(self)).tolist()
        columns = zip(inputs, targets, weights, scored, types, score_inputs, strict=True)
        return [Pair(*row) for row in columns]


def example(objective: Callable, text: str, row: int = 1, **options) -> tuple[str, str]:
    """Inputs and targets that an objective makes of a text, letters as tokens, as text; for worked
    examples.

    >>> def halve(tokens, rng, vocabulary):
    ...     return Pairs(Ragged.from_array(tokens[:, :2]), Ragged.from_array(tokens[:, 2:]))
    >>> example(halve, "hi!")
    ('hi', '!')
    """
    tokenizer = Tokenizer()
    tokens = tokenizer.encode(text)[None]
    (pair,) = objective(tokens, RowRng(0, row), tokenizer.vocabulary, **options).each()
    return tokenizer.decode(pair.inputs), tokenizer.decode(pair.targets)
