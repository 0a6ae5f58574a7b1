"""Which tokens a row reads: windows of a text as a pure function of the row's index, in O(1) memory.

Shuffled     training: cut one behind the other from the text in its shuffled order, without end
Fixed        training with static masks: always the same windows, in another order each epoch
Successive   validation: cut one behind the other from the text as it is, once

All have `tokens`, `size` (tokens of a window), `rows(epochs)`, `epochs(rows)`, and, for an array of the indices of
rows, `numbers` (what a row's window and random numbers are known by), `read` (the windows of these) and `others`
(other windows, far away from these).
"""

import math
from dataclasses import dataclass

import numpy as np


def permute(index: np.ndarray, size: int, key: int) -> np.ndarray:
    """Where a keyed permutation of range(size) sends each index, in O(1) memory.

    A Feistel network over the digits of a number in mixed radix; what falls on the few numbers past the range walks on
    until it is inside (Black and Rogaway, 2002, "Ciphers with arbitrary finite domains", §3 and §4).

    >>> sorted(permute(np.arange(10), 10, key=7).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    high = math.isqrt(size - 1) + 1
    low = -(-size // high)
    keys = np.random.Philox(key=key).random_raw(4)

    def mixed(digit, key):
        x = (digit + key) * np.uint64(0x9E3779B97F4A7C15)
        return ((x ^ (x >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)) >> np.uint64(32)

    def network(x):
        left, right = x // low, x % low
        for i in (0, 2):
            left = (left + mixed(right, keys[i])) % high
            right = (right + mixed(left, keys[i + 1])) % low
        return left * low + right

    high, low = np.uint64(high), np.uint64(low)
    x = network(np.asarray(index, np.uint64))
    while (outside := x >= size).any():
        x[outside] = network(x[outside])
    return x.astype(np.int64)


@dataclass(frozen=True)
class Order:
    """A text as training reads it, without end: epoch after epoch, each from a random offset in fixed blocks, permuted.
    Whoever has read up to the same place has read the same text, whatever the windows.
    """

    tokens: np.ndarray
    block: int  # tokens that stay together
    seed: int
    number: int = 0  # of the text among several
    end: int | None = None  # what stands for the last token of a block, where windows go on into the next

    @property
    def epoch(self) -> int:
        """Tokens of an epoch; fewer than a block are left over, and others each time."""
        return len(self.tokens) // self.block * self.block

    def read(self, starts: np.ndarray, size: int) -> np.ndarray:
        """The `size` tokens from each of those places on: [len(starts), size]."""
        lowest = starts // self.block
        count = int(((starts + size - 1) // self.block - lowest).max()) + 1  # blocks that a window touches
        blocks = len(self.tokens) // self.block
        epochs, numbers = np.divmod(lowest[:, None] + np.arange(count), blocks)
        begins = np.empty_like(numbers)
        for epoch in np.unique(epochs):
            at, key = epochs == epoch, self.seed << 64 | self.number << 40 | int(epoch)
            offset = int(np.random.Philox(key=key + (1 << 126)).random_raw() % self.block)
            begins[at] = permute(numbers[at], blocks, key) * self.block + offset
        cuts = np.arange(count + 1) * self.block - (starts % self.block)[:, None]  # where blocks meet in a window
        sizes = np.diff(np.clip(cuts, 0, size)).reshape(-1)
        places = np.arange(len(starts) * size)
        order = np.repeat(begins - cuts[:, :-1] - places[::size, None], sizes) + places
        # The offset moves the last block over the end.
        windows = np.asarray(self.tokens).take(order, mode="wrap").reshape(len(starts), size)
        if self.end is not None:
            rows, at = np.nonzero(cuts[:, 1:] <= size)
            windows[rows, cuts[rows, at + 1] - 1] = self.end
        return windows


@dataclass(frozen=True)
class Shuffled:
    """Windows of a text's order. Several objectives may share a text: in a turn of their mixture it is read `turn`
    tokens on, and `starts` says where in these the windows of this one begin.
    """

    order: Order
    size: int
    turn: int
    starts: np.ndarray

    @property
    def tokens(self) -> np.ndarray:
        """The text's."""
        return self.order.tokens

    def rows(self, epochs: int) -> int:
        """How many end before the text would be read more often than that, the windows of others counted."""
        turns, rest = divmod(epochs * self.order.epoch - self.size, self.turn)
        return turns * len(self.starts) + int(np.searchsorted(self.starts, rest, side="right"))

    def epochs(self, rows: float) -> float:
        """How often so many rows have read the text, the windows of others counted."""
        return rows * self.turn / len(self.starts) / self.order.epoch

    def numbers(self, indices: np.ndarray) -> np.ndarray:
        """The index itself."""
        return indices

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Windows [rows, size]."""
        return self.order.read(self._places(numbers), self.size)

    def others(self, numbers: np.ndarray) -> np.ndarray:
        """For each the window half an epoch away, in the same epoch."""
        epochs, within = np.divmod(self._places(numbers), self.order.epoch)
        opposite = np.minimum((within + self.order.epoch // 2) % self.order.epoch, self.order.epoch - self.size)
        return self.order.read(epochs * self.order.epoch + opposite, self.size)

    def _places(self, numbers: np.ndarray) -> np.ndarray:
        turns, at = np.divmod(numbers, len(self.starts))
        return turns * self.turn + self.starts[at]


@dataclass(frozen=True)
class Fixed:
    """The same windows in every epoch, in an order of its own."""

    tokens: np.ndarray
    size: int
    seed: int
    number: int = 0  # of the stream among several

    def rows(self, epochs: int) -> int:
        """Windows in so many epochs."""
        return epochs * (len(self.tokens) // self.size)

    def epochs(self, rows: float) -> float:
        """The share of the windows."""
        return rows / self.rows(1)

    def numbers(self, indices: np.ndarray) -> np.ndarray:
        """That of the window in the text: it comes again in each epoch."""
        epochs, numbers = np.divmod(indices, self.rows(1))
        for epoch in np.unique(epochs):
            at, key = epochs == epoch, self.seed << 64 | self.number << 40 | int(epoch)
            numbers[at] = permute(numbers[at], self.rows(1), key + (1 << 125))
        return numbers

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Windows [rows, size]."""
        return self.tokens[(numbers * self.size)[:, None] + np.arange(self.size)]

    def others(self, numbers: np.ndarray) -> np.ndarray:
        """For each the window half the text away."""
        return self.read((numbers + self.rows(1) // 2) % self.rows(1))


@dataclass(frozen=True)
class Successive:
    """Windows as they follow each other through the text; the last may be shorter, but not than `least`."""

    tokens: np.ndarray
    size: int
    least: int

    def rows(self, epochs: int) -> int:
        """Windows in so many epochs."""
        whole, rest = divmod(len(self.tokens), self.size)
        return epochs * (whole + (rest >= self.least))

    def epochs(self, rows: float) -> float:
        """The share of the windows."""
        return rows / self.rows(1)

    def numbers(self, indices: np.ndarray) -> np.ndarray:
        """The index itself."""
        return indices

    def read(self, numbers: np.ndarray) -> list[np.ndarray]:
        """A window each."""
        return [self.tokens[start : start + self.size] for start in numbers * self.size]

    def others(self, numbers: np.ndarray) -> np.ndarray:
        """For each a whole window half the text away."""
        whole = len(self.tokens) // self.size
        starts = (numbers + whole // 2) % whole * self.size
        return self.tokens[starts[:, None] + np.arange(self.size)]
