"""Checksums of arrays that do not depend on how the arrays are sharded. With them a restored array
can be compared, on any mesh, with what was in memory when it was saved.

The checksum of an array is the sum, modulo 2³², of a hash of each element and its index. Each
process sums over the shards that it holds, on the devices that hold them, and these sums are added.
Any change of one word of up to 32 bits changes the checksum; other damage is missed with a
probability of 2⁻³².
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

# Constants of Fibonacci hashing (Knuth, 1998, §6.4) and of the last step of MurmurHash3 (Appleby,
# 2011).
_OF_INDEX, _FIRST, _SECOND = 0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35
_BLOCK = 1 << 16  # words that a CPU hashes at a time; they fit its cache
_MULTIPLES = np.arange(_BLOCK, dtype=np.uint32) * np.uint32(_OF_INDEX)


def checksums(arrays: Sequence[jax.Array]) -> list[int]:
    """Return the checksum of each array. All processes must call this with the same arrays.

    >>> a, b = jnp.arange(6.0), jnp.arange(6.0).at[3].set(2.9999998)
    >>> checksums([a, a.reshape(2, 3), b])
    [1642309620, 1642309620, 1276707724]
    """
    with ThreadPoolExecutor() as pool:
        # For arrays on accelerators this only dispatches the work. The sums are read below.
        sums = list(pool.map(_sum_of_shards, arrays))
    here = np.array([sum(int(part) for part in parts) % 2**32 for parts in sums], np.uint32)
    if jax.process_count() > 1:
        everywhere = multihost_utils.process_allgather(here)
        here = everywhere.sum(axis=0, dtype=np.uint32)
    return here.tolist()


def checksum_on_host(array: np.ndarray) -> int:
    """Return the checksum of an array in the memory of the host."""
    return _sum_on_host(array, np.zeros(array.ndim, np.uint32), array.shape)


def _sum_of_shards(array: jax.Array) -> list[Any]:
    """Return the sum over each shard of this process, without replicas."""
    parts = []
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            starts = tuple(piece.start or 0 for piece in shard.index)
            on_host = shard.device.platform == "cpu"
            sum_of = _sum_on_host if on_host else _sum_on_device
            data: Any = np.asarray(shard.data) if on_host else shard.data
            parts.append(sum_of(data, np.array(starts, np.uint32), shape=array.shape))
    return parts


def _sum_on_host(data: np.ndarray, starts: np.ndarray, shape: tuple[int, ...]) -> int:
    """Hash and add up a shard with numpy, which saves a compilation on the CPU.

    Args:
        data: the shard.
        starts: index of its first element, per axis.
        shape: shape of the whole array.
    """
    words = np.ascontiguousarray(data).reshape(-1).view(f"u{min(data.dtype.itemsize, 4)}")
    total = 0
    for first in range(0, words.size, _BLOCK):
        mixed = words[first : first + _BLOCK].astype(np.uint32)
        if data.shape == shape:  # the usual case: the indices in a block are consecutive
            mixed ^= _MULTIPLES[: mixed.size] + np.uint32(first * _OF_INDEX % 2**32)
        else:  # translate indices in the shard into indices in the whole array
            per_element = words.size // data.size
            counted = np.arange(first, first + mixed.size, dtype=np.uint64)
            element, word = np.divmod(counted, np.uint64(per_element))
            element = _global_index(element, data.shape, starts, shape)
            index = (element * np.uint64(per_element) + word).astype(np.uint32)
            mixed ^= index * np.uint32(_OF_INDEX)
        total += int(_finish(mixed).sum(dtype=np.uint64))
    return total % 2**32


def _global_index(
    element: np.ndarray, of_shard: tuple[int, ...], starts: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """Return the index in the whole array of elements of a shard, both counted row by row."""
    places = np.unravel_index(element.astype(np.int64), of_shard)
    index = np.zeros(len(element), np.uint64)
    for place, start, size in zip(places, starts, shape, strict=True):
        index = index * np.uint64(size) + (place + int(start)).astype(np.uint64)
    return index


@partial(jax.jit, static_argnames="shape")
def _sum_on_device(data: jax.Array, starts: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Hash and add up a shard on the accelerator that holds it. Arguments as above."""
    if data.dtype == bool:
        data = data.astype(jnp.uint8)
    bits = 8 * min(data.dtype.itemsize, 4)
    words = jax.lax.bitcast_convert_type(data, f"uint{bits}").astype(jnp.uint32)
    index = jnp.zeros(data.shape, jnp.uint32)
    for axis, size in enumerate(shape):
        place = jax.lax.broadcasted_iota(jnp.uint32, data.shape, axis) + starts[axis]
        index = index * jnp.uint32(size) + place
    if words.ndim > data.ndim:  # an element of 8 bytes has two words
        index = index[..., None] * jnp.uint32(2) + jnp.arange(2, dtype=jnp.uint32)
    mixed = words ^ (index * jnp.uint32(_OF_INDEX))
    return _finish(mixed).sum(dtype=jnp.uint32)


def _finish(mixed: Any) -> Any:
    """Mix each 32-bit word, so that every bit depends on all others. Works in numpy and jax."""
    kind = mixed.dtype.type
    mixed ^= mixed >> kind(16)
    mixed *= kind(_FIRST)
    mixed ^= mixed >> kind(13)
    mixed *= kind(_SECOND)
    mixed ^= mixed >> kind(16)
    return mixed
