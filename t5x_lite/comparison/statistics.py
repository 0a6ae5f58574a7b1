"""Scores over seeds with confidence intervals. The variance over spans comes from a bootstrap of
the passages that they are drawn from, the variance over seeds from Student's t.

The bootstrap works well for many passages. For three seeds, its 95 % intervals would contain the
truth in only 75 % of cases, while t intervals contain it in 95 % (docs/concepts/certainty.md).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

# Scores of one run by name: bits for each span, or a single number.
Values = Mapping[str, np.ndarray | float]

_RESAMPLES = 1000
_MOST_SEEDS = 1000  # largest number of seeds that seeds_to_resolve tries
_NORMAL = float(stats.norm.ppf(0.975))


class Sample(NamedTuple):
    """The spans that all runs are scored on."""

    sizes: np.ndarray  # [spans], bytes of each span
    passages: np.ndarray  # [spans], index of the passage that each span is drawn from


def scores_of(
    values: Mapping[str, Mapping[int, Values]],
    sample: Sample,
    questions: Mapping[str, Mapping[str, str]],
    baselines: Mapping[str, str],
    is_lower_better: Callable[[str], bool],
) -> dict[str, dict[str, Any]]:
    """Return each cell's scores with their intervals, and its differences to other cells.

    Differences are taken seed by seed: to the cell's baseline ("difference") and to the best cell
    with the same baseline ("behind_best"), which has "is_best" set.

    Args:
        values: cell → seed → scores of that run.
        sample: the spans behind scores that have one amount per span.
        questions: cell → score → key that says what the score measures, where cells may differ.
            Scores with different keys are not compared.
        baselines: cell → the cell that it is compared with.
        is_lower_better: returns True for a score that is better when it is lower.

    Returns:
        cell → score → mean, interval and differences.

    >>> values = {"a": {0: {"loss": 3.0}}, "b": {0: {"loss": 2.5}}}
    >>> of_lm, none = {"loss": "lm"}, Sample(np.ones(0), np.ones(0))
    >>> scores = scores_of(
    ...     values, none, {"a": of_lm, "b": of_lm}, {"a": "a", "b": "a"}, lambda score: True
    ... )
    >>> scores["b"]["loss"]["difference"]["mean"], scores["b"]["loss"]["is_best"]
    (-0.5, True)
    >>> scores["a"]["loss"]["behind_best"]["mean"]
    0.5
    """
    scores: dict[str, dict[str, Any]] = {}
    for cell, of_seeds in values.items():
        names = dict.fromkeys(name for of_run in of_seeds.values() for name in of_run)
        scores[cell] = {}
        for name in names:
            having = {seed: run[name] for seed, run in of_seeds.items() if name in run}
            score = _score(list(having.values()), sample)
            scores[cell][name] = score | {"seed_numbers": list(having)}

    # Compare each score between the cells that have the same baseline and measure the same by it.
    for cell, of_cell in scores.items():
        for name, score in of_cell.items():
            compared = {
                other: of_other[name]["mean"]
                for other, of_other in scores.items()
                if name in of_other
                and baselines[other] == baselines[cell]
                and questions[other].get(name) == questions[cell].get(name)
            }
            best = (min if is_lower_better(name) else max)(compared, key=compared.__getitem__)
            score["is_best"] = best == cell and len(compared) > 1
            for key, other in (("difference", baselines[cell]), ("behind_best", best)):
                if other != cell and other in compared:
                    score[key] = _difference(values[cell], values[other], name, sample)
    return scores


def _difference(
    own: Mapping[int, Values], others: Mapping[int, Values], name: str, sample: Sample
) -> dict[str, Any] | None:
    """Return the score of one cell minus that of another, seed by seed.

    Runs with the same seed read the same text in the same order. None if the cells share no seed.
    """
    differences = [
        own[seed][name] - others[seed][name]
        for seed in own
        if name in own[seed] and name in others.get(seed, ())
    ]
    if not differences:
        return None
    score = _score(differences, sample)
    needed = seeds_to_resolve(np.array(score["seeds"]), score["span_error"])
    return score | {"seeds_to_resolve": needed}


def _score(values: Sequence[np.ndarray | float], sample: Sample) -> dict[str, Any]:
    """Return the mean and interval of one score, given an array or a number per seed."""
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
    """Return the standard error of sum(amounts) / sum(sizes); 0 for a single passage.

    It comes from a bootstrap of passages, because the spans of one passage are not independent.

    Args:
        amounts: [spans], such as the bits of each span.
    """
    _, passages = np.unique(sample.passages, return_inverse=True)
    amounts = np.bincount(passages, amounts)
    sizes = np.bincount(passages, sample.sizes)
    if len(amounts) == 1:
        return 0.0
    # Raw words of PCG64 are the same in every version of numpy; its methods may change.
    words = np.random.PCG64(0).random_raw(_RESAMPLES * len(amounts))
    drawn = (words % np.uint64(len(amounts))).astype(np.int64).reshape(_RESAMPLES, -1)
    ratios = amounts[drawn].sum(1) / sizes[drawn].sum(1)
    return float(ratios.std(ddof=1))


def half_width(of_seeds: np.ndarray, error: float = 0.0) -> float | None:
    """Return half of the width of the 95 % interval of a mean over seeds; None if it is unknown.

    Args:
        of_seeds: the score of each seed: [seeds].
        error: standard error from what all seeds share, such as the spans. With one seed, the
            interval covers only this error.

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
    """Return how many seeds would make the interval of a mean difference exclude 0.

    This assumes that the mean and the spread over seeds stay the same. None if a thousand seeds
    would not be enough, or if one seed says nothing about the spread.

    Args:
        differences: the difference of each seed: [seeds].
        error: standard error from what all seeds share.

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
