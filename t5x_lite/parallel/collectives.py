"""Communication inside the model, between the devices that share it. The Transformer and its blocks
call these functions; the parts of a block never do.

In a training step, each device runs the same program on its own rows (see gradient.py). If the mesh
axis `tensor` is larger than 1, each device has its own heads and its own part of d_ff and of the
vocabulary (Megatron-LM: Shoeybi et al., 2019, §3). Between the parts of a block, each device holds
its own positions of the residual stream (sequence parallelism: Korthikanti et al., 2023, §4.2.2),
if they can be divided evenly:

    own positions ──► gather_stream ──► own heads or d_ff ──► sum_to_stream ──► own positions
      [B, P, D]        all-gather         [B, C, F]           reduce-scatter     [B, P, D]

If the mesh axis `sequence` is larger than 1, each device has its own positions of every row from
the start (context parallelism). `whole_row` gathers only the keys and values of attention. If
`expert` is larger than 1, each device has its own experts, and tokens are sent to them and back.

All devices of `tensor` and `sequence` compute the same loss, and a gradient is always the sum over
devices of what each has computed. So the loss is divided by their number (training/loss.py).

On one device, and in programs that the compiler partitions (inference), all these functions return
their input unchanged.

Shapes: B rows, T positions of a row, C of these on this device of `sequence`, P of the C on this
device of `tensor`, D d_model, V vocabulary, W width of its table, E experts, S slots of an expert.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from t5x_lite.config import DeviceDimensions, ModelDimensions
from t5x_lite.parallel.axes import BATCH
from t5x_lite.parallel.sequence import sequence_order

_sum_dtype: ContextVar[Any] = ContextVar("sum_dtype", default=None)
_first_row: ContextVar[Any] = ContextVar("first_row", default=None)


@contextmanager
def sums_in(dtype: Any) -> Iterator[None]:
    """Within, send and sum activations over `tensor` in this dtype; None: in their own."""
    token = _sum_dtype.set(dtype)
    try:
        yield
    finally:
        _sum_dtype.reset(token)


# This device's part of the work.


def parts(mesh_axis: str) -> int:
    """Return the number of devices along a mesh axis that each run this program on their part."""
    # The axes of a training step are manual. All others are split by the compiler, invisibly to
    # this program.
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[mesh_axis] if mesh_axis in mesh.manual_axes else 1


def part_number(mesh_axis: str) -> int | Array:
    """Return this device's index along a mesh axis."""
    return jax.lax.axis_index(mesh_axis) if parts(mesh_axis) > 1 else 0


