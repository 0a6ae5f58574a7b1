"""How often would a report be wrong? Simulates the reports of cells and counts how many contain a
false difference, how often the truth lies outside an interval, and how often a real difference is
found.

A run's value on a unit (a span or an example) is the sum of three terms: how hard the unit is for
all models, the luck of the seed, and noise. Cells share part of the luck, because they read the
text in the same order. Spans of one passage are alike, and are as noisy as the quickstart's.
Whether an example is answered right is drawn from such a sum. A row of the table is a kind of score
with a number of cells and seeds.

python benchmarks/false_differences.py --reports=400
"""

import argparse
from typing import NamedTuple

import numpy as np
from scipy import stats

from t5x_lite.comparison.statistics import Rule, Sample, scores_of
from t5x_lite.progress import columns, say

LUCK = 0.02  # standard deviation over seeds, for scores around 2 bits or 50 % right answers
EFFECT = 0.1  # how much better the last cell is, when there is a difference to be found


class Score(NamedTuple):
    """A kind of score, as described by its units (spans or examples; 0 for a loss)."""

    units: int
    clusters: int
    typical: float  # mean of the values
    is_bounded: bool


SCORES = {
    "loss": Score(0, 0, 2.0, False),
    "128 spans": Score(128, 60, 2.0, False),
    "1,024 spans": Score(1024, 240, 2.0, False),
    "40 examples, 95 % right": Score(40, 40, 0.95, True),
    "127 examples, 60 % right": Score(127, 127, 0.6, True),
    "1,000 examples, 80 % right": Score(1000, 1000, 0.8, True),
}


def simulated(score: Score, effects: np.ndarray, seeds: int, shared: float, random):
    """Return the values of a report with one score, and its sample.

    Args:
        effects: [cells] shift of each cell's mean.
        shared: correlation of the luck of cells with the same seed.
    """
    cells = len(effects)
    common = random.normal(size=(1, seeds))
    own = random.normal(size=(cells, seeds))
    luck = LUCK * (np.sqrt(shared) * common + np.sqrt(1 - shared) * own)
    means = score.typical + effects[:, None] + luck
    if not score.units:
        amounts = means
        sample = None
    else:
        clusters = np.sort(random.integers(score.clusters, size=score.units))
        passages = random.normal(size=score.clusters)[clusters]
        units = random.normal(size=score.units)
        noise = random.normal(size=(cells, seeds, score.units))
        if score.is_bounded:
            # An example is answered right if the sum of its difficulty and noise is low enough.
            threshold = stats.norm.ppf(np.clip(means, 1e-4, 1 - 1e-4))[..., None]
            amounts = (np.sqrt(0.5) * (units + noise) < threshold).astype(float)
            sizes = np.ones(score.units)
        else:
            sizes = random.integers(5, 40, score.units).astype(float)
            amounts = sizes * (means[..., None] + 0.5 * passages + 0.8 * units + 0.3 * noise)
        sample = Sample(sizes, clusters, (0.0, 1.0) if score.is_bounded else None)
    names = [f"cell{number}" for number in range(cells)]
    values = {
        name: {seed: {"score": amounts[number, seed]} for seed in range(seeds)}
        for number, name in enumerate(names)
    }
    return values, {} if sample is None else {name: {"score": sample} for name in names}


def report_of(values, samples, rule=Rule()):
    """Return the scores of a report that compares all cells with the first."""
    names = list(values)
    nothing, baselines = {name: {} for name in names}, dict.fromkeys(names, names[0])
    scores = scores_of(values, samples, nothing, baselines, lambda name: True, rule)
    return [scores[name]["score"] for name in names]


def measured(
    score: Score, cells: int, seeds: int, shared: float, reports: int, random
) -> list[str]:
    """Return a row of the table."""
    wrong, outside, excluded, right = 0, [], [], 0
    for _ in range(reports):
        # All cells are equal.
        found = report_of(*simulated(score, np.zeros(cells), seeds, shared, random))
        differences = [one["difference"] for one in found if "difference" in one]
        wrong += any(one["verdict"] == "different" for one in differences)
        outside += [not one["low"] <= 0 <= one["high"] for one in differences]
        excluded.append(not found[0]["may_be_best"])
        # The last cell is better (lower).
        effects = np.append(np.zeros(cells - 1), -EFFECT)
        found = report_of(*simulated(score, effects, seeds, shared, random))
        right += found[-1]["difference"]["verdict"] == "different"
    shares = (wrong / reports, np.mean(outside), np.mean(excluded), right / reports)
    return [f"{share:.1%}" for share in shares]


def decided(score: Score, cells: int, effect: float, reports: int, random) -> list[str]:
    """Return a row of the second table, of reports that add seeds until all differences are
    decided, from 3 to 12.

    Args:
        effect: how much better the last cell is.
    """
    rule = Rule(alpha=0.01, looks=10, effect=EFFECT, score="score")
    verdicts, seeds_used = [], []
    for _ in range(reports):
        effects = np.append(np.zeros(cells - 1), -effect)
        values, samples = simulated(score, effects, 12, 0.0, random)
        for seeds in range(3, 13):
            so_far = {
                name: {seed: of_cell[seed] for seed in range(seeds)}
                for name, of_cell in values.items()
            }
            found = [one["difference"]["verdict"] for one in report_of(so_far, samples, rule)[1:]]
            if "open" not in found:
                break
        verdicts.append(found)
        seeds_used.append(seeds)
    different = np.mean(["different" in found for found in verdicts])
    equivalent = np.mean(["equivalent" in found for found in verdicts])
    return [f"{different:.2%}", f"{equivalent:.1%}", f"{np.mean(seeds_used):.1f}"]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reports", type=int, default=400, help="simulated reports of each row")
    arguments = parser.parse_args()
    heading = ["score", "cells", "seeds", "shared luck", "false difference", "outside interval"]
    rows = [[*heading, "equal cell excluded", "difference found"]]
    for number, (name, score) in enumerate(SCORES.items()):
        for cells, seeds, shared in (
            (2, 3, 0.0),
            (2, 5, 0.8),
            (3, 3, 0.0),
            (3, 5, 0.8),
            (10, 3, 0.0),
        ):
            random = np.random.default_rng([number, cells, seeds])
            row = measured(score, cells, seeds, shared, arguments.reports, random)
            rows.append([name, str(cells), str(seeds), f"{shared:g}", *row])
    say(columns(rows, "<" + ">" * 7))

    # Look after every seed: first equal cells, then an effect of the size that matters.
    rows = [["score", "cells", "effect", "different", "equivalent", "seeds"]]
    for name, cells, effect in (
        ("loss", 2, 0.0),
        ("loss", 3, 0.0),
        ("1,024 spans", 2, 0.0),
        ("loss", 2, EFFECT),
        ("1,024 spans", 2, EFFECT),
    ):
        random = np.random.default_rng([cells, int(1000 * effect)])
        row = decided(SCORES[name], cells, effect, 10 * arguments.reports, random)
        rows.append([name, str(cells), f"{effect:g}", *row])
    say(columns(rows, "<" + ">" * 5))


if __name__ == "__main__":
    main()
