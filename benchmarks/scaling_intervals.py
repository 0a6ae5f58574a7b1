"""Simulate how often the intervals of a scaling law contain the truth.

python benchmarks/scaling_intervals.py [SETS]

Points follow Chinchilla's law with noise: either 20 points with equal noise, as in a small ladder,
or 240 points where short runs are noisier. Each set is fitted, and the output says in what share of
the sets the 95 % intervals contain E, alpha and beta.
"""

import math
import sys

import numpy as np

from t5x_lite.comparison.scaling import Point, ScalingLaw, fit

TRUTH = ScalingLaw(E=1.69, A=406.4, alpha=0.34, B=410.7, beta=0.28)


def grid(budgets: np.ndarray, sizes: np.ndarray) -> list[tuple[float, float]]:
    """Return parameters and tokens of runs: under each budget, sizes around the best one."""
    runs = []
    for flops in budgets:
        best = math.sqrt(flops / 6 / 20)
        runs += [(size * best, flops / (6 * size * best)) for size in sizes]
    return runs


def drawn(runs: list[tuple[float, float]], is_equal: bool, seed: int) -> list[Point]:
    """Return points with 0.5 % noise, or with 0.2 to 2.5 %, more for shorter runs."""
    random = np.random.default_rng(seed)
    middle = np.median([math.log(tokens) for _, tokens in runs])
    points = []
    for parameters, tokens in runs:
        shorter = max(middle - math.log(tokens), 0.0)
        noise = 0.005 if is_equal else 0.002 + 0.02 * shorter / 3
        loss = TRUTH.loss(parameters, tokens) * math.exp(random.normal() * noise)
        points.append(Point(parameters, tokens, loss))
    return points


def main() -> None:
    """Print the share of intervals that contain the truth, for both kinds of sets."""
    sets = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    cases = {
        "20 points, equal noise": (
            grid(np.geomspace(1e17, 3e18, 4), np.geomspace(0.2, 5, 5)),
            True,
        ),
        "240 points, short runs noisier": (
            grid(np.geomspace(6e18, 3e21, 12), np.geomspace(0.15, 7, 20)),
            False,
        ),
    }
    for name, (runs, is_equal) in cases.items():
        held = dict.fromkeys(("E", "alpha", "beta"), 0)
        for seed in range(sets):
            found = fit(drawn(runs, is_equal, seed))
            for coefficient in held:
                low, high = found.interval(lambda law, of=coefficient: getattr(law, of))
                held[coefficient] += low <= getattr(TRUTH, coefficient) <= high
        shares = ", ".join(
            f"{coefficient} {count / sets:.2f}" for coefficient, count in held.items()
        )
        print(f"{name}, {sets} sets: {shares}")


if __name__ == "__main__":
    main()
