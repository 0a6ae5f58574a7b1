"""Random numbers as a function of position: the numbers of a row depend only on its own key and
index, not on the other rows of a batch.

All numbers come from counter-based Philox (Salmon et al., 2011), in numpy's form Philox4x64, which
has a key of 128 bits and a counter of 256. Each purpose has its own keys or counters, so no two
purposes ever share a number:

    purpose                key: bits 64-94   bits 40-63   bits 0-39      counter
    training rows          seed              stream       0              of the row: see below
    validation rows        seed              stream       2^32           of the row
    packing plans          seed              0            2^33           of the epoch, as a row
    order of packed rows   seed              0            2^33 + epoch   0
    training negatives     seed              stream       2^34           of the row
    validation negatives   seed              stream       2^35           of the row
    scored spans           seed              0            2^36           of the span, as a row
    documents of spans     seed              0            2^37           of row 0
    block order            seed              source       epoch          0
    static order           seed + 2^61       stream       epoch          0
    block offset           seed + 2^62       source       epoch          0

    counter of a row       bits 0-63: a Philox block, from the row's index; 64-95: number of the
                           draw; 96-127: numbers drawn for each row; 128-191: piece of the row;
                           bit 192: set
    start of spread        bit 193: set

(2^61 and 2^62, added to the seed, are bits 125 and 126 of the key.) Only raw 64-bit words come from
numpy, whose Philox stream is fixed. They are turned into numbers here, so the results do not change
with numpy's version.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike


class Purpose(IntEnum):
    """Constant that each purpose adds to the key: see the table in the module docstring."""

    TRAINING_ROWS = 0
    VALIDATION_ROWS = 1 << 32
    PACKING = 1 << 33
    TRAINING_NEGATIVES = 1 << 34
    VALIDATION_NEGATIVES = 1 << 35
    SCORED_SPANS = 1 << 36
    DOCUMENTS_OF_SPANS = 1 << 37
    BLOCK_ORDER = 0  # with counter 0, which no row has
    STATIC_ORDER = 1 << 125
    BLOCK_OFFSET = 1 << 126


def philox_key(seed: int, purpose: Purpose, stream: int = 0, epoch: int = 0) -> int:
    """Return the key for a purpose, a stream or source, and an epoch."""
    return (seed << 64) + (stream << 40) + epoch + purpose


_ROW_COUNTER = 1 << 192
_SPREAD_COUNTER = 1 << 193
# 2⁶⁴ divided by the golden ratio, and by the plastic number, its counterpart in two dimensions
_GOLDEN, _PLASTIC = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC13FA9A902A6328F)
_LAST = ~np.uint64(0)  # a sort key that comes after all others


class RowRng:
    """Random numbers for several rows at once. A row gets the same numbers no matter which rows it
    is drawn with.

    Row (key, index, piece) takes its d-th draw of n numbers from the words index·n, index·n + 1, …
    of a Philox stream whose counter holds d, n and piece. So neighbouring rows can be drawn
    together, and any row can be drawn on its own.

    Args:
        key: key from `philox_key`.
        indices: [rows] index of each row.
        pieces: [rows], or one value for all rows: number of the piece within its row.
        progress: [rows], or one value for all rows: fraction of the training that is done when the
            row is read.

    >>> together, alone = RowRng(0, [6, 7, 8]), RowRng(0, [7])
    >>> together.integers(10, 4)[1].tolist() == alone.integers(10, 4)[0].tolist()
    True
    """

    def __init__(
        self, key: int, indices: ArrayLike, pieces: ArrayLike = 0, progress: ArrayLike = 1.0
    ):
        self._key = key
        self._draw = 0
        self._indices = np.atleast_1d(np.asarray(indices, np.int64))
        self._pieces = np.broadcast_to(pieces, self._indices.shape)
        self.progress = np.broadcast_to(progress, self._indices.shape)
        # Runs of consecutive indices are read from one stream.
        next_index = self._indices[1:] == self._indices[:-1] + 1
        same_piece = self._pieces[1:] == self._pieces[:-1]
        cuts = np.flatnonzero(~(next_index & same_piece)) + 1
        self._runs = list(zip([0, *cuts], [*cuts, len(self)], strict=True))

    def __len__(self) -> int:
        return len(self._indices)

    def random_bits(self, n: int) -> np.ndarray:
        """Return the next n random 64-bit words of each row: uint64 [rows, n]."""
        runs = []
        for start, end in self._runs:
            piece, index = int(self._pieces[start]), int(self._indices[start])
            block, skipped = divmod(index * n, 4)  # a Philox block is four words
            # n is part of the counter, since pieces of different lengths draw different numbers.
            counter = block + (self._draw << 64) + (n << 96) + (piece << 128) + _ROW_COUNTER
            philox = np.random.Philox(key=self._key, counter=counter)
            runs.append(philox.random_raw(skipped + int(end - start) * n)[skipped:])
        self._draw += 1
        words = runs[0] if len(runs) == 1 else np.concatenate(runs)
        return words.reshape(len(self), n)

    def uniform(self, n: int) -> np.ndarray:
        """Draw numbers in [0, 1), multiples of 2⁻⁵³: float64 [rows, n]."""
        return (self.random_bits(n) >> np.uint64(11)) * 2.0**-53

    def spread(self) -> np.ndarray:
        """Return one number in [0, 1) for each row: float64 [rows]. Neighbouring rows have numbers
        far apart, and consecutive rows cover [0, 1) evenly. The number of row 0 is random, and each
        following row adds the golden ratio, modulo 1.

        >>> RowRng(7, range(4)).spread().round(2).tolist()
        [0.95, 0.57, 0.19, 0.8]
        """
        start = np.random.Philox(key=self._key, counter=_SPREAD_COUNTER).random_raw() * 2.0**-64
        # Whole numbers in fixed point, since a float has too few digits for large indices.
        steps = (
            self._indices.astype(np.uint64) * _GOLDEN + self._pieces.astype(np.uint64) * _PLASTIC
        )
        return (start + (steps >> np.uint64(11)) * 2.0**-53) % 1.0

    def integers(self, high: ArrayLike, n: int = 1) -> np.ndarray:
        """Draw integers in [0, high): int64 [rows, n]. `high` is a number or an array that
        broadcasts, with values below 2³².
        """
        return (self.uniform(n) * high).astype(np.int64)

    def sort_keys(self, n: int) -> np.ndarray:
        """Draw random sort keys: uint64 [rows, n], all different within a row and below the largest
        uint64. Sorting by them shuffles n things. The low n.bit_length() bits of a key are its
        place in the row.
        """
        low_bits = np.uint64((1 << n.bit_length()) - 1)
        return self.random_bits(n) & ~low_bits | np.arange(n, dtype=np.uint64)

    def permutation(self, n: int) -> np.ndarray:
        """Draw a random permutation of range(n) for each row: int64 [rows, n]."""
        return np.argsort(self.sort_keys(n), axis=1)

    def subset(self, candidates: int | np.ndarray, count: int | np.ndarray) -> np.ndarray:
        """Draw a random subset of each row's candidates, with all subsets of its size equally
        likely: bool [rows, n].

        Args:
            candidates: bool [rows, n], or the number n if all are candidates.
            count: size of the subset, one number for all rows or one per row; at most the number of
                candidates.
        """
        n = candidates if isinstance(candidates, int) else candidates.shape[1]
        keys = self.sort_keys(n)
        if not isinstance(candidates, int):
            keys[~candidates] = _LAST
        # Choose the candidates with the `count` smallest keys.
        if np.ndim(count) == 0:
            # An empty or complete subset leaves nothing for `partition` to divide.
            if not 0 < count < n:
                return np.full(keys.shape, count > 0)
            return keys < np.partition(keys, count, axis=1)[:, count : count + 1]
        counts = np.asarray(count)
        largest = np.minimum(counts, n - 1)
        partitioned = np.partition(keys, np.unique(largest), axis=1)
        threshold = np.take_along_axis(partitioned, largest[:, None], 1)
        return keys < np.where(counts[:, None] < n, threshold, _LAST)
