"""The parts of a block. Shapes: B rows, T positions, D width, F inner width, V vocabulary.

Every parameter carries the logical names of its axes, from AXES; the mesh decides later where they go.
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_lite.config import Model
from t5x_lite.model.products import product, product_turned

AXES = ("batch", "embed", "heads", "mlp", "vocab", "layers")
ACTIVATIONS = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "linear": lambda x: x,
    "elu": jax.nn.elu,
    "selu": jax.nn.selu,
    "softplus": jax.nn.softplus,
}


@partial(jax.checkpoint, static_argnums=0)
def activate(name: str, x, gate=1.0):
    """act(x), times a gate: computed in float32 or better, rounded once, and computed again for the gradient."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return (ACTIVATIONS[name](x.astype(wide)) * gate).astype(x.dtype)


def parameter_dtype(config: Model):
    """float32, whatever the computation; float64 in proofs."""
    return jnp.float64 if config.dtype == "float64" else jnp.float32


def named(init, *axes):
    """An initialiser whose parameter carries these axis names; None is an axis that is never split."""
    unknown = set(axes) - {None, *AXES}
    if unknown:
        raise ValueError(f"unknown axis names {unknown}, expected some of {AXES}")
    return nn.with_logical_partitioning(init, axes)


def constrain(x, *axes):
    """Ask that the axes of an activation be split as the mesh says; without a mesh, x itself."""
    return nn.with_logical_constraint(x, axes)


def kernel_init(config: Model, fan_in: int, writes_to_stream: bool = False, query: bool = False):
    """The initialiser of a dense kernel: normal or truncated normal with init_stddev, or fan_in^-½ as T5 has it,
    where the query's also holds the head_size^-½ that the attention then leaves out.
    """
    stddev = fan_in**-0.5 if config.init == "fan_in" else config.init_stddev
    if config.init == "fan_in" and query and not config.scale_attention:
        stddev *= head_size(config) ** -0.5
    if config.depth_scaled_init and writes_to_stream:
        stddev *= (2 * config.layers) ** -0.5
    if config.init == "truncated":  # at 2 σ, σ being that of the untruncated normal (BERT)
        return nn.initializers.truncated_normal(stddev)
    return nn.initializers.normal(stddev)


def head_size(config: Model) -> int:
    """Width of one attention head."""
    return config.head_size or config.width // config.heads


class Dense(nn.Module):
    """x W + b: [..., in] → [..., features]."""

    config: Model
    features: int
    axes: tuple
    writes_to_stream: bool = False
    query: bool = False
    bias: bool = True  # where the config has biases

    @nn.compact
    def __call__(self, x):
        config, dtype = self.config, parameter_dtype(self.config)
        rows = x.reshape(-1, x.shape[-1]).astype(config.dtype)
        if self.has_variable("turned", "kernel"):  # where text is written: see decoding.py
            y = product_turned(rows, self.get_variable("turned", "kernel"))
        else:
            init = kernel_init(config, x.shape[-1], self.writes_to_stream, self.query)
            kernel = self.param("kernel", named(init, *self.axes), (x.shape[-1], self.features), dtype)
            y = product(rows, kernel)
        if config.bias and self.bias:
            y += self.param("bias", named(nn.initializers.zeros, self.axes[-1]), (self.features,), dtype)
        return y.astype(config.dtype).reshape(*x.shape[:-1], self.features)


class Norm(nn.Module):
    """LayerNorm (Ba et al., 2016), RMSNorm (Zhang and Sennrich, 2019), computed in float32 or better, or none."""

    config: Model

    @nn.compact
    def __call__(self, x):
        config, dtype = self.config, parameter_dtype(self.config)
        if config.norm == "none":
            return x
        scale = self.param("scale", named(nn.initializers.ones, None), (x.shape[-1],), dtype)
        y = x.astype(dtype)
        if config.norm == "layer_norm":
            y -= y.mean(-1, keepdims=True)
        y *= jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + config.norm_epsilon)
        y *= scale
        if config.norm == "layer_norm" and config.bias:
            y += self.param("bias", named(nn.initializers.zeros, None), (x.shape[-1],), dtype)
        return y.astype(config.dtype)


class FeedForward(nn.Module):
    """act(x U) V, or the gated act(x U) * (x W) V (Shazeer, 2020; sigmoid: GLU, relu: ReGLU, gelu: GEGLU, silu: SwiGLU,
    linear: bilinear): [B, T, D] → [B, T, D].
    """

    config: Model

    @nn.compact
    def __call__(self, x, deterministic: bool = True):
        config = self.config
        inner = config.ff_width or 4 * config.width
        names = ("wi", "gate") if config.gated else ("wi",)
        hidden = activate(config.activation, *(Dense(config, inner, ("embed", "mlp"), name=name)(x) for name in names))
        hidden = constrain(hidden, "batch", None, "mlp")
        hidden = nn.Dropout(config.ff_dropout)(hidden, deterministic=deterministic)
        return Dense(config, config.width, ("mlp", "embed"), writes_to_stream=True, name="wo")(hidden)
