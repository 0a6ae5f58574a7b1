"""Dropout that does not depend on how devices share the work.

Shapes: B rows.
"""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int


class Noise(struct.PyTreeNode):
    """Coordinates of a device's entries in the whole batch. Dropout derives its random numbers from
    them, so that they are the same on any mesh.
    """

    rows: Int[Array, " B"]  # indices of the rows in the batch
    part: int | Int[Array, ""] = 0  # index of this device among those that split heads and features
    is_on: bool = struct.field(pytree_node=False, default=False)

    def own_places(self, size: int) -> Int[Array, " size"]:
        """Return the indices of this device's `size` heads or features among all of them."""
        return jnp.arange(size) + self.part * size


class Dropout(nn.Module):
    """Zero a share of x and scale the rest by 1 / (1 − rate). The mask depends only on the key and
    on places in the whole batch.

    Attributes:
        rate: share of the entries that are zeroed.
        axis: axis of x that devices may split, besides the rows.
    """

    rate: float
    axis: int = 1

    @nn.compact
    def __call__(self, x: Float[Array, "B *rest"], noise: Noise, places: Any = None) -> Array:
        """Apply dropout if noise.is_on.

        Args:
            places: indices along the whole axis of x's entries; None: from 0 on.
        """
        if not noise.is_on or not self.rate:
            return x
        # One key per row, and from it one per entry along the axis.
        fold_in = jax.vmap(jax.random.fold_in, (None, 0))
        if places is None:
            places = jnp.arange(x.shape[self.axis])
        keys = jax.vmap(fold_in, (0, None))(
            fold_in(self.make_rng("dropout"), noise.rows), jnp.asarray(places)
        )
        # Each key draws the mask over all other axes. (Else XLA computes it anew for each entry.)
        keys = jax.lax.optimization_barrier(keys)
        rest = tuple(np.delete(x.shape[1:], self.axis - 1))
        draw = partial(jax.random.bernoulli, p=1 - self.rate, shape=rest)
        keep = jnp.moveaxis(jax.vmap(jax.vmap(draw))(keys), 1, self.axis)
        return jnp.where(keep, x / (1 - self.rate), 0)
