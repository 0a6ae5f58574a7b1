"""Pack finite sets of examples (questions with answers, texts with labels): several examples share
a row, each in its own segment.

Which examples share a row is planned from their lengths, anew for each epoch, and the rows are
shuffled. The plan of a set depends only on the seed and the epoch, so a row is a pure function of
its index.
"""

from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike

from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.rng import Purpose, RowRng, philox_key
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.data.rows.windows import permute
from t5x_lite.data.tokenizers.vocabulary import Vocabulary
from t5x_lite.errors import BAD_DATA, UserError

_OPEN_ROWS = 256  # rows that are filled at a time; more would take longer and hardly pack better


def pack(sizes: np.ndarray, room: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Assign a row to each example by best fit, going through the examples in the given order.

    Args:
        sizes: [examples, resources] what each example needs, such as positions in a stack.
        room: [resources] what a row has.
        order: [examples] indices of the examples.

    >>> pack(np.array([[3], [5], [2], [4]]), np.array([7]), order=np.array([1, 3, 0, 2])).tolist()
    [1, 0, 0, 1]
    """
    row_of_example = np.empty(len(sizes), np.int64)
    free = np.zeros((_OPEN_ROWS, len(room)), np.int64)
    row_number = np.zeros(_OPEN_ROWS, np.int64)
    rows = 0
    for example in order:
        # A row must have enough of every resource. Its free room is summed over all of them.
        fits = (free >= sizes[example]).all(1)
        total_free = free.sum(1)
        # Take the fullest row with enough room.
        if fits.any():
            best = np.argmin(np.where(fits, total_free, np.iinfo(np.int64).max))
        # No row has room: close the fullest one and begin a new row.
        else:
            best = np.argmin(total_free)
            free[best] = room
            row_number[best] = rows
            rows += 1
        free[best] -= sizes[example]
        row_of_example[example] = row_number[best]
    return row_of_example


@dataclass(frozen=True)
class PackedExamples:
    """Rows of a set of examples: a RowStream for `Batches`, like text under an objective.

    Args:
        examples: pairs, with special ids and EOS included; their labels, types and weights are
            kept. Pairs of one group (the answers to one question) form one example and stay
            together.
        endless: True in training, where epoch follows epoch; otherwise only the first epoch is
            read.
        examples_per_row: most examples in a row; 0: as many as fit.

    Raises:
        UserError: if the set is empty, or an example does not fit a row.
    """

    examples: Pairs
    vocabulary: Vocabulary
    shape: RowShape
    seed: int
    endless: bool = True
    examples_per_row: int = 0

    def __post_init__(self):
        if not len(self.examples):
            raise UserError(BAD_DATA, "there is no example to train on; give some")
        # Reject oversized examples here, by index, before any epoch is planned.
        too_long = np.flatnonzero((self._sizes > self._room).any(1))
        if len(too_long):
            size, room = self._sizes[too_long[0]].tolist(), self._room.tolist()
            reason = f"example {too_long[0]} takes {size} positions, a row has {room}"
            fix = f"raise data.lengths, or shorten it ({len(too_long)} are too long)"
            raise UserError(BAD_DATA, f"{reason}; {fix}")

    @cached_property
    def _first_pairs(self) -> np.ndarray:
        """Index of the first pair of each example, and the number of all pairs at the end."""
        labels = self.examples.segment_labels
        if labels is None:
            return np.arange(len(self.examples) + 1)
        starts = np.flatnonzero(labels.groups[1:] != labels.groups[:-1]) + 1
        return np.concatenate([[0], starts, [len(self.examples)]])

    @cached_property
    def _sizes(self) -> np.ndarray:
        """The amount that each example needs of each resource in _room: [examples, resources]."""
        inputs, targets = self.examples.inputs.lengths, self.examples.targets.lengths
        sizes = np.stack([inputs, targets], 1)
        if not self.shape.encoder:
            sizes = sizes.sum(1, keepdims=True)
        if self.shape.labels:
            sizes = np.append(sizes, np.ones((len(sizes), 1), np.int64), 1)
        # Sum over the pairs of each example, which stay together.
        sizes = np.add.reduceat(sizes, self._first_pairs[:-1])
        if self.examples_per_row:
            sizes = np.append(sizes, np.ones((len(sizes), 1), np.int64), 1)
        return sizes

    @cached_property
    def _room(self) -> np.ndarray:
        """Room of a row: positions in each stack, slots for labels and for examples."""
        if self.shape.encoder:
            room = [self.shape.encoder, self.shape.scored or self.shape.decoder or 1]
        else:
            room = [self.shape.decoder]
        if self.shape.labels:
            room.append(self.shape.labels)
        if self.examples_per_row:
            room.append(self.examples_per_row)
        return np.array(room)

    @property
    def words_per_token(self) -> float:
        """Always 0: the words of examples are not counted."""
        return 0.0

    @property
    def raw_tokens(self) -> float:
        """Mean number of inputs and targets in a row of the first epoch."""
        total = self.examples.inputs.lengths.sum() + self.examples.targets.lengths.sum()
        return float(total) / self.rows(1)

    @cached_property
    def epoch(self):
        """Cached function: `epoch(number)` returns the examples of an epoch in the order of its
        rows, and the row of each example.
        """
        return lru_cache(2)(self._plan_epoch)

    def _plan_epoch(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        rng = RowRng(philox_key(self.seed, Purpose.PACKING), [number])
        # If each row has a label, it holds a single example.
        if self.examples.labels is not None:
            return rng.permutation(len(self._sizes))[0], np.arange(len(self._sizes))
        # Longest examples first, which suits best fit, with examples of similar size in a random
        # order.
        jitter = rng.uniform(len(self._sizes))[0] / 4
        longest_first = np.argsort(jitter - (self._sizes / self._room).max(1))
        row_of_example = pack(self._sizes, self._room, longest_first)
        # Shuffle the rows, since the longest examples fill the first ones.
        order_key = philox_key(self.seed, Purpose.PACKING, epoch=number)
        row_of_example = permute(row_of_example, int(row_of_example.max()) + 1, order_key)
        by_row = np.argsort(row_of_example, kind="stable")
        return by_row, row_of_example[by_row]

    @cached_property
    def _rows_of_epoch(self):
        """Cached function: number of rows in an epoch."""
        return cache(lambda number: int(self.epoch(number)[1][-1]) + 1)

    def rows(self, epochs: int) -> int:
        """Return the number of rows in this many epochs. Each epoch is planned, so this takes a
        while for a large set.
        """
        return sum(self._rows_of_epoch(number) for number in range(epochs))

    def epochs(self, rows: float) -> float:
        """Return the epochs completed after this many rows."""
        return rows / self.rows(1)

    def left_out(self, indices: ArrayLike) -> float:
        """Return 0: oversized examples are rejected."""
        return 0.0

    def cut(self, indices: ArrayLike) -> float:
        """Return 0: examples are whole."""
        return 0.0

    def pairs(self, indices: ArrayLike) -> tuple[Pairs, np.ndarray]:
        """Return the pairs of these rows, one per segment, and for each pair the position of its
        row in `indices`, ascending.
        """
        pairs, places = [], []
        for place, row in enumerate(np.asarray(indices, np.int64).tolist()):
            of_row = self.pairs_of_row(row)
            pairs.append(of_row)
            places.append(np.full(len(of_row), place))
        return self.examples.take(np.concatenate(pairs)), np.concatenate(places)

    def pairs_of_row(self, row: int) -> np.ndarray:
        """Return the indices of the pairs of a row, in the order of its segments."""
        examples = self._examples_of_row(row)
        first = self._first_pairs[examples]
        counts = self._first_pairs[examples + 1] - first
        # Consecutive indices for the pairs of each example, one example after another.
        shift = first - (np.cumsum(counts) - counts)
        return np.repeat(shift, counts) + np.arange(counts.sum())

    def _examples_of_row(self, row: int) -> np.ndarray:
        """Return the examples of a row, counted over all epochs."""
        # Epochs may have different numbers of rows, so walk through them.
        epoch = 0
        while row >= self._rows_of_epoch(epoch):
            row -= self._rows_of_epoch(epoch)
            epoch += 1
        examples, row_of_example = self.epoch(epoch)
        first, end = np.searchsorted(row_of_example, [row, row + 1])
        return examples[first:end]
