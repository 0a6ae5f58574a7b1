"""Dense layers and lookup tables with named axes.

Shapes: B rows, T positions, H heads, K head_dim, V rows of a table, W its width.
"""

from functools import cache
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
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
    wide_dtype,
)
from t5x_lite.parallel.axes import check_names

Parameter = Array | np.ndarray  # numpy if a model is applied directly to imported arrays

# Initialisers of equal standard deviation are one object, so that parameters drawn alike share a
# compiled program.
normal = cache(nn.initializers.normal)
truncated_normal = cache(nn.initializers.truncated_normal)


@struct.dataclass
class Declaration(nn.LogicallyPartitioned):
    """A parameter with the names of its axes and the initialiser that draws it."""

    init: Any = struct.field(pytree_node=False, default=None)


def parameter_dtype(config: ModelDimensions) -> Any:
    """Return the dtype of parameters: float64 if the compute dtype is float64, else float32."""
    return jnp.float64 if config.dtype == "float64" else jnp.float32


def with_axes(init: Any, *axes: str) -> Any:
    """Return an initialiser whose parameter carries the names of its axes, from parallel.axes."""
    check_names(axes)
    if len(set(axes)) < len(axes):
        fix = "give each another, 'own' where none fits"
        raise ValueError(f"got the axis names {axes}; {fix}")
    return lambda *args: Declaration(init(*args), axes, init=init)


