"""The one matrix product: operands in the type of the computation, sums in float32, so that bfloat16 loses nothing more
than its operands' digits, and what is summed for the gradient of a float32 parameter is not rounded again.

Shapes: *B any leading axes, N rows, D in, F out.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint


@jax.custom_vjp
def product(x, w):
    """x [*B, N, D] times w [*B, D, F] → [*B, N, F] in float32 (float64 for float64), w taken in the type of x.

    >>> product(jnp.ones((2, 3), jnp.bfloat16), jnp.ones((3, 4))).dtype
    dtype('float32')
    """
    return _dot(x, w.astype(x.dtype))


@jax.custom_vjp
def product_turned(x, w):
    """x [*B, N, D] times the transpose of w [*B, F, D] → [*B, N, F], as `product`, but w is nowhere moved.

    Few rows, as when text is written, are up to twice as fast the other way round on a CPU; in bfloat16 with at least
    eight, since the matrix units are not reached with less.
    """
    w, rows = w.astype(x.dtype), len(x)
    if x.ndim > 2 or rows > _FEW:
        return _dot(x, w, -1, -1)
    if x.dtype == jnp.bfloat16:
        x = jnp.pad(x, [(0, -rows % 8), (0, 0)])
    return _dot(w, x, -1, -1).T[:rows]


_FEW = 32  # rows


def _dot(a, b, over_a=-1, over_b=-2):
    batch = tuple(range(a.ndim - 2))
    numbers = (((a.ndim + over_a,), (b.ndim + over_b,)), (batch, batch))
    return jax.lax.dot_general(a, b, numbers, preferred_element_type=jnp.promote_types(a.dtype, jnp.float32))


def _backward(turned: bool, kept, dy):
    x, w = kept
    dy = dy.astype(x.dtype)
    for_x = _dot(dy, w.astype(x.dtype), -1, -2 if turned else -1)
    alone = jax.sharding.get_abstract_mesh().size <= 1  # of several devices each would be sent the whole array
    cpu = _over_rows_on_cpu if alone else _over_rows
    for_w = jax.lax.platform_dependent(*(dy, x) if turned else (x, dy), cpu=cpu, default=_over_rows)
    return for_x.astype(x.dtype), for_w.astype(w.dtype)


product.defvjp(lambda x, w: (product(x, w), (x, w)), partial(_backward, False))
product_turned.defvjp(lambda x, w: (product_turned(x, w), (x, w)), partial(_backward, True))


def _turn(x):
    return x.swapaxes(-1, -2)


def _over_rows(x, dy):
    """xᵀ dy [*B, D, F]."""
    return _dot(x, dy, -2, -2)


def _over_rows_on_cpu(x, dy):
    """The same with the narrower side moved in memory first: XLA for CPU would leave xᵀ where it is, and a product
    whose left side lies transposed does not reach the matrix units (a fifth of the speed in bfloat16).
    """
    if dy.shape[-1] < x.shape[-1]:
        return _turn(_in_rows(_dot(_in_rows(_turn(dy)), x)))
    return _in_rows(_dot(_in_rows(_turn(x)), dy))


def _in_rows(x):
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))
