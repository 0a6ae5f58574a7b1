"""Dense layers, norms and feed-forward parts.

Every parameter carries the logical names of its axes, from AXES; the mesh decides later where they
lie, the optimizer what is decayed, and decoding what is transposed.

Shapes: B rows, T positions, D d_model, F d_ff.
"""

from functools import partial
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.spmd import with_logical_constraint
from jaxtyping import Array, Float

from t5x_lite.config import ModelDimensions
from t5x_lite.model.matmul import (
    heads_in_product,
    matmul,
    matmul_from_heads,
    matmul_to_heads,
    matmul_transposed,
    rounded,
    target_platform,
    wide_dtype,
)
from t5x_lite.model.parallel import (
    first_row,
    is_split,
    own_kv_heads,
    own_shape,
    part_places,
    to_stream,
    whole_size,
)

# Axes of activations.
ACTIVATION_AXES = ("batch", "sequence")
# Axes of dense kernels, which are decayed, and transposed for decoding.
FEATURE_AXES = ("embed", "heads", "kv_heads", "mlp", "cells", "pooled", "factor")
# Rows of lookup tables, which are decayed too; "vocab" is also the output of the language model.
TABLE_AXES = ("vocab", "positions", "types")
# All other axes of parameters: scanned layers, one head, relative distances and buckets of them, a
# norm, an embedding, labels, what adapts a frozen model.
OTHER_AXES = (
    "layers",
    "head_dim",
    "distance",
    "buckets",
    "norm",
    "embedding",
    "classes",
    "adapter",
)
AXES = (*ACTIVATION_AXES, *FEATURE_AXES, *TABLE_AXES, *OTHER_AXES)

# Auxiliary losses by name, each summed over the positions that are no padding.
Auxiliary = dict[str, Array]


def add_auxiliary(a: Auxiliary, b: Auxiliary) -> Auxiliary:
    """The losses of two parts of a model; those of one name are added.

    >>> one, two = jnp.array(1.0), jnp.array(2.0)
    >>> losses = add_auxiliary({"balance": one}, {"balance": two, "z": two})
    >>> {name: float(loss) for name, loss in losses.items()}
    {'balance': 3.0, 'z': 2.0}
    """
    total = dict(a)
    for name, loss in b.items():
        total[name] = total[name] + loss if name in total else loss
    return total


ACTIVATIONS = {
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "linear": lambda x: x,
    "elu": jax.nn.elu,
    "selu": jax.nn.selu,
    "softplus": jax.nn.softplus,
}


def activate(name: str, x: Array, gate: Array | float = 1.0) -> Array:
    """act(x) times a gate, computed in float32 or better, rounded once, and recomputed in the
    backward pass.
    """

    def activated(x, gate):
        dtype = wide_dtype(x.dtype)
        y = ACTIVATIONS[name](x.astype(dtype)) * jnp.asarray(gate, dtype)
        return y.astype(x.dtype)

    # TPU's compiler makes what is computed again a part of the products beside it, a CPU's would
    # rather keep it.
    return jax.checkpoint(activated, prevent_cse=target_platform() != "tpu")(x, gate)


def parameter_dtype(config: ModelDimensions) -> Any:
    """float32, whatever the compute dtype; float64 where that is float64."""
    return jnp.float64 if config.dtype == "float64" else jnp.float32


def with_axes(init: Any, *axes: str) -> Any:
    """An initialiser whose parameter carries these axis names. Where each device has its own part
    of it, its shape is that of the part.
    """
    unknown = set(axes) - set(AXES)
    if unknown:
        raise ValueError(f"unknown axis names {unknown}, expected some of {AXES}")
    boxed = nn.with_logical_partitioning(init, axes)
    return lambda key, shape, dtype: boxed(key, own_shape(shape, axes), dtype)


