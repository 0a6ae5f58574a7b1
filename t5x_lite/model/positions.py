"""How a model knows order: sinusoids, rotary angles, ALiBi, and the relative positions of Shaw,
Transformer-XL and T5.

A distance is the position of a key − that of a query, [T, S], or [B, T, S] where rows differ.

Shapes: B rows, T queries, S keys, H heads, K head_dim, D d_model, R distances.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from t5x_lite.config import ModelDimensions
from t5x_lite.model.layers import Dense, kernel_init, parameter_dtype, with_axes

Distances = Int[Array, "T S"] | Int[Array, "B T S"] | np.ndarray


def sinusoidal(
    positions: Int[Array, "*rows"] | np.ndarray, width: int
) -> Float[Array, "*rows width"]:
    """Sines and cosines of wavelengths 2π … 10,000 · 2π (Vaswani et al., 2017, §3.5): [B, T] → [B,
    T, width].

    >>> sinusoidal(jnp.array([[0]]), 4).tolist()
    [[[0.0, 0.0, 1.0, 1.0]]]
    """
    # Half of the features are sines, half cosines; an odd width has one sine more.
    half = (width + 1) // 2
    frequencies = jnp.asarray(10000.0 ** (-np.arange(half) / max(half, 1)))
    angles = jnp.asarray(positions)[..., None].astype(frequencies.dtype) * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)[..., :width]


def rotate(
    x: Float[Array, "B H T K"], positions: Int[Array, "B T"], base: float = 10_000.0
) -> Float[Array, "B H T K"]:
    """Rotary positions (Su et al., 2021): rotate each pair of features of a head by an angle ∝ its
    position.

    K is even, and feature i is paired with i + K/2. Logits then depend on the distance of two
    positions alone.
    """
    # The angles: position × frequency, the same for all heads.
    half = x.shape[-1] // 2
    frequencies = jnp.asarray(base ** (-np.arange(half) / half))
    angles = positions[:, None, :, None].astype(frequencies.dtype) * frequencies
    sin = jnp.sin(angles).astype(x.dtype)
    cos = jnp.cos(angles).astype(x.dtype)
    # A rotation in the plane of each pair.
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def alibi(distances: Distances, num_heads: int) -> Any:
    """ALiBi (Press et al., 2022, §3): each head's logits fall with the distance, by a slope of its
    own: [..., H, T, S].

    The slopes are 2^(-8/H), 2^(-16/H), …, 2^-8; for H between powers of two, those of the power
    below and then every other one of the power above.

    >>> alibi(np.array([[-2, 0, 1]]), 2).tolist()
    [[[-0.125, -0.0, -0.0625]], [[-0.0078125, -0.0, -0.00390625]]]
    """
    power_of_two = 2 ** int(np.log2(num_heads))
    slopes = [2.0 ** (-8 * (i + 1) / power_of_two) for i in range(power_of_two)]
    more = range(0, 2 * (num_heads - power_of_two), 2)
    slopes += [2.0 ** (-4 * (i + 1) / power_of_two) for i in more]
    slopes_H11 = -np.array(slopes)[:, None, None]
    return slopes_H11 * abs(distances)[..., None, :, :]


def relative_buckets(
    distances: Distances, bidirectional: bool, num_buckets: int, max_distance: int
) -> Distances:
    """T5's buckets of distances (Raffel et al., 2020, §2.1): exact when near, logarithmic when far.

    bidirectional: half of the buckets are for keys ahead; otherwise all keys ahead share bucket 0.

    >>> relative_buckets(np.array([-200, -9, -1, 0, 1, 9]), True, 32, 128).tolist()
    [15, 8, 1, 0, 17, 24]
    >>> relative_buckets(np.array([-200, -20, -1, 0, 1]), False, 32, 128).tolist()
    [31, 17, 1, 0, 0]
    """
    # Distances known beforehand become constants of the program.
    xp = np if isinstance(distances, np.ndarray) else jnp

    # The sign: half of the buckets, or none.
    if bidirectional:
        num_buckets //= 2
        offset = xp.where(distances > 0, num_buckets, 0)
        distances = abs(distances)
    else:
        offset = 0
        distances = xp.maximum(-distances, 0)

    # Half of what is left is exact; the rest grows logarithmically up to max_distance.
    exact = num_buckets // 2
    far_ratio = xp.maximum(distances, 1).astype(np.float32) / exact
    log_ratio = xp.log(far_ratio) / np.log(max_distance / exact)
    far_bucket = exact + (log_ratio * (num_buckets - exact)).astype(np.int32)
    far_bucket = xp.minimum(far_bucket, num_buckets - 1)
    return offset + xp.where(distances < exact, distances, far_bucket)


def _looking_at_neighbours(init: Any) -> Any:
    """The initialiser of a table [buckets, heads] of a bidirectional stack, with which the first
    head attends to the token before, and the second to the one after (in the manner of ConViT:
    d'Ascoli et al., 2021, §3).
    """

    def looking(key, shape, dtype):
        num_buckets = shape[0]
        before, after = relative_buckets(np.array([-1, 1]), True, num_buckets, num_buckets)
        # e⁶ times as much as to any other
        return init(key, shape, dtype).at[np.array([before, after]), np.array([0, 1])].add(6.0)

    return looking


class RelativeBias(nn.Module):
    """T5's learned bias per head and bucket, shared by all layers of a stack: distances → [1 or B,
    H, T, S].
    """

    config: ModelDimensions

    @nn.compact
    def __call__(self, distances: Distances, bidirectional: bool) -> Float[Array, "B H T S"]:
        config = self.config
        stddev = config.d_model**-0.5 if config.init == "fan_in" else config.init_stddev
        init = nn.initializers.normal(stddev)
        if config.mimetic_init and bidirectional:
            init = _looking_at_neighbours(init)
        init = with_axes(init, "buckets", "heads")
        shape = (config.relative_buckets, config.num_heads)
        table = self.param("embedding", init, shape, parameter_dtype(config))
        buckets = relative_buckets(
            distances, bidirectional, config.relative_buckets, config.relative_distance
        )
        if buckets.ndim == 2:  # [T, S], alike in all rows
            return table.T[None, :, buckets]
        return jnp.moveaxis(table[buckets], -1, 1)


def gather_distances(
    scores: Float[Array, "B H T R"], offset: int, distances: Distances
) -> Float[Array, "B H T S"]:
    """For each query and key the score of their distance; that of distance d is in column
    offset + d.
    """
    columns = jnp.clip(jnp.asarray(distances) + offset, 0, scores.shape[-1] - 1)
    if columns.ndim == 2:
        columns = columns[None, None]
    else:
        columns = columns[:, None]
    return jnp.take_along_axis(scores, columns, -1)


def shift_distances(scores: Float[Array, "B H T R"]) -> Float[Array, "B H T S"]:
    """The same where columns are the distances from 1 − T to S − 1 (Dai et al., 2019, appendix B):
    each row begins one column before the row above, so that reading on as if rows were one column
    shorter gives the keys of every query, without an index for each.

    >>> shift_distances(jnp.array([[[[-1.0, 0, 1, 2], [-1, 0, 1, 2]]]]))[0, 0].tolist()
    [[0.0, 1.0, 2.0], [-1.0, 0.0, 1.0]]
    """
    B, H, T, R = scores.shape
    S = R - T + 1
    if T == 1:
        return scores
    rows = scores.reshape(B, H, T * R)[..., T - 1 : T - 1 + T * (R - 1)]
    return rows.reshape(B, H, T, R - 1)[..., :S]


class ShawRelative(nn.Module):
    """Relative vectors that are added to keys and to values (Shaw et al., 2018, eqs. 3 and 4), the
    same for all heads; distances are clipped to ± config.shaw_distance.
    """

    config: ModelDimensions

    def setup(self):
        config = self.config
        shape = (2 * config.shaw_distance + 1, config.head_dim)
        init = with_axes(kernel_init(config, config.head_dim), "distance", "head_dim")
        self.keys = self.param("keys", init, shape, parameter_dtype(config))
        self.values = self.param("values", init, shape, parameter_dtype(config))

    def logits(self, q: Float[Array, "B H T K"], distances: Distances) -> Float[Array, "B H T S"]:
        """Queries times the vectors of the distances."""
        scores = jnp.einsum("bhtk,rk->bhtr", q, self.keys.astype(q.dtype))
        return gather_distances(scores, self.config.shaw_distance, distances)

    def weighted_sum(
        self, weights: Float[Array, "B H T S"], distances: Distances
    ) -> Float[Array, "B H T K"]:
        """The vectors that are added to the values, weighted."""
        furthest = self.config.shaw_distance
        rows = jnp.clip(jnp.asarray(distances), -furthest, furthest) + furthest
        vectors = self.values.astype(weights.dtype)[rows]
        equation = "bhts,tsk->bhtk" if vectors.ndim == 3 else "bhts,btsk->bhtk"
        return jnp.einsum(equation, weights, vectors)


class TransformerXL(nn.Module):
    """Relative positions of Transformer-XL (Dai et al., 2019, §3.3): logits (q + u) k + (q + v) W
    r, where r are the sinusoids of the distance. Gopher and Chinchilla have them (Rae et al., 2021,
    §3.1).
    """

    config: ModelDimensions

    def setup(self):
        config = self.config
        shape, dtype = (config.num_heads, config.head_dim), parameter_dtype(config)
        zeros = with_axes(nn.initializers.zeros, "heads", "head_dim")
        self.u = self.param("u", zeros, shape, dtype)
        self.v = self.param("v", zeros, shape, dtype)
        features = config.num_heads * config.head_dim
        self.project = Dense(config, features, ("embed", "heads"), use_bias=False)

    def logits(
        self, q: Float[Array, "B H T K"], distances: Distances, longest: int, scale: float
    ) -> Float[Array, "B H T S"]:
        """(q + v) W r, for q scaled already and distances up to `longest` either way."""
        # Where positions follow from the order of the arrays, each row of distances is known.
        in_order = isinstance(distances, np.ndarray)
        if in_order:
            known = jnp.arange(1 - distances.shape[0], distances.shape[1])
        else:
            known = jnp.arange(-longest, longest + 1)
        # W r for every distance there is.
        r = sinusoidal(known, self.config.d_model).astype(q.dtype)
        r = self.project(r).reshape(len(r), *self.v.shape)
        # (q + v) · W r, of which each key takes that of its distance.
        q = q + self.v[:, None].astype(q.dtype) * scale
        scores = jnp.einsum("bhtk,rhk->bhtr", q, r)
        return shift_distances(scores) if in_order else gather_distances(scores, longest, distances)
