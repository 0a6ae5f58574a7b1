"""Measure what dropout costs on a CPU, with random numbers by JAX, which compiles Threefry's rounds
as a loop, and by us, who compile them as one expression.

    python benchmarks/dropout.py [ROUNDS]

Three variants take turns in blocks of five steps: no dropout, dropout of 0.1 everywhere with JAX's
loop, and the same with ours. Prints medians of ratios over rounds.
"""

import statistics
import sys
import time
from collections.abc import Callable

import jax
from record import keep

from t5x_lite.config.files import load
from t5x_lite.data.store.prepare import prepare
from t5x_lite.model.threefry import compile_unrolled
from t5x_lite.resolve import resolve, text_data
from t5x_lite.training.computation import forget_programs
from t5x_lite.training.loop import Run

KINDS = ("dropout", "attention_dropout", "ff_dropout")


def main(rounds: int = 9) -> None:
    """Run the three variants of each tiny config in turn and print the ratios."""
    names = ("bert_tiny", "t5_tiny", "gpt_tiny")
    steps = {(name, "loop"): steps_of(name, 0.1) for name in names}
    compile_unrolled()
    forget_programs()
    for name in names:
        steps[name, "ours"] = steps_of(name, 0.1)
        steps[name, "none"] = steps_of(name, 0.0)

    results = {}
    for name in names:
        seconds: dict[str, list[float]] = {"none": [], "loop": [], "ours": []}
        for _ in range(rounds):
            for way, times in seconds.items():
                times.append(steps[name, way]())
        results[name] = {f"{way}_seconds": times for way, times in seconds.items()}
        medians = {way: round(statistics.median(times), 4) for way, times in seconds.items()}
        print(
            f"{name}: {medians} ours / loop {_ratio(seconds['ours'], seconds['loop']):.2f}, "
            f"ours / none {_ratio(seconds['ours'], seconds['none']):.2f}",
            flush=True,
        )
    keep("dropout", results)


def steps_of(name: str, rate: float) -> Callable[[], float]:
    """Compile the train step of a config with dropout. Return a function that runs five steps and
    returns the seconds of one.
    """
    config = load(name, [f"model.{kind}={rate}" for kind in KINDS])
    corpus = prepare(config.data)
    resolved = resolve(config, corpus.tokenizer.vocabulary)
    run = Run(resolved, text_data(resolved, corpus))

    def five_steps() -> float:
        nonlocal state
        with run.within():
            start = time.perf_counter()
            for _ in range(5):
                state, _ = run.train_step(state, batch)
            jax.block_until_ready(state)
            return (time.perf_counter() - start) / 5

    with run.within():
        state = run.fresh_state()
        batch = run.batch(run.batches, 0)
    five_steps()
    return five_steps


def _ratio(times: list[float], others: list[float]) -> float:
    """Return the median ratio of two lists of seconds, pair by pair."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
