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
    """Coordinates of a device's entries in the whole batch, from which dropout draws its random
    numbers: they are then the same on any mesh.
    """

    rows: Int[Array, " B"]  # numbers of the rows in the batch
    part: int | Int[Array, ""] = 0  # number of this device's heads and features among all devices
    is_on: bool = struct.field(pytree_node=False, default=False)

    def own_places(self, size: int) -> Int[Array, " size"]:
        """Return the indices of this device's `size` heads or features among those of all."""
        return jnp.arange(size) + self.part * size


class Dropout(nn.Module):
    """Zeros a share of x and scales the rest by 1 / (1 − rate). What is zeroed follows from the key
    and from places in the whole batch.

    Attributes:
        axis: of x, besides the rows, that devices may split.
    """

    rate: float
    axis: int = 1

    @nn.compact
    def __call__(self, x: Float[Array, "B *rest"], noise: Noise, places: Any = None) -> Array:
        """Drop out, if noise.is_on.

        Args:
            places: the places of x's entries along the axis, in the whole; None: from 0 on.
        """
        if not noise.is_on or not self.rate:
            return x
        # A key for each row, and from it one for each entry along the axis.
        fold_in = jax.vmap(jax.random.fold_in, (None, 0))
        if places is None:
            places = jnp.arange(x.shape[self.axis])
        keys = jax.vmap(fold_in, (0, None))(
            fold_in(self.make_rng("dropout"), noise.rows), jnp.asarray(places)
        )
        # Each key draws the mask of all other axes.
        rest = tuple(np.delete(x.shape[1:], self.axis - 1))
        draw = partial(jax.random.bernoulli, p=1 - self.rate, shape=rest)
        keep = jnp.moveaxis(jax.vmap(jax.vmap(draw))(keys), 1, self.axis)
        return jnp.where(keep, x / (1 - self.rate), 0)
