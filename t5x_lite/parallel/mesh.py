"""How devices are arranged: a mesh with the axes data, fsdp, expert, sequence and tensor."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType

from t5x_lite.config import Mesh, ModelDimensions
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.hardware import PlannedDevice
from t5x_lite.parallel.axes import BATCH, all_rules

# A mesh of devices that are here or that a compiler knows, or one that is only planned.
DeviceMesh = jax.sharding.Mesh | jax.sharding.AbstractMesh

# From the axis that sends the least, whose devices may be far apart, to the one that sends most.
AXES_OF_MESH = ("data", "fsdp", "expert", "sequence", "tensor")


def make_mesh(mesh: Mesh, devices: Sequence[Any] | None = None) -> DeviceMesh:
    """Arrange all devices, or the given ones, as a mesh. The given ones may be planned.

    Raises:
        UserError: if the product of the axis sizes is not the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    count = len(devices)
    sizes = {axis: getattr(mesh, axis) for axis in AXES_OF_MESH}
    inner = math.prod(size for axis, size in sizes.items() if axis != "data")
    if sizes["data"] == -1:
        sizes["data"] = count // inner
    if sizes["data"] * inner != count:
        product = " × ".join(f"{axis} {getattr(mesh, axis)}" for axis in sizes)
        raise UserError(BAD_CONFIG, f"mesh: {product} does not make the {count} devices here")
    return _arranged(sizes, devices)


def _arranged(sizes: dict[str, int], devices: Sequence[Any]) -> DeviceMesh:
    """Arrange devices as a mesh. Only `data` crosses slices, which a slower network connects."""
    axis_types = (AxisType.Auto,) * len(sizes)
    slices = count_slices(devices)
    if sizes["data"] % slices:
        reason = f"got {sizes['data']}, but the devices are of {slices} slices"
        raise UserError(BAD_CONFIG, f"mesh.data: {reason}; make it a multiple, or -1")
    # Planned devices have no places on a torus; only their kind and number matter.
    if isinstance(devices[0], PlannedDevice):
        kind, platform, _ = devices[0]
        device = jax.sharding.AbstractDevice(device_kind=kind, num_cores=1, platform=platform)
        return jax.sharding.AbstractMesh(
            tuple(sizes.values()), tuple(sizes), axis_types, abstract_device=device
        )
    within = tuple((sizes | {"data": sizes["data"] // slices}).values())
    # A mesh axis may be only a part of an axis of the torus.
    options: dict[str, Any] = {"devices": devices, "allow_split_physical_axes": True}
    if slices == 1:
        arranged = mesh_utils.create_device_mesh(within, **options)
    else:
        between = tuple((dict.fromkeys(sizes, 1) | {"data": slices}).values())
        arranged = mesh_utils.create_hybrid_device_mesh(within, between, **options)
    return jax.sharding.Mesh(arranged, tuple(sizes), axis_types=axis_types)


def padded_for(mesh: DeviceMesh | None, model: ModelDimensions) -> ModelDimensions:
    """Pad the vocabulary of a model so that `tensor` divides it; None: one device."""
    if mesh is None:
        return model
    multiple = math.lcm(model.vocab_multiple, mesh.shape["tensor"])
    companions = tuple(
        replace(companion, model=padded_for(mesh, companion.model))
        for companion in model.companions
    )
    return replace(model, vocab_multiple=multiple, companions=companions)


def count_slices(devices: Iterable[Any]) -> int:
    """Count the TPU slices that devices belong to; 1 for all other devices."""
    return len({getattr(device, "slice_index", 0) for device in devices})


_MIN_IN_LINES = 64  # chips, if fsdp spans a whole slice
_MIN_PART_IN_LINES = 128  # chips, if fsdp spans part of a slice


def line_of_devices(mesh: DeviceMesh) -> int:
    """Return how many successive devices of `fsdp` lie on one line of a TPU's torus, if gradients
    should first be summed across such lines and then along each line; 0: sum them in one step.

    In one step over a whole slice, TPUs compute the full gradient on every chip, and then drop the
    parts of other chips: this sends twice the bytes. In two steps, they send every byte once. With
    fewer chips, one step is enough.
    """
    if isinstance(mesh, jax.sharding.AbstractMesh):
        return 0
    devices = mesh.devices[0, :, 0, 0, 0]
    slice_size = mesh.size // count_slices(mesh.devices.flat)
    is_whole = len(devices) == slice_size
    if len(devices) < (_MIN_IN_LINES if is_whole else _MIN_PART_IN_LINES):
        return 0
    places = np.array([getattr(device, "coords", ()) for device in devices])
    if not places.size:
        return 0
    # A line ends before the first device at which a second coordinate begins to vary.
    on_a_line = []
    for end in range(len(devices)):
        varies = np.ptp(places[: end + 1], axis=0) > 0
        on_a_line.append(varies.sum() <= 1)
    line = int(np.argmin([*on_a_line, False]))
    return line if 1 < line < len(devices) and len(devices) % line == 0 else 0


def check_batch(batch_size: int, microbatches: int, mesh: DeviceMesh) -> None:
    """Reject a batch that cannot be divided evenly over the mesh."""
    rows = batch_size // microbatches
    parts = math.prod(mesh.shape[axis] for axis in BATCH)
    if rows % parts:
        reason = f"{rows} rows in each of training.microbatches {microbatches} do not divide"
        axes = " × ".join(f"mesh.{axis}" for axis in BATCH)
        raise UserError(BAD_CONFIG, f"data.batch_size: {reason} over the {parts} devices of {axes}")


@contextmanager
def use_mesh(
    mesh: DeviceMesh | None, model: ModelDimensions, split_rows: bool = True
) -> Iterator[None]:
    """Trace everything inside under a mesh and its rules (None: one device). Products of float32
    are computed in float32: by default, GPUs round their operands to TF32, and TPUs to bfloat16.
    JAX_DEFAULT_MATMUL_PRECISION is obeyed if it is set.

    Args:
        split_rows: see axes.all_rules.
    """
    settings: Any = jax.config  # its attributes have no types
    precision = settings.jax_default_matmul_precision
    if model.dtype == "float32":
        precision = precision or "highest"
    with jax.default_matmul_precision(precision), _mesh_and_rules(mesh, model, split_rows):
        yield


@contextmanager
def _mesh_and_rules(
    mesh: DeviceMesh | None, model: ModelDimensions, split_rows: bool
) -> Iterator[None]:
    if mesh is None:
        yield
        return
    rules = all_rules(model.num_kv_heads, mesh.shape["tensor"], split_rows)
    if isinstance(mesh, jax.sharding.AbstractMesh):
        use = jax.sharding.use_abstract_mesh(mesh)
    else:
        use = jax.set_mesh(mesh)
    with use, nn.logical_axis_rules(rules):
        yield
