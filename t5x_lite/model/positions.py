"""How a model knows order: learned and sinusoidal tables, T5's relative buckets, rotary angles."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from t5x_lite.config import Model
from t5x_lite.model.layers import named, parameter_dtype


def sinusoidal(positions, width: int):
    """Sines and cosines of wavelengths 2π … 10,000 · 2π (Vaswani et al., 2017, §3.5): [B, T] → [B, T, width].

    >>> sinusoidal(jnp.array([[0]]), 4).tolist()
    [[[0.0, 0.0, 1.0, 1.0]]]
    """
    half = (width + 1) // 2
    rates = 10000.0 ** (-np.arange(half) / max(half, 1))
    angles = positions[..., None] * rates
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)[..., :width]


def rotate(x, positions):
    """Rotary positions (Su et al., 2021): turn each pair of features of a head by an angle ∝ its position.

    x: [..., K] with K even, positions: [...]. Logits then depend on the distance of two positions alone.
    """
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-np.arange(half) / half)
    angles = positions[..., None] * rates
    sin, cos = jnp.sin(angles).astype(x.dtype), jnp.cos(angles).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def relative_buckets(distance, bidirectional: bool, buckets: int, furthest: int):
    """T5's buckets of the distance key − query (Raffel et al., 2020, §2.1): exact when near, logarithmic when far.

    bidirectional: half of the buckets are for keys ahead; otherwise all keys ahead share bucket 0.

    >>> relative_buckets(np.array([-200, -9, -1, 0, 1, 9]), True, 32, 128).tolist()
    [15, 8, 1, 0, 17, 24]
    >>> relative_buckets(np.array([-200, -20, -1, 0, 1]), False, 32, 128).tolist()
    [31, 17, 1, 0, 0]
    """
    offset = 0
    if bidirectional:
        buckets //= 2
        offset = np.where(distance > 0, buckets, 0)
        distance = np.abs(distance)
    else:
        distance = np.maximum(-distance, 0)
    exact = buckets // 2
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / exact) / np.log(furthest / exact)
    far = np.minimum(exact + (ratio * (buckets - exact)).astype(np.int32), buckets - 1)
    return offset + np.where(distance < exact, distance, far)


class RelativeBias(nn.Module):
    """A learned bias per head and bucket, shared by all layers of a stack: () → [1, H, T, T]."""

    config: Model
    bidirectional: bool

    @nn.compact
    def __call__(self, length: int):
        config = self.config
        init = nn.initializers.normal(config.width**-0.5 if config.init == "fan_in" else config.init_stddev)
        shape = (config.relative_buckets, config.heads)
        table = self.param("embedding", named(init, None, "heads"), shape, parameter_dtype(config))
        distance = np.arange(length)[None, :] - np.arange(length)[:, None]
        buckets = relative_buckets(distance, self.bidirectional, config.relative_buckets, config.relative_distance)
        return table.T[None, :, buckets]
