"""What an objective makes: pairs of what is read and what is asked, and the most there can be of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from t5x_lite.data.draws import Draws
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.tokenizer import Tokenizer


class Pair(NamedTuple):
    """One pair of Pairs, as plain arrays."""

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    scored: np.ndarray | None
    types: np.ndarray | None
    score_inputs: bool


@dataclass(frozen=True)
class Pairs:
    """One pair a row: inputs the model reads and targets it is asked for, both ids.

    Text to text: `scored` is None, the targets are a text of their own. Aligned (masked LM): `scored` holds the
    position in `inputs` of each target. `weights` go with the targets, None: 1 each. `score_inputs` (of all, or
    bool [rows]) asks a decoder that reads its inputs causally to be scored on them too. `types` go with the inputs
    (BERT's segment A and B), `labels`
    [rows] say of the pair as a whole what its own head is asked (is B the next sentence?).
    """

    inputs: Ragged
    targets: Ragged
    weights: Ragged | None = None
    scored: Ragged | None = None
    score_inputs: bool | np.ndarray = False
    types: Ragged | None = None
    labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.inputs.lengths)

    def scores(self) -> Ragged:
        """The weight of each target."""
        return self.weights or Ragged(np.ones(len(self.targets.values), np.float32), self.targets.lengths)

    def each(self) -> list[Pair]:
        """One by one."""
        parts = (self.inputs, self.targets, self.scores(), self.scored, self.types)
        columns = [part and part.arrays() for part in parts]
        score_inputs = np.broadcast_to(self.score_inputs, len(self)).tolist()
        return [Pair(*(column and column[i] for column in columns), score_inputs[i]) for i in range(len(self))]


class Bound(NamedTuple):
    """The most that an objective makes of n raw tokens: inputs, targets, the two of one pair together, sentinels."""

    inputs: int
    targets: int
    both: int
    sentinels: int = 0


def states(bound: Callable, aligned: bool = False) -> Callable:
    """Attach to an objective its `bound(n, **hyperparameters) → Bound`, and whether its pairs are aligned."""

    def attach(objective):
        objective.bound, objective.aligned = bound, aligned
        return objective

    return attach


def example(objective: Callable, text: str, row: int = 1, **options) -> tuple[str, str]:
    """Inputs and targets that an objective makes of a text, letters as tokens, in words; for worked examples.

    >>> example(lambda tokens, rng, vocabulary: Pairs(Ragged.full(tokens[:, :2]), Ragged.full(tokens[:, 2:])), "hi!")
    ('hi', '!')
    """
    tokenizer = Tokenizer()
    (pair,) = objective(tokenizer.encode(text)[None], Draws(0, 0, row), tokenizer.vocabulary, **options).each()
    return tokenizer.decode(pair.inputs), tokenizer.decode(pair.targets)
