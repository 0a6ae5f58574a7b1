"""Batches as a pure function of the step: nothing sequential, no state, the same rows on any number of hosts."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from t5x_lite.config import RunConfig
from t5x_lite.data import layouts, objectives
from t5x_lite.data.corpus import Corpus
from t5x_lite.data.objectives import Objective, Pair
from t5x_lite.data.tokenizer import Vocabulary
from t5x_lite.errors import BAD_DATA, Refusal

VALIDATION_EPOCH = 2**32  # keys the random numbers of validation rows, the same at every evaluation


def permute(index: np.ndarray, size: int, key: int) -> np.ndarray:
    """Where a keyed permutation of range(size) sends each index, in O(1) memory.

    A Feistel network over the next even power of two; what falls outside the range walks on until it is inside
    (Black and Rogaway, 2002, "Ciphers with arbitrary finite domains", §3).

    >>> sorted(permute(np.arange(10), 10, key=7).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    half = np.uint64(max((size - 1).bit_length() + 1, 2) // 2)
    low = np.uint64((1 << int(half)) - 1)
    keys = np.random.Philox(key=key).random_raw(4)

    def network(x):
        left, right = x >> half, x & low
        for round_key in keys:
            mixed = (right + round_key) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            left, right = right, left ^ (mixed >> np.uint64(32)) & low
        return left << half | right

    x = network(np.asarray(index, np.uint64))
    while (outside := x >= size).any():
        x[outside] = network(x[outside])
    return x.astype(np.int64)


@dataclass(frozen=True)
class Batches:
    """The rows of one split. `make` builds it from a config; `rows` and `batch_at` are pure functions of the index.

    The tokens of an epoch are read in blocks: from a random offset, fixed blocks in a permuted order, end to end.
    Window i of the epoch is the i-th stretch of `window` tokens of that order, so that runs with other windows and
    the same block have read the same text after the same number of raw tokens.
    """

    tokens: np.ndarray
    objective: Objective
    vocabulary: Vocabulary
    shape: layouts.Shape
    window: int
    block: int
    batch_size: int
    seed: int
    shuffle: bool = True
    split_documents: bool = False

    @property
    def raw_tokens(self) -> int:
        """Raw tokens that one batch reads."""
        return self.window * self.batch_size

    @property
    def epoch_rows(self) -> int:
        """Rows in one pass over the split."""
        if self.shuffle:
            return len(self.tokens) // self.block * self.block // self.window
        whole, rest = divmod(len(self.tokens), self.window)
        return whole + (rest >= self.objective.least)

    def window_at(self, index: int) -> np.ndarray:
        """The raw tokens [window] that row `index` reads; the last of an unshuffled split may be shorter."""
        epoch, i = divmod(index, self.epoch_rows)
        first = i * self.window
        if not self.shuffle:
            return self.tokens[first : first + self.window]
        blocks = len(self.tokens) // self.block
        numbers = np.arange(first // self.block, (first + self.window - 1) // self.block + 1)
        key = self.seed << 64 | epoch
        offset = int(np.random.Philox(key=key + (1 << 126)).random_raw() % self.block)
        starts = permute(numbers, blocks, key) * self.block + offset
        inside = first - int(numbers[0]) * self.block
        order = (starts[:, None] + np.arange(self.block)).reshape(-1)[inside : inside + self.window]
        return self.tokens[order % len(self.tokens)]

    def pairs_at(self, index: int) -> list[Pair]:
        """The pairs of row `index`, one a segment; the random numbers are keyed by (seed, epoch, index)."""
        epoch, i = divmod(index, self.epoch_rows) if self.shuffle else (VALIDATION_EPOCH, index)
        counter = [0, 0, 1, i]  # the third word keeps row 0 away from the numbers that `permute` draws of this key
        rng = np.random.Generator(np.random.Philox(key=self.seed << 64 | epoch, counter=counter))
        pairs = []
        for piece in self.pieces_at(index):
            if len(piece) < self.objective.least:  # read, but not scored
                none = np.zeros(0, np.int32)
                scored = none if self.objective.aligned else None
                made = Pair(piece.astype(np.int32), none, np.zeros(0, np.float32), scored)
            else:
                made = self.objective(piece, rng, self.vocabulary)
            pairs += [made] if isinstance(made, Pair) else made
        return pairs

    def pieces_at(self, index: int) -> list[np.ndarray]:
        """What the objective is given of the window of row `index`: all of it, or, split, the piece of each document.
        More pieces make more inputs and targets (an EOS, a sentinel each): what the row has no room for is shortened
        or left out.
        """
        window = self.window_at(index)
        if not self.split_documents:
            return [window]
        kept, used = [], np.zeros(3, np.int64)

        def after(n):
            return used + (self.objective.bound(n)[:3] if n >= self.objective.least else (n, 0, n))

        for piece in np.split(window, np.flatnonzero(window == self.vocabulary.eos) + 1):
            n = bisect_left(range(1, len(piece) + 1), True, key=lambda n: not self.shape.holds(*after(n)))
            if n:
                kept.append(piece[:n])
                used = after(n)
        return kept

    def rows(self, indices: Iterable[int]) -> dict[str, np.ndarray]:
        """The rows of those indices, stacked; an index past an unshuffled split is a row of padding, weight 0."""
        made = []
        for index in indices:
            past = not self.shuffle and index >= self.epoch_rows
            row = layouts.lay_out(self.pairs_at(0 if past else index), self.shape, self.vocabulary)
            if past:
                row = {key: np.zeros_like(value) for key, value in row.items()}
            made.append(row)
        return {key: np.stack([row[key] for row in made]) for key in made[0]}

    def batch_at(self, step: int, rows: Iterable[int] | None = None) -> dict[str, np.ndarray]:
        """Batch number `step` (from 0): arrays [batch_size, …], or only those of its rows that are asked for."""
        first = step * self.batch_size
        return self.rows(first + r for r in (range(self.batch_size) if rows is None else rows))

    @property
    def batches(self) -> int:
        """Batches that hold every row of the split once."""
        return -(-self.epoch_rows // self.batch_size)


def make(config: RunConfig, corpus: Corpus, split: str) -> Batches:
    """The batches of a config on a split: training shuffled and without end, validation once and in order."""
    objective, window, shape = layouts.plan(config)
    vocabulary = corpus.tokenizer.vocabulary
    objectives.check_vocabulary(objective, window, vocabulary)
    tokens = corpus.tokens[split]
    block = config.data.block or window
    least = -(-window // block) * block if split == "train" else objective.least
    if len(tokens) < least:
        raise Refusal(BAD_DATA, f"data.source: {split} has {len(tokens)} tokens, a row reads {least}; give more text")
    return Batches(
        tokens=tokens,
        objective=objective,
        vocabulary=vocabulary,
        shape=shape,
        window=window,
        block=block,
        batch_size=config.data.batch_size,
        seed=config.seed,
        shuffle=split == "train",
        split_documents=config.data.split_documents,
    )


def ledger(batches: Batches, rows: int = 64) -> dict:
    """What the mean row holds, counted over the first `rows`: raw, model and loss tokens, the share of padding, and the
    share of the raw tokens that split documents leave no room for.
    """
    indices = range(min(rows, batches.epoch_rows))
    counted = batches.rows(indices)
    shown = sum(len(piece) for index in indices for piece in batches.pieces_at(index))
    read = sum(len(batches.window_at(index)) for index in indices)
    segments = [value for key, value in counted.items() if key.endswith("_segments")]
    slots = sum(value[0].size for value in segments)
    n = len(segments[0])
    model_tokens = sum(int((value > 0).sum()) for value in segments) / n
    loss_tokens = sum(float(value.sum()) for key, value in counted.items() if key.endswith("_weights")) / n
    return {
        "raw_tokens": batches.window,
        "model_tokens": model_tokens,
        "loss_tokens": loss_tokens,
        "padding": 1 - model_tokens / slots,
        "left_out": 1 - shown / read,
    }
