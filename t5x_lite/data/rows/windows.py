"""Which tokens a row reads: windows of a text as a pure function of the row index, in O(1) memory.

ShuffledWindows     training: consecutive windows of the text in its shuffled order, infinite
StaticWindows       training with static masks: the same windows each epoch, in a new order
SequentialWindows   validation: consecutive windows of the text in its own order, once
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from t5x_lite.data.rng import Purpose, philox_key
from t5x_lite.data.store.corpus import Tokens

_READ_AT_A_TIME = 1 << 24  # tokens; a text may be larger than memory


class Windows(Protocol):
    """Windows of one text. Methods that take arrays [rows] return one entry per row."""

    @property
    def tokens(self) -> Tokens:
        """Token ids of the text."""
        ...

    @property
    def size(self) -> int:
        """Tokens in a window."""
        ...

    def rows(self, epochs: int) -> int:
        """Return how many windows `epochs` epochs of the text hold."""
        ...

    def epochs(self, rows: float) -> float:
        """Return the epochs of the text completed after this many windows."""
        ...

    def window_ids(self, indices: np.ndarray) -> np.ndarray:
        """Return the key of each row's window and random numbers."""
        ...

    def read(self, window_ids: np.ndarray) -> np.ndarray | list[np.ndarray]:
        """Read the windows: [rows, size], or a list if the last one may be shorter."""
        ...

    def places(self, window_ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return the position in the text of one token per window: the token that is `offsets`
        [rows] tokens after the first.
        """
        ...

    def cut(self, window_ids: np.ndarray) -> float:
        """Return the fraction of these windows that are not one contiguous piece of the text."""
        ...


def permute(index: np.ndarray, size: int, key: int) -> np.ndarray:
    """Map each index through a keyed permutation of range(size), in O(1) memory.

    This is a Feistel network over the two digits of a number in mixed radix. The digits can hold
    slightly more numbers than the range: a result outside the range goes through the network again
    until it is inside (Black and Rogaway, 2002, "Ciphers with arbitrary finite domains", §3 and
    §4).

    >>> sorted(permute(np.arange(10), 10, key=7).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    # Write a number as two digits. Their radices satisfy high · low ≥ size, with hardly any excess.
    root = math.isqrt(size - 1) + 1
    high, low = np.uint64(root), np.uint64(-(-size // root))
    round_keys = np.random.Philox(key=key).random_raw(4)

    def mix(digit, round_key):
        """Hash a digit and a round key to 32 bits."""
        x = (digit + round_key) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        return x >> np.uint64(32)

    def network(x):
        """Apply four rounds of the Feistel network."""
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
    """The infinite order in which training reads a text: epoch after epoch, each a permutation of
    fixed blocks, cut from a random offset. Runs that have read up to the same position have read
    the same text, for any window length.
    """

    tokens: Tokens
    block: int  # tokens that stay together
    seed: int
    source: int = 0  # index of the text among several
    # Id that replaces the last token of each block if windows can cross into the next block
    boundary: int | None = None

    @property
    def blocks(self) -> int:
        """Number of blocks in an epoch."""
        return len(self.tokens) // self.block

    @property
    def epoch_tokens(self) -> int:
        """Tokens in an epoch. Less than one block is left out, a different part in each epoch."""
        return self.blocks * self.block

    def read(self, starts: np.ndarray, size: int) -> np.ndarray:
        """Read `size` tokens from each of these positions of the order: [len(starts), size]."""
        # Find where in the text the blocks begin that each window touches.
        first_block = starts // self.block
        last_block = (starts + size - 1) // self.block
        touched = int((last_block - first_block).max()) + 1  # most blocks that any window touches
        block_begins = self._block_begins(first_block[:, None] + np.arange(touched))

        # A window is a sequence of pieces of blocks. For each piece, position in the text =
        # position in the window + a shift.
        piece_edges = np.arange(touched + 1) * self.block - (starts % self.block)[:, None]
        piece_sizes = np.diff(np.clip(piece_edges, 0, size)).reshape(-1)
        flat_positions = np.arange(len(starts) * size)
        shifts = block_begins - piece_edges[:, :-1] - flat_positions[::size, None]
        sources = np.repeat(shifts, piece_sizes) + flat_positions
        # The offset can move the last block past the end of the text, so wrap around.
        windows = self.tokens.take(sources, mode="wrap").reshape(len(starts), size)

        if self.boundary is not None:
            # Replace the last token of every block that ends in the window.
            rows, pieces = np.nonzero(piece_edges[:, 1:] <= size)
            windows[rows, piece_edges[rows, pieces + 1] - 1] = self.boundary
        return windows

    def places(self, positions: np.ndarray) -> np.ndarray:
        """Return where in the text each of these positions in the order is."""
        begins = self._block_begins(positions // self.block)
        return (begins + positions % self.block) % len(self.tokens)

    def _block_begins(self, block_ids: np.ndarray) -> np.ndarray:
        """Return where in the text each block of the order begins."""
        epochs, numbers = np.divmod(block_ids, self.blocks)
        begins = np.empty_like(numbers)
        for epoch in np.unique(epochs).tolist():
            offset_key = philox_key(self.seed, Purpose.BLOCK_OFFSET, self.source, epoch)
            offset = int(np.random.Philox(key=offset_key).random_raw() % self.block)
            # Blocks are numbered from the offset, and permuted anew in each epoch.
            in_epoch = epochs == epoch
            order_key = philox_key(self.seed, Purpose.BLOCK_ORDER, self.source, epoch)
            shuffled = permute(numbers[in_epoch], self.blocks, order_key)
            begins[in_epoch] = shuffled * self.block + offset
        return begins


@dataclass(frozen=True)
class ShuffledWindows:
    """Windows of a text in block order. If several objectives share a text, one cycle of their
    mixture reads `cycle` tokens of it, and `starts` holds the places in the cycle where the windows
    of this objective begin.
    """

    order: BlockOrder
    size: int
    cycle: int
    starts: np.ndarray

    @property
    def tokens(self) -> Tokens:
        """Token ids of the text."""
        return self.order.tokens

    def rows(self, epochs: int) -> int:
        """Return the windows available in `epochs` epochs, counting the tokens that other
        objectives consume.
        """
        # The last window has to end within the tokens of these epochs.
        cycles, rest = divmod(epochs * self.order.epoch_tokens - self.size, self.cycle)
        return cycles * len(self.starts) + int(np.searchsorted(self.starts, rest, side="right"))

    def epochs(self, rows: float) -> float:
        """Return the epochs completed after this many windows, counting the tokens that other
        objectives consume.
        """
        return rows * self.cycle / len(self.starts) / self.order.epoch_tokens

    def window_ids(self, indices: np.ndarray) -> np.ndarray:
        """Return the indices unchanged."""
        return indices

    def read(self, window_ids: np.ndarray) -> np.ndarray:
        """Read the windows [rows, size]."""
        return self.order.read(self._positions(window_ids), self.size)

    def places(self, window_ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return where in the text a token of each window is."""
        return self.order.places(self._positions(window_ids) + offsets)

    def cut(self, window_ids: np.ndarray) -> float:
        """Return the fraction of these windows that run from one block into another."""
        within_block = self._positions(window_ids) % self.order.block
        return float(np.mean(within_block + self.size > self.order.block))

    def _positions(self, window_ids: np.ndarray) -> np.ndarray:
        """Return where in the order each window begins."""
        cycles, within = np.divmod(window_ids, len(self.starts))
        return cycles * self.cycle + self.starts[within]


@dataclass(frozen=True)
class StaticWindows:
    """The same windows of a text in every epoch, each epoch in its own order."""

    tokens: Tokens
    size: int
    seed: int
    stream: int = 0  # index of the stream among several

    def rows(self, epochs: int) -> int:
        """Return the number of windows in this many epochs."""
        return epochs * (len(self.tokens) // self.size)

    def epochs(self, rows: float) -> float:
        """Return the epochs completed after this many windows."""
        return rows / self.rows(1)

    def window_ids(self, indices: np.ndarray) -> np.ndarray:
        """Return the index in the text of each row's window, which is the same in every epoch."""
        epochs, ids = np.divmod(indices, self.rows(1))
        for epoch in np.unique(epochs).tolist():
            key = philox_key(self.seed, Purpose.STATIC_ORDER, self.stream, epoch)
            in_epoch = epochs == epoch
            ids[in_epoch] = permute(ids[in_epoch], self.rows(1), key)
        return ids

    def read(self, window_ids: np.ndarray) -> np.ndarray:
        """Read the windows [rows, size]."""
        return self.tokens[(window_ids * self.size)[:, None] + np.arange(self.size)]

    def places(self, window_ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return where in the text a token of each window is."""
        return window_ids * self.size + offsets

    def cut(self, window_ids: np.ndarray) -> float:
        """Return 0: every window is one piece of the text."""
        return 0.0


@dataclass(frozen=True)
class SequentialWindows:
    """Consecutive windows of a text. The last one may be shorter, down to `min_tokens`."""

    tokens: Tokens
    size: int
    min_tokens: int

    def rows(self, epochs: int) -> int:
        """Return the number of windows in this many epochs."""
        whole, rest = divmod(len(self.tokens), self.size)
        return epochs * (whole + (rest >= self.min_tokens))

    def epochs(self, rows: float) -> float:
        """Return the epochs completed after this many windows."""
        return rows / self.rows(1)

    def window_ids(self, indices: np.ndarray) -> np.ndarray:
        """Return the indices unchanged."""
        return indices

    def read(self, window_ids: np.ndarray) -> list[np.ndarray]:
        """Read the windows as a list, since the last one may be shorter."""
        return [self.tokens[start : start + self.size] for start in window_ids * self.size]

    def places(self, window_ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return where in the text a token of each window is."""
        return window_ids * self.size + offsets

    def cut(self, window_ids: np.ndarray) -> float:
        """Return 0: every window is one piece of the text."""
        return 0.0


@dataclass(frozen=True)
class Documents:
    """The documents of a text, each with the EOS at its end."""

    tokens: Tokens
    eos: int

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def ends(self) -> np.ndarray:
        """End of each document: the index after its last token."""
        ends = [np.array([len(self.tokens)])]
        for start in range(0, len(self.tokens), _READ_AT_A_TIME):
            part = self.tokens[start : start + _READ_AT_A_TIME]
            ends.append(np.flatnonzero(part == self.eos) + start + 1)
        return np.unique(np.concatenate(ends))

    def elsewhere(self, places: np.ndarray, uniform: np.ndarray, size: int) -> np.ndarray:
        """Read tokens of another document for each position in the text: [rows, size]. The position
        to read from is drawn uniformly from the text outside the document of the given position.
        After the end of the other document, the row is filled with EOS.

        Args:
            places: [rows] positions in the text.
            uniform: [rows] random numbers in [0, 1) that decide where to read.
        """
        begin, end = self._bounds(places)
        rest = len(self.tokens) - (end - begin)
        start = (uniform * rest).astype(np.int64)
        start += np.where(start >= begin, end - begin, 0)  # skip the document of the given position
        # Move the start back where needed, to read as much of the document (without its EOS) as
        # fits.
        begin, end = self._bounds(start)
        start = np.maximum(np.minimum(start, end - 1 - size), begin)
        at = start[:, None] + np.arange(size)
        return np.where(at < end[:, None], self.tokens.take(at, mode="clip"), self.eos)

    def _bounds(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where the document of each position begins and ends."""
        number = np.searchsorted(self.ends, places, side="right")
        return np.append(0, self.ends)[number], self.ends[number]
