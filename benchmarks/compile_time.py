"""Measure the seconds to compile a training step with different numbers of layers. The layers are
scanned, so their number should make no difference.

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
    """Lower a training step of GPT-2 small with the given settings; nothing is allocated.

    Args:
        rows: rows per batch.
        length: tokens per row.
        settings: more settings, as KEY=VALUE.
        adapt: which parameters are trained: "full", or such as "lora(8)".
        device: the device to lower for; None: the first one here.
    """
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
    """Return the seconds to lower and compile a step on 2 rows of 256 tokens."""
    start = time.perf_counter()
    lowered(2, 256, f"model.num_layers={layers}").compile()
    return time.perf_counter() - start


def main(counts: list[int]) -> None:
    """Compile with each number of layers in turn, three times, and print medians and ratios."""
    compile_time(1)  # warm up
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
