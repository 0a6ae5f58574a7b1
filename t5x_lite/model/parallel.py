"""What a model computes where several devices share it, as far as its modules have to know.

Within a training step each device runs the same program on its own rows (see
training/parallelism.py) and, where the mesh axis `tensor` is larger than 1, on its own heads, its
own part of d_ff and of the vocabulary (Megatron-LM: Shoeybi et al., 2019, §3). Between the parts of
a block each device holds its own positions of the residual stream (sequence parallelism:
Korthikanti et al., 2023, §4.2.2), if they can be divided evenly:

    own positions ──► whole_sequence ──► own heads or d_ff ──► to_stream ──► own positions
      [B, P, D]        all-gather         [B, T, F]           reduce-scatter   [B, P, D]

Values that all devices of `tensor` compute alike, such as the loss, are counted once by each: a
gradient is always the sum over devices of what each has found.

With one device, and wherever the compiler splits arrays (inference), all these functions return
what they are given.

Shapes: B rows, T positions, P positions of this device, D d_model, F features of a part, V
vocabulary, W width of its table.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax.core.spmd import get_logical_axis_rules
from jaxtyping import Array

from t5x_lite.model.matmul import wide_dtype

_sum_dtype: ContextVar[Any] = ContextVar("sum_dtype", default=None)


@contextmanager
def sums_in(dtype: Any) -> Iterator[None]:
    """Activations are sent and summed over `tensor` in this type; None: in their own."""
    token = _sum_dtype.set(dtype)
    try:
        yield
    finally:
        _sum_dtype.reset(token)


def parts(mesh_axis: str) -> int:
    """How many devices along an axis of the mesh run this program, each with its own part."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[mesh_axis] if mesh_axis in mesh.manual_axes else 1


def _parts_of(axis: str | None) -> int:
    """Into how many parts devices split a logical axis."""
    mesh_axis: Any = dict(get_logical_axis_rules()).get(axis or "")
    return parts(mesh_axis) if isinstance(mesh_axis, str) else 1


def is_split(axis: str) -> bool:
    """Whether each device has its own part of a logical axis."""
    return _parts_of(axis) > 1


def own_shape(shape: Sequence[int], axes: Sequence[str | None]) -> tuple[int, ...]:
    """The shape of this device's part of a parameter, from its whole shape and axis names."""
    return tuple(size // _parts_of(axis) for size, axis in zip(shape, axes, strict=True))


def whole_size(size: int, axis: str) -> int:
    """The size of a logical axis, from that of this device's part."""
    return size * _parts_of(axis)


def first_of(mesh_axis: str, size: int) -> int | Array:
    """The number, in the whole, of the first of `size` entries of this device."""
    return jax.lax.axis_index(mesh_axis) * size if parts(mesh_axis) > 1 else 0


def first_row(rows: int) -> int | Array:
    """The number in the batch of the first of this device's rows."""
    axes = tuple(axis for axis in ("data", "fsdp") if parts(axis) > 1)
    return jax.lax.axis_index(axes) * rows if axes else 0


def own_part(x: Array, mesh_axis: str, axis: int) -> Array:
    """This device's part of an array that it has whole."""
    if parts(mesh_axis) == 1:
        return x
    size = x.shape[axis] // parts(mesh_axis)
    return jax.lax.dynamic_slice_in_dim(x, first_of(mesh_axis, size), size, axis)


# The residual stream.


def splits_stream(length: int) -> bool:
    """Whether each device holds its own positions of the residual stream."""
    return parts("tensor") > 1 and length % parts("tensor") == 0


def own_positions(x: Any) -> Any:
    """[B, T, …] → [B, P, …]; x may be of numpy."""
    return own_part(x, "tensor", 1) if splits_stream(x.shape[1]) else x


def first_position(own: int, length: int) -> int | Array:
    """The number of the first of a device's `own` positions, of `length` in all."""
    return 0 if own == length else first_of("tensor", own)


def whole_sequence(x: Array, length: int) -> Array:
    """The residual stream of all positions, [B, P, …] → [B, T, …]."""
    return _gather_positions(x, _sum_dtype.get()) if splits_stream(length) else x


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _gather_positions(x, sum_dtype):
    return jax.lax.all_gather(x, "tensor", axis=1, tiled=True)


def _gather_positions_forward(x, sum_dtype):
    return _gather_positions(x, sum_dtype), None


def _gather_positions_backward(sum_dtype, _, gradient):
    dtype = gradient.dtype
    total = gradient.astype(sum_dtype or dtype)
    total = jax.lax.psum_scatter(total, "tensor", scatter_dimension=1, tiled=True)
    return (total.astype(dtype),)


_gather_positions.defvjp(_gather_positions_forward, _gather_positions_backward)


def to_stream(y: Array, dtype: Any) -> Array:
    """What each device has found of y [B, T, D] or [B, D], its terms of a sum, added up: [B, P, D]
    or [B, D].

    Args:
        dtype: of the computation.
    """
    if parts("tensor") == 1:
        return y
    wide = y.dtype
    y = y.astype(_sum_dtype.get() or dtype)
    if y.ndim == 3 and splits_stream(y.shape[1]):
        y = jax.lax.psum_scatter(y, "tensor", scatter_dimension=1, tiled=True)
    else:
        y = jax.lax.psum(y, "tensor")
    return y.astype(wide)


# The vocabulary.


def sum_over_vocabulary(x: Array) -> Array:
    """The sum over all parts of the vocabulary of what each has summed."""
    return jax.lax.psum(x, "tensor") if parts("tensor") > 1 else x


def max_over_vocabulary(x: Array) -> Array:
    """The largest of all parts of the vocabulary; it has no gradient."""
    x = jax.lax.stop_gradient(x)
    return jax.lax.pmax(x, "tensor") if parts("tensor") > 1 else x


def look_up(table_VW: Any, ids: Any) -> Array:
    """The rows of a table by their numbers; where devices split the vocabulary, zeros for those of
    another device. The gradient is summed in float32 or better, whatever the table's type.
    """
    if not is_split("vocab"):
        return _take(table_VW, ids)
    ids -= first_of("tensor", len(table_VW))
    is_here = (ids >= 0) & (ids < len(table_VW))
    rows = _take(table_VW, jnp.where(is_here, ids, 0))
    return jnp.where(is_here[..., None], rows, 0)


def _take(table: Any, ids: Any) -> Array:
    if table.dtype == wide_dtype(table.dtype):
        return jnp.take(table, ids, 0)

    # In bfloat16 the gradient of a frequent token would end where one more changes nothing.
    @jax.custom_vjp
    def take(table):
        return jnp.take(table, ids, 0)

    def backward(_, gradient):
        total = jnp.zeros(table.shape, wide_dtype(table.dtype))
        total = total.at[ids].add(gradient.astype(total.dtype))
        return (total.astype(table.dtype),)

    take.defvjp(lambda table: (take(table), None), backward)
    return take(table)
