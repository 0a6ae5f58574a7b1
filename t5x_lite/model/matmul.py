"""The matrix product of dense layers and attention: operands in the compute dtype, sums and result
in float32, so that bfloat16 rounds the operands and nothing else. Gradients of float32 parameters
are also summed in float32. (Relative positions in attention use einsums instead.)

Everything that makes it fast on a CPU is in this file.

Shapes: *B batch axes of both operands, *L leading axes of x only (rows and positions), N rows, D
in, F out, T positions, H heads, K head_dim.
"""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.custom_derivatives import linear_call
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

_FEW_ROWS = 32  # up to this many rows, as in generation, take the path of `_few_rows`


def wide_dtype(dtype: Any) -> Any:
    """Return the dtype in which sums are computed: float32, or float64 for float64."""
    return jnp.float64 if jnp.dtype(dtype) == jnp.float64 else jnp.float32


def target_platform() -> str:
    """Return the platform that a program is compiled for: cpu, gpu or tpu. It may differ from the
    platform of this machine.
    """
    # A mesh names its devices, which may only be planned. Without a mesh, use those at hand.
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device else jax.default_backend()


def target_kind() -> str:
    """Return the kind of device that a program is compiled for, as jax names it."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.device_kind if device else jax.devices()[0].device_kind


def rounded(y: Array, dtype: Any) -> Array:
    """Cast y to the compute dtype, and stop XLA:TPU from also keeping the unrounded copy."""
    y = y.astype(dtype)
    return jax.lax.optimization_barrier(y) if target_platform() == "tpu" else y


def matmul(x: Array, w: Array) -> Array:
    """Multiply x [*L, D] by w [D, F], or x [*B, N, D] by w [*B, D, F]: [..., F] in float32 (float64
    for float64).

    w is cast to the dtype of x. The product can be differentiated in forward and reverse mode, but
    more than once only in float64.

    >>> matmul(jnp.ones((2, 3), jnp.bfloat16), jnp.ones((3, 4))).dtype
    dtype('float32')
    """
    return _with_flat_rows(x, w, "plain")


def heads_in_product(rows: Float[Array, "B T F"], head_dim: int) -> bool:
    """True if attention's projection of rows [B, T, D or H · K] should be computed with heads as a
    separate axis.

    XLA:TPU writes such a product in the order in which attention reads it, but copies the kernel
    once. If heads are split afterwards, it copies the product twice, which is less if there are few
    positions. Heads of 64 features would fill only half of the 128 lanes.
    """
    B, T, width = rows.shape
    return target_platform() == "tpu" and head_dim % 128 == 0 and width <= 2 * B * T


def matmul_to_heads(
    x: Float[Array, "B T D"], w: Float[Array, "D F"], head_dim: int
) -> Float[Array, "B T H K"]:
    """Multiply x [B, T, D] by w [D, H · K], as `matmul`, with an axis of heads: [B, T, H, K]."""
    return _contracted(x, w.reshape(len(w), -1, head_dim), "btd,dhk->bthk")


def matmul_from_heads(x: Float[Array, "B H T K"], w: Float[Array, "F D"]) -> Float[Array, "B T D"]:
    """Multiply x [B, H, T, K] by w [H · K, D], as `matmul`, and sum over heads: [B, T, D]."""
    H, K = x.shape[1], x.shape[3]
    return _contracted(x, w.reshape(H, K, -1), "bhtk,hkd->btd")


def matmul_transposed(x: Array, w: Array) -> Array:
    """Multiply x [*L, D] by the transpose of w [F, D], or x [*B, N, D] by the transpose of
    w [*B, F, D], as `matmul`. w is not transposed in memory.
    """
    if w.ndim == 2 and x.size // x.shape[-1] <= _FEW_ROWS:
        return _few_rows(x, w)
    return _with_flat_rows(x, w, "transposed")


def _with_flat_rows(x: Array, w: Array, form: "Form") -> Array:
    """Multiply with all positions of a batch as rows of one matrix, if that is faster. Dense layers
    gain a third on a CPU.
    """
    # XLA:TPU lays rows out itself, and better. If the compiler splits x over devices, x also keeps
    # its shape, since flattening would gather a sharded sequence.
    stays = x.ndim > 2 and (compiler_splits() or target_platform() == "tpu")
    if w.ndim > 2 or x.ndim == 2 or stays:
        return _matmul(x, w, form)
    y = _matmul(x.reshape(-1, x.shape[-1]), w, form)
    return y.reshape(*x.shape[:-1], y.shape[-1])


def compiler_splits() -> bool:
    """True if the compiler may split arrays over several devices."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.size > 1 and not mesh.manual_axes


