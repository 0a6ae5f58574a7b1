"""Traffic between devices in a training step: every collective in a compiled program's text, in
bytes by mesh axis, and the minimum that the algorithm requires.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict

from t5x_lite.parallel.mesh import DeviceMesh
from t5x_lite.training.program import Program

_KINDS = ("all-gather", "reduce-scatter", "all-reduce", "collective-permute", "all-to-all")
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8}
# "ENTRY %main (x: f32[4]) -> f32[4] {" begins a computation; "%y = f32[4]{0} add(…" is one of its
# instructions, with the shape of the result and the operation as groups.
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{")
_INSTRUCTION = re.compile(r"(?:ROOT )?%?[\w.\-]+ = (.*?) ([\w\-]+)\(")


class Collective(NamedTuple):
    """One communication instruction of a compiled program."""

    kind: str
    axes: tuple[str, ...]  # mesh axes along which the participating devices lie
    sent: int  # bytes through one device per step; an all-reduce counts its size twice
    times: int  # how often it runs per step
    shape: str  # shape of its result
    operation: str  # name of the JAX operation that it was compiled from


def collectives(compiled: str, mesh: DeviceMesh) -> list[Collective]:
    """Return all collectives of a compiled program. Collectives inside a loop are multiplied by its
    trip count.

    Args:
        compiled: the text of the program, from `jax.stages.Compiled.as_text()`.
        mesh: the mesh that the program was compiled for.

    Raises:
        ValueError: if the trip count of a loop cannot be determined.
    """
    bodies, entry = _computations(compiled)
    found = {}
    for line, times in _lines_that_send(bodies, entry, 1):
        # An asynchronous collective appears once in each of its parts (start, steps, end), all with
        # the same channel. It is counted once.
        is_part = '"async_collective_fusion_config"' in line
        channel = re.search(r"channel_id=(\d+)", line)
        found[channel[0] if channel and is_part else line] = _collective(line, times, mesh)
    return list(found.values())


def by_axis(sent: list[Collective]) -> dict[str, int]:
    """Sum the bytes through one device per step, by mesh axis ("data × fsdp" for collectives that
    cross both).
    """
    total: dict[str, int] = defaultdict(int)
    for one in sent:
        total[" × ".join(one.axes)] += one.sent
    return dict(total)


def least_bytes(program: Program) -> int:
    """Return the minimum number of bytes per device and step for fully sharded data parallelism.

    In each microbatch the sharded parameters are gathered in the compute dtype (layers twice, for
    the forward and the backward pass), and their gradients are reduced. Gradients of parameters
    that are not sharded, such as vectors, are not counted.
    """
    config = program.resolved.config
    gathered = 2 if config.model.dtype == "bfloat16" else 4
    reduced = 2 if config.mesh.reduce_dtype == "bfloat16" else 4
    total = 0
    leaves: Any = flatten_dict(program.shapes.params)
    shardings: Any = flatten_dict(program.shardings.params)
    for path, leaf in leaves.items():
        if "fsdp" in shardings[path].spec:
            times_gathered = 2 if "layers" in path else 1
            total += leaf.size * (times_gathered * gathered + reduced)
    return total * config.training.microbatches // program.mesh.shape["tensor"]


def expected_cycles(compiled: str) -> int:
    """Sum the cycles that the TPU compiler estimates for each instruction, times the trip counts of
    loops. Communication and hand-written kernels have no estimate and are not included.
    """
    bodies, entry = _computations(compiled)

    def of(name: str) -> int:
        total = 0
        for line in bodies[name]:
            noted = re.search(r'"estimated_cycles":"(\d+)"', line)
            total += int(noted[1]) if noted else 0
            if " while(" in line:
                turns = _turns(line, bodies[_named("condition", line)])
                total += turns * of(_named("body", line))
            elif " call(" in line or " conditional(" in line:
                total += sum(of(callee) for callee in re.findall(r"to_apply=%?([\w.\-]+)", line))
        return total

    return of(entry)


def _computations(compiled: str) -> tuple[dict[str, list[str]], str]:
    """Return the lines of each computation by name, and the name of the entry computation."""
    bodies: dict[str, list[str]] = {}
    entry = name = ""
    for line in compiled.splitlines():
        found = _COMPUTATION.match(line)
        if found:
            name = found[2]
            bodies[name] = []
            entry = name if found[1] else entry
        elif name and line.startswith("  "):
            bodies[name].append(line.strip())
    return bodies, entry


def _lines_that_send(
    bodies: dict[str, list[str]], name: str, times: int
) -> Iterator[tuple[str, int]]:
    """Yield the lines of all collectives in a computation and in everything it calls, each with the
    number of times it runs per step.

    Args:
        bodies: the lines of each computation by name.
        name: the computation to start from.
        times: how often this computation runs per step.
    """
    for line in bodies[name]:
        found = _INSTRUCTION.match(line)
        if not found:
            continue
        kind = found[2].removesuffix("-start")
        if kind in _KINDS:
            yield line, times
        elif kind == "while":
            body, condition = (_named(part, line) for part in ("body", "condition"))
            yield from _lines_that_send(bodies, body, times * _turns(line, bodies[condition]))
        else:
            called = re.findall(r"(?:to_apply|calls)=%?([\w.\-]+)", line)
            for listed in re.findall(r"(?:called|branch)_computations=\{([^}]*)\}", line):
                called += [callee.strip().lstrip("%") for callee in listed.split(",")]
            for callee in called:
                yield from _lines_that_send(bodies, callee, times)


def _named(part: str, line: str) -> str:
    """Return the computation that a loop names as its `part`: "body" or "condition"."""
    found = re.search(rf"{part}=%?([\w.\-]+)", line)
    assert found, f"{part} of {line}"
    return found[1]


def _turns(loop: str, condition: list[str]) -> int:
    """Return the trip count of a loop: the one noted by the compiler, or else the bound in the
    loop's condition.
    """
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop)
    if known:
        return int(known[1])
    bounds = re.findall(r"[su]32\[\][^ ]* constant\((\d+)\)", "\n".join(condition))
    if not bounds:
        raise ValueError(f"how often does this loop turn? {loop[:200]}")
    return max(map(int, bounds))


def _collective(line: str, times: int, mesh: DeviceMesh) -> Collective:
    """Parse the instruction of a collective that runs `times` times per step."""
    found = _INSTRUCTION.match(line)
    assert found, line
    shape, operation = found.groups()
    kind = operation.removesuffix("-start")
    # Size in bytes of each array of the result, whose shape reads "(bf16[4,16]{1,0}, f32[8]{0})".
    sizes = []
    for dtype, dimensions in re.findall(r"(\w+)\[([\d,]*)\]", shape):
        lengths = map(int, filter(None, dimensions.split(",")))
        sizes.append(_BYTES.get(dtype, 4) * math.prod(lengths))
    # The "-start" half of an asynchronous pair returns its operand as well as its result.
    size = max(sizes) if operation.endswith("-start") else sum(sizes)
    group = _group(line, mesh)
    if kind == "reduce-scatter":  # its result is one shard of what is sent
        size *= len(group)
    if kind == "all-reduce":
        size *= 2
    comes_from = re.search(r'op_name="([^"]*)"', line)
    name = comes_from[1] if comes_from else ""
    return Collective(kind, _axes(group, mesh), size * times, times, shape, name)


def _group(line: str, mesh: DeviceMesh) -> list[int]:
    """Return the indices in the mesh of the devices in the instruction's first replica group."""
    # An explicit list: {{0,1},{2,3}}
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]+)\}", line)
    if listed:
        return [int(number) for number in listed[1].split(",")]
    # Axes of a mesh: mesh['data'=2,'fsdp'=4] {'fsdp'}. The compiler may have invented the mesh and
    # its names, as in 'axis_0'=8.
    by_mesh = re.search(r"replica_groups=mesh\[([^]]*)\] \{([^}]*)\}", line)
    if by_mesh:
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", by_mesh[1])}
        axes = re.findall(r"\w+", by_mesh[2])
        numbers = np.arange(mesh.size).reshape(tuple(sizes.values()))
        index = tuple(slice(None) if axis in axes else 0 for axis in sizes)
        return numbers[index].reshape(-1).tolist()
    # Iota notation: [4,2]<=[2,4]T(1,0) means arange(8), reshaped to [2,4], transposed, and reshaped
    # to 4 groups of 2.
    iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line)
    if iota:
        groups, size, shape, order = iota.groups()
        numbers = np.arange(mesh.size).reshape([int(length) for length in shape.split(",")])
        if order:
            numbers = numbers.transpose([int(axis) for axis in order.split(",")])
        return numbers.reshape(int(groups), int(size))[0].tolist()
    return list(range(mesh.size))


def _axes(group: list[int], mesh: DeviceMesh) -> tuple[str, ...]:
    """Return the mesh axes along which the devices of a group differ."""
    places = np.unravel_index(group, tuple(mesh.shape.values()))
    named = zip(mesh.axis_names, places, strict=True)
    return tuple(name for name, place in named if len(set(place.tolist())) > 1)
