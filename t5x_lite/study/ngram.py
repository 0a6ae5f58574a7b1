"""The classical baselines: a unigram model and an interpolated Kneser-Ney trigram model of tokens."""

import numpy as np


def unigram_bits(train: np.ndarray, held_out: np.ndarray, size: int) -> float:
    """Bits that a unigram model of `train`, with one added to every count, needs for all of `held_out`."""
    counts = np.bincount(train, minlength=size) + 1
    return float(-np.log2(counts[held_out] / counts.sum()).sum())


def trigram_bits(train: np.ndarray, held_out: np.ndarray, size: int) -> float:
    """Bits that a Kneser-Ney trigram model of `train` needs for all of `held_out`, taken to follow `train`."""
    tokens = np.concatenate((train[-2:], held_out))
    grams = np.stack((tokens[:-2], tokens[1:-1], tokens[2:]), 1)
    return float(-np.log2(kneser_ney(train, grams, size)).sum())


def kneser_ney(train: np.ndarray, grams: np.ndarray, size: int) -> np.ndarray:
    """P(last id | the ids before it) for each row of `grams` [N, n], by the interpolated model of Kneser and Ney (1995)
    in the form of Chen and Goodman (1999, §2.7) with one discount per order; ids lie in [0, size).

    >>> grams = np.array([[0, 1, w] for w in range(3)])
    >>> probabilities = kneser_ney(np.array([0, 1, 2, 0, 1, 2, 0, 1, 0]), grams, size=3)
    >>> probabilities.round(3).tolist(), round(float(probabilities.sum()), 6)
    ([0.333, 0.012, 0.655], 1.0)
    """
    n = grams.shape[1]
    windows = np.lib.stride_tricks.sliding_window_view(train, n)
    return _interpolated(*np.unique(_key(windows, size), return_counts=True), _key(grams, size), n, size)


def _key(grams: np.ndarray, size: int) -> np.ndarray:
    """Rows of ids as single numbers: the last id is key % size, what stands before it key // size."""
    key = np.zeros(len(grams), np.int64)
    for column in grams.T:
        key = key * size + column
    return key


def _interpolated(keys, counts, asked, n: int, size: int):
    """max(c(h w) − D, 0) / c(h) + D · N₁₊(h ·) / c(h) · P(w | h without its first word). Below the highest order the
    count of an n-gram is the number of different words it follows.
    """
    if n == 0:
        return 1 / size
    shorter = size ** (n - 1)
    lower = _interpolated(*np.unique(keys % shorter, return_counts=True), asked % shorter, n - 1, size)
    histories, of = np.unique(keys // size, return_inverse=True)
    total = _look_up(histories, np.bincount(of, counts), asked // size)
    kinds = _look_up(histories, np.bincount(of), asked // size)
    once, twice = ((counts == times).sum() for times in (1, 2))
    discount = once / (once + 2 * twice) if once and twice else 0.5
    kept = np.maximum(_look_up(keys, counts, asked) - discount, 0)
    return np.where(total > 0, (kept + discount * kinds * lower) / np.maximum(total, 1), lower)


def _look_up(keys, values, asked):
    at = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[at] == asked, values[at], 0)
