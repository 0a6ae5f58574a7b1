import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.model.kv_cache import KVCache, cache_dtype


@pytest.mark.parametrize("slot", [0, 3, jnp.array(4)])
def test_keys_and_values_are_written_from_their_slot_on(slot):
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(2, 2, 3, 2, 5))
    before = KVCache(jnp.ones((2, 3, 6, 5)), jnp.full((2, 3, 6, 5), 2.0))
    after = before.write(jnp.asarray(keys), jnp.asarray(values), slot)
    at = int(slot)
    for old, new, written in (
        (before.keys, after.keys, keys),
        (before.values, after.values, values),
    ):
        expected = np.array(old)
        expected[:, :, at : at + 2] = written
        assert new.dtype == old.dtype
        np.testing.assert_array_equal(new, expected.astype(np.float32))


def test_an_empty_cache_is_zeros_of_its_type():
    """On a CPU bfloat16 keys and values are kept in float32, which attention of few queries is four
    times faster with.
    """
    cache = KVCache.empty((1, 2, 3, 4), cache_dtype("bfloat16"))
    assert cache.keys.shape == cache.values.shape == (1, 2, 3, 4)
    assert cache.keys.dtype == cache.values.dtype == jnp.float32
    assert not cache.keys.any()
