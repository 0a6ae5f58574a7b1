from collections import Counter

import numpy as np
import pytest

from t5x_lite.comparison import ngram


def brute_kneser_ney(train, history, word, size):
    """The textbook recursion, by dictionaries."""

    def discount(counts):
        n = Counter(counts.values())
        return n[1] / (n[1] + 2 * n[2]) if n[1] and n[2] else 0.5

    def probability(counts, history, word):
        d = discount(counts)
        shorter = Counter(gram[1:] for gram in counts)
        lower = probability(shorter, history[1:], word) if len(history) else 1 / size
        same = {gram: count for gram, count in counts.items() if gram[:-1] == history}
        total = sum(same.values())
        if not total:
            return lower
        return (max(counts.get((*history, word), 0) - d, 0) + d * len(same) * lower) / total

    grams = Counter(tuple(train[i : i + 3]) for i in range(len(train) - 2))
    return probability(grams, tuple(history), word)


@pytest.mark.parametrize("size", [3, 7])
def test_kneser_ney_against_the_textbook_recursion(size):
    rng = np.random.default_rng(size)
    train = np.minimum(rng.geometric(0.4, 60) - 1, size - 1)
    for history in ([0, 0], [1, 0], [size - 1, size - 1], [2, 1]):
        grams = np.array([[*history, word] for word in range(size)])
        ours = ngram.kneser_ney(train, grams, size)
        assert ours.sum() == pytest.approx(1)
        expected = [brute_kneser_ney(train.tolist(), history, word, size) for word in range(size)]
        np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_unigram_bits():
    train, held = np.array([0, 0, 1]), np.array([0, 2])
    assert ngram.unigram_bits(train, held, 3) == pytest.approx(-np.log2(3 / 6) - np.log2(1 / 6))
