"""Which device holds what: a mesh with the axes data, fsdp and tensor, and the rules that place
named axes on it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax.linen.spmd import logical_to_mesh_sharding
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.tree_util import keystr

from t5x_lite.config import Mesh, ModelDimensions
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.model.layers import AXES

BATCH = ("data", "fsdp")

# Logical axis → mesh axis. `fsdp` splits what is as wide as the model, or its embeddings; of a
# kernel that is so on both sides, its inputs.
_SPLIT_BY_FSDP = ("embed", "embedding", "pooled")
_SPLIT_BY_TENSOR = ("heads", "mlp", "vocab")
_WHOLE = (
    *("kv", "factor", "positions", "types", "buckets"),
    *("layers", "cells", "head_dim", "distance", "norm", "classes", "adapter"),
)
# Of several rules for one name the first whose mesh axis is still free is taken.
_PARAMETER_RULES = (
    *((axis, "fsdp") for axis in _SPLIT_BY_FSDP),
    *((axis, "tensor") for axis in _SPLIT_BY_TENSOR),
    *((axis, None) for axis in (*_SPLIT_BY_FSDP, *_WHOLE)),
)
RULES = (("batch", BATCH), ("sequence", None), *_PARAMETER_RULES)
# Any number of texts may be generated or scored at once: rows are not split.
INFERENCE_RULES = (("batch", None), ("sequence", None), *_PARAMETER_RULES)
# What each device computes with a part of; all else it has whole by then.
DEVICE_RULES = tuple((axis, "tensor") for axis in _SPLIT_BY_TENSOR)

# Flax would leave an axis without a rule unsplit, silently.
if {name for name, _ in RULES} != set(AXES):
    raise ValueError(f"the rules name other axes than {AXES}")


def make_mesh(
    mesh: Mesh, model: ModelDimensions, devices: Sequence[Any] | None = None
) -> jax.sharding.Mesh:
    """The mesh over all devices, or over those given.

    Raises:
        UserError: naming what the mesh does not divide.
    """
    devices = jax.devices() if devices is None else devices
    count = len(devices)
    inner = mesh.fsdp * mesh.tensor
    data = count // inner if mesh.data == -1 else mesh.data
    if data * inner != count:
        product = f"data {mesh.data} × fsdp {mesh.fsdp} × tensor {mesh.tensor}"
        raise UserError(BAD_CONFIG, f"mesh: {product} does not make the {count} devices here")
    if model.attention_kernel == "splash" and devices[0].platform != "tpu":
        raise UserError(BAD_CONFIG, "model.attention_kernel=splash: it needs a TPU; set it to auto")
    _check_divisible("model.num_heads", model.num_heads, "mesh.tensor", mesh.tensor)
    if model.num_kv_heads > 1:
        _check_divisible("model.num_kv_heads", model.num_kv_heads, "mesh.tensor", mesh.tensor)
    _check_divisible("model.d_ff", model.d_ff, "mesh.tensor", mesh.tensor)
    _check_divisible("model.d_model", model.d_model, "mesh.fsdp", mesh.fsdp)
    _check_divisible("model.embedding_size", model.embedding_size, "mesh.fsdp", mesh.fsdp)
    padded = "model.vocab_size, padded by model.vocab_multiple,"
    _check_divisible(padded, model.embedding_rows, "mesh.tensor", mesh.tensor)
    axis_types = (AxisType.Auto,) * 3
    sizes, names = (data, mesh.fsdp, mesh.tensor), ("data", "fsdp", "tensor")
    return jax.make_mesh(sizes, names, axis_types=axis_types, devices=devices)


def _check_divisible(setting: str, size: int, axis: str, parts: int) -> None:
    if size % parts:
        raise UserError(BAD_CONFIG, f"{setting} is {size}, which {axis} = {parts} does not divide")


def line_of_devices(mesh: jax.sharding.Mesh) -> int:
    """How many successive devices of `fsdp` lie on one line of a TPU's torus; 0 where all do, and
    on other devices.

    Summed over a plane or a cube at once, TPUs make all of a gradient on every chip, and then drop
    what is another's: twice the bytes. Summed across the lines, and then along each, they send
    every byte once.
    """
    devices = mesh.devices[0, :, 0]
    places = np.array([getattr(device, "coords", ()) for device in devices])
    if not places.size:
        return 0
    on_a_line = [(np.ptp(places[: end + 1], axis=0) > 0).sum() <= 1 for end in range(len(devices))]
    line = int(np.argmin([*on_a_line, False]))
    return line if 1 < line < len(devices) and len(devices) % line == 0 else 0


def check_batch(batch_size: int, microbatches: int, mesh: jax.sharding.Mesh) -> None:
    """Refuse a batch that does not divide over the mesh."""
    rows = batch_size // microbatches
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    if rows % parts:
        reason = f"{rows} rows in each of training.microbatches {microbatches} do not divide"
        raise UserError(
            BAD_CONFIG, f"data.batch_size: {reason} over mesh.data × mesh.fsdp = {parts}"
        )


@contextmanager
def use_mesh(mesh: jax.sharding.Mesh | None, rules: tuple = RULES) -> Iterator[None]:
    """The mesh and the rules under which everything is traced; None: one device."""
    if mesh is None:
        yield
        return
    with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
        yield


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Every device holds all of it."""
    return NamedSharding(mesh, PartitionSpec())


