"""Streams: one text read by one objective, rows as a pure function of their index. Nothing sequential, no state."""

import math
from bisect import bisect_left
from dataclasses import dataclass, fields, replace

import numpy as np

from t5x_lite.data.draws import Draws
from t5x_lite.data.layouts import Shape
from t5x_lite.data.objectives import Objective, Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.vocabulary import Vocabulary

VERSION = 1  # of the stream: a run goes on only with the one it was started with
VALIDATION_EPOCH = 2**32  # keys the random numbers of validation rows, the same at every evaluation


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
class Stream:
    """The rows of one text under one objective.

    The tokens of an epoch are read in blocks: from a random offset, fixed blocks in a permuted order, end to end.
    Window i of the epoch is the i-th stretch of `window` tokens of that order, so that runs with other windows and
    the same block have read the same text after the same number of raw tokens. A static objective has fixed windows,
    read in a permuted order. Unshuffled, the windows follow each other through the text, and the last may be shorter.
    """

    source: str  # its name
    tokens: np.ndarray
    objective: Objective
    vocabulary: Vocabulary
    shape: Shape
    window: int
    block: int
    seed: int
    number: int = 0  # of the stream in its mixture: each reads in an order of its own
    shuffle: bool = True
    split_documents: bool = False

    @property
    def epoch_rows(self) -> int:
        """Rows in one pass over the text."""
        if self.shuffle:
            return len(self.tokens) // self.block * self.block // self.window
        whole, rest = divmod(len(self.tokens), self.window)
        return whole + (rest >= self.objective.least)

    def windows(self, indices) -> list[np.ndarray]:
        """The raw tokens that each row reads."""
        if not self.shuffle:
            return [self.tokens[i * self.window : (i + 1) * self.window] for i in indices]
        return list(self._shuffled(*self._places(indices)))

    def _places(self, indices) -> tuple[np.ndarray, np.ndarray]:
        """Epoch and index of each row; they key its random numbers."""
        indices = np.asarray(indices, np.int64)
        if not self.shuffle:
            return np.full_like(indices, VALIDATION_EPOCH + (self.number << 40)), indices
        epochs, within = np.divmod(indices, self.epoch_rows)
        epochs += self.number << 40
        if not self.objective.option("static"):
            return epochs, within
        for epoch in np.unique(epochs):
            at = epochs == epoch
            within[at] = permute(within[at], self.epoch_rows, self.seed << 64 | int(epoch))
        return np.full_like(epochs, self.number << 40), within

    def _shuffled(self, epochs, within) -> np.ndarray:
        """The windows [rows, window] of those places."""
        first = within * self.window
        if self.objective.option("static"):
            return self.tokens[first[:, None] + np.arange(self.window)]
        lowest = first // self.block
        count = int(((first + self.window - 1) // self.block - lowest).max()) + 1  # blocks that a window touches
        blocks = len(self.tokens) // self.block
        numbers = np.minimum(lowest[:, None] + np.arange(count), blocks - 1)
        starts = np.empty_like(numbers)
        for epoch in np.unique(epochs):
            at, key = epochs == epoch, self.seed << 64 | int(epoch)
            offset = int(np.random.Philox(key=key + (1 << 126)).random_raw() % self.block)
            starts[at] = permute(numbers[at].reshape(-1), blocks, key).reshape(-1, count) * self.block + offset
        inside = (first - lowest * self.block)[:, None] + np.arange(self.window)
        if count == 1:
            order = starts + inside
        else:
            which = inside // self.block
            order = np.take_along_axis(starts, which, 1) + inside - which * self.block
        if starts.max() > len(self.tokens) - self.block:  # the offset moves the last block over the end
            order[order >= len(self.tokens)] -= len(self.tokens)
        return self.tokens[order]

    def pieces(self, indices) -> list[list[np.ndarray]]:
        """What the objective is given of the window of each row: all of it, or, split, the piece of each document."""
        windows = self.windows(indices)
        return [self._fitting(window) for window in windows] if self.split_documents else [[w] for w in windows]

    def _fitting(self, window: np.ndarray) -> list[np.ndarray]:
        """The documents of a window. More pieces make more inputs and targets (an EOS, a sentinel each): what the row
        has no room for is shortened or left out.
        """
        kept, used = [], np.zeros(3, np.int64)

        def after(n):
            return used + (self.objective.bound(n)[:3] if n >= self.objective.least else (n, 0, n))

        for piece in np.split(window, np.flatnonzero(window == self.vocabulary.eos) + 1):
            n = bisect_left(range(1, len(piece) + 1), True, key=lambda n: not self.shape.holds(*after(n)))
            if n:
                kept.append(piece[:n])
                used = after(n)
        return kept

    def pairs(self, indices) -> tuple[Pairs, np.ndarray]:
        """The pairs of those rows, one a segment, and for each the place in `indices` of its row, ascending."""
        indices = np.asarray(indices, np.int64)
        epochs, within = self._places(indices)
        groups = {}  # pieces of one length are made together
        if self.shuffle and not self.split_documents:
            groups[self.window] = np.arange(len(indices)), np.zeros_like(indices), self._shuffled(epochs, within)
        else:
            found = {}
            for row, pieces in enumerate(self.pieces(indices)):
                for number, piece in enumerate(pieces):
                    found.setdefault(len(piece), []).append((row, number, piece))
            for n, members in found.items():
                rows, numbers, pieces = zip(*members, strict=True)
                groups[n] = np.array(rows), np.array(numbers), np.stack(pieces)
        made = []
        for n, (rows, numbers, tokens) in groups.items():
            if n < self.objective.least:
                made.append((rows, numbers, _unscored(tokens, self.objective.aligned)))
                continue
            if self.objective.pieces == 2:
                tokens = np.stack([tokens, self._partners(epochs[rows], within[rows])[:, :n]], 1)
            pairs = self.objective(tokens, Draws(self.seed, epochs[rows], within[rows], numbers), self.vocabulary)
            for part in pairs if isinstance(pairs, tuple) else (pairs,):
                made.append((rows, numbers, part))
        if len(made) == 1:
            return made[0][2], made[0][0]
        rows, numbers = (np.concatenate([part[i] for part in made]) for i in (0, 1))
        order = np.lexsort((numbers, rows))
        return _reordered([part[2] for part in made], order), rows[order]

    def _partners(self, epochs, within) -> np.ndarray:
        """For each row another window of the same epoch, far away in it."""
        whole = len(self.tokens) // self.window if not self.shuffle else self.epoch_rows
        other = (within + whole // 2) % whole
        if self.shuffle:
            return self._shuffled(epochs, other)
        return self.tokens[(other * self.window)[:, None] + np.arange(self.window)]


def _unscored(tokens: np.ndarray, aligned: bool) -> Pairs:
    """Pieces that are read and not asked about."""
    none = Ragged.empty(len(tokens))
    return Pairs(Ragged.full(tokens), none, scored=none if aligned else None)


def _reordered(parts: list[Pairs], order: np.ndarray) -> Pairs:
    """The pairs of all parts as one, in that order."""
    if any(part.weights is not None for part in parts):
        parts = [replace(part, weights=part.scores()) for part in parts]
    made = {"score_inputs": any(part.score_inputs for part in parts)}
    for name in (f.name for f in fields(Pairs) if f.name != "score_inputs"):
        given = [getattr(part, name) for part in parts]
        if isinstance(given[0], Ragged):
            made[name] = Ragged.stack(given).take(order)
        elif given[0] is not None:
            made[name] = np.concatenate(given)[order]
    return Pairs(**made)
