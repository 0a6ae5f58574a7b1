"""Classical baselines: a unigram model and an interpolated Kneser-Ney trigram model of tokens."""

import numpy as np

# int64. Each n-gram is one number in base `vocab_size`; its last id is the lowest digit.
_Ngrams = np.ndarray


def unigram_bits(train: np.ndarray, held_out: np.ndarray, vocab_size: int) -> float:
    """Return the bits that a unigram model trained on `train` needs for `held_out`."""
    return float(-np.log2(unigram_probabilities(train, vocab_size)[held_out]).sum())


def unigram_probabilities(train: np.ndarray, vocab_size: int) -> np.ndarray:
    """Return the share of each id in `train`, with add-one smoothing: [vocab_size]."""
    counts = np.bincount(train, minlength=vocab_size) + 1
    return counts / counts.sum()


def trigram_bits(train: np.ndarray, held_out: np.ndarray, vocab_size: int) -> float:
    """Return the bits that a Kneser-Ney trigram model trained on `train` needs for `held_out`.

    The history of the first two held-out tokens includes the end of `train`.
    """
    tokens = np.concatenate((train[-2:], held_out))
    trigrams = np.lib.stride_tricks.sliding_window_view(tokens, 3)
    probabilities = kneser_ney(train, trigrams, vocab_size)
    return float(-np.log2(probabilities).sum())


def kneser_ney(train: np.ndarray, grams: np.ndarray, vocab_size: int) -> np.ndarray:
    """Return P(last id | the ids before it) for each row of `grams` [N, n].

    This is the interpolated model of Kneser and Ney (1995) in the form of Chen and Goodman (1999,
    §2.7), with one discount per order. Ids must be in [0, vocab_size).

    >>> grams = np.array([[0, 1, word] for word in range(3)])
    >>> probabilities = kneser_ney(np.array([0, 1, 2, 0, 1, 2, 0, 1, 0]), grams, vocab_size=3)
    >>> probabilities.round(3).tolist(), round(float(probabilities.sum()), 6)
    ([0.333, 0.012, 0.655], 1.0)
    """
    n = grams.shape[1]
    seen = _encode(np.lib.stride_tricks.sliding_window_view(train, n), vocab_size)
    ngrams, counts = np.unique(seen, return_counts=True)
    return _interpolated(ngrams, counts, _encode(grams, vocab_size), n, vocab_size)


def _encode(grams: np.ndarray, vocab_size: int) -> _Ngrams:
    """Encode each row of ids as one number.

    number % vocab_size is the last id, and number // vocab_size is the history before it.
    """
    numbers = np.zeros(len(grams), np.int64)
    for column in grams.T:
        numbers = numbers * vocab_size + column
    return numbers


def _interpolated(
    ngrams: _Ngrams, counts: np.ndarray, queried: _Ngrams, n: int, vocab_size: int
) -> np.ndarray:
    """Return max(c(h w) − D, 0) / c(h) + D · N₁₊(h ·) / c(h) · P(w | h without its first word).

    Below the highest order, the count of an n-gram is the number of different words that it
    follows.
    """
    if n == 0:
        return np.full(len(queried), 1 / vocab_size)

    # Lower order: the same model for the n-grams without their first word.
    shorter = vocab_size ** (n - 1)
    short_ngrams, continuations = np.unique(ngrams % shorter, return_counts=True)
    lower = _interpolated(short_ngrams, continuations, queried % shorter, n - 1, vocab_size)

    # c(h) is how often a history occurs, N₁₊(h ·) how many different words follow it.
    histories, history_of = np.unique(ngrams // vocab_size, return_inverse=True)
    queried_histories = queried // vocab_size
    total = _look_up(histories, np.bincount(history_of, counts), queried_histories)
    followers = _look_up(histories, np.bincount(history_of), queried_histories)

    # The discount is estimated from the n-grams that occur once and twice.
    once, twice = (counts == 1).sum(), (counts == 2).sum()
    discount = once / (once + 2 * twice) if once and twice else 0.5
    discounted = np.maximum(_look_up(ngrams, counts, queried) - discount, 0)
    higher = (discounted + discount * followers * lower) / np.maximum(total, 1)
    return np.where(total > 0, higher, lower)


def _look_up(keys: np.ndarray, values: np.ndarray, queried: np.ndarray) -> np.ndarray:
    """Look up the value of each queried key in sorted keys; 0 if it is missing."""
    places = np.minimum(np.searchsorted(keys, queried), len(keys) - 1)
    return np.where(keys[places] == queried, values[places], 0)
