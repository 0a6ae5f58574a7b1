"""Presets of the mesh: the axis sizes that each preset stands for on the devices at hand."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from t5x_lite.config import Mesh
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.hardware import chip_of
from t5x_lite.parallel.mesh import count_slices

_MOST_TENSOR = 8  # if a layer is split into more parts, they are too small to keep a device busy
# Share of a device's memory for parameters, their gradients and the optimizer's state. The rest is
# for activations.
_SHARE_OF_STATE = 0.5


def memory_of(device: Any) -> float | None:
    """Return the memory of a device in bytes; None if it is not known, as for every CPU."""
    try:
        limit = (device.memory_stats() or {}).get("bytes_limit")
    except jax.errors.JaxRuntimeError:  # the device is not here
        limit = None
    if limit or device.platform == "cpu":
        return limit
    # For a planned device, or one that does not say, use the data sheet.
    chip = chip_of(device.device_kind)
    return chip.memory * 2**30 if chip and chip.memory else None


@dataclass(frozen=True)
class Workload:
    """The model and batch that devices are arranged for.

    Attributes:
        rows: number of rows in a microbatch.
        lengths: number of positions in each stack of a row.
        state_bytes: bytes of all parameters, their gradients and the optimizer's state.
        undivided: (fsdp=…, tensor=…) → why the model cannot be split in this way; empty: it can.
        shares_rows: True if devices can share the model's rows.
    """

    rows: int
    lengths: Sequence[int]
    state_bytes: int
    undivided: Callable[..., str]
    shares_rows: bool


def arrange(mesh: Mesh, work: Workload, devices: Sequence[Any]) -> tuple[Mesh, str]:
    """Return the mesh with its sizes filled in, and a sentence that explains what the preset chose.

    Raises:
        UserError: if the devices cannot be arranged in this way.
    """
    presets = {
        "data": _data,
        "fsdp": _fsdp,
        "fsdp_tensor": _fsdp_tensor,
        "long_context": _long_context,
        "auto": _auto,
    }
    if not mesh.preset:
        return mesh, ""
    # Only `data` crosses slices: arrange one slice, with its share of the rows.
    slices = count_slices(devices)
    of_slice = replace(work, rows=work.rows // slices), devices[: len(devices) // slices]
    sizes, reason = presets[mesh.preset](*of_slice)
    # Devices that the preset leaves over go to `data`, which also crosses slices.
    sizes["data"] = len(devices) // math.prod(sizes.values())
    shown = " × ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "one device"
    return replace(mesh, preset="", **sizes), f"mesh.preset={mesh.preset}: {shown}; {reason}"


Sizes = tuple[dict[str, Any], str]


def _data(work: Workload, devices: Sequence[Any]) -> Sizes:
    return {}, "each device has all parameters"


def _fsdp(work: Workload, devices: Sequence[Any]) -> Sizes:
    return {"fsdp": len(devices)}, "parameters are split over all devices"


def _fsdp_tensor(work: Workload, devices: Sequence[Any]) -> Sizes:
    count = len(devices)
    tensor = max(
        size
        for size in _divisors(count)
        if size <= _MOST_TENSOR and not work.undivided(tensor=size)
    )
    reason = f"tensor, up to {_MOST_TENSOR}, divides the heads and d_ff of the model"
    return {"fsdp": count // tensor, "tensor": tensor}, reason


def _long_context(work: Workload, devices: Sequence[Any]) -> Sizes:
    count = len(devices)
    if count == 1:
        raise UserError(BAD_CONFIG, "mesh.preset=long_context: needs several devices, got one")
    sequence = _sequence_for(work, count, least=2)
    if sequence is None:
        reason = f"rows of {max(work.lengths)} positions, {work.rows} of them"
        raise UserError(
            BAD_CONFIG,
            f"mesh.preset=long_context: {count} devices cannot share {reason}; make the rows or "
            "data.lengths a larger multiple of 2",
        )
    reason = f"as few devices share a row as divide {work.rows} rows evenly, but at least 2"
    return {"fsdp": count // sequence, "sequence": sequence}, reason


def _auto(work: Workload, devices: Sequence[Any]) -> Sizes:
    count, memory = len(devices), memory_of(devices[0])
    # Let as few devices as possible share a row.
    sizes = {"sequence": _sequence_for(work, count) or 1}
    over_rows = count // sizes["sequence"]
    size = f"parameters, gradients and optimizer take {work.state_bytes / 2**30:.2f} GiB"
    if memory is None:
        sizes["fsdp"] = 1
        return sizes, f"{size}, and how much a device has is not known"

    # Split parameters into the fewest parts that fit.
    room = _SHARE_OF_STATE * memory
    dividing = [parts for parts in _divisors(over_rows) if not work.undivided(fsdp=parts)]
    enough = [parts for parts in dividing if work.state_bytes / parts <= room]
    sizes["fsdp"] = enough[0] if enough else dividing[-1]
    reason = f"{size}, a device has {memory / 2**30:.0f} GiB, of which half is for activations"
    return sizes, reason if enough else f"{reason}: it may not fit"


def _sequence_for(work: Workload, count: int, least: int = 1) -> int | None:
    """Return the least number of devices that must share a row, so that each group of devices gets
    the same number of whole rows; None if there is no such number.
    """
    for sequence in _divisors(count) if work.shares_rows else [1]:
        # Each device takes two pieces of a row: see sequence.py.
        is_whole = all(length % (2 * sequence) == 0 for length in work.lengths)
        has_rows = work.rows % (count // sequence) == 0
        if sequence >= least and has_rows and (sequence == 1 or is_whole):
            return sequence
    return None


def _divisors(count: int) -> list[int]:
    return [size for size in range(1, count + 1) if count % size == 0]
