"""Which tokens a row reads: windows of a text as a pure function of the row's index, in O(1)
memory.

ShuffledWindows     training: cut one after another from the text in its shuffled order, without end
StaticWindows       training with static masks: always the same windows, in another order each epoch
SequentialWindows   validation: cut one after another from the text as it is, once
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from t5x_lite.data.rng import Purpose, philox_key
from t5x_lite.data.store.corpus import Tokens

_READ_AT_A_TIME = 1 << 24  # tokens: a text may be larger than memory


class Windows(Protocol):
    """Windows of one text; arrays of row indices in, one entry for each out."""

    @property
    def tokens(self) -> Tokens:
        """The text."""
        ...

    @property
    def size(self) -> int:
        """Tokens of a window."""
        ...

    def rows(self, epochs: int) -> int:
        """How many windows end before the text would be read more often than that."""
        ...

    def epochs(self, rows: float) -> float:
        """How often so many windows have read the text."""
        ...

    def window_ids(self, indices: np.ndarray) -> np.ndarray:
        """What a row's window and its random numbers are keyed by."""
        ...

    def read(self, window_ids: np.ndarray) -> np.ndarray | list[np.ndarray]:
        """The windows: [rows, size], or a list where the last may be shorter."""
        ...

    def places(self, window_ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Where in the text a token of each window is, `offsets` [rows] after its first."""
        ...


def permute(index: np.ndarray, size: int, key: int) -> np.ndarray:
    """Where a keyed permutation of range(size) sends each index, in O(1) memory.

    A Feistel network over the digits of a number in mixed radix; what falls on the few numbers
    beyond the range goes through it again until it is inside (Black and Rogaway, 2002, "Ciphers
    with arbitrary finite domains", §3 and §4).

    >>> sorted(permute(np.arange(10), 10, key=7).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    # A number is two digits, high · low ≥ size and hardly larger.
    root = math.isqrt(size - 1) + 1
    high, low = np.uint64(root), np.uint64(-(-size // root))
    round_keys = np.random.Philox(key=key).random_raw(4)

    def mix(digit, round_key):
        x = (digit + round_key) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        return x >> np.uint64(32)

    def network(x):
        left, right = x // low, x % low
        for i in (0, 2):
            left = (left + mix(right, round_keys[i])) % high
            right = (right + mix(left, round_keys[i + 1])) % low
        return left * low + right

    x = network(np.asarray(index, np.uint64))
    while (outside := x >= size).any():
        x[outside] = network(x[outside])
    return x.astype(np.int64)


@dataclass(frozen=True)
class BlockOrder:
    """The endless order in which training reads a text: epoch after epoch, each a permutation of
    fixed blocks, cut from a random offset. Whoever has read up to the same position has read the
    same text, whatever the windows.
    """

    tokens: Tokens
    block: int  # tokens that stay together
    seed: int
    source: int = 0  # number of the text among several
    # Replaces the last token of a block, where windows cross into the next
    boundary: int | None = None

    @property
    def blocks(self) -> int:
        """Blocks of an epoch."""
        return len(self.tokens) // self.block

    @property
    def epoch_tokens(self) -> int:
        """Tokens of an epoch; fewer than a block are left out, others each time."""
        return self.blocks * self.block

    def read(self, starts: np.ndarray, size: int) -> np.ndarray:
        """`size` tokens from each of those positions of the order: [len(starts), size]."""
        # Where in the text the blocks begin that each window touches.
        first_block = starts // self.block
        last_block = (starts + size - 1) // self.block
        touched = int((last_block - first_block).max()) + 1  # at most
        block_begins = self._block_begins(first_block[:, None] + np.arange(touched))

        # A window is a run of pieces of blocks: source position = window position + a shift for
        # each piece.
        piece_edges = np.arange(touched + 1) * self.block - (starts % self.block)[:, None]
        piece_sizes = np.diff(np.clip(piece_edges, 0, size)).reshape(-1)
        flat_positions = np.arange(len(starts) * size)
        shifts = block_begins - piece_edges[:, :-1] - flat_positions[::size, None]
        sources = np.repeat(shifts, piece_sizes) + flat_positions
        # The offset moves the last block past the end of the text: wrap around.
        windows = self.tokens.take(sources, mode="wrap").reshape(len(starts), size)

        if self.boundary is not None:
            rows, pieces = np.nonzero(piece_edges[:, 1:] <= size)
            windows[rows, piece_edges[rows, pieces + 1] - 1] = self.boundary
        return windows

    def places(self, positions: np.ndarray) -> np.ndarray:
        """Where in the text each of those positions of the order is."""
        begins = self._block_begins(positions // self.block)
        return (begins + positions % self.block) % len(self.tokens)

    def _block_begins(self, block_ids: np.ndarray) -> np.ndarray:
        """Where in the text each block of the order begins."""
        epochs, numbers = np.divmod(block_ids, self.blocks)
        begins = np.empty_like(numbers)
        for epoch in np.unique(epochs).tolist():
            offset_key = philox_key(self.seed, Purpose.BLOCK_OFFSET, self.source, epoch)
            offset = int(np.random.Philox(key=offset_key).random_raw() % self.block)
            in_epoch = epochs == epoch
            order_key = philox_key(self.seed, Purpose.BLOCK_ORDER, self.source, epoch)
            shuffled = permute(numbers[in_epoch], self.blocks, order_key)
            begins[in_epoch] = shuffled * self.block + offset
        return begins


@dataclass(frozen=True)
class ShuffledWindows:
    """Windows of a text's block order. Several objectives may share a text: one cycle of their
    mixture reads `cycle` tokens of it, and `starts` says where in these the windows of this one
    begin.
    """

    order: BlockOrder
    size: int
    cycle: int
    starts: np.ndarray

    @property
    def tokens(self) -> Tokens:
        """The text."""
        return self.order.tokens

    def rows(self, epochs: int) -> int:
        """How many windows end before the text would be read more often than that, those of others
        counted.
        """
        cycles, rest = divmod(epochs * self.order.epoch_tokens - self.size, self.cycle)
        return cycles * len(self.starts) + int(np.searchsorted(self.starts, rest, side="right"))

    def epochs(self, rows: float) -> float:
        """How often so many windows have read the text, those of others counted."""
        return rows * self.cycle / len(self.starts) / self.order.epoch_tokens

    def window_ids(self, indices: np.ndarray) -> np.ndarray:
        """The index itself."""
        return indices

    def read(self, window_ids: np.ndarray) -> np.ndarray:
        """The windows [rows, size]."""
        return self.order.read(self._positions(window_ids), self.size)

    def places(self, window_ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Where in the text a token of each window is."""
        return self.order.places(self._positions(window_ids) + offsets)

    def _positions(self, window_ids: np.ndarray) -> np.ndarray:
        """Where in the order each window begins."""
        cycles, within = np.divmod(window_ids, len(self.starts))
        return cycles * self.cycle + self.starts[within]


@dataclass(frozen=True)
class StaticWindows:
    """The same windows in every epoch, in an order of its own."""

    tokens: Tokens
    size: int
    seed: int
    stream: int = 0  # number of the stream among several

    def rows(self, epochs: int) -> int:
        """Windows in so many epochs."""
        return epochs * (len(self.tokens) // self.size)

    def epochs(self, rows: float) -> float:
        """The share of the windows."""
        return rows / self.rows(1)

    def window_ids(self, indices: np.ndarray) -> np.ndarray:
        """The number of the window in the text: it comes again in each epoch."""
        epochs, ids = np.divmod(indices, self.rows(1))
        for epoch in np.unique(epochs).tolist():
            key = philox_key(self.seed, Purpose.STATIC_ORDER, self.stream, epoch)
            in_epoch = epochs == epoch
            ids[in_epoch] = permute(ids[in_epoch], self.rows(1), key)
        return ids

    def read(self, window_ids: np.ndarray) -> np.ndarray:
        """The windows [rows, size]."""
        return self.tokens[(window_ids * self.size)[:, None] + np.arange(self.size)]

    def places(self, window_ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Where in the text a token of each window is."""
        return window_ids * self.size + offsets


@dataclass(frozen=True)
class SequentialWindows:
    """Windows as they follow each other through the text; the last may be shorter, down to
    `min_tokens`.
    """

    tokens: Tokens
    size: int
    min_tokens: int

    def rows(self, epochs: int) -> int:
        """Windows in so many epochs."""
        whole, rest = divmod(len(self.tokens), self.size)
        return epochs * (whole + (rest >= self.min_tokens))

    def epochs(self, rows: float) -> float:
        """The share of the windows."""
        return rows / self.rows(1)

    def window_ids(self, indices: np.ndarray) -> np.ndarray:
        """The index itself."""
        return indices

    def read(self, window_ids: np.ndarray) -> list[np.ndarray]:
        """One window each."""
        return [self.tokens[start : start + self.size] for start in window_ids * self.size]

    def places(self, window_ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Where in the text a token of each window is."""
        return window_ids * self.size + offsets


@dataclass(frozen=True)
class Documents:
    """The documents of a text, each with the EOS that it ends in."""

    tokens: Tokens
    eos: int

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def ends(self) -> np.ndarray:
        """Where each document ends: the place after its last token."""
        ends = [np.array([len(self.tokens)])]
        for start in range(0, len(self.tokens), _READ_AT_A_TIME):
            part = self.tokens[start : start + _READ_AT_A_TIME]
            ends.append(np.flatnonzero(part == self.eos) + start + 1)
        return np.unique(np.concatenate(ends))

    def elsewhere(self, places: np.ndarray, uniform: np.ndarray, size: int) -> np.ndarray:
        """For each place tokens of another document, from a place as likely as any other there is:
        [rows, size], with EOS from the end of that document on.

        Args:
            places: [rows] in the text.
            uniform: [rows] in [0, 1), which decides.
        """
        begin, end = self._bounds(places)
        rest = len(self.tokens) - (end - begin)
        start = (uniform * rest).astype(np.int64)
        start += np.where(start >= begin, end - begin, 0)  # past the own document
        # As much of the document, its EOS aside, as there is room for.
        begin, end = self._bounds(start)
        start = np.maximum(np.minimum(start, end - 1 - size), begin)
        at = start[:, None] + np.arange(size)
        return np.where(at < end[:, None], self.tokens.take(at, mode="clip"), self.eos)

    def _bounds(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the document of each place begins and ends."""
        number = np.searchsorted(self.ends, places, side="right")
        return np.append(0, self.ends)[number], self.ends[number]
