"""What the chips of a TPU slice that is not here would send each other in one training step, as the
compiler of TPUs has it: bytes a chip by kind, against the least that the mathematics needs.

    python benchmarks/collectives.py CONFIG TOPOLOGY [KEY=VALUE…]
    python benchmarks/collectives.py llama_7b v5p:4x4x4 mesh.fsdp=64 data.batch_size=128

Needs libtpu (`pip install libtpu`) and no TPU. The step is that of `train`, in bfloat16, without
dropout, each layer computed again in the backward pass.
"""

import dataclasses
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

if __name__ == "__main__":
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu"}
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"

from jax.experimental import topologies

from t5x_lite.config_files import load
from t5x_lite.model.transformer import count_parameters
from t5x_lite.resolve import Resolved, plan_objective, resolve_model
from t5x_lite.training.program import Program

_SETTINGS = (
    "data.source=x",
    "model.dtype=bfloat16",
    "model.remat=True",
    "model.dropout=0",
    "model.attention_dropout=0",
    "model.ff_dropout=0",
)
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{")
_INSTRUCTION = re.compile(r"(?:ROOT )?%?[\w.\-]+ = (.*?) ([\w\-]+)\(")
_KINDS = ("all-gather", "reduce-scatter", "all-reduce", "collective-permute", "all-to-all")


def devices_of(topology: str) -> list:
    """The chips of a slice, v5e:2x4 or v5p:4x4x4: of three dimensions, a torus."""
    name, _, bounds = topology.partition(":")
    options = {}
    if bounds.count("x") == 2:
        # Named v5p, the slice would have no links that wrap around, and other collectives.
        name = "v5" if name == "v5p" else name
        options = {"chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1)}
        options |= {"num_slices": 1, "wrap": (True,) * 3}
    description = topologies.get_topology_desc(f"{name}:{bounds}", platform="tpu", **options)
    return description.devices


def program_of(config: str, topology: str, *settings: str) -> Program:
    """The program of a config on a slice; no text is needed, the vocabulary is the config's own."""
    run = load(config, [*_SETTINGS, *settings])
    rows = plan_objective(run)
    model = resolve_model(run.model, run.model.vocab_size, rows.shape.longest)
    heads = ("mlm",) if rows.aligned else ("lm",)
    run = dataclasses.replace(run, model=model)
    resolved = Resolved(run, rows, model, heads, run.training.steps)
    return Program(resolved, run.data.batch_size * rows.shape.longest, devices_of(topology))


class Collective(NamedTuple):
    """One instruction of a compiled program that sends something."""

    kind: str
    sent: float  # bytes through a chip in a step: an all-reduce sends its size twice
    times: int  # it runs in a step
    shape: str
    name: str  # of the operation it comes from


def collectives(compiled: str) -> list[Collective]:
    """All that a compiled program sends, loops by the number of their turns."""
    bodies, entry = _computations(compiled)
    sent = {}
    for line, times in _sent(bodies, entry, 1):
        # One that goes on beside other work is written in each of its parts: start, steps, end.
        is_part = '"async_collective_fusion_config"' in line
        channel = re.search(r"channel_id=(\d+)", line)
        sent[channel[0] if channel and is_part else line] = _collective(line, times)
    return list(sent.values())


def _computations(compiled: str) -> tuple[dict[str, list[str]], str]:
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


def _sent(bodies: dict[str, list[str]], name: str, times: int) -> Iterator[tuple[str, int]]:
    for line in bodies[name]:
        found = _INSTRUCTION.match(line)
        if not found:
            continue
        kind = found[2].removesuffix("-start")
        if kind in _KINDS:
            yield line, times
        elif kind == "while":
            body, condition = (
                re.search(rf"{part}=%?([\w.\-]+)", line)[1] for part in ("body", "condition")
            )
            yield from _sent(bodies, body, times * _turns(line, bodies[condition]))
        else:
            for callee in re.findall(r"(?:to_apply|calls)=%?([\w.\-]+)", line):
                yield from _sent(bodies, callee, times)
            for callees in re.findall(r"(?:called|branch)_computations=\{([^}]*)\}", line):
                for callee in callees.split(","):
                    yield from _sent(bodies, callee.strip().lstrip("%"), times)


def _turns(loop: str, condition: list[str]) -> int:
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop)
    if known:
        return int(known[1])
    bounds = re.findall(r"[su]32\[\][^ ]* constant\((\d+)\)", "\n".join(condition))
    if not bounds:
        raise ValueError(f"how often does this loop turn? {loop[:200]}")
    return max(map(int, bounds))


def _collective(line: str, times: int) -> Collective:
    shape, operation = _INSTRUCTION.match(line).groups()
    kind = operation.removesuffix("-start")
    sizes = []
    for dtype, dimensions in re.findall(r"(\w+)\[([\d,]*)\]", shape):
        size = _BYTES.get(dtype, 4)
        for dimension in filter(None, dimensions.split(",")):
            size *= int(dimension)
        sizes.append(size)
    # What is started returns its operand beside its result.
    size = max(sizes) if operation.endswith("-start") else sum(sizes)
    if kind == "reduce-scatter":  # returns a part of what is sent
        size *= _group_size(line)
    if kind == "all-reduce":
        size *= 2
    name = re.search(r'op_name="([^"]*)"', line)
    return Collective(kind, size * times, times, shape, name[1] if name else "")


def _group_size(line: str) -> int:
    counted = re.search(r"replica_groups=\[\d+,(\d+)\]", line)
    if counted:
        return int(counted[1])
    by_mesh = re.search(r"replica_groups=mesh\[([^]]*)\] \{([^}]*)\}", line)
    if by_mesh:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", by_mesh[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"\w+", by_mesh[2]))
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
    return len(listed[1].split(",")) if listed else 1


def least_bytes(program: Program) -> int:
    """What fully sharded data parallelism has to send: the parameters in bfloat16 for the forward
    pass and once more for the backward pass, and their gradient.
    """
    reduced = 4 if program.resolved.config.mesh.reduce_dtype == "float32" else 2
    return (2 * 2 + reduced) * count_parameters(program.resolved.model)


def main(config: str, topology: str, *settings: str) -> None:
    """Print the table of a program."""
    program = program_of(config, topology, *settings)
    compiled = program.lower().compile()
    sent = collectives(compiled.as_text())
    memory = compiled.memory_analysis()
    state, beyond = memory.argument_size_in_bytes / 2**30, memory.temp_size_in_bytes / 2**30
    print(f"{config} on {topology}: state {state:.2f} GiB a chip, {beyond:.2f} GiB beyond it")
    by_kind = Counter()
    for one in sent:
        by_kind[one.kind] += one.sent
    for kind, size in by_kind.most_common():
        print(f"{kind:20} {size / 1e9:9.2f} GB")
    total, least = sum(by_kind.values()), least_bytes(program)
    line = f"{'all':20} {total / 1e9:9.2f} GB"
    if program.mesh.shape["tensor"] == 1:
        line += f", {total / least:.2f} × the least, {least / 1e9:.2f} GB"
    print(line)
    print("the largest:")
    for one in sorted(sent, key=lambda one: -one.sent)[: int(os.environ.get("TOP", 8))]:
        what = f"{one.times} × {one.kind} {one.shape[:48]} {one.name[-80:]}"
        print(f"{one.sent / 1e9:9.2f} GB  {what}")


if __name__ == "__main__":
    main(*sys.argv[1:])
