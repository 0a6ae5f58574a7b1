"""What runs reached, over seeds, and how sure it is: intervals over spans by the bootstrap, over
seeds by Student's t.

The bootstrap is right for hundreds of spans. Of three seeds its 95 % intervals would hold the truth
in three cases of four, where t intervals hold it in 95 of a hundred (docs/concepts/certainty.md).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

# What one run reached in each score: an amount for each span, or a single number.
Values = dict[str, np.ndarray]

_RESAMPLES = 1000
_MOST_SEEDS = 1000
_NORMAL = float(stats.norm.ppf(0.975))
# Scores of the run's own question, which is another for another objective
OWN = ("loss", "accuracy")


def scores_of(
    values: Mapping[str, Mapping[int, Values]], sizes: np.ndarray, questions: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Of each cell and each score: the mean over seeds and its interval, and the same of the
    difference to the first cell, seed by seed.

    Args:
        values: cell → seed → what that run reached.
        sizes: the bytes of each span.
        questions: cell → what its loss and accuracy are of: of another question they do not
            compare, and have no difference.

    >>> one, other = {0: {"loss": np.array([3.0])}}, {0: {"loss": np.array([2.5])}}
    >>> scores = scores_of({"a": one, "b": other}, np.ones(1), {"a": "lm", "b": "lm"})
    >>> scores["b"]["loss"]["difference"]["mean"]
    -0.5
    """
    first = next(iter(values))
    scores: dict[str, dict[str, Any]] = {}
    for cell, of_seeds in values.items():
        scores[cell] = {}
        for name in dict.fromkeys(name for of_run in of_seeds.values() for name in of_run):
            own = {seed: of_run[name] for seed, of_run in of_seeds.items()}
            scores[cell][name] = _score(list(own.values()), sizes)
            # The same seeds of the first cell, on the same text in the same order.
            others = {seed: of_run.get(name) for seed, of_run in values[first].items()}
            compares = name not in OWN or questions[cell] == questions[first]
            if cell != first and compares:
                difference = _difference(own, others, sizes)
                if difference:
                    scores[cell][name]["difference"] = difference
    return scores


def best_two(
    values: Mapping[str, Mapping[int, Values]], sizes: np.ndarray, name: str, lowest: bool = True
) -> dict[str, Any]:
    """The two cells that are best in the score of that name, and how they differ; nothing, where
    fewer than two have one.
    """
    means = {}
    for cell, of_seeds in values.items():
        own = [of_run[name] for of_run in of_seeds.values() if name in of_run]
        if own:
            means[cell] = _score(own, sizes)["mean"]
    if len(means) < 2:
        return {}
    best, second = sorted(means, key=lambda cell: means[cell], reverse=not lowest)[:2]
    of_best, of_second = (
        {seed: of_run.get(name) for seed, of_run in values[cell].items()} for cell in (best, second)
    )
    difference = _difference(of_best, of_second, sizes)
    return {"best": best, "second": second, "difference": difference}


def _difference(
    own: Mapping[int, np.ndarray | None], others: Mapping[int, np.ndarray | None], sizes: np.ndarray
) -> dict[str, Any] | None:
    """What one cell has more than another, seed by seed; None where they share no seed."""
    differences = []
    for seed, amounts in own.items():
        other = others.get(seed)
        if amounts is not None and other is not None:
            differences.append(amounts - other)
    if not differences:
        return None
    score = _score(differences, sizes)
    needed = seeds_to_resolve(np.array(score["seeds"]), score["span_error"])
    return score | {"seeds_to_resolve": needed}


def _score(values: Sequence[np.ndarray], sizes: np.ndarray) -> dict[str, Any]:
    """One score, of one array for each seed."""
    amounts = np.array(values)  # [seeds, spans], or [seeds, 1]
    if amounts.shape[1] == 1:
        sizes = np.ones(1)
    of_seeds = amounts.sum(1) / sizes.sum()
    error = ratio_error(amounts.mean(0), sizes)
    half = half_width(of_seeds, error)
    mean = float(of_seeds.mean())
    return {
        "mean": mean,
        "low": None if half is None else mean - half,
        "high": None if half is None else mean + half,
        "deviation": float(of_seeds.std(ddof=1)) if len(of_seeds) > 1 else None,
        "span_error": error,
        "seeds": of_seeds.tolist(),
    }


def ratio_error(amounts: np.ndarray, sizes: np.ndarray) -> float:
    """The standard error of sum(amounts) / sum(sizes) over their items, by the bootstrap; 0 of a
    single one, which is no sample.
    """
    if len(amounts) == 1:
        return 0.0
    # Words of PCG64 are the same in every version of numpy.
    words = np.random.PCG64(0).random_raw(_RESAMPLES * len(amounts))
    drawn = (words % np.uint64(len(amounts))).astype(np.int64).reshape(_RESAMPLES, -1)
    ratios = amounts[drawn].sum(1) / sizes[drawn].sum(1)
    return float(ratios.std(ddof=1))


def half_width(of_seeds: np.ndarray, error: float = 0.0) -> float | None:
    """Half of the 95 % interval of a mean over seeds; None, where nothing says how wide it is.

    Args:
        error: the standard error of what all seeds share, such as the spans. Of one seed the
            interval is of that alone.

    >>> round(half_width(np.array([1.0, 2.0, 3.0])), 3)
    2.484
    >>> half_width(np.array([2.0])), round(half_width(np.array([2.0]), error=0.1), 3)
    (None, 0.196)
    """
    if len(of_seeds) == 1:
        return _NORMAL * error if error else None
    return _half_width(float(of_seeds.std(ddof=1)), len(of_seeds), error)


def _half_width(deviation: float, seeds: int, error: float) -> float:
    quantile = float(stats.t.ppf(0.975, seeds - 1))
    return math.hypot(quantile * deviation / math.sqrt(seeds), _NORMAL * error)


def seeds_to_resolve(differences: np.ndarray, error: float = 0.0) -> int | None:
    """How many seeds it would take until the interval of a mean difference leaves 0 out, if it and
    its spread stay what they are; None where no number would, or one seed says nothing of the
    spread.

    >>> seeds_to_resolve(np.array([0.1, 0.3, -0.1]))
    18
    >>> seeds_to_resolve(np.array([0.1, 0.3, -0.1]), error=0.2)
    """
    if len(differences) < 2:
        return None
    mean, deviation = abs(float(differences.mean())), float(differences.std(ddof=1))
    for seeds in range(2, _MOST_SEEDS + 1):
        if _half_width(deviation, seeds, error) < mean:
            return seeds
    return None
