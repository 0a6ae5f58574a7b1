"""Seconds to compile a training step by the number of layers, which the scan should make no
difference to.

python benchmarks/compile_time.py [LAYERS…]
"""

import dataclasses
import statistics
import sys
import time

import jax
import jax.numpy as jnp
from record import keep

from t5x_lite.config_files import load
from t5x_lite.model.transformer import parameter_axes
from t5x_lite.resolve import resolve_model
from t5x_lite.training.adapt import parse_adaptation
from t5x_lite.training.optimizer import make_optimizer, make_schedule
from t5x_lite.training.step import Loss, fresh_parameters, make_train_step, state_shapes


def lowered(rows: int, length: int, *settings_of: str, where=None, adapt: str = "full"):
    """A training step of GPT-2 small with those settings, on the device where; nothing is
    allocated.
    """
    adaptation = parse_adaptation(adapt)
    config = load(
        "gpt2_small",
        [
            *settings_of,
            "data.source=x",
            f"data.batch_size={rows}",
            f"data.lengths.sequence_length={length}",
        ],
    )
    written = dataclasses.replace(config.model, **adaptation.settings)
    model = resolve_model(written, vocab_size=config.model.vocab_size, max_length=length)
    schedule = make_schedule(config.optimizer, 1000, rows * length)
    axes = adaptation.trained_part(parameter_axes(model))
    optimizer = make_optimizer(config.optimizer, schedule, axes)

    state = state_shapes(model, optimizer, adaptation)
    _, frozen = jax.eval_shape(lambda: adaptation.split(fresh_parameters(model, 0)))
    row = {}
    for key in ("tokens", "segments", "positions", "targets", "weights"):
        dtype = jnp.float32 if key == "weights" else jnp.int32
        row[f"decoder_{key}"] = jax.ShapeDtypeStruct((rows, length), dtype)
    loss = Loss(model, packed=False, heads=("lm",), training=config.training)
    train_step = make_train_step(loss, 0, optimizer, schedule, adaptation)
    step = jax.jit(train_step, donate_argnums=0, in_shardings=where)
    return step.lower(state, row, frozen)


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
