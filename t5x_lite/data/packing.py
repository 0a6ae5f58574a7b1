"""Finite sets of examples (questions with answers, texts with labels): several share a row, each a segment of its own.

Which lengths share a row is planned once, from the lengths alone; which example of a length goes where, and the order
of the rows, is drawn for each epoch. So an epoch has a known number of rows, and a row is a pure function of its index.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from t5x_lite.data.draws import Draws
from t5x_lite.data.layouts import Shape
from t5x_lite.data.objectives import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.vocabulary import Vocabulary
from t5x_lite.data.windows import permute
from t5x_lite.errors import BAD_DATA, Refusal

_OPEN = 256  # rows that are not yet full: more would hardly pack better, and take longer


def plan(sizes: np.ndarray, room: np.ndarray) -> np.ndarray:
    """The row of each example: best fit, the largest first. sizes [examples, stacks], room [stacks]: positions.

    >>> plan(np.array([[3], [5], [2], [4]]), np.array([7])).tolist()
    [1, 0, 0, 1]
    """
    row_of = np.empty(len(sizes), np.int64)
    left, number, rows = np.zeros((_OPEN, len(room)), np.int64), np.zeros(_OPEN, np.int64), 0
    for example in np.argsort(-(sizes / room).max(1), kind="stable"):
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

    inputs and targets: the ids of each, special ones and their ends included. Examples of the same length change places
    from epoch to epoch; one that is alone with its length keeps its company. Raises Refusal for a set without examples,
    and for an example that a row has no room for.
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
    def _plan(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Row and length of each place for an example, ordered by length, and the examples in that order too."""
        _, length = np.unique(self._sizes, axis=0, return_inverse=True)
        order = np.argsort(length, kind="stable")
        return plan(self._sizes, self._room)[order], length[order], order

    def rows(self, epochs: int) -> int:
        """Rows in so many epochs."""
        return epochs * (int(self._plan[0].max()) + 1)

    @cached_property
    def examples(self):
        """Of an epoch, `examples(epoch)`: its examples in the order of its rows, and the row of each."""
        return lru_cache(2)(self._examples)

    def _examples(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        row_of, length, order = self._plan
        drawn = np.lexsort((Draws(self.seed, 0, [epoch]).keys(len(order))[0], length))  # within each length
        moved = permute(row_of, self.rows(1), self.seed << 64 | epoch)
        by_row = np.argsort(moved, kind="stable")
        return order[drawn][by_row], moved[by_row]

    def pairs(self, indices) -> tuple[Pairs, np.ndarray]:
        """The pairs of those rows, one a segment, and for each the place in `indices` of its row, ascending."""
        epochs, rows = np.divmod(np.asarray(indices, np.int64), self.rows(1))
        found, places = [], []
        for epoch in np.unique(epochs):
            examples, row_of = self.examples(int(epoch))
            for place in np.flatnonzero(epochs == epoch):
                first, last = np.searchsorted(row_of, [rows[place], rows[place] + 1])
                found.append(examples[first:last])
                places.append(np.full(last - first, place))
        places = np.concatenate(places)
        order = np.argsort(places, kind="stable")
        examples = np.concatenate(found)[order]
        return Pairs(self.inputs.take(examples), self.targets.take(examples)), places[order]