@cache
def padded_with_zeros(init: Any, size: int, axis: int) -> Any:
    """Return an initialiser that draws `size` entries along an axis and pads them with zeros, so
    that the numbers drawn for an id do not depend on the padding.
    """

    def draw_and_pad(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        padding = max(shape[axis] - size, 0)  # a device's own part may be shorter than `size`
        drawn = list(shape)
        drawn[axis] -= padding
        widths = [(0, 0)] * len(shape)
        widths[axis] = (0, padding)
        return jnp.pad(init(key, drawn, dtype), widths)

    return draw_and_pad


def constrain(x: Array, *axes: str | None) -> Array:
    """Ask the compiler to split the axes of an activation over the mesh. Return x itself if there
    is no mesh, or if each device runs its own program.
    """
    check_names(axes)
    if jax.sharding.get_abstract_mesh().manual_axes:
        return x
    return with_logical_constraint(x, axes)


def kernel_init(
    config: ModelDimensions, fan_in: int, writes_to_stream: bool = False, is_query: bool = False
) -> Any:
    """Return the initialiser of a dense kernel: normal or truncated normal with a standard
    deviation of init_stddev, or T5's normal with fan_in^-½.

    Args:
        writes_to_stream: the output is added to the residual stream; with depth_scaled_init (GPT-2)
            the standard deviation then decreases with depth.
        is_query: the kernel computes queries. T5's initialisation then contains the factor
            query_width^-½, if attention leaves it out (scale_attention=False).
    """
    stddev = config.init_stddev
    # T5 (Raffel et al., 2020; Mesh TensorFlow's layers).
    if config.init == "fan_in":
        stddev = fan_in**-0.5
        if is_query and not config.scale_attention:
            stddev *= config.query_width**-0.5
    # GPT-2: the residual stream is a sum of two parts per layer.
    if config.depth_scaled_init and writes_to_stream:
        stddev *= (2 * config.num_layers) ** -0.5
    # BERT: truncated at ± 2 σ and not rescaled. As in TensorFlow, the standard deviation is then
    # 0.88 σ.
    if config.init == "truncated":
        return truncated_normal(stddev)
    return normal(stddev)


def split_heads(x: Array, head_dim: int) -> Array:
    """Move heads before positions: [B, T, H · K] or [B, T, H, K] → [B, H, T, K]."""
    B, T = x.shape[:2]
    return x.reshape(B, T, -1, head_dim).swapaxes(1, 2)


def join_heads(x_BHTK: Array) -> Array:
    """Join heads into one axis of features: [B, H, T, K] → [B, T, H · K]."""
    B, _, T, _ = x_BHTK.shape
    return x_BHTK.swapaxes(1, 2).reshape(B, T, -1)


@cache
def _plus_identity(init: Any, scale: float) -> Any:
    """Return an initialiser that adds scale · I to the kernel that `init` draws."""
    return lambda key, shape, dtype: init(key, shape, dtype) + scale * jnp.eye(*shape, dtype=dtype)


class Unsummed(NamedTuple):
    """Output of a part that several devices share: this device's term of a sum over them, and the
    bias to add to the sum.
    """

    terms: Array
    bias: Array


Written = Array | Unsummed  # output of a part, to be added to the residual stream


class Dense(nn.Module):
    """x W + b: [..., in] → [..., features].

    Attributes:
        writes_to_stream: the output is added to the residual stream. It is returned in float32 or
            better, and is one term of a sum if devices share the part (config.tensor_parts).
        is_last: the output is the output of the whole part, so the bias is added after this sum;
            see Unsummed.
        is_query: see kernel_init.
        to_heads: map [B, T, in] → [B, H, T, K], where H · K are the features.
        from_heads: map [B, H, T, K] → [B, T, features], where H · K are the inputs.
        plus_identity: multiple of I that is added to the kernel at initialisation.
        use_bias: whether there is a bias; None: as config.bias.
    """

    config: ModelDimensions
    features: int
    axes: tuple[str, str]
    writes_to_stream: bool = False
    is_last: bool = False
    is_query: bool = False
    to_heads: bool = False
    from_heads: bool = False
    use_bias: bool | None = None
    plus_identity: float = 0.0

    @nn.compact
    def __call__(self, x: Array) -> Any:  # Written, if is_last
        config, dtype = self.config, parameter_dtype(self.config)
        x = x.astype(config.dtype)
        rows = join_heads(x) if self.from_heads else x

        # x W
        if self.has_variable("transposed", "kernel"):  # when decoding, see decoding.py
            y = matmul_transposed(rows, self.get_variable("transposed", "kernel"))
        else:
            inputs = rows.shape[-1]
            init = kernel_init(config, inputs, self.writes_to_stream, self.is_query)
            if self.plus_identity:
                init = _plus_identity(init, self.plus_identity)
            shape = (inputs, self.features)
            # Kernels are stored as [in, out] whether or not the product has an axis of heads.
            kernel = self.param("kernel", with_axes(init, *self.axes), shape, dtype)
            if self.to_heads and heads_in_product(rows, config.head_dim):
                y = matmul_to_heads(x, kernel, config.head_dim)
            elif self.from_heads and heads_in_product(rows, config.head_dim):
                y = matmul_from_heads(x, kernel)
            else:
                y = matmul(rows, kernel)
        # LoRA's update, in the layers that it adapts.
        if config.lora_rank and self.name in config.lora_targets:
            y += self._low_rank(rows).reshape(y.shape)

        # + b
        has_bias = config.bias if self.use_bias is None else self.use_bias
        if has_bias:
            zeros = with_axes(nn.initializers.zeros, self.axes[-1])
            bias = self.param("bias", zeros, (self.features,), dtype)
            # y is one device's term of a sum. A bias added to each term would count repeatedly.
            if self.writes_to_stream and config.tensor_parts > 1:
                if self.is_last:
                    return Unsummed(y, bias)
                bias = bias / config.tensor_parts  # each device adds its share
            y += bias.reshape(y.shape[rows.ndim - 1 :])

        # Only the residual sum reads y, so it need not be rounded.
        if self.writes_to_stream:
            return y
        y = rounded(y, config.dtype)
        return split_heads(y, config.head_dim) if self.to_heads else y

    def _low_rank(self, x: Array) -> Array:
        """Return LoRA's update x A B · alpha / rank (Hu et al., 2022, §4.1). B is zero at first."""
        config, dtype = self.config, parameter_dtype(self.config)
        a_axes, b_axes = (self.axes[0], "adapter"), ("adapter", self.axes[1])
        shape = (x.shape[-1], config.lora_rank)
        a = self.param("lora_a", with_axes(_LORA_A, *a_axes), shape, dtype)
        b_init = with_axes(nn.initializers.zeros, *b_axes)
        b = self.param("lora_b", b_init, (config.lora_rank, self.features), dtype)
        return matmul(matmul(x, a).astype(x.dtype), b) * (config.lora_alpha / config.lora_rank)


_LORA_A = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")  # as LoRA was released


def look_up(table_VW: Any, ids: Any) -> Array:
    """Look up rows of a table by id. The gradient is summed in float32 or better, regardless of the
    table's dtype.
    """
    if table_VW.dtype == wide_dtype(table_VW.dtype):
        return jnp.take(table_VW, ids, 0)

    # A sum in bfloat16 stops growing once its terms are smaller than its rounding error, so the
    # gradient of a frequent token would be too small.
    @jax.custom_vjp
    def take(table: Parameter) -> Array:
        return jnp.take(table, ids, 0)

    def backward(_: None, gradient: Array) -> tuple[Float[Array, "V W"]]:
        total = jnp.zeros(table_VW.shape, wide_dtype(table_VW.dtype))
        total = total.at[ids].add(gradient.astype(total.dtype))
        return (total.astype(table_VW.dtype),)

    take.defvjp(lambda table: (take(table), None), backward)
    return take(table_VW)
