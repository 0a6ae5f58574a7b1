"""Checksums are the same on any mesh, on hosts and on accelerators, and find every change."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.training.checksums import _sum_on_device, checksums

TYPES = (np.float32, jnp.bfloat16, np.float16, np.int8, np.bool_, np.int32, np.uint32)


def on_devices(array: jax.Array) -> int:
    """The checksum as accelerators compute it."""
    total = 0
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            starts = np.array([part.start or 0 for part in shard.index], np.uint32)
            total += int(_sum_on_device(shard.data, starts, shape=array.shape))
    return total % 2**32


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (1,), (8, 6, 4), (300_000,), (0, 3)])
def test_hosts_and_accelerators_agree(dtype, shape):
    array = jnp.asarray(np.random.default_rng(0).standard_normal(shape).astype(dtype))
    assert checksums([array]) == [on_devices(array)]


def split(values: np.ndarray, parts: tuple[int, ...], copies: int) -> SimpleNamespace:
    """An array whose axes are split over devices, each part on `copies` of them."""
    pieces = [size // count for size, count in zip(values.shape, parts, strict=True)]
    shards = []
    for place in np.ndindex(*parts):
        index = tuple(slice(i * n, (i + 1) * n) for i, n in zip(place, pieces, strict=True))
        for copy in range(copies):
            data, device = jnp.asarray(values[index]), jax.devices()[0]
            shard = {"index": index, "data": data, "device": device, "replica_id": copy}
            shards.append(SimpleNamespace(**shard))
    return SimpleNamespace(shape=values.shape, addressable_shards=shards)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8])
@pytest.mark.parametrize("parts", [(1, 1, 1), (4, 1, 1), (1, 3, 1), (2, 1, 4), (4, 2, 2)])
def test_the_checksum_does_not_depend_on_the_sharding(dtype, parts):
    values = np.random.default_rng(0).standard_normal((8, 6, 4)).astype(dtype)
    expected = checksums([jnp.asarray(values)])
    array = split(values, parts, copies=2)
    assert checksums([array]) == expected == [on_devices(array)]


def test_float64_is_two_words():
    with jax.enable_x64(True):
        array = jnp.asarray(np.random.default_rng(0).standard_normal((5, 7)))
        assert array.dtype == np.float64
        assert checksums([array]) == [on_devices(array)]


def test_every_flipped_bit_and_every_exchange_is_found():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((50, 20)).astype(np.float32)
    (before,) = checksums([jnp.asarray(values)])
    for _ in range(300):
        changed = values.copy()
        words = changed.view(np.uint32).reshape(-1)
        words[rng.integers(words.size)] ^= np.uint32(1) << np.uint32(rng.integers(32))
        assert checksums([jnp.asarray(changed)]) != [before]
    for _ in range(300):
        changed = values.copy()
        a, b = rng.choice(50, 2, replace=False)
        changed[[a, b]] = changed[[b, a]]
        assert checksums([jnp.asarray(changed)]) != [before]
    assert checksums([jnp.asarray(values).T.reshape(50, 20)]) != [before]
