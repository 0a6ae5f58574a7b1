"""Check that training on shuffled blocks is as good as on windows drawn at random: compare
validation losses of gpt_tiny for several seeds.

python benchmarks/shuffle.py [STEPS] [SEEDS]
"""

import dataclasses
import statistics
import sys

import numpy as np
from record import keep

from t5x_lite.config.files import load
from t5x_lite.data.rows.streams import TextStream
from t5x_lite.data.rows.windows import ShuffledWindows
from t5x_lite.data.store.prepare import prepare
from t5x_lite.resolve import resolve, text_data
from t5x_lite.training.loop import Run, setup_jax


class Anywhere(ShuffledWindows):
    """Windows at independent, uniformly random places of the text."""

    def read(self, window_ids):
        """Return the windows: [rows, size]."""
        draws = (np.random.default_rng([self.order.seed, number]) for number in window_ids)
        starts = [draw.integers(len(self.tokens) - self.size) for draw in draws]
        return self.tokens[np.array(starts)[:, None] + np.arange(self.size)]


def validation_loss(steps: int, seed: int, anywhere: bool) -> float:
    """Return the validation loss of gpt_tiny after a number of steps.

    Args:
        steps: the number of training steps.
        seed: the seed of the run.
        anywhere: True to draw windows at random places instead of shuffled blocks.
    """
    config = load("gpt_tiny", [f"training.steps={steps}", f"seed={seed}"])
    corpus = prepare(config.data)
    resolved = resolve(config, corpus.tokenizer.vocabulary)
    run = Run(resolved, text_data(resolved, corpus))
    if anywhere:
        (stream,) = run.batches.streams
        assert isinstance(stream, TextStream)
        stream = dataclasses.replace(stream, windows=Anywhere(**vars(stream.windows)))
        run.batches = dataclasses.replace(run.batches, streams=(stream,))
    with run.within():
        state = run.fresh_state()
        for step in range(steps):
            state, _ = run.train_step(state, run.batch(run.batches, step))
        return run.evaluate(state.params)["loss"]


def main(steps: int = 300, seeds: int = 3) -> None:
    """Train both variants with each seed, and print the losses and their difference."""
    setup_jax()
    losses = {"shuffled": [], "anywhere": []}
    for seed in range(seeds):
        for name, found in losses.items():
            found.append(validation_loss(steps, seed, name == "anywhere"))
        print(seed, {name: round(found[-1], 4) for name, found in losses.items()}, flush=True)
    means = {name: statistics.mean(found) for name, found in losses.items()}
    noise = {name: round(statistics.stdev(found), 4) for name, found in losses.items()}
    print(
        f"difference of the means {means['shuffled'] - means['anywhere']:+.4f}, seed noise (1 σ) "
        f"{noise}"
    )
    keep("shuffle", {"validation_loss_by_seed": losses})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
