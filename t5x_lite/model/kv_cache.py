"""The KV cache: keys and values of the tokens read so far.

Shapes: B rows, G K/V heads, S slots, T tokens read now, K head_dim.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from t5x_lite.model.matmul import wide_dtype


class KVCache(struct.PyTreeNode):
    """Keys and values by slot."""

    keys: Float[Array, "B G S K"]
    values: Float[Array, "B G S K"]

    @classmethod
    def empty(cls, shape: tuple[int, int, int, int], dtype: Any) -> "KVCache":
        """Return a cache of this shape [B, G, S, K], all zeros."""
        return cls(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    def write(
        self,
        keys: Float[Array, "B G T K"],
        values: Float[Array, "B G T K"],
        slot: int | Int[Array, ""],
    ) -> "KVCache":
        """Return the cache after writing the keys and values of T tokens from `slot` on."""
        update = jax.lax.dynamic_update_slice_in_dim
        return KVCache(
            update(self.keys, keys.astype(self.keys.dtype), slot, 2),
            update(self.values, values.astype(self.values.dtype), slot, 2),
        )


def cache_dtype(dtype: str) -> Any:
    """Return the dtype in which keys and values are cached: the compute dtype, except that a CPU
    caches bfloat16 as float32. There, attention with few queries is four times slower in bfloat16.
    """
    if jax.default_backend() == "cpu":
        return wide_dtype(dtype)
    return jnp.dtype(dtype)
