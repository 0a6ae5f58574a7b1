"""Seconds to compile a training step by the number of layers, which the scan should make no
difference to.

python benchmarks/compile_time.py [LAYERS…]
"""

import dataclasses
import statistics
import sys
import time

import jax
from record import keep

from t5x_lite.config.files import load
from t5x_lite.resolve import resolve_without_text
from t5x_lite.training.adapt import parse_adaptation
from t5x_lite.training.program import Program


def lowered(rows: int, length: int, *settings: str, adapt: str = "full", device=None):
    """A training step of GPT-2 small with those settings, on a device; nothing is allocated."""
    config = load(
        "gpt2_small",
        [
            *settings,
            "data.source=x",
            f"data.batch_size={rows}",
            f"data.lengths.sequence_length={length}",
        ],
    )
    model = dataclasses.replace(config.model, **parse_adaptation(adapt).settings)
    resolved = resolve_without_text(dataclasses.replace(config, model=model, adapt=adapt))
    return Program(resolved, rows * length, [device or jax.devices()[0]]).trace().lower()


def compile_time(layers: int) -> float:
    """Of 2 rows of 256."""
    start = time.perf_counter()
    lowered(2, 256, f"model.num_layers={layers}").compile()
    return time.perf_counter() - start


def main(counts: list[int]) -> None:
    """Three rounds, taking turns."""
    compile_time(1)
    rounds = [{count: compile_time(count) for count in counts} for _ in range(3)]
    for count in counts:
        found = [times[count] for times in rounds]
        ratio = statistics.median(times[count] / times[counts[0]] for times in rounds)
        print(
            f"{count} layers: {statistics.median(found):.1f} s, {ratio:.2f} × {counts[0]} layers",
            flush=True,
        )
    keep("compile_time", {"seconds_by_layers": rounds})


if __name__ == "__main__":
    main(list(map(int, sys.argv[1:])) or [12, 24, 48, 96])
