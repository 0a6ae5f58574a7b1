"""Random numbers as one expression on CPUs: JAX's bits, as Random123 publishes them."""

import jax
import numpy as np
import pytest
from jax.extend.random import threefry2x32_p

from t5x_lite.model.threefry import compile_unrolled, fold_in, make_key, threefry

# kat_vectors of Random123: threefry2x32, 20 rounds; counter, key and what they give.
PUBLISHED = [
    ("00000000 00000000", "00000000 00000000", "6b200159 99ba4efe"),
    ("ffffffff ffffffff", "ffffffff ffffffff", "1cb996fc bb002be7"),
    ("243f6a88 85a308d3", "13198a2e 03707344", "c4923a9c 483df7a0"),
]
SEEDS = [0, 1, 12345, 2**31, 2**32 - 1]


@pytest.fixture(autouse=True, scope="module")
def unrolled():
    compile_unrolled()


def words(text: str) -> list[np.ndarray]:
    return [np.array([int(word, 16)], np.uint32) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED)
def test_published_words(counter, key, expected):
    compiled = jax.jit(threefry2x32_p.bind)
    for hash_of in (threefry, compiled):
        assert list(hash_of(*words(key), *words(counter))) == words(expected)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (33, 5), (2, 3, 4)])
@pytest.mark.parametrize("seed", SEEDS)
def test_numbers_that_are_drawn(seed, shape):
    """Draw i of a key is the exclusive or of the two words that encrypt i."""
    draws = jax.jit(lambda key: jax.random.bits(key, shape))
    key = jax.random.key(np.uint32(seed))
    places = np.arange(np.prod(shape, dtype=int), dtype=np.uint32)
    first, second = threefry(*make_key(seed), np.zeros_like(places), places)
    assert np.array_equal(draws(key), (first ^ second).reshape(shape))
    assert "while" not in draws.lower(key).as_text()


@pytest.mark.parametrize("seed", SEEDS)
def test_keys_are_those_of_jax(seed):
    key = jax.random.key(np.uint32(seed))
    assert np.array_equal(make_key(seed), jax.random.key_data(key))
    expected = [jax.random.key_data(jax.random.fold_in(key, np.uint32(n))) for n in SEEDS]
    assert np.array_equal(fold_in(make_key(seed), SEEDS), expected)
    assert np.array_equal(fold_in(make_key(seed), SEEDS[-1]), expected[-1])
