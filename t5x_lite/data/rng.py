"""Random numbers as a function of position: those of a row depend on its own index and on nothing
beside it.

All come from counter-based Philox (Salmon et al., 2011), numpy's Philox4x64: a key of 128 bits and
a counter of 256. Whatever draws owns its own bits, so that no two purposes ever share a number:

    purpose             key: bits 64-94   bits 40-63   bits 0-39   counter
    rows, training      seed              stream       0           of the row: see below
    rows, validation    seed              stream       2^32        of the row
    packing plans       seed              0            2^33        of the row; and 0, by epoch
    negatives, training seed              stream       2^34        of the row
    …, validation       seed              stream       2^35        of the row
    spans to score      seed              0            2^36        of the span
    … their documents   seed              0            2^37        of row 0
    block order         seed              source       epoch       0
    static order        seed + 2^61       stream       epoch       0
    block offset        seed + 2^62       source       epoch       0

    counter of a row    bits 0-63: a block of its index; 64-95: which draw; 96-127: numbers drawn
                        for each row; 128-191: the piece of the row; bit 192 set

(2^61 and 2^62 above bit 64 are bits 125 and 126 of the key.) Only raw words come from numpy, whose
Philox stream is fixed; what is made of them here never changes with numpy's version.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike


class Purpose(IntEnum):
    """What is added to a key: see the table above."""

    TRAINING_ROWS = 0
    VALIDATION_ROWS = 1 << 32
    PACKING = 1 << 33
    TRAINING_NEGATIVES = 1 << 34
    VALIDATION_NEGATIVES = 1 << 35
    SCORED_SPANS = 1 << 36
    DOCUMENTS_OF_SPANS = 1 << 37
    BLOCK_ORDER = 0  # counter 0, which no row has
    STATIC_ORDER = 1 << 125
    BLOCK_OFFSET = 1 << 126


def philox_key(seed: int, purpose: Purpose, stream: int = 0, epoch: int = 0) -> int:
    """The key of a purpose, of one stream or source, in one epoch."""
    return (seed << 64) + (stream << 40) + epoch + purpose


_ROW_COUNTER = 1 << 192
_LAST = ~np.uint64(0)  # a sort key after all others


class RowRng:
    """Random numbers for several rows at once, the same for a row whatever rows it is drawn with.

    Row (key, index, piece) takes its d-th draw of n numbers from the words index·n … of a Philox
    stream whose counter holds d, n and piece: neighbouring rows are read in one go, and any row can
    be read alone.

    Args:
        key: of `philox_key`.
        indices: [rows] the indices of the rows.
        pieces: [rows] or one for all: which piece of its row each is.

    >>> together, alone = RowRng(0, [6, 7, 8]), RowRng(0, [7])
    >>> together.integers(10, 4)[1].tolist() == alone.integers(10, 4)[0].tolist()
    True
    """

    def __init__(self, key: int, indices: ArrayLike, pieces: ArrayLike = 0):
        self._key = key
        self._draw = 0
        self._indices = np.atleast_1d(np.asarray(indices, np.int64))
        self._pieces = np.broadcast_to(pieces, self._indices.shape)
        # Runs of consecutive indices are read from one stream.
        next_index = self._indices[1:] == self._indices[:-1] + 1
        same_piece = self._pieces[1:] == self._pieces[:-1]
        cuts = np.flatnonzero(~(next_index & same_piece)) + 1
        self._runs = list(zip([0, *cuts], [*cuts, len(self)], strict=True))

    def __len__(self) -> int:
        return len(self._indices)

    def random_bits(self, n: int) -> np.ndarray:
        """The next n random 64-bit words of each row: uint64 [rows, n]."""
        runs = []
        for start, end in self._runs:
            piece, index = int(self._pieces[start]), int(self._indices[start])
            block, skipped = divmod(index * n, 4)  # a Philox block is four words
            # Pieces of different lengths draw different numbers: n is part of the counter.
            counter = block + (self._draw << 64) + (n << 96) + (piece << 128) + _ROW_COUNTER
            philox = np.random.Philox(key=self._key, counter=counter)
            runs.append(philox.random_raw(skipped + int(end - start) * n)[skipped:])
        self._draw += 1
        words = runs[0] if len(runs) == 1 else np.concatenate(runs)
        return words.reshape(len(self), n)

    def uniform(self, n: int) -> np.ndarray:
        """Numbers in [0, 1), in steps of 2⁻⁵³: float64 [rows, n]."""
        return (self.random_bits(n) >> np.uint64(11)) * 2.0**-53

    def integers(self, high: ArrayLike, n: int = 1) -> np.ndarray:
        """Integers in [0, high): int64 [rows, n]; high is a number or an array that broadcasts,
        each below 2³².
        """
        return (self.uniform(n) * high).astype(np.int64)

    def sort_keys(self, n: int) -> np.ndarray:
        """Random keys, all different within a row and below the largest uint64: sorting by them
        shuffles n things. The low n.bit_length() bits of each are its place.
        """
        low_bits = np.uint64((1 << n.bit_length()) - 1)
        return self.random_bits(n) & ~low_bits | np.arange(n, dtype=np.uint64)

    def permutation(self, n: int) -> np.ndarray:
        """A random permutation of range(n) for each row: int64 [rows, n]."""
        return np.argsort(self.sort_keys(n), axis=1)

    def subset(self, candidates: int | np.ndarray, count: int | np.ndarray) -> np.ndarray:
        """A random subset of each row's candidates, every subset of its size equally likely: bool
        [rows, n].

        Args:
            candidates: bool [rows, n], or n where all are.
            count: the size of the subset, one number or one for each row, at most as many as there
                are candidates.
        """
        n = candidates if isinstance(candidates, int) else candidates.shape[1]
        keys = self.sort_keys(n)
        if not isinstance(candidates, int):
            keys[~candidates] = _LAST
        # Chosen are the candidates with the `count` smallest keys.
        if np.ndim(count) == 0:
            # All or nothing, where `partition` has no place to divide at.
            if not 0 < count < n:
                return np.full(keys.shape, count > 0)
            return keys < np.partition(keys, count, axis=1)[:, count : count + 1]
        counts = np.asarray(count)
        largest = np.minimum(counts, n - 1)
        partitioned = np.partition(keys, np.unique(largest), axis=1)
        threshold = np.take_along_axis(partitioned, largest[:, None], 1)
        return keys < np.where(counts[:, None] < n, threshold, _LAST)