def padded_with_zeros(init: Any, size: int, axis: int) -> Any:
    """An initialiser that draws `size` entries along an axis, however many pad them: what is drawn
    for an id does not depend on the padding.
    """

    def draw_and_pad(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        padding = max(shape[axis] - size, 0)  # a device's own part may be shorter than `size`
        drawn = list(shape)
        drawn[axis] -= padding
        widths = [(0, 0)] * len(shape)
        widths[axis] = (0, padding)
        return jnp.pad(init(key, drawn, dtype), widths)

    return draw_and_pad


def is_kernel(axes: tuple[str, ...]) -> bool:
    """Whether axis names are those of a dense kernel [in, out], maybe of scanned layers.

    >>> is_kernel(("layers", "embed", "heads")), is_kernel(("vocab", "embedding"))
    (True, False)
    """
    inner = tuple(axis for axis in axes if axis != "layers")
    outputs = (*FEATURE_AXES, "vocab", "classes")
    return len(inner) == 2 and inner[0] in FEATURE_AXES and inner[1] in outputs


def is_table(axes: tuple[str, ...]) -> bool:
    """Whether axis names are those of a lookup table."""
    return len(axes) == 2 and axes[0] in TABLE_AXES


def constrain(x: Array, *axes: str | None) -> Array:
    """Ask the compiler that the axes of an activation be split as the mesh says. Without a mesh, or
    where each device runs its own program, x itself.
    """
    unknown = set(axes) - set(AXES) - {None}
    if unknown:
        raise ValueError(f"unknown axis names {unknown}, expected some of {AXES}")
    if jax.sharding.get_abstract_mesh().manual_axes:
        return x
    return with_logical_constraint(x, axes)


def kernel_init(
    config: ModelDimensions, fan_in: int, writes_to_stream: bool = False, is_query: bool = False
) -> Any:
    """The initialiser of a dense kernel: normal or truncated normal with init_stddev, or fan_in^-½
    as T5 has it.

    Args:
        writes_to_stream: its output is added to the residual stream, which GPT-2 scales by depth.
        is_query: with T5's initialisation it also holds the head_dim^-½ that attention then leaves
            out.
    """
    stddev = config.init_stddev
    # T5 (Raffel et al., 2020; Mesh TensorFlow's layers).
    if config.init == "fan_in":
        stddev = fan_in**-0.5
        if is_query and not config.scale_attention:
            stddev *= config.head_dim**-0.5
    # GPT-2: the residual stream is a sum of two parts a layer.
    if config.depth_scaled_init and writes_to_stream:
        stddev *= (2 * config.num_layers) ** -0.5
    # BERT: cut off at ± 2 σ, not rescaled: the standard deviation is then 0.88 σ, as in TensorFlow.
    if config.init == "truncated":
        return nn.initializers.truncated_normal(stddev)
    return nn.initializers.normal(stddev)


def split_heads(x: Array, head_dim: int) -> Array:
    """[B, T, H · K] or [B, T, H, K] → [B, H, T, K]."""
    B, T = x.shape[:2]
    return x.reshape(B, T, -1, head_dim).swapaxes(1, 2)


def join_heads(x_BHTK: Array) -> Array:
    """[B, H, T, K] → [B, T, H · K]."""
    B, _, T, _ = x_BHTK.shape
    return x_BHTK.swapaxes(1, 2).reshape(B, T, -1)


def _plus_identity(init: Any, scale: float) -> Any:
    """The initialiser of kernels, with scale · I added."""
    return lambda key, shape, dtype: init(key, shape, dtype) + scale * jnp.eye(*shape, dtype=dtype)


class Dense(nn.Module):
    """x W + b: [..., in] → [..., features]. Where devices split the inputs, as of what writes to
    the residual stream, x W is summed over them.

    Attributes:
        writes_to_stream: its output is added to the residual stream.
        to_heads: [B, T, in] → [B, H, T, K], the features being H · K.
        from_heads: [B, H, T, K] → [B, T, features], the inputs being H · K.
        plus_identity: so many times I is added to the fresh kernel.
        use_bias: where the config has biases.
    """

    config: ModelDimensions
    features: int
    axes: tuple[str, str]
    writes_to_stream: bool = False
    is_query: bool = False
    to_heads: bool = False
    from_heads: bool = False
    use_bias: bool = True
    plus_identity: float = 0.0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        config, dtype = self.config, parameter_dtype(self.config)
        x = x.astype(config.dtype)
        rows = join_heads(x) if self.from_heads else x
        if self.has_variable("transposed", "kernel"):  # in decoding: see decoding.py
            y = matmul_transposed(rows, self.get_variable("transposed", "kernel"))
        else:
            inputs = whole_size(rows.shape[-1], self.axes[0])
            init = kernel_init(config, inputs, self.writes_to_stream, self.is_query)
            if self.plus_identity:
                init = _plus_identity(init, self.plus_identity)
            shape = (inputs, self.features)
            kernel = self._own(self.param("kernel", with_axes(init, *self.axes), shape, dtype))
            if self.to_heads and heads_in_product(rows, config.head_dim):
                y = matmul_to_heads(x, kernel, config.head_dim)
            elif self.from_heads and heads_in_product(rows, config.head_dim):
                y = matmul_from_heads(x, kernel)
            else:
                y = matmul(rows, kernel)
        if config.lora_rank and self.name in config.lora_targets:
            y += self._low_rank(rows).reshape(y.shape)
        if is_split(self.axes[0]):
            y = to_stream(y, config.dtype)
        if config.bias and self.use_bias:
            zeros = with_axes(nn.initializers.zeros, self.axes[-1])
            bias = self._own(self.param("bias", zeros, (self.features,), dtype))
            y += bias.reshape(y.shape[rows.ndim - 1 :])
        # What is added to the residual stream is read once: the sum may read it unrounded.
        y = y.astype(config.dtype) if self.writes_to_stream else rounded(y, config.dtype)
        if self.to_heads:
            y = split_heads(y, config.head_dim)
            y = constrain(y, "batch", self.axes[1], "sequence", None)
        return y

    def _own(self, parameter: Array) -> Array:
        """Of a parameter that this device has for more heads, that of its own."""
        if self.axes[-1] != "kv_heads":
            return parameter
        return own_kv_heads(parameter, self.config.num_kv_heads)

    def _low_rank(self, x: Array) -> Array:
        """LoRA (Hu et al., 2022, §4.1): x A B · alpha / rank; B is zero at first."""
        config, dtype = self.config, parameter_dtype(self.config)
        a_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")  # as released
        shape = (whole_size(x.shape[-1], self.axes[0]), config.lora_rank)
        a = self.param("lora_a", with_axes(a_init, self.axes[0], "adapter"), shape, dtype)
        b_init = with_axes(nn.initializers.zeros, "adapter", self.axes[1])
        b = self._own(self.param("lora_b", b_init, (config.lora_rank, self.features), dtype))
        return matmul(matmul(x, a).astype(x.dtype), b) * (config.lora_alpha / config.lora_rank)


class Dropout(nn.Module):
    """Zeros a share of x and scales the rest by 1 / (1 − rate). What is zeroed follows from the key
    and from places in the whole batch, so that it is the same however many devices share it.

    Attributes:
        axis: of x, besides the rows, that devices may split.
    """

    rate: float
    axis: int = 1

    @nn.compact
    def __call__(
        self, x: Float[Array, "B *rest"], deterministic: bool = True, places: Any = None
    ) -> Array:
        """places: the numbers of x's entries along the axis, in the whole; None: from 0 on."""
        if deterministic or not self.rate:
            return x
        # A key for each row, and from it one for each entry along the axis.
        fold_in = jax.vmap(jax.random.fold_in, (None, 0))
        if places is None:
            places = jnp.arange(x.shape[self.axis])
        rows = jnp.arange(len(x)) + first_row(len(x))
        keys = jax.vmap(fold_in, (0, None))(
            fold_in(self.make_rng("dropout"), rows), jnp.asarray(places)
        )
        rest = tuple(np.delete(x.shape[1:], self.axis - 1))
        draw = partial(jax.random.bernoulli, p=1 - self.rate, shape=rest)
        keep = jnp.moveaxis(jax.vmap(jax.vmap(draw))(keys), 1, self.axis)
        return jnp.where(keep, x / (1 - self.rate), 0)


class Adapter(nn.Module):
    """y + act(y U) V through a narrow bottleneck, the identity at first (Houlsby et al., 2019)."""

    config: ModelDimensions

    @nn.compact
    def __call__(self, y: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        config, dtype = self.config, parameter_dtype(self.config)
        width, size = y.shape[-1], config.adapter_size
        normal, zeros = nn.initializers.normal(config.init_stddev), nn.initializers.zeros
        down = self.param("down", with_axes(normal, "embed", "adapter"), (width, size), dtype)
        down_bias = self.param("down_bias", with_axes(zeros, "adapter"), (size,), dtype)
        up = self.param("up", with_axes(zeros, "adapter", "embed"), (size, width), dtype)
        up_bias = self.param("up_bias", with_axes(zeros, "embed"), (width,), dtype)
        inner = matmul(y, down) + down_bias
        inner = activate(config.activation, inner.astype(y.dtype))
        return y + (matmul(inner, up) + up_bias).astype(y.dtype)


class Norm(nn.Module):
    """LayerNorm (Ba et al., 2016), RMSNorm (Zhang and Sennrich, 2019) or the identity; computed in
    float32, or float64 where the model is.
    """

    config: ModelDimensions

    @nn.compact
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        config, dtype = self.config, parameter_dtype(self.config)
        if config.norm == "none":
            return x
        # LayerNorm is RMSNorm of what is centred first, with a bias.
        is_layer_norm = config.norm == "layer_norm"
        shape = (x.shape[-1],)
        scale = self.param("scale", with_axes(nn.initializers.ones, "norm"), shape, dtype)
        bias = None
        if is_layer_norm and config.bias:
            bias = self.param("bias", with_axes(nn.initializers.zeros, "norm"), shape, dtype)

        def normalised(x, scale, bias):
            y = x.astype(dtype)
            if is_layer_norm:
                y -= y.mean(-1, keepdims=True)
            y *= jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + config.norm_epsilon)
            y *= scale
            return (y if bias is None else y + bias).astype(config.dtype)

        # All but x is computed again in the backward pass: it would be kept in float32, three times
        # over, and is cheap.
        return jax.checkpoint(normalised, prevent_cse=False)(x, scale, bias)


class FeedForward(Protocol):
    """The part of a block that treats each position alone: an entry of FEED_FORWARDS, made with the
    config.
    """

    def __call__(self, x_BTD: Array, context: Any) -> tuple[Array, Auxiliary]:
        """[B, T, D] → [B, T, D], and auxiliary losses; context: blocks.StackContext."""
        ...


class MLP(nn.Module):
    """act(x U) V: [B, T, D] → [B, T, D]."""

    config: ModelDimensions

    @nn.compact
    def __call__(self, x_BTD, context) -> tuple[Array, Auxiliary]:
        config = self.config
        x_BTF = Dense(config, config.d_ff, ("embed", "mlp"), name="wi")(x_BTD)
        x_BTF = activate(config.activation, x_BTF)
        return _project_back(config, x_BTF, context), {}


class GatedMLP(nn.Module):
    """(act(x U) * x W) V (Shazeer, 2020; sigmoid: GLU, relu: ReGLU, gelu: GEGLU, silu: SwiGLU,
    linear: bilinear): [B, T, D] → [B, T, D].
    """

    config: ModelDimensions

    @nn.compact
    def __call__(self, x_BTD, context) -> tuple[Array, Auxiliary]:
        config = self.config
        x_BTF = Dense(config, config.d_ff, ("embed", "mlp"), name="wi")(x_BTD)
        gate_BTF = Dense(config, config.d_ff, ("embed", "mlp"), name="gate")(x_BTD)
        x_BTF = activate(config.activation, x_BTF, gate_BTF)
        return _project_back(config, x_BTF, context), {}


def _project_back(config: ModelDimensions, x_BTF, context) -> Array:
    """Dropout and the second matrix, which writes to the residual stream. Called within a compact
    module.
    """
    x_BTF = constrain(x_BTF, "batch", "sequence", "mlp")
    places = part_places(x_BTF.shape[2])
    x_BTF = Dropout(config.ff_dropout, axis=2)(x_BTF, context.deterministic, places)
    return Dense(config, config.d_model, ("mlp", "embed"), writes_to_stream=True, name="wo")(x_BTF)


FEED_FORWARDS = {"mlp": MLP, "gated_mlp": GatedMLP}
