"""Count what each chip of a TPU slice would send in one training step. No TPU is needed: the TPU
compiler runs on this machine. Shows bytes per chip by kind of collective and by mesh axis, against
the minimum that the algorithm requires; memory per chip; and the compiler's estimate of cycles.

    python benchmarks/collectives.py CONFIG TOPOLOGY [KEY=VALUE…]
    python benchmarks/collectives.py llama_7b v5p:4x4x4 mesh.fsdp=64 data.batch_size=128

Needs libtpu (`pip install libtpu`). The step is the one that `train` runs, in bfloat16, without
dropout, with each layer recomputed in the backward pass.
"""

import os
import sys
from collections import Counter
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from t5x_lite.config.files import load
from t5x_lite.hardware import parse_topology
from t5x_lite.planning.compiler import devices_of
from t5x_lite.planning.traffic import by_axis, collectives, expected_cycles, least_bytes
from t5x_lite.resolve import resolve_without_text
from t5x_lite.training.program import Program

_SETTINGS = (
    "data.source=x",
    "model.dtype=bfloat16",
    "model.remat=True",
    "model.dropout=0",
    "model.attention_dropout=0",
    "model.ff_dropout=0",
)


def program_of(config: str, topology: str, *settings: str) -> Program:
    """Build the program of a config for a TPU slice. It needs no text, because the config says how
    large the vocabulary is.
    """
    resolved = resolve_without_text(load(config, [*_SETTINGS, *settings]))
    tokens = resolved.config.data.batch_size * resolved.rows.shape.longest
    return Program(resolved, tokens, devices_of(parse_topology(topology)))


def main(config: str, topology: str, *settings: str) -> None:
    """Compile the step and print its memory, cycles and collectives."""
    program = program_of(config, topology, *settings)
    compiled = program.trace().lower().compile()
    text = compiled.as_text()
    sent = collectives(text, program.mesh)
    memory: Any = compiled.memory_analysis()
    state, beyond = memory.argument_size_in_bytes / 2**30, memory.temp_size_in_bytes / 2**30
    print(f"{config} on {topology}: state {state:.2f} GiB a chip, {beyond:.2f} GiB beyond it")
    print(f"cycles, as the compiler expects: {expected_cycles(text):.4g}")
    by_kind = Counter()
    for one in sent:
        by_kind[one.kind] += one.sent
    for name, size in (*by_kind.most_common(), *sorted(by_axis(sent).items())):
        print(f"{name:20} {size / 1e9:9.2f} GB")
    total, least = sum(by_kind.values()), least_bytes(program)
    line = f"{'all':20} {total / 1e9:9.2f} GB"
    if program.mesh.shape["tensor"] == 1:
        line += f", {total / least:.2f} × the least, {least / 1e9:.2f} GB"
    print(line)
    print("the largest:")
    for one in sorted(sent, key=lambda one: -one.sent)[:8]:
        what = f"{one.times} × {one.kind} {one.shape[:48]} {one.operation[-80:]}"
        print(f"{one.sent / 1e9:9.2f} GB  {what}")


if __name__ == "__main__":
    main(*sys.argv[1:])