def own_dimensions(config: ModelDimensions) -> ModelDimensions:
    """Return the model's sizes on this device: its own heads and its own part of d_ff under
    `tensor`, its own experts under `expert`. If there are fewer K/V heads than devices, several
    devices share each of them.
    """
    devices, expert_parts = parts("tensor"), parts("expert")
    if devices == expert_parts == 1:
        return config
    sizes = {field.name: getattr(config, field.name) for field in fields(config)}
    sizes |= {
        "num_heads": config.num_heads // devices,
        "num_kv_heads": max(config.num_kv_heads // devices, 1),
        "d_ff": config.d_ff // devices,
    }
    return DeviceDimensions(**sizes, tensor_parts=devices, expert_parts=expert_parts)


@contextmanager
def rows_from(first: int | Array) -> Iterator[None]:
    """Within, the first row that is computed has this index in the batch, for dropout."""
    token = _first_row.set(first)
    try:
        yield
    finally:
        _first_row.reset(token)


def row_numbers(count: int) -> Int[Array, " B"]:
    """Return the indices of this device's rows in the batch."""
    first = _first_row.get()
    # Devices hold the rows of a batch in order, `count` each.
    if first is None:
        axes = tuple(axis for axis in BATCH if parts(axis) > 1)
        first = jax.lax.axis_index(axes) * count if axes else 0
    return first + jnp.arange(count)


def sum_over_batch(x: Any) -> Any:
    """Sum over all rows of the batch, given each device's sum over its own."""
    axes = tuple(axis for axis in BATCH if parts(axis) > 1)
    return jax.lax.psum(x, axes) if axes else x


def own_part(x: Any, mesh_axis: str, axis: int) -> Array:
    """Select this device's part of an array that it holds whole."""
    if parts(mesh_axis) == 1:
        return x
    size = x.shape[axis] // parts(mesh_axis)
    return jax.lax.dynamic_slice_in_dim(x, part_number(mesh_axis) * size, size, axis)


# Positions of a row.


def own_positions(x: Any) -> Any:
    """Select the positions of this device of `sequence`: [B, T, …] → [B, C, …]."""
    if parts("sequence") == 1:
        return x
    # In the devices' order, each device's positions are one slice.
    order = sequence_order(x.shape[1], parts("sequence"))
    return own_part(jnp.asarray(x)[:, order], "sequence", 1)


def own_places(length: int) -> Int[Array, " C"] | None:
    """Return the indices of this device's positions in a row; None if it has all of them."""
    return None if parts("sequence") == 1 else own_positions(np.arange(length)[None])[0]


def whole_row(x: Array, axis: int = 1) -> Array:
    """Gather all positions of a row, along an axis: the inverse of own_positions."""
    if parts("sequence") == 1:
        return x
    x = _gather_sum(x, "sequence", axis, _sum_dtype.get())
    # Devices hold two pieces each, one from the front and its mirror image from the end: even
    # pieces are the front half in order, odd ones the back half in reverse.
    pieces = jnp.split(x, 2 * parts("sequence"), axis)
    return jnp.concatenate([*pieces[::2], *pieces[::-2]], axis)


def sum_over_sequence(x: Any) -> Any:
    """Sum over all positions, given each device's sum over its own."""
    return jax.lax.psum(x, "sequence") if parts("sequence") > 1 else x


# The residual stream.


def splits_stream(length: int) -> bool:
    """True if each device of `tensor` has its own positions of the residual stream."""
    return parts("tensor") > 1 and length % parts("tensor") == 0


def own_stream(x: Any) -> Any:
    """Select this device's positions of the residual stream: [B, C, …] → [B, P, …]."""
    return own_part(x, "tensor", 1) if splits_stream(x.shape[1]) else x


def stream_places(length: int) -> Int[Array, " P"] | np.ndarray:
    """Return the indices in the row of this device's positions of the residual stream.

    Args:
        length: number of positions that all devices of `tensor` have together.
    """
    places = own_places(length * parts("sequence"))
    return own_stream(np.arange(length)[None] if places is None else places[None])[0]


def gather_stream(x: Array, length: int) -> Array:
    """Gather the residual stream of all devices of `tensor`: [B, P, …] → [B, C, …]."""
    return _gather_sum(x, "tensor", 1, _sum_dtype.get()) if splits_stream(length) else x


def sum_to_stream(y: Array, dtype: Any) -> Array:
    """Sum the terms that the devices of `tensor` have computed from their heads or features, and
    keep this device's positions: [B, C, D] → [B, P, D], or [B, D] → [B, D].

    Args:
        y: this device's terms, in float32 or better.
        dtype: the compute dtype, in which terms are sent unless sums_in sets another.
    """
    if parts("tensor") == 1:
        return y
    wide = y.dtype
    y = y.astype(_sum_dtype.get() or dtype)
    # A reduce-scatter, unless every device keeps all positions.
    if y.ndim == 3 and splits_stream(y.shape[1]):
        y = jax.lax.psum_scatter(y, "tensor", scatter_dimension=1, tiled=True)
    else:
        y = jax.lax.psum(y, "tensor")
    return y.astype(wide)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather_sum(x: Array, mesh_axis: str, axis: int, sum_dtype: Any) -> Array:
    """Gather the parts of all devices; their gradients are summed in sum_dtype."""
    return jax.lax.all_gather(x, mesh_axis, axis=axis, tiled=True)


def _gather_sum_forward(x: Array, mesh_axis: str, axis: int, sum_dtype: Any) -> tuple[Array, None]:
    return _gather_sum(x, mesh_axis, axis, sum_dtype), None


def _gather_sum_backward(
    mesh_axis: str, axis: int, sum_dtype: Any, _: None, gradient: Array
) -> tuple[Array]:
    dtype = gradient.dtype
    total = gradient.astype(sum_dtype or dtype)
    # Merge the axes before `axis` into one: with several of them, TPUs would send the whole array.
    shape = total.shape
    total = total.reshape(-1, *shape[axis:])
    total = jax.lax.psum_scatter(total, mesh_axis, scatter_dimension=1, tiled=True)
    total = total.reshape(*shape[:axis], *total.shape[1:])
    return (total.astype(dtype),)


_gather_sum.defvjp(_gather_sum_forward, _gather_sum_backward)


# Experts.


def to_experts(x: Array) -> Array:
    """Send the inputs of each expert to the device that holds it: [E, S, …] of all experts, from
    this device → of this device's experts, from all devices of `expert`.
    """
    if parts("expert") == 1:
        return x
    return jax.lax.all_to_all(x, "expert", split_axis=0, concat_axis=1, tiled=True)


def from_experts(tokens_ESD: Array) -> Array:
    """Send tokens back to the devices that they came from: the inverse of to_experts."""
    if parts("expert") == 1:
        return tokens_ESD
    return jax.lax.all_to_all(tokens_ESD, "expert", split_axis=1, concat_axis=0, tiled=True)


# The vocabulary.


def sum_over_vocabulary(x: Array) -> Array:
    """Sum over the whole vocabulary, given each device's sum over its own part."""
    return jax.lax.psum(x, "tensor") if parts("tensor") > 1 else x


def max_over_vocabulary(x: Array) -> Array:
    """Return the maximum over the whole vocabulary, which has no gradient."""
    x = jax.lax.stop_gradient(x)
    return jax.lax.pmax(x, "tensor") if parts("tensor") > 1 else x


def own_ids(ids: Any, rows: int) -> tuple[Any, Any]:
    """Return ids as rows of this device's part of a table, and a mask of the ids that it holds;
    None: it holds all.

    Args:
        rows: number of rows in this device's part.
    """
    if parts("tensor") == 1:
        return ids, None
    ids = ids - part_number("tensor") * rows
    # An id of another device reads row 0 here; the caller replaces the result by zeros.
    is_here = (ids >= 0) & (ids < rows)
    return jnp.where(is_here, ids, 0), is_here
