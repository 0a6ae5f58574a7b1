"""What a model computes where several devices share it, as far as its modules have to know.

Within a training step each device runs the same program on its own rows (see
training/parallelism.py) and, where the mesh axis `tensor` is larger than 1, on its own heads, its
own part of d_ff and of the vocabulary (Megatron-LM: Shoeybi et al., 2019, §3). Between the parts of
a block each device holds its own positions of the residual stream (sequence parallelism:
Korthikanti et al., 2023, §4.2.2), if they can be divided evenly:

    own positions ──► gather_stream ──► own heads or d_ff ──► to_stream ──► own positions
      [B, P, D]        all-gather         [B, C, F]          reduce-scatter   [B, P, D]

Where the mesh axis `sequence` is larger than 1, each device has its own positions of every row from
the start (context parallelism), and only the keys and values of attention are put together:

    own queries [B, H, C, K]  ──► attention ◄── own keys and values ──► whole_row [B, G, T, K]

Values that all devices of `tensor` and `sequence` compute alike, such as the loss, are counted once
by each: a gradient is always the sum over devices of what each has found.

With one device, and wherever the compiler splits arrays (inference), all these functions return
what they are given.

Shapes: B rows, T positions of a row, C those of this device of `sequence`, P of these those of this
device of `tensor`, H heads, G key and value heads, K head_dim, D d_model, F features of a part, V
vocabulary, W width of its table.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.core.spmd import get_logical_axis_rules
from jaxtyping import Array, Int

from t5x_lite.model.matmul import wide_dtype

_sum_dtype: ContextVar[Any] = ContextVar("sum_dtype", default=None)
_first_row: ContextVar[Any] = ContextVar("first_row", default=None)


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


def part_places(size: int) -> Array:
    """The numbers, in the whole, of this device's `size` heads, features or ids of the
    vocabulary.
    """
    return jnp.arange(size) + _first_of("tensor", size)


def _first_of(mesh_axis: str, size: int) -> int | Array:
    return jax.lax.axis_index(mesh_axis) * size if parts(mesh_axis) > 1 else 0


@contextmanager
def rows_from(first: int | Array) -> Iterator[None]:
    """What is computed within is of rows that begin with this one of the batch."""
    token = _first_row.set(first)
    try:
        yield
    finally:
        _first_row.reset(token)


def first_row(rows: int) -> int | Array:
    """The number in the batch of the first of this device's rows."""
    if _first_row.get() is not None:
        return _first_row.get()
    axes = tuple(axis for axis in ("data", "fsdp") if parts(axis) > 1)
    return jax.lax.axis_index(axes) * rows if axes else 0


def own_part(x: Any, mesh_axis: str, axis: int) -> Array:
    """This device's part of an array that it has whole."""
    if parts(mesh_axis) == 1:
        return x
    size = x.shape[axis] // parts(mesh_axis)
    return jax.lax.dynamic_slice_in_dim(x, _first_of(mesh_axis, size), size, axis)


# Positions of a row.


def sequence_order(length: int, devices: int) -> np.ndarray:
    """The positions of a row in the order in which devices hold them. Each has a piece from the
    front and its mirror image from the end, so that causal attention is the same work for all
    (Llama 3: Dubey et al., 2024, §3.3.2).

    >>> sequence_order(8, 2).tolist()
    [0, 1, 6, 7, 2, 3, 4, 5]
    """
    pieces = np.arange(length).reshape(2 * devices, -1)
    pairs = [(pieces[i], pieces[-1 - i]) for i in range(devices)]
    return np.concatenate([piece for pair in pairs for piece in pair])


def own_positions(x: Any) -> Any:
    """Of all positions [B, T, …] those of this device of `sequence`, [B, C, …]."""
    if parts("sequence") == 1:
        return x
    order = sequence_order(x.shape[1], parts("sequence"))
    return own_part(jnp.asarray(x)[:, order], "sequence", 1)


def own_places(length: int) -> Int[Array, " C"] | None:
    """The numbers of this device's positions in a row of so many; None: it has all."""
    return None if parts("sequence") == 1 else own_positions(np.arange(length)[None])[0]


def whole_row(x: Array, axis: int = 1) -> Array:
    """The inverse of own_positions, along an axis."""
    if parts("sequence") == 1:
        return x
    x = _gather_sum(x, "sequence", axis, _sum_dtype.get())
    pieces = jnp.split(x, 2 * parts("sequence"), axis)
    return jnp.concatenate([*pieces[::2], *pieces[::-2]], axis)


def sum_over_sequence(x: Any) -> Any:
    """The sums over all positions of what each device has summed over its own."""
    return jax.lax.psum(x, "sequence") if parts("sequence") > 1 else x


# The residual stream.


def splits_stream(length: int) -> bool:
    """Whether each device of `tensor` has its own of so many positions of the residual stream."""
    return parts("tensor") > 1 and length % parts("tensor") == 0


def own_stream(x: Any) -> Any:
    """[B, C, …] → [B, P, …]; x may be of numpy."""
    return own_part(x, "tensor", 1) if splits_stream(x.shape[1]) else x


def stream_places(length: int) -> Any:
    """The numbers, in the whole row, of the positions [P] that this device has of the residual
    stream, of which all devices of `tensor` together have `length`.
    """
    places = own_places(length * parts("sequence"))
    return own_stream(np.arange(length)[None] if places is None else places[None])[0]


def gather_stream(x: Array, length: int) -> Array:
    """The residual stream of all devices of `tensor`, [B, P, …] → [B, C, …]."""
    return _gather_sum(x, "tensor", 1, _sum_dtype.get()) if splits_stream(length) else x


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather_sum(x, mesh_axis, axis, sum_dtype):
    """The parts of all devices, whose gradients are summed in sum_dtype."""
    return jax.lax.all_gather(x, mesh_axis, axis=axis, tiled=True)


def _gather_sum_forward(x, mesh_axis, axis, sum_dtype):
    return _gather_sum(x, mesh_axis, axis, sum_dtype), None


def _gather_sum_backward(mesh_axis, axis, sum_dtype, _, gradient):
    dtype = gradient.dtype
    total = gradient.astype(sum_dtype or dtype)
    # With all axes before it as one: the first of several, TPUs would send the whole.
    shape = total.shape
    total = total.reshape(-1, *shape[axis:])
    total = jax.lax.psum_scatter(total, mesh_axis, scatter_dimension=1, tiled=True)
    total = total.reshape(*shape[:axis], *total.shape[1:])
    return (total.astype(dtype),)


_gather_sum.defvjp(_gather_sum_forward, _gather_sum_backward)


def to_stream(y: Array, dtype: Any) -> Array:
    """What each device has found of y [B, C, D] or [B, D], its terms of a sum, added up: [B, P, D]
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


def own_kv_heads(x: Array, num_kv_heads: int) -> Array:
    """Of the features [..., G · K] of all key and value heads, those that this device's query heads
    attend to, where there are fewer of them than devices of `tensor`.
    """
    if num_kv_heads % parts("tensor") == 0:
        return x  # split like all heads
    head_dim = x.shape[-1] // num_kv_heads
    head = jax.lax.axis_index("tensor") // (parts("tensor") // num_kv_heads)
    return jax.lax.dynamic_slice_in_dim(x, head * head_dim, head_dim, -1)


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
    ids -= _first_of("tensor", len(table_VW))
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