def _few_rows(x: Float[Array, "*L D"], w: Float[Array, "F D"]) -> Float[Array, "*L F"]:
    """Compute x wᵀ as (w xᵀ)ᵀ, which for few rows, as in generation, is up to twice as fast on a
    CPU.
    """
    rows = x.reshape(-1, x.shape[-1])
    count = len(rows)
    # With fewer than eight rows, the matrix units for bfloat16 are not used.
    if rows.dtype == jnp.bfloat16:
        rows = jnp.pad(rows, [(0, -count % 8), (0, 0)])
    # (w rowsᵀ)ᵀ
    y = _dot(w.astype(x.dtype), rows, "transposed").T[:count]
    return y.reshape(*x.shape[:-1], w.shape[0])


# How w is laid out: see _dot.
Form = Literal["plain", "transposed"]

Pair = tuple[Array, Array]  # x and w, or a value and its tangent


def _matmul(x: Array, w: Array, form: Form) -> Array:
    # float64 is for numerical tests, which need jax's own derivatives, of any order.
    if x.dtype == jnp.float64:
        return _dot(x, w.astype(x.dtype), form)
    return _matmul_fast(x, w, form)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _matmul_fast(x: Array, w: Array, form: Form) -> Array:
    return _dot(x, w.astype(x.dtype), form)


@_matmul_fast.defjvp
def _matmul_fast_jvp(form: Form, primals: Pair, tangents: Pair) -> Pair:
    x, w = primals
    dx, dw = tangents

    # The product rule: d(x w) = dx w + x dw. linear_call runs the first function of each pair
    # forward and the second in reverse mode, where jax would otherwise derive it from the first.
    def linear_in_x(w: Array, dx: Array) -> Array:
        return _dot(dx, w.astype(dx.dtype), form)

    def linear_in_w(x: Array, dw: Array) -> Array:
        return _dot(x, dw.astype(x.dtype), form)

    # The transposes of these two, for reverse mode. Their operands are in the compute dtype, to run
    # on the matrix units, and are laid out as the device prefers.
    def gradient_of_x(w: Array, dy: Array) -> Array:
        dy, w = dy.astype(x.dtype), w.astype(x.dtype)
        dx = _dot(dy, w, "plain" if form == "transposed" else "transposed")
        return dx.astype(x.dtype)

    def gradient_of_w(x: Array, dy: Array) -> Array:
        dy = dy.astype(x.dtype)
        a, b = (dy, x) if form == "transposed" else (x, dy)
        return _sum_over_rows(a, b, is_batched=w.ndim > 2).astype(w.dtype)

    tangent = linear_call(linear_in_x, gradient_of_x, w, dx) + linear_call(
        linear_in_w, gradient_of_w, x, dw
    )
    return _matmul_fast(x, w, form), tangent


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _contracted(x: Array, w: Array, equation: str) -> Array:
    """Compute einsum(equation, x, w) with the dtypes of `matmul`."""
    return _einsum(equation, x, w.astype(x.dtype))


