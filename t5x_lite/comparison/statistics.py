"""Draw conclusions from scores: intervals that cover seeds and examples, differences with p-values,
and the set of cells that may be the best.

Two things make a score uncertain: the seed, which draws parameters, order and masks; and the choice
of held-out spans or examples. Each contributes a variance with its degrees of freedom, and the two
are added by the Welch–Satterthwaite rule. With one seed, the variance over seeds is not known, so
nothing is concluded.

Simulations measure how often the conclusions are wrong: see benchmarks/false_differences.py and
docs/concepts/certainty.md.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

# Scores of one run by name: the amount of each unit (span or example), or a single number.
Values = Mapping[str, np.ndarray | float]

_QUANTILE = 0.975  # of 95 % intervals
# With at least this many seeds, two cells are compared seed by seed. With fewer, Welch's test is
# sharper unless the seeds correlate strongly, which cannot be estimated from two cells.
_SEEDS_TO_PAIR = 5


class Sample(NamedTuple):
    """The units (spans or examples) that a score is a mean over."""

    sizes: np.ndarray  # [units], such as the bytes of each span, or ones
    # [units], such as the passage of each span. Units of one cluster are more alike than others.
    clusters: np.ndarray
    # Smallest and largest possible score, such as 0 and 1 for an accuracy; None: not bounded
    bounds: tuple[float, float] | None = None
    count: int = 0  # number of clusters, if `clusters` are groups of them; 0: as in `clusters`

    @property
    def for_score(self) -> tuple[float, ...]:
        """Scores of added pseudo-clusters, which keep the interval of a score valid near its
        bounds, where all units may be equal (Agresti and Coull, 1998).
        """
        return () if self.bounds is None else (*self.bounds, *self.bounds)

    @property
    def for_difference(self) -> tuple[float, ...]:
        """Differences of added pseudo-clusters, for the interval of a difference of two scores
        (Bonett and Price, 2012).
        """
        if self.bounds is None:
            return ()
        width = self.bounds[1] - self.bounds[0]
        return (width, -width)


class Rule(NamedTuple):
    """How a report reaches its verdicts."""

    # Largest share of tables, of differences or of effects, in which any verdict is false
    alpha: float = 0.05
    # Number of times that the report may be looked at, with more seeds each time, before a verdict.
    # Each look gets an equal share of alpha, so that stopping early costs nothing (Bonferroni).
    looks: int = 1
    effect: float = 0.0  # smallest difference that matters; 0: no cells are called equivalent
    score: str = ""  # the score in whose units `effect` is given

    @property
    def level(self) -> float:
        """Significance level of one look."""
        return self.alpha / self.looks


class Variance(NamedTuple):
    """An estimated variance of a mean."""

    value: float
    freedom: float  # degrees of freedom; 0: the variance is not known

    @property
    def is_known(self) -> bool:
        """True if the variance supports conclusions; a variance of zero does not."""
        return self.freedom > 0 and self.value > 0


def total_variance(parts: Iterable[Variance]) -> Variance:
    """Add independent variances (Satterthwaite, 1946). The sum is unknown if any of them is.

    >>> total_variance([Variance(1.0, 4), Variance(1.0, 4)])
    Variance(value=2.0, freedom=8.0)
    >>> total_variance([Variance(1.0, 4), Variance(0.0, 0)]).is_known
    False
    """
    parts = list(parts)
    value = sum(part.value for part in parts)
    least = min((part.freedom for part in parts), default=0)
    if not value or not least:
        return Variance(value, least)
    weighed = sum(part.value**2 / part.freedom for part in parts)
    return Variance(value, value**2 / weighed)


def half_width(variance: Variance) -> float | None:
    """Return half the width of the 95 % interval of a mean; None if it is not known.

    >>> round(half_width(Variance(1.0, 10)), 3)
    2.228
    """
    if not variance.is_known:
        return None
    return float(stats.t.ppf(_QUANTILE, variance.freedom)) * math.sqrt(variance.value)


def chance_of_more(mean: float, variance: Variance) -> float:
    """Return the probability of a mean at least as large as this one if the true mean is 0."""
    return float(stats.t.sf(mean / math.sqrt(variance.value), variance.freedom))


def variance_over_seeds(of_seeds: np.ndarray) -> Variance:
    """Return the variance of a score's mean over seeds.

    Args:
        of_seeds: [seeds], the score of each.
    """
    if len(of_seeds) < 2:
        return Variance(0.0, 0)
    return Variance(float(of_seeds.var(ddof=1)) / len(of_seeds), len(of_seeds) - 1)


def ratio(
    amounts: np.ndarray, sample: Sample, extra: Sequence[float] = ()
) -> tuple[float, Variance]:
    """Return sum(amounts) / sum(sizes), and its variance over clusters by linearisation.

    Args:
        amounts: [units], such as the bits of each span.
        extra: scores of added pseudo-clusters; see Sample.

    >>> right = np.ones(44)
    >>> sample = Sample(np.ones(44), np.arange(44), bounds=(0, 1))
    >>> value, variance = ratio(right, sample, sample.for_score)
    >>> round(value, 3), round(value - half_width(variance), 3)
    (0.958, 0.9)
    """
    _, clusters = np.unique(sample.clusters, return_inverse=True)
    totals = np.bincount(clusters, amounts)
    sizes = np.bincount(clusters, sample.sizes)
    mean_size = sizes.sum() / (sample.count or len(sizes))
    totals = np.append(totals, np.multiply(extra, mean_size))
    sizes = np.append(sizes, np.full(len(extra), mean_size))
    value = totals.sum() / sizes.sum()
    count = len(totals)
    if count - len(extra) < 2:
        return float(value), Variance(0.0, 0)
    residuals = totals - value * sizes
    variance = count / (count - 1) * (residuals**2).sum() / sizes.sum() ** 2
    return float(value), Variance(float(variance), count - 1)


def mean_of(amounts: np.ndarray | float, sample: Sample | None) -> float:
    """Return the score of one run from its amounts, or the score itself if it is a number."""
    if sample is None:
        return float(amounts)
    return float(np.sum(amounts) / sample.sizes.sum())


class Scored(NamedTuple):
    """One score of one cell, over its seeds."""

    seeds: list[int]
    of_seeds: np.ndarray  # [seeds]
    amounts: np.ndarray | None  # [seeds, units]; None for a score that is a single number
    sample: Sample | None

    def of_units(self, seeds: Sequence[int]) -> np.ndarray:
        """Return the mean amount of each unit over the seeds at these places: [units]."""
        assert self.amounts is not None
        return self.amounts[seeds].mean(0)

    @property
    def units(self) -> int:
        """Number of units; 0 for a score that is a single number."""
        return 0 if self.amounts is None else self.amounts.shape[1]


def scores_of(
    values: Mapping[str, Mapping[int, Values]],
    samples: Mapping[str, Mapping[str, Sample]],
    questions: Mapping[str, Mapping[str, str]],
    baselines: Mapping[str, str],
    is_lower_better: Callable[[str], bool],
    rule: Rule = Rule(),
    counted: Mapping[str, Mapping[str, np.ndarray]] = MappingProxyType({}),
) -> dict[str, dict[str, Any]]:
    """Return each cell's scores with their intervals, differences and conclusions.

    Args:
        values: cell → seed → scores of that run.
        samples: cell → score → the units that it is a mean over. Scores that are missing here are
            single numbers, whose intervals cover only seeds.
        questions: cell → score → key that says what the score measures, where cells may differ.
            Scores with different keys are not compared.
        baselines: cell → the cell that it is compared with. If that cell lacks a score, or measures
            something else by it, the first cell with the same score takes its place.
        is_lower_better: returns True for a score that is better when it is lower.
        rule: how differences get their verdicts.
        counted: score → model that only counts → its amounts of the same units.

    Returns:
        cell → score → a dict with the entries
        "mean", and "low" and "high" of its 95 % interval, which covers seeds and units, or only
        units if there is one seed;
        "deviation", the standard deviation over seeds;
        "seeds", the scores of the seeds, and "seed_numbers";
        "among", the cells that it is compared with;
        "may_be_best", False if another cell is significantly better, None if that cannot be known;
        "difference" to the baseline, see difference();
        "beats", model that only counts → True if the cell is significantly better.

    >>> losses = {"a": (3.0, 3.1), "b": (2.5, 2.4)}
    >>> values = {
    ...     cell: {seed: {"loss": loss} for seed, loss in enumerate(of_cell)}
    ...     for cell, of_cell in losses.items()
    ... }
    >>> of_lm = {"loss": "lm"}
    >>> scores = scores_of(
    ...     values, {}, {"a": of_lm, "b": of_lm}, {"a": "a", "b": "a"}, lambda score: True
    ... )
    >>> round(scores["b"]["loss"]["difference"]["mean"], 2), scores["a"]["loss"]["may_be_best"]
    (-0.6, False)
    """
    scored = scored_cells(values, samples)
    scores = {
        cell: {name: _described(one) for name, one in of_cell.items()}
        for cell, of_cell in scored.items()
    }
    _compare(scored, scores, questions, baselines, is_lower_better, rule, counted)
    _decide(scores, rule)
    return scores


def scored_cells(
    values: Mapping[str, Mapping[int, Values]], samples: Mapping[str, Mapping[str, Sample]]
) -> dict[str, dict[str, Scored]]:
    """Collect the scores of each cell over its seeds: cell → score.

    For the arguments see scores_of.
    """
    scored: dict[str, dict[str, Scored]] = {cell: {} for cell in values}
    for cell, of_runs in values.items():
        for name in dict.fromkeys(name for run in of_runs.values() for name in run):
            sample = samples.get(cell, {}).get(name)
            scored[cell][name] = _collect(of_runs, name, sample)
    return scored


def _compare(
    scored: Mapping[str, Mapping[str, Scored]],
    scores: Mapping[str, Mapping[str, dict[str, Any]]],
    questions: Mapping[str, Mapping[str, str]],
    baselines: Mapping[str, str],
    is_lower_better: Callable[[str], bool],
    rule: Rule,
    counted: Mapping[str, Mapping[str, np.ndarray]],
) -> None:
    """Compare each score of each cell with other cells' scores, and add the results to `scores`.

    The entries are described in scores_of.
    """
    for cell, name in ((cell, name) for cell, of_cell in scored.items() for name in of_cell):
        score = scores[cell][name]
        # Compare it with cells that have the same baseline and whose score measures the same.
        among = {}
        for other, of_other in scored.items():
            same_baseline = baselines[other] == baselines[cell]
            same_question = questions[other].get(name) == questions[cell].get(name)
            if name in of_other and same_baseline and same_question:
                among[other] = of_other[name]
        sign = -1 if is_lower_better(name) else 1
        score["among"] = list(among)
        score["beats"] = {
            model: beats(scored[cell][name], amounts, len(among), rule)
            for model, amounts in counted.get(name, {}).items()
            if len(amounts) == scored[cell][name].units
        }
        correlation = correlation_of_seeds(list(among.values()))
        score["may_be_best"] = _may_be_best(cell, among, sign, correlation, rule.level)
        baseline = baselines[cell] if baselines[cell] in among else next(iter(among))
        if baseline != cell:
            found = difference(scored[cell][name], among[baseline], correlation)
            score["difference"] = found | {"baseline": baseline}


def _decide(scores: Mapping[str, Mapping[str, dict[str, Any]]], rule: Rule) -> None:
    """Give every difference of a report its verdict."""
    decide(
        {
            (cell, name): score["difference"]
            for cell, of_cell in scores.items()
            for name, score in of_cell.items()
            if score.get("difference") is not None
        },
        rule,
    )


def decide(differences: Mapping[tuple[str, str], dict[str, Any]], rule: Rule) -> None:
    """Give every difference of a table its verdict, with p-values that are corrected for the number
    of differences and of looks.

    Args:
        differences: (row, score) → the result of difference() or contrast(), updated in place.
    """
    known = {key: found for key, found in differences.items() if found["p"] is not None}
    equal = []
    for (_, score), found in known.items():
        if rule.effect and score == rule.score:
            found["p_equivalent"] = _p_equivalent(found, rule.effect)
            equal.append(found)
    for key, family in (("p", list(known.values())), ("p_equivalent", equal)):
        corrected = holm([one[key] for one in family])
        for one, p in zip(family, corrected, strict=True):
            one[f"{key}_corrected"] = min(p * rule.looks, 1.0)
    for one in known.values():
        if one["p_corrected"] < rule.alpha:
            one["verdict"] = "different"
        elif one.get("p_equivalent_corrected", 1.0) < rule.alpha:
            one["verdict"] = "equivalent"


def _p_equivalent(found: Mapping[str, Any], effect: float) -> float:
    """Return the larger p-value of two one-sided tests (Schuirmann, 1987).

    Their null hypotheses are that the difference is at least `effect`, and at most −`effect`.
    """
    variance = Variance(found["variance"], found["freedom"])
    return max(chance_of_more(effect - sign * found["center"], variance) for sign in (1, -1))


def _collect(of_runs: Mapping[int, Values], name: str, sample: Sample | None) -> Scored:
    """Collect one score of the runs of a cell."""
    having = {seed: run[name] for seed, run in of_runs.items() if name in run}
    of_seeds = np.array([mean_of(value, sample) for value in having.values()])
    amounts = None if sample is None else np.array(list(having.values()))
    return Scored(list(having), of_seeds, amounts, sample)


def _described(scored: Scored) -> dict[str, Any]:
    """Return the mean and interval of one score of one cell."""
    center = mean = float(scored.of_seeds.mean())
    over_seeds = variance_over_seeds(scored.of_seeds)
    parts = [over_seeds] if over_seeds.freedom else []
    possible = None
    if scored.amounts is not None and scored.sample is not None:
        possible = scored.sample.bounds
        center, over_units = ratio(scored.amounts.mean(0), scored.sample, scored.sample.for_score)
        parts.append(over_units)
    return {
        "mean": mean,
        **_bounds("", center, total_variance(parts), possible),
        "deviation": float(scored.of_seeds.std(ddof=1)) if over_seeds.freedom else None,
        "seeds": scored.of_seeds.tolist(),
        "seed_numbers": scored.seeds,
    }


def correlation_of_seeds(cells: Sequence[Scored]) -> float | None:
    """Return the correlation of a score between cells with the same seed, pooled over all pairs of
    cells; None with fewer than three cells or two common seeds, which are too few to tell.
    """
    shared = set.intersection(*(set(one.seeds) for one in cells))
    if len(cells) < 3 or len(shared) < 2:
        return None
    rows = np.array([
        [one.of_seeds[one.seeds.index(seed)] for seed in sorted(shared)] for one in cells
    ])  # fmt: skip
    separate = together = 0.0
    for first, second in combinations(rows, 2):
        separate += first.var(ddof=1) + second.var(ddof=1)
        together += (first - second).var(ddof=1)
    return 1 - together / separate if separate else None


def _pairs_by_seed(cells: Sequence[Scored], correlation: float | None) -> bool:
    """Return True if cells are compared seed by seed, False if by Welch's test.

    Runs with the same seed share the order of the text, so their noise may cancel in a difference.
    But n differences have only n − 1 degrees of freedom, whereas two sets of n scores have up to
    2n − 2, and k sets up to kn − k. Pairing pays if the correlation is strong enough to make the
    interval narrower all the same. The correlation is pooled over all cells, because choosing by
    the correlation of the two cells would favour false differences.
    """
    seeds = len(set.intersection(*(set(one.seeds) for one in cells)))
    if seeds < 2:
        return False
    if correlation is None:
        return seeds >= _SEEDS_TO_PAIR
    freedom = len(cells) * (seeds - 1)  # largest possible for Welch's test
    ratio_of_widths = stats.t.ppf(_QUANTILE, freedom) / stats.t.ppf(_QUANTILE, seeds - 1)
    return bool(correlation > 1 - ratio_of_widths**2)


class _Difference(NamedTuple):
    """A difference of two cells, or another weighted sum of cells."""

    mean: float
    center: float  # center of its interval: the mean, or closer to 0 for scores with bounds
    over_seeds: Variance
    over_units: Variance | None  # None for scores that are single numbers

    @property
    def variance(self) -> Variance:
        """Variance over seeds and units; unknown if the difference is not finite."""
        parts = [self.over_seeds] + ([] if self.over_units is None else [self.over_units])
        return total_variance(parts) if math.isfinite(self.center) else Variance(0.0, 0)


def _difference(own: Scored, other: Scored, is_paired: bool) -> _Difference:
    """Return the difference of two cells, seed by seed or between the means over all seeds."""
    return _estimate([own, other], [1, -1], is_paired)


def _estimate(cells: Sequence[Scored], weights: Sequence[float], is_paired: bool) -> _Difference:
    """Return a weighted sum of scores, taken seed by seed or between the means over all seeds.

    The weights of a difference are 1 and −1.
    """
    if is_paired:
        shared = sorted(set.intersection(*(set(one.seeds) for one in cells)))
        if len(shared) < 2:
            return _Difference(math.nan, math.nan, Variance(0.0, 0), None)
        places = [[one.seeds.index(seed) for seed in shared] for one in cells]
        parts = list(zip(weights, cells, places, strict=True))
        of_seeds = np.sum([weight * one.of_seeds[at] for weight, one, at in parts], axis=0)
        over_seeds = variance_over_seeds(of_seeds)
    else:
        places = [list(range(len(one.seeds))) for one in cells]
        parts = list(zip(weights, cells, places, strict=True))
        over_seeds = total_variance(
            variance_over_seeds(weight * one.of_seeds) for weight, one, _ in parts
        )
    mean = center = float(sum(weight * one.of_seeds[at].mean() for weight, one, at in parts))
    over_units = None
    sample = cells[0].sample
    if sample is not None and all(one.amounts is not None for one in cells):
        # All runs are scored on the same units, so what makes a unit hard for all of them cancels.
        amounts = np.sum([weight * one.of_units(at) for weight, one, at in parts], axis=0)
        size = sum(map(abs, weights)) / 2  # 1 for a difference
        extra = [size * value for value in sample.for_difference]
        mean_of_units, over_units = ratio(amounts, sample, extra)
        center = mean_of_units if extra else mean
    return _Difference(mean, center, over_seeds, over_units)


def difference(own: Scored, other: Scored, correlation: float | None) -> dict[str, Any]:
    """Return the score of one cell minus that of another.

    Returns:
        a dict with the entries
        "mean";
        "low" and "high" of its 95 % interval and "p" of its two-sided test, None if the spread over
        seeds or units is not known;
        "low_over_units" and "high_over_units", the interval without the noise of seeds;
        "is_paired", and "correlation" of the seeds;
        "low_otherwise" and "high_otherwise", the interval by the other of the two tests;
        "verdict" ("different", "equivalent" or "open") and "p_corrected", on which it rests: both
        are set by decide() for all differences of a report together.
    """
    return {
        **contrast([own, other], [1, -1], correlation),
        "seeds": [len(own.seeds), len(other.seeds)],
    }


def contrast(
    cells: Sequence[Scored], weights: Sequence[float], correlation: float | None
) -> dict[str, Any]:
    """Return the entries of difference(), except "seeds", for a weighted sum of cells' scores, such
    as the difference of two differences.
    """
    is_paired = _pairs_by_seed(cells, correlation)
    by_rule, otherwise = (
        _estimate(cells, weights, paired) for paired in (is_paired, not is_paired)
    )
    variance = by_rule.variance
    possible = _possible_range(cells, weights)
    p = None
    if variance.is_known:
        p = min(2 * chance_of_more(abs(by_rule.center), variance), 1.0)
    return {
        "mean": by_rule.mean,
        "center": by_rule.center,
        "variance": variance.value,
        "freedom": variance.freedom,
        "is_paired": is_paired,
        "correlation": correlation,
        "p": p,
        "p_corrected": None,
        "verdict": "open",
        **_bounds("", by_rule.center, variance, possible),
        **_bounds("_over_units", by_rule.center, by_rule.over_units or Variance(0.0, 0), possible),
        **_bounds("_otherwise", otherwise.center, otherwise.variance, possible),
    }


def _possible_range(
    cells: Sequence[Scored], weights: Sequence[float]
) -> tuple[float, float] | None:
    """Return the smallest and largest possible weighted sum of scores; None without bounds."""
    least = greatest = 0.0
    for cell, weight in zip(cells, weights, strict=True):
        bounds = None if cell.sample is None else cell.sample.bounds
        if bounds is None:
            return None
        least += min(weight * end for end in bounds)
        greatest += max(weight * end for end in bounds)
    return least, greatest


def _bounds(
    suffix: str, center: float, variance: Variance, possible: tuple[float, float] | None
) -> dict[str, float | None]:
    """Return the 95 % interval as "low" and "high" with a suffix; None if it is not known.

    Args:
        possible: the smallest and largest possible value, to which the interval is clipped; None:
            not bounded.
    """
    half = half_width(variance)
    if half is None:
        return {f"low{suffix}": None, f"high{suffix}": None}
    low, high = center - half, center + half
    if possible is not None:
        low, high = max(low, possible[0]), min(high, possible[1])
    return {f"low{suffix}": low, f"high{suffix}": high}


def beats(own: Scored, amounts: np.ndarray, tests: int, rule: Rule) -> bool | None:
    """Return True if a cell is significantly better than a model without randomness, such as one
    that counts words; None if that cannot be known.

    Args:
        amounts: [units], the amounts of that model on the same units.
        tests: number of cells that are tested in this way.
    """
    assert own.amounts is not None
    assert own.sample is not None
    extra = own.sample.for_difference
    center, over_units = ratio(own.amounts.mean(0) - amounts, own.sample, extra)
    variance = total_variance([variance_over_seeds(own.of_seeds), over_units])
    if not variance.is_known:
        return None
    return chance_of_more(center, variance) * tests < rule.level


def _may_be_best(
    cell: str,
    among: Mapping[str, Scored],
    sign: int,
    correlation: float | None,
    level: float,
) -> bool | None:
    """Return False if some other cell is significantly better than this one, and None if that
    cannot be known.

    The truly best cell is excluded with a probability of at most `level` (multiple comparisons with
    the best: Hsu, 1984, with Bonferroni's bound).

    Args:
        sign: 1 if higher is better, −1 if lower is.
    """
    others = [one for name, one in among.items() if name != cell]
    if not others:
        return None
    chances = []
    for other in others:
        paired = _pairs_by_seed([among[cell], other], correlation)
        found = _difference(other, among[cell], paired)
        if not found.variance.is_known:
            return None
        chances.append(chance_of_more(sign * found.center, found.variance))
    return min(chances) * len(others) > level


def holm(p: Sequence[float]) -> list[float]:
    """Correct p-values for their number, so that at most 5 % of all families of tests have a false
    rejection at 0.05 (Holm, 1979).

    >>> [round(value, 3) for value in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p)), key=p.__getitem__)
    corrected = [0.0] * len(p)
    largest = 0.0
    for rank, number in enumerate(order):
        largest = max(largest, min((len(p) - rank) * p[number], 1.0))
        corrected[number] = largest
    return corrected
