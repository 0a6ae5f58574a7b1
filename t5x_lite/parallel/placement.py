"""Which device holds what: parameters, the optimizer's state, and the rows of a batch."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from flax.linen.spmd import logical_to_mesh_axes
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from t5x_lite.parallel.axes import BATCH, Names, check_names, parameter_rules
from t5x_lite.parallel.mesh import DeviceMesh


def replicated(mesh: DeviceMesh) -> NamedSharding:
    """Return the sharding of an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def parameter_shardings(names: Any, kv_heads: int, mesh: DeviceMesh) -> Any:
    """Return the sharding of each parameter.

    Args:
        names: the tree of parameters as tuples of axis names.
        kv_heads: number of K/V heads.
    """
    spec_of = _specs(kv_heads, mesh)

    def place(axes: Names) -> NamedSharding:
        return NamedSharding(mesh, spec_of(axes))

    return jax.tree.map(place, names, is_leaf=lambda leaf: isinstance(leaf, tuple))


def _specs(kv_heads: int, mesh: DeviceMesh) -> Callable[[Sequence[str | None]], PartitionSpec]:
    """Return a function from axis names to the mesh axes that split them."""
    rules = parameter_rules(kv_heads, mesh.shape["tensor"])

    def spec_of(axes: Sequence[str | None]) -> PartitionSpec:
        check_names(axes)
        return logical_to_mesh_axes(axes, rules) or PartitionSpec()

    return spec_of


def optimizer_shardings(
    state: Any,
    names_of: Callable[[Any, Any], Sequence[str | None]],
    kv_heads: int,
    mesh: DeviceMesh,
) -> Any:
    """Return the sharding of each array of an optimizer's state.

    An axis whose length cannot be divided evenly over the devices is whole on each of them.

    Args:
        state: a tree of shapes.
        names_of: path and shape of an array → the names of its axes.
        kv_heads: number of K/V heads.
    """

    spec_of = _specs(kv_heads, mesh)

    def place(path: Any, leaf: Any) -> NamedSharding:
        split = []
        # A spec omits axes at the end that nothing splits.
        for length, axis in zip(leaf.shape, spec_of(names_of(path, leaf)), strict=False):
            devices = math.prod(mesh.shape[name] for name in _as_tuple(axis))
            split.append(axis if length % devices == 0 else None)
        return NamedSharding(mesh, PartitionSpec(*split))

    return jax.tree_util.tree_map_with_path(place, state)


def _as_tuple(axis: str | tuple[str, ...] | None) -> tuple[str, ...]:
    if axis is None:
        return ()
    return (axis,) if isinstance(axis, str) else axis


def to_host(array: Any) -> np.ndarray:
    """Return a whole array in every process, even if other processes' devices hold parts of it."""
    if isinstance(array, jax.Array) and not (
        array.is_fully_addressable or array.is_fully_replicated
    ):
        array = multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)


def place_batch(
    rows_at: Callable[[Iterable[int]], dict[str, np.ndarray]],
    batch_size: int,
    mesh: DeviceMesh,
) -> dict[str, jax.Array]:
    """Return the global batch as arrays split over the mesh. This process makes only the rows that
    its own devices need.

    Args:
        rows_at: indices of rows in the batch → their arrays.
    """
    # The rows that this process's devices hold, each counted once.
    sharding = NamedSharding(mesh, PartitionSpec(BATCH))
    slices = sharding.addressable_devices_indices_map((batch_size,)).values()
    local_rows: set[int] = set()
    for index in slices:
        assert index is not None, "every addressable device holds rows"
        local_rows |= set(range(*index[0].indices(batch_size)))
    wanted = sorted(local_rows)

    # Index of a row in the batch → its index among the rows made here.
    place_of_row = np.full(batch_size, -1)
    place_of_row[wanted] = np.arange(len(wanted))

    def global_array(local: np.ndarray) -> jax.Array:
        shape = (batch_size, *local.shape[1:])

        # jax asks for the rows of each device by their slice of the global batch.
        def rows_of_device(index: Any) -> np.ndarray:
            return local[place_of_row[index[0]]]

        return jax.make_array_from_callback(shape, sharding, rows_of_device)

    return {key: global_array(value) for key, value in rows_at(wanted).items()}
