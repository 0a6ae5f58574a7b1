"""Finite sets of examples (questions with answers, texts with labels): several share a row, each a segment of its own.

Which examples share a row is planned from their lengths, anew for each epoch, and the rows are shuffled. A plan depends
on the seed and the epoch alone, so a row is a pure function of its index.
"""

from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import numpy as np

from t5x_lite.data.draws import Draws
from t5x_lite.data.layouts import Shape
from t5x_lite.data.objectives import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.vocabulary import Vocabulary
from t5x_lite.data.windows import permute
from t5x_lite.errors import BAD_DATA, Refusal

_OPEN = 256  # rows that are not yet full: more would hardly pack better, and take longer


def plan(sizes: np.ndarray, room: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The row of each example: best fit, in that order. sizes [examples, stacks], room [stacks]: positions.

    >>> plan(np.array([[3], [5], [2], [4]]), np.array([7]), order=np.array([1, 3, 0, 2])).tolist()
    [1, 0, 0, 1]
    """
    row_of = np.empty(len(sizes), np.int64)
    left, number, rows = np.zeros((_OPEN, len(room)), np.int64), np.zeros(_OPEN, np.int64), 0
    for example in order:
        fits = (left >= sizes[example]).all(1)
        if fits.any():
            at = np.argmin(np.where(fits, left.sum(1), np.iinfo(np.int64).max))
        else:  # a new row, in place of the fullest
            at = np.argmin(left.sum(1))
            left[at], number[at], rows = room, rows, rows + 1
        left[at] -= sizes[example]
        row_of[example] = number[at]
    return row_of


@dataclass(frozen=True)
class Packed:
    """The rows of a set of examples, for `Batches` to make batches of, as of a Stream.

    inputs and targets: the ids of each, special ones and their ends included. Raises Refusal for an empty set, and for
    an example that a row has no room for.
    """

    inputs: Ragged
    targets: Ragged
    vocabulary: Vocabulary
    shape: Shape
    seed: int
    training = True

    def __post_init__(self):
        if not len(self.inputs.lengths):
            raise Refusal(BAD_DATA, "there is no example to train on; give some")
        if len(long := np.flatnonzero((self._sizes > self._room).any(1))):
            size, room = self._sizes[long[0]].tolist(), self._room.tolist()
            reason = f"example {long[0]} takes {size} positions, a row has {room}"
            raise Refusal(BAD_DATA, f"{reason}; raise data.lengths, or shorten it ({len(long)} are too long)")

    @property
    def _sizes(self) -> np.ndarray:
        both = np.stack([self.inputs.lengths, self.targets.lengths], 1)
        return both if self.shape.encoder else both.sum(1, keepdims=True)

    @property
    def _room(self) -> np.ndarray:
        return np.array([self.shape.encoder, self.shape.decoder] if self.shape.encoder else [self.shape.decoder])

    @cached_property
    def epoch(self):
        """`epoch(number)`: the examples of an epoch in the order of its rows, and the row of each."""
        return lru_cache(2)(self._epoch)

    def _epoch(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        near = Draws(self.seed, 0, [number]).uniform(len(self._sizes))[0] / 4  # of like sizes, another one first
        row_of = plan(self._sizes, self._room, np.argsort(near - (self._sizes / self._room).max(1)))
        row_of = permute(row_of, int(row_of.max()) + 1, self.seed << 64 | number)
        by_row = np.argsort(row_of, kind="stable")
        return by_row, row_of[by_row]

    @cached_property
    def _rows_of(self):
        return cache(lambda number: int(self.epoch(number)[1][-1]) + 1)

    def rows(self, epochs: int) -> int:
        """Rows in so many epochs; each is planned, so this takes a while for a large set."""
        return sum(self._rows_of(number) for number in range(epochs))

    def pairs(self, indices) -> tuple[Pairs, np.ndarray]:
        """The pairs of those rows, one a segment, and for each the place in `indices` of its row, ascending."""
        found, places = [], []
        for place, row in enumerate(indices):
            number = 0
            while row >= self._rows_of(number):
                row -= self._rows_of(number)
                number += 1
            examples, row_of = self.epoch(number)
            found.append(examples[slice(*np.searchsorted(row_of, [row, row + 1]))])
            places.append(np.full(len(found[-1]), place))
        examples = np.concatenate(found)
        return Pairs(self.inputs.take(examples), self.targets.take(examples)), np.concatenate(places)
