"""Which device holds what: a mesh with the axes data, fsdp, sequence and tensor, and the rules that
place named axes on it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax.linen.spmd import logical_to_mesh_sharding
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.tree_util import keystr

from t5x_lite.config import Mesh, ModelDimensions
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.hardware import PlannedDevice
from t5x_lite.model.layers import AXES
from t5x_lite.model.transformer import boxed_shapes

BATCH = ("data", "fsdp")

# Logical axis → mesh axis. `fsdp` splits what is as wide as the model, or its embeddings; of a
# kernel that is so on both sides, its inputs.
_SPLIT_BY_FSDP = ("embed", "embedding", "pooled")
_SPLIT_BY_TENSOR = ("heads", "mlp", "vocab")
_WHOLE = (
    *("factor", "positions", "types", "buckets"),
    *("layers", "cells", "head_dim", "distance", "norm", "classes", "adapter"),
)
Rules = tuple[tuple[str, str | tuple[str, ...] | None], ...]


def parameter_rules(model: ModelDimensions, tensor: int) -> Rules:
    """By which mesh axis the axes of parameters are split. Of several rules for one name the first
    whose mesh axis is still free is taken.

    Args:
        tensor: devices along that axis. Of fewer key and value heads each device has all, and
            computes those that its query heads attend to.
    """
    return (*((axis, "fsdp") for axis in _SPLIT_BY_FSDP), *device_rules(model, tensor))


def device_rules(model: ModelDimensions, tensor: int) -> Rules:
    """The same within a training step: what each device computes with a part of. All else it has
    whole by then.
    """
    kv_axis = "tensor" if model.num_kv_heads % tensor == 0 else None
    return (
        *((axis, "tensor") for axis in _SPLIT_BY_TENSOR),
        ("kv_heads", kv_axis),
        *((axis, None) for axis in (*_SPLIT_BY_FSDP, *_WHOLE)),
    )


def rules(model: ModelDimensions, tensor: int, split_rows: bool = True) -> Rules:
    """Those of all axes, for programs that the compiler splits.

    Args:
        split_rows: False where any number of texts may be generated or scored at once.
    """
    rows = BATCH if split_rows else None
    return (("batch", rows), ("sequence", None), *parameter_rules(model, tensor))


# Of devices that are here, or known to the compiler; of those that are planned alone.
DeviceMesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


def make_mesh(
    mesh: Mesh, model: ModelDimensions, devices: Sequence[Any] | None = None
) -> DeviceMesh:
    """The mesh over all devices, or over those given, which may be planned ones.

    Raises:
        UserError: naming what the mesh does not divide.
    """
    devices = jax.devices() if devices is None else devices
    count = len(devices)
    inner = mesh.fsdp * mesh.sequence * mesh.tensor
    data = count // inner if mesh.data == -1 else mesh.data
    sizes = {"data": data, "fsdp": mesh.fsdp, "sequence": mesh.sequence, "tensor": mesh.tensor}
    if data * inner != count:
        asked = sizes | {"data": mesh.data}
        product = " × ".join(f"{axis} {size}" for axis, size in asked.items())
        raise UserError(BAD_CONFIG, f"mesh: {product} does not make the {count} devices here")
    kernel = model.attention_kernel
    if kernel in ("splash", "flash") and devices[0].platform != "tpu":
        raise UserError(
            BAD_CONFIG, f"model.attention_kernel={kernel}: it needs a TPU; set it to auto"
        )
    reason = undivided(model, mesh.fsdp, mesh.tensor)
    if reason:
        raise UserError(BAD_CONFIG, reason)
    return _arranged(sizes, devices)


def _arranged(sizes: dict[str, int], devices: Sequence[Any]) -> DeviceMesh:
    """The devices as a mesh. Those of several slices, which a slower network connects, are told
    apart by `data` alone.
    """
    axis_types = (AxisType.Auto,) * len(sizes)
    slices = count_slices(devices)
    if sizes["data"] % slices:
        reason = f"got {sizes['data']}, but the devices are of {slices} slices"
        raise UserError(BAD_CONFIG, f"mesh.data: {reason}; make it a multiple, or -1")
    if isinstance(devices[0], PlannedDevice):
        kind, platform, _ = devices[0]
        device = jax.sharding.AbstractDevice(device_kind=kind, num_cores=1, platform=platform)
        return jax.sharding.AbstractMesh(
            tuple(sizes.values()), tuple(sizes), axis_types, abstract_device=device
        )
    within = tuple((sizes | {"data": sizes["data"] // slices}).values())
    # An axis of the mesh may be a part of one of the torus.
    options: dict[str, Any] = {"devices": devices, "allow_split_physical_axes": True}
    if slices == 1:
        arranged = mesh_utils.create_device_mesh(within, **options)
    else:
        between = tuple((dict.fromkeys(sizes, 1) | {"data": slices}).values())
        arranged = mesh_utils.create_hybrid_device_mesh(within, between, **options)
    return jax.sharding.Mesh(arranged, tuple(sizes), axis_types=axis_types)


def undivided(model: ModelDimensions, fsdp: int = 1, tensor: int = 1) -> str:
    """What of a model cannot be split by so many devices; empty: it can."""
    by_tensor = {
        "model.num_heads": model.num_heads,
        "model.d_ff": model.d_ff,
    }
    if tensor % model.num_kv_heads:  # else they are repeated
        by_tensor["model.num_kv_heads"] = model.num_kv_heads
    by_fsdp = {"model.d_model": model.d_model, "model.embedding_size": model.embedding_size}
    for axis, parts, sizes in (("tensor", tensor, by_tensor), ("fsdp", fsdp, by_fsdp)):
        for setting, size in sizes.items():
            if size % parts:
                return f"{setting} is {size}, which mesh.{axis} = {parts} does not divide"
    return ""


def padded_for(mesh: DeviceMesh | None, model: ModelDimensions) -> ModelDimensions:
    """The model, with its vocabulary padded so that `tensor` divides it; None: one device."""
    if mesh is None:
        return model
    multiple = math.lcm(model.vocab_multiple, mesh.shape["tensor"])
    return replace(model, vocab_multiple=multiple)


def count_slices(devices: Iterable[Any]) -> int:
    """Of TPUs; 1 for all other devices."""
    return len({getattr(device, "slice_index", 0) for device in devices})


_MIN_IN_LINES = 64  # chips of a whole slice
_MIN_PART_IN_LINES = 128  # chips of a part of one


def line_of_devices(mesh: DeviceMesh) -> int:
    """How many successive devices of `fsdp` lie on one line of a TPU's torus, where gradients are
    to be summed across such lines first and then along each; 0: at once.

    Summed over a whole slice at once, TPUs make all of a gradient on every chip, and then drop what
    is another's: twice the bytes. In two steps they send every byte once. Among fewer chips one
    step does.
    """
    if isinstance(mesh, jax.sharding.AbstractMesh):
        return 0
    devices = mesh.devices[0, :, 0, 0]
    slice_size = mesh.size // count_slices(mesh.devices.flat)
    is_whole = len(devices) == slice_size
    if len(devices) < (_MIN_IN_LINES if is_whole else _MIN_PART_IN_LINES):
        return 0
    places = np.array([getattr(device, "coords", ()) for device in devices])
    if not places.size:
        return 0
    on_a_line = [(np.ptp(places[: end + 1], axis=0) > 0).sum() <= 1 for end in range(len(devices))]
    line = int(np.argmin([*on_a_line, False]))
    return line if 1 < line < len(devices) and len(devices) % line == 0 else 0


def check_sequence(model: ModelDimensions, lengths: Iterable[int], devices: int) -> None:
    """Refuse what cannot be split over so many devices of `sequence`: rows of these lengths, and
    models that read a row from its start to its end.
    """
    if devices == 1:
        return
    for length in lengths:
        if length % (2 * devices):
            reason = f"{length} positions are no multiple of 2 × mesh.sequence {devices}"
            raise UserError(BAD_CONFIG, f"data.lengths: {reason}")
    setting = unshared(model)
    if setting:
        reason = f"cannot be split over mesh.sequence = {devices}"
        raise UserError(BAD_CONFIG, f"{setting}: {reason}; set mesh.sequence to 1")


def unshared(model: ModelDimensions) -> str:
    """A setting with which devices cannot share a row; empty: they can."""
    settings = {
        "model.mixer=lstm": model.mixer == "lstm",
        "model.backward_decoder=True": model.backward_decoder,
        "model.attention_dropout": model.attention_dropout > 0,
        "model.ff_dropout": model.ff_dropout > 0,
    }
    return next((setting for setting, is_set in settings.items() if is_set), "")


def check_batch(batch_size: int, microbatches: int, mesh: DeviceMesh) -> None:
    """Refuse a batch that does not divide over the mesh."""
    rows = batch_size // microbatches
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    if rows % parts:
        reason = f"{rows} rows in each of training.microbatches {microbatches} do not divide"
        raise UserError(
            BAD_CONFIG, f"data.batch_size: {reason} over mesh.data × mesh.fsdp = {parts}"
        )


@contextmanager
def use_mesh(
    mesh: DeviceMesh | None, model: ModelDimensions, split_rows: bool = True
) -> Iterator[None]:
    """The mesh and the rules under which everything is traced; None: one device.

    Args:
        split_rows: see `rules`.
    """
    if mesh is None:
        yield
        return
    logical = rules(model, mesh.shape["tensor"], split_rows)
    if isinstance(mesh, jax.sharding.AbstractMesh):
        use = jax.sharding.use_abstract_mesh(mesh)
    else:
        use = jax.set_mesh(mesh)
    with use, nn.logical_axis_rules(logical):
        yield


def replicated(mesh: DeviceMesh) -> NamedSharding:
    """Every device holds all of it."""
    return NamedSharding(mesh, PartitionSpec())


def parameter_shardings(model: ModelDimensions, mesh: DeviceMesh) -> Any:
    """Where each of a model's parameters lies: a tree of shardings."""
    logical = rules(model, mesh.shape["tensor"])
    # Flax would leave an axis without a rule unsplit, silently.
    assert {name for name, _ in logical} == set(AXES), "the rules name other axes than layers.py"
    specs: Any = nn.get_partition_spec(boxed_shapes(model))
    place: Any = logical_to_mesh_sharding
    return place(specs, mesh, logical)


def optimizer_shardings(state: Any, parameters: Any, shardings: Any, mesh: DeviceMesh) -> Any:
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


def to_host(array: Any) -> np.ndarray:
    """A whole array, in every process, though its parts may lie on devices of others."""
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
