"""Measure what the training loop adds to the time of its steps: metrics, and checkpoints every 100
steps, for gpt_tiny.

    python benchmarks/loop.py [ROUNDS] [CONFIG]

Three variants take turns: the bare steps, each of which waits for the step before; the whole loop
without checkpoints in between; and the loop with a checkpoint every 100 steps. Metrics are
logged every 50 steps. The time is taken from step 50 to step 350, which leaves out compilation and
the end of the run. Prints medians of ratios, and the time of one heartbeat of the watchdog, which
runs of several processes send every 5 seconds.
"""

import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import jax
from record import keep

from t5x_lite.config.files import load
from t5x_lite.data.store.prepare import prepare
from t5x_lite.resolve import resolve, text_data
from t5x_lite.training import loop, processes

FIRST, LAST = 50, 350


def main(rounds: int = 5, name: str = "gpt_tiny") -> None:
    """Run the three variants in turn and print the ratios."""
    beat = seconds_of_a_beat()  # must come before jax computes anything
    overrides = [f"training.steps={LAST}", "training.eval_every=0", "training.log_every=50"]
    runs = {}
    for way, every in (("loop", 0), ("checkpoints", 100)):
        config = load(name, [*overrides, f"training.checkpoint_every={every}"])
        corpus = prepare(config.data)
        resolved = resolve(config, corpus.tokenizer.vocabulary)
        runs[way] = partial(seconds_of_loop, resolved, text_data(resolved, corpus))
    runs["bare"] = partial(seconds_of_steps, resolved, text_data(resolved, corpus))
    seconds: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(rounds):
        for way, run in runs.items():
            seconds[way].append(run())
        print({way: round(values[-1], 2) for way, values in seconds.items()}, flush=True)
    ratios = {
        "loop / bare": _median_ratio(seconds["loop"], seconds["bare"]),
        "checkpoints / loop": _median_ratio(seconds["checkpoints"], seconds["loop"]),
    }
    for what, ratio in ratios.items():
        print(f"{what:<20}{ratio:8.4f}")
    print(f"{'a beat / 5 s':<20}{beat / 5:8.6f}")
    keep("loop", {"config": name, "seconds": seconds, "beat_seconds": beat})


def _median_ratio(a: list[float], b: list[float]) -> float:
    """Return the median of the ratios a/b."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def seconds_of_loop(resolved, data) -> float:
    """Return the seconds from step FIRST to step LAST in the training loop."""
    times = {}
    with tempfile.TemporaryDirectory() as directory:
        workdir = Path(directory) / "run"
        loop.train(
            resolved,
            data,
            workdir,
            on_log=lambda record: times.setdefault(record["step"], time.monotonic()),
        )
    return times[LAST] - times[FIRST]


def seconds_of_steps(resolved, data) -> float:
    """Return the seconds of the same steps without the loop's other work."""
    run = loop.Run(resolved, data)
    with run.within():
        state, pending = run.fresh_state(), None
        batches = loop.prefetch(
            partial(run.batch, run.batches), 0, LAST, resolved.config.data.workers
        )
        for step, batch in enumerate(batches, 1):
            state, sums = run.train_step(state, batch)
            jax.block_until_ready(pending)
            pending = sums
            if step == FIRST:
                jax.block_until_ready(pending)
                began = time.monotonic()
        jax.block_until_ready(pending)
    return time.monotonic() - began


def seconds_of_a_beat() -> float:
    """Return the median seconds to tell the coordination service that a process is alive."""
    jax.distributed.initialize("127.0.0.1:28712", 1, 0)
    heartbeat = processes.Heartbeat(Path("stacks"), lambda: "step", 60.0)
    times = []
    for _ in range(100):
        began = time.monotonic()
        heartbeat._tell()
        times.append(time.monotonic() - began)
    return statistics.median(times)


if __name__ == "__main__":
    main(*(int(word) if word.isdigit() else word for word in sys.argv[1:]))
