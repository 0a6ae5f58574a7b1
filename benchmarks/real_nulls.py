"""How often would a report of real runs be wrong? One small GPT is trained with many seeds. Its
runs are dealt to pairs of cells, which are therefore equal, so every difference found is false.

The GPT has two layers of width 64, and reads 200 × 8 × 128 bytes of the built-in text. First, each
cell has three seeds; then seeds are added, from 3 to 12, until the pair is decided (alpha=0.01,
as with --max-seeds=12).

python benchmarks/real_nulls.py --workdir=DIR --jobs=2
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from false_differences import report_of
from record import keep

from t5x_lite.comparison.cells import plan_comparison
from t5x_lite.comparison.evaluations import measure
from t5x_lite.comparison.results import summarise
from t5x_lite.comparison.run import compare
from t5x_lite.comparison.span_bits import num_bytes
from t5x_lite.comparison.statistics import Rule, Sample
from t5x_lite.config.files import load_comparison
from t5x_lite.progress import columns, say

FEW, MOST = 3, 12  # seeds of a cell
EFFECT = 0.1  # the smallest difference that matters, in nats per token and in bits per byte


def train(workdir: Path, runs: int, jobs: int) -> tuple[dict[str, np.ndarray], Sample]:
    """Return the scores of all runs, loss [runs] and span bits [runs, spans], and the spans."""
    settings = ["model.num_layers=2", "model.d_model=64", "model.d_ff=128", "match=steps"]
    settings += ["data.tokenizer=bytes", "optimizer.learning_rate=5e-3", "budget=200"]
    settings += ["evaluations=1", "span_count=256", "other_objectives=False", "ngram=False"]
    config = load_comparison("gpt_tiny", [*settings, f"seeds={runs}"], ["objective=causal_lm"])
    compare(config, workdir, jobs=jobs)
    _, trained, questions = plan_comparison(config, workdir)
    bits = [measure(run.directory, questions).span_bits["left"]["without_end"] for run in trained]
    losses = [summarise(run)["loss"] for run in trained]
    passages = np.array([span.passage for span in questions.spans])
    sample = Sample(num_bytes(questions.spans), passages)
    return {"loss": np.array(losses), "span bits": np.array(bits)}, sample


def verdicts(
    amounts: np.ndarray, sample: Sample | None, max_seeds: int
) -> tuple[dict[str, Any], int]:
    """Return the difference between two cells, whose runs alternate in `amounts` [runs, ...], and
    the number of seeds that each cell needed.
    """
    looks = max_seeds - FEW + 1
    rule = Rule() if looks == 1 else Rule(alpha=0.01, looks=looks, effect=EFFECT, score="score")
    for seeds in range(FEW, max_seeds + 1):
        values = {
            name: {seed: {"score": amounts[2 * seed + cell]} for seed in range(seeds)}
            for cell, name in enumerate("ab")
        }
        samples = {name: {"score": sample} for name in "ab"} if sample else {}
        difference = report_of(values, samples, rule)[1]["difference"]
        if difference["verdict"] != "open":
            break
    return difference, seeds


def main() -> None:
    """Train the runs, print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=40, help="pairs of cells with three seeds")
    options = parser.parse_args()
    scores, spans = train(options.workdir, 2 * FEW * options.pairs, options.jobs)

    rows = [
        ["score", "seeds", "pairs", "different", "equivalent", "outside interval", "seeds used"]
    ]
    for name, of_runs in scores.items():
        sample = spans if of_runs.ndim > 1 else None
        for max_seeds in (FEW, MOST):
            parts = np.split(of_runs, len(of_runs) // (2 * max_seeds))
            found = [verdicts(part, sample, max_seeds) for part in parts]
            called = [difference["verdict"] for difference, _ in found]
            outside = [not one["low"] <= 0 <= one["high"] for one, _ in found]
            used = np.mean([seeds for _, seeds in found])
            rows.append([name, str(FEW) if max_seeds == FEW else f"{FEW} to {max_seeds}"])
            counts = (len(parts), called.count("different"), called.count("equivalent"))
            rows[-1] += [*map(str, counts), str(sum(outside)), f"{used:.1f}"]
    say(columns(rows, "<" + ">" * 6))
    per_byte = scores["span bits"].sum(1) / spans.sizes.sum()
    keep("real_nulls", {"loss": scores["loss"].tolist(), "span bits per byte": per_byte.tolist()})


if __name__ == "__main__":
    main()
