"""What runs reached, over seeds, and how sure it is: intervals over spans by the bootstrap of the
passages that they are drawn from, over seeds by Student's t.

The bootstrap is right for many passages. Of three seeds its 95 % intervals would hold the truth
in three cases of four, where t intervals hold it in 95 of a hundred (docs/concepts/certainty.md).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

# What one run reached in each score: an amount for each span, or a single number.
Values = Mapping[str, np.ndarray | float]

_RESAMPLES = 1000
_MOST_SEEDS = 1000
_NORMAL = float(stats.norm.ppf(0.975))


class Sample(NamedTuple):
    """The spans that runs are asked for."""

    sizes: np.ndarray  # the bytes of each
    passages: np.ndarray  # the number of that it is drawn from


def scores_of(
    values: Mapping[str, Mapping[int, Values]],
    sample: Sample,
    questions: Mapping[str, Mapping[str, str]],
    baselines: Mapping[str, str],
) -> dict[str, dict[str, Any]]:
    """Of each cell and each score: the mean over seeds and its interval, and the same of the
    difference to the cell's baseline, seed by seed.

    Args:
        values: cell → seed → what that run reached.
        questions: cell → score → what it is of, where cells may differ in it: scores of different
            questions do not compare, and have no difference.
        baselines: cell → that which it is compared with.

    >>> values = {"a": {0: {"loss": 3.0}}, "b": {0: {"loss": 2.5}}}
    >>> of_lm, none = {"loss": "lm"}, Sample(np.ones(0), np.ones(0))
    >>> scores = scores_of(values, none, {"a": of_lm, "b": of_lm}, {"a": "a", "b": "a"})
    >>> scores["b"]["loss"]["difference"]["mean"]
    -0.5
    """
    scores: dict[str, dict[str, Any]] = {}
    for cell, of_seeds in values.items():
        scores[cell] = {}
        for name in dict.fromkeys(name for of_run in of_seeds.values() for name in of_run):
            own = {seed: of_run[name] for seed, of_run in of_seeds.items()}
            scores[cell][name] = _score(list(own.values()), sample)
            # The same seeds of the baseline, on the same text in the same order.
            baseline = baselines[cell]
            others = {seed: of_run.get(name) for seed, of_run in values[baseline].items()}
            compares = questions[cell].get(name) == questions[baseline].get(name)
            if cell != baseline and compares:
                difference = _difference(own, others, sample)
                if difference:
                    scores[cell][name]["difference"] = difference
    return scores


def best_two(
    values: Mapping[str, Mapping[int, Values]], sample: Sample, name: str, lowest: bool = True
) -> dict[str, Any]:
    """The two cells that are best in the score of that name, and how they differ; nothing, where
    fewer than two have one.
    """
    means = {}
    for cell, of_seeds in values.items():
        own = [of_run[name] for of_run in of_seeds.values() if name in of_run]
        if own:
            means[cell] = _score(own, sample)["mean"]
    if len(means) < 2:
        return {}
    best, second = sorted(means, key=lambda cell: means[cell], reverse=not lowest)[:2]
    of_best, of_second = (
        {seed: of_run.get(name) for seed, of_run in values[cell].items()} for cell in (best, second)
    )
    difference = _difference(of_best, of_second, sample)
    return {"best": best, "second": second, "difference": difference}


def _difference(
    own: Mapping[int, np.ndarray | float | None],
    others: Mapping[int, np.ndarray | float | None],
    sample: Sample,
) -> dict[str, Any] | None:
    """What one cell has more than another, seed by seed; None where they share no seed."""
    differences = []
    for seed, amounts in own.items():
        other = others.get(seed)
        if amounts is not None and other is not None:
            differences.append(amounts - other)
    if not differences:
        return None
    score = _score(differences, sample)
    needed = seeds_to_resolve(np.array(score["seeds"]), score["span_error"])
    return score | {"seeds_to_resolve": needed}


def _score(values: Sequence[np.ndarray | float], sample: Sample) -> dict[str, Any]:
    """One score, of an array or a number for each seed."""
    amounts, error = np.array(values), 0.0  # [seeds, spans], or [seeds]
    of_seeds = amounts
    if amounts.ndim == 2:
        of_seeds = amounts.sum(1) / sample.sizes.sum()
        error = ratio_error(amounts.mean(0), sample)
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


def ratio_error(amounts: np.ndarray, sample: Sample) -> float:
    """The standard error of sum(amounts) / sum(sizes), by the bootstrap of passages: spans of one
    are no independent sample. 0 of a single passage.
    """
    _, passages = np.unique(sample.passages, return_inverse=True)
    amounts = np.bincount(passages, amounts)
    sizes = np.bincount(passages, sample.sizes)
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