@_contracted.defjvp
def _contracted_jvp(equation: str, primals: Pair, tangents: Pair) -> Pair:
    (x, w), (dx, dw) = primals, tangents
    # The letters of each operand's axes. In another order they give the equations of the gradients.
    of_x, of_w, of_y = equation.replace("->", ",").split(",")

    # The product rule and its transposes, as in _matmul_fast_jvp.
    def linear_in_x(w: Array, dx: Array) -> Array:
        return _einsum(equation, dx, w.astype(dx.dtype))

    def linear_in_w(x: Array, dw: Array) -> Array:
        return _einsum(equation, x, dw.astype(x.dtype))

    def gradient_of_x(w: Array, dy: Array) -> Array:
        operands = dy.astype(x.dtype), w.astype(x.dtype)
        return _einsum(f"{of_y},{of_w}->{of_x}", *operands).astype(x.dtype)

    def gradient_of_w(x: Array, dy: Array) -> Array:
        return _einsum(f"{of_x},{of_y}->{of_w}", x, dy.astype(x.dtype)).astype(w.dtype)

    tangent = linear_call(linear_in_x, gradient_of_x, w, dx)
    tangent += linear_call(linear_in_w, gradient_of_w, x, dw)
    return _contracted(x, w, equation), tangent


def _einsum(equation: str, a: Array, b: Array) -> Array:
    return jnp.einsum(equation, a, b, preferred_element_type=wide_dtype(a.dtype))


def _dot(x: Array, w: Array, form: Form) -> Array:
    """Multiply x [..., D] by w [*B, D, F], or by the transpose of w [*B, F, D], in float32 or
    better.
    """
    contracted = w.ndim - 1 if form == "transposed" else w.ndim - 2
    batch = tuple(range(w.ndim - 2))
    dimensions = (((x.ndim - 1,), (contracted,)), (batch, batch))
    return jax.lax.dot_general(x, w, dimensions, preferred_element_type=wide_dtype(x.dtype))


def _sum_over_rows(a: Array, b: Array, is_batched: bool) -> Array:
    """Compute aᵀ b, the gradient of w: [*B, A, F], summed over all rows."""
    # If the rows of a dense layer were not flattened, sum over all leading axes.
    if not is_batched and a.ndim > 2:
        rows = tuple(range(a.ndim - 1))
        return jax.lax.dot_general(
            a, b, ((rows, rows), ((), ())), preferred_element_type=jnp.float32
        )
    # The path for CPUs asks for a layout. With several devices, each would be sent the whole array
    # for that.
    on_cpu = _transposed_dot if compiler_splits() else _transposed_dot_on_cpu
    return jax.lax.platform_dependent(a, b, cpu=on_cpu, default=_transposed_dot)


def _transposed_dot(a: Float[Array, "*B N A"], b: Float[Array, "*B N F"]) -> Float[Array, "*B A F"]:
    # Contract the rows, the second-to-last axis of both operands.
    batch = tuple(range(a.ndim - 2))
    dimensions = (((a.ndim - 2,), (b.ndim - 2,)), (batch, batch))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def _transposed_dot_on_cpu(
    a: Float[Array, "*B N A"], b: Float[Array, "*B N F"]
) -> Float[Array, "*B A F"]:
    """Compute `_transposed_dot` after transposing the narrower operand in memory. XLA:CPU does not
    transpose `a` itself, and a product with a transposed left operand misses the fast path (AMX)
    and runs at a fifth of the speed.
    """
    # The transpose of bᵀ a is aᵀ b.
    if b.shape[-1] < a.shape[-1]:
        swapped = _row_major(_dot(_transpose_in_memory(b), a, "plain"))
        return swapped.swapaxes(-1, -2)
    return _row_major(_dot(_transpose_in_memory(a), b, "plain"))


def _transpose_in_memory(x: Float[Array, "*B N D"]) -> Float[Array, "*B D N"]:
    return _row_major(x.swapaxes(-1, -2))


def _row_major(x: Array) -> Array:
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))