def parameter_shardings(boxed: Any, mesh: jax.sharding.Mesh) -> Any:
    """The shardings of a parameter tree whose leaves are boxed with axis names."""
    return logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, RULES)


def optimizer_shardings(
    state: Any, parameters: Any, shardings: Any, mesh: jax.sharding.Mesh
) -> Any:
    """Optimizer state with a parameter's name and shape lies where the parameter does; the rest,
    small, everywhere.

    Args:
        state, parameters: trees of shapes.
        shardings: those of the parameters.
    """
    # Optax keeps moments as trees of the parameters' own structure, somewhere within its state: the
    # path of a moment ends with that of its parameter.
    leaves = jax.tree_util.tree_leaves_with_path(parameters)
    known = {}
    for (path, leaf), sharding in zip(leaves, jax.tree.leaves(shardings), strict=True):
        known[keystr(path)] = leaf.shape, sharding
    everywhere = replicated(mesh)

    def place_like_parameter(path, leaf):
        for start in range(len(path)):
            shape, sharding = known.get(keystr(path[start:]), (None, None))
            if shape == leaf.shape:
                return sharding
        return everywhere

    return jax.tree_util.tree_map_with_path(place_like_parameter, state)


def place_batch(
    rows_at: Callable[[Iterable[int]], dict[str, np.ndarray]],
    batch_size: int,
    mesh: jax.sharding.Mesh,
) -> dict[str, jax.Array]:
    """The global batch as arrays split over the mesh; this process makes only the rows its own
    devices need.

    Args:
        rows_at: from row numbers of the batch to their arrays.
    """
    # The rows that this process's devices hold, each made once.
    sharding = NamedSharding(mesh, PartitionSpec(BATCH))
    slices = sharding.addressable_devices_indices_map((batch_size,)).values()
    local_rows: set[int] = set()
    for index in slices:
        assert index is not None, "every addressable device holds rows"
        local_rows |= set(range(*index[0].indices(batch_size)))
    wanted = sorted(local_rows)

    # Row number in the batch → row number in what is made here.
    place_of_row = np.full(batch_size, -1)
    place_of_row[wanted] = np.arange(len(wanted))

    def global_array(local: np.ndarray) -> jax.Array:
        shape = (batch_size, *local.shape[1:])

        def rows_of_device(index: Any) -> np.ndarray:
            return local[place_of_row[index[0]]]

        return jax.make_array_from_callback(shape, sharding, rows_of_device)

    return {key: global_array(value) for key, value in rows_at(wanted).items()}
