"""Intervals, tests and conclusions against scipy, closed forms and simulations."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from t5x_lite.comparison.statistics import (
    Rule,
    Sample,
    Variance,
    half_width,
    holm,
    ratio,
    scores_of,
    total_variance,
)

SPANS = 400


def drawn(seed, spread_of_passages):
    """Bits and bytes of spans, ten from each passage."""
    random = np.random.default_rng(seed)
    passages = np.repeat(np.arange(SPANS // 10), 10)
    sizes = random.integers(5, 15, SPANS).astype(float)
    of_passage = random.normal(0, spread_of_passages, SPANS // 10)[passages]
    return sizes * (2 + of_passage + random.normal(0, 0.5, SPANS)), Sample(sizes, passages)


def compared(values, samples=None, lower=True, rule=Rule()):
    """Scores of cells that all measure the same by "score"."""
    runs = {
        cell: {seed: {"score": one} for seed, one in enumerate(of_cell)}
        for cell, of_cell in values.items()
    }
    nothing, baselines = {name: {} for name in values}, dict.fromkeys(values, "a")
    of_cells = {name: samples or {} for name in values}
    scores = scores_of(runs, of_cells, nothing, baselines, lambda score: lower, rule)
    return {cell: of_cell["score"] for cell, of_cell in scores.items()}


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_the_error_is_the_spread_over_samples(spread):
    """Also where spans of a passage are alike, which the spread of single spans does not show."""
    ratios, errors = [], []
    for seed in range(200):
        value, variance = ratio(*drawn(seed, spread))
        ratios.append(value)
        errors.append(variance.value**0.5)
    assert np.mean(errors) == pytest.approx(np.std(ratios), rel=0.15)


def test_one_passage_or_one_seed_say_nothing_of_the_spread():
    amounts, sample = drawn(0, 0.5)
    one_passage = sample._replace(clusters=np.zeros(SPANS, int))
    assert half_width(ratio(amounts, one_passage)[1]) is None
    score = compared({"a": [1.0], "b": [2.0]})["b"]
    assert (score["low"], score["deviation"], score["may_be_best"]) == (None, None, None)
    assert (score["difference"]["low"], score["difference"]["p"]) == (None, None)
    score = compared({"a": [amounts], "b": [amounts + 1]}, {"score": sample})["b"]
    # With one seed an interval is over the spans; nothing is concluded from it.
    assert score["low"] < score["mean"] < score["high"]
    assert score["difference"]["low"] is None
    assert score["difference"]["low_over_units"] is not None
    assert score["may_be_best"] is None


@pytest.mark.parametrize("seeds", [2, 3, 5, 9])
def test_two_cells_are_tested_as_scipy_does(seeds):
    random = np.random.default_rng(seeds)
    a, b = random.normal(2, 0.1, seeds), random.normal(2.1, 0.3, seeds)
    found = compared({"a": list(a), "b": list(b)})["b"]["difference"]
    welch, paired = stats.ttest_ind(b, a, equal_var=False), stats.ttest_rel(b, a)
    by_rule, other = (paired, welch) if seeds >= 5 else (welch, paired)
    assert found["is_paired"] == (seeds >= 5)
    assert found["p"] == pytest.approx(by_rule.pvalue)
    for suffix, test in (("", by_rule), ("_otherwise", other)):
        interval = test.confidence_interval()
        assert found[f"low{suffix}"] == pytest.approx(interval.low)
        assert found[f"high{suffix}"] == pytest.approx(interval.high)


def test_three_cells_are_paired_where_their_seeds_correlate():
    random = np.random.default_rng(0)
    luck, noise = random.normal(0, 0.1, 4), random.normal(0, 0.1, (3, 4))
    for shared, expected in ((1.0, True), (0.0, False)):
        rows = 2 + shared * luck + (1.05 - shared) * noise
        values = {name: list(row) for name, row in zip("abc", rows, strict=True)}
        difference = compared(values)["c"]["difference"]
        assert difference["is_paired"] == expected
        covariance = np.cov(rows)
        pooled = (covariance.sum() - np.trace(covariance)) / (2 * np.trace(covariance))
        assert difference["correlation"] == pytest.approx(pooled)


def test_seeds_that_are_not_shared_are_compared_too():
    runs = {
        "a": {seed: {"score": value} for seed, value in ((0, 1.0), (1, 1.1))},
        "b": {seed: {"score": value} for seed, value in ((5, 2.0), (6, 2.1))},
    }
    nothing, baselines = {name: {} for name in runs}, dict.fromkeys(runs, "a")
    scores = scores_of(runs, {}, nothing, baselines, lambda score: True)
    expected = stats.ttest_ind([2.0, 2.1], [1.0, 1.1], equal_var=False)
    assert scores["b"]["score"]["difference"]["p"] == pytest.approx(expected.pvalue)


def test_variances_of_seeds_and_spans_add_up():
    amounts, sample = drawn(0, 0.5)
    runs = [amounts * factor for factor in (0.9, 1.0, 1.2)]
    score = compared({"a": runs}, {"score": sample})["a"]
    of_seeds = np.array([run.sum() / sample.sizes.sum() for run in runs])
    over_spans = ratio(np.mean(runs, 0), sample)[1]
    total = total_variance([Variance(of_seeds.var(ddof=1) / 3, 2), over_spans])
    assert score["high"] - score["mean"] == pytest.approx(half_width(total))
    assert 2 < total.freedom < 2 + over_spans.freedom


def of_examples(right: int, count: int) -> tuple[np.ndarray, Sample]:
    amounts = (np.arange(count) < right).astype(float)
    return amounts, Sample(np.ones(count), np.arange(count), bounds=(0, 1))


@pytest.mark.parametrize(("right", "count"), [(44, 44), (0, 44), (10, 44), (50, 100), (999, 1000)])
def test_accuracies_have_the_interval_of_agresti_and_coull(right, count):
    amounts, sample = of_examples(right, count)
    score = compared({"a": [amounts]}, {"score": sample})["a"]
    p = (right + 2) / (count + 4)
    half = stats.t.ppf(0.975, count + 3) * np.sqrt(p * (1 - p) / (count + 3))
    # No accuracy is below 0 or above 1.
    assert score["low"] == pytest.approx(max(p - half, 0))
    assert score["high"] == pytest.approx(min(p + half, 1))
    exact = stats.binomtest(right, count).proportion_ci(method="wilson")
    assert (score["low"], score["high"]) == pytest.approx(tuple(exact), abs=0.04)


def test_all_right_and_a_quarter_right_are_different():
    """44 of 44 against 10 of 44 was called within the noise when examples had no interval."""
    perfect, sample = of_examples(44, 44)
    poor, _ = of_examples(10, 44)
    cells = compared({"a": [perfect] * 3, "b": [poor] * 3}, {"score": sample}, lower=False)
    assert cells["b"]["difference"]["p_corrected"] < 1e-6
    assert [cells[name]["may_be_best"] for name in "ab"] == [True, False]
    # With one seed each it is not: how much luck matters is not known.
    cells = compared({"a": [perfect], "b": [poor]}, {"score": sample}, lower=False)
    assert cells["b"]["difference"]["p"] is None


def test_the_difference_of_two_accuracies_has_the_interval_of_bonett_and_price():
    first, sample = of_examples(30, 40)
    second = np.roll(first, 5)
    cells = compared({"a": [first] * 2, "b": [second] * 2}, {"score": sample}, lower=False)
    more, less = np.sum(second > first), np.sum(second < first)
    difference = (more - less) / 42
    variance = ((more + 1 + less + 1) / 42 - difference**2) / 41
    half = stats.t.ppf(0.975, 41) * np.sqrt(variance)
    found = cells["b"]["difference"]
    assert found["high"] == pytest.approx(difference + half)
    assert found["low"] == pytest.approx(difference - half)


def test_no_spread_at_all_is_no_certainty():
    """A model that always answers the same has groups of examples that are all alike."""
    constant, right = np.zeros(6), np.ones(6)
    sample = Sample(np.ones(6), np.arange(6))
    cells = compared({"a": [constant] * 2, "b": [right] * 2}, {"score": sample}, lower=False)
    assert (cells["b"]["difference"]["p"], cells["b"]["may_be_best"]) == (None, None)
    # Known bounds give a spread, of six examples.
    sample = sample._replace(bounds=(-1, 1))
    difference = compared({"a": [constant] * 2, "b": [right] * 2}, {"score": sample}, lower=False)
    assert 0.001 < difference["b"]["difference"]["p"] < 1
    # And of 1,000 examples in 50 groups a smaller one than of 50.
    for groups in ({"count": 50}, {"count": 1000}):
        one = Sample(np.ones(50), np.arange(50), (0, 1), **groups)
        half = half_width(ratio(np.ones(50), one, one.for_score)[1])
        assert half == pytest.approx(2 * 2**0.5 / (groups["count"] + 4), rel=0.05)


def test_the_difference_shown_is_that_of_the_seeds_behind_its_interval():
    values = {"a": [2.0, 2.1, 1.9, 2.0, 2.05], "b": [2.1, 2.2, 2.01, 2.1, 2.14, 9.0]}
    found = compared(values)["b"]["difference"]
    assert found["is_paired"]
    assert found["mean"] == pytest.approx(0.1)
    assert found["low"] < found["mean"] < found["high"]


def test_a_score_that_is_no_number_concludes_nothing():
    cells = compared({"a": [2.0, 2.1, 2.2], "b": [2.0, float("nan"), 2.3], "c": [5.0, 5.1, 5.2]})
    assert cells["b"]["difference"]["p"] is None
    assert cells["c"]["difference"]["verdict"] == "different"


def test_a_model_that_counts_is_beaten_beyond_doubt_or_not():
    counted, sample = of_examples(60, 100)
    for right, seeds, expected in ((95, 3, True), (62, 3, False), (95, 1, None)):
        own, _ = of_examples(right, 100)
        scores = scores_of(
            {"a": {seed: {"score": own} for seed in range(seeds)}},
            {"a": {"score": sample}},
            {"a": {}},
            {"a": "a"},
            lambda score: False,
            counted={"score": {"bag of words": counted}},
        )
        assert scores["a"]["score"]["beats"] == {"bag of words": expected}


def test_holm_is_the_closure_of_bonferroni():
    """A hypothesis is rejected if every set of hypotheses that holds it is."""
    random = np.random.default_rng(0)
    for count in (1, 2, 5):
        p = random.uniform(size=count) ** 3
        for number, corrected in enumerate(holm(list(p))):
            sets = [
                chosen
                for size in range(1, count + 1)
                for chosen in combinations(range(count), size)
                if number in chosen
            ]
            closed = max(min(1.0, len(chosen) * min(p[list(chosen)])) for chosen in sets)
            assert corrected == pytest.approx(closed)


def test_few_reports_of_equal_cells_hold_a_difference_or_leave_one_out():
    """At most one in twenty; seen: see benchmarks/false_differences.py."""
    random = np.random.default_rng(0)
    wrong, excluded = 0, 0
    for _ in range(150):
        values = {name: list(random.normal(2, 0.1, 3)) for name in "abcde"}
        cells = compared(values)
        differences = [one["difference"] for one in cells.values() if "difference" in one]
        assert len(differences) == 4
        wrong += any(one["p_corrected"] < 0.05 for one in differences)
        excluded += not cells["c"]["may_be_best"]
    assert wrong < 0.1 * 150
    assert excluded < 0.1 * 150


def test_equivalence_is_two_one_sided_tests():
    random = np.random.default_rng(1)
    a, b = random.normal(2, 0.1, 4), random.normal(2.02, 0.1, 4)
    for effect in (0.05, 0.2, 0.5):
        rule = Rule(effect=effect, score="score")
        found = compared({"a": list(a), "b": list(b)}, rule=rule)["b"]["difference"]
        below = stats.ttest_ind(b - effect, a, equal_var=False, alternative="less").pvalue
        above = stats.ttest_ind(b + effect, a, equal_var=False, alternative="greater").pvalue
        assert found["p_equivalent_corrected"] == pytest.approx(max(below, above))
        assert found["verdict"] == ("equivalent" if max(below, above) < 0.05 else "open")
    assert found["verdict"] == "equivalent"
    # An effect is in units of one score; others are not called equivalent.
    rule = Rule(effect=0.5, score="another")
    assert compared({"a": list(a), "b": list(b)}, rule=rule)["b"]["difference"]["verdict"] == "open"


def test_looking_ten_times_takes_a_tenth_of_the_level():
    random = np.random.default_rng(1)
    values = {"a": list(random.normal(2, 0.1, 4)), "b": list(random.normal(2.6, 0.1, 4))}
    once = compared(values)["b"]["difference"]["p_corrected"]
    often = compared(values, rule=Rule(looks=10))["b"]
    assert often["difference"]["p_corrected"] == pytest.approx(10 * once)
    strict = compared(values, rule=Rule(alpha=once / 2))
    assert strict["b"]["difference"]["verdict"] == "open"


def test_cells_are_compared_with_their_baselines_where_the_question_is_one():
    values = {
        name: {seed: {"loss": loss + 0.01 * seed, "cb: accuracy": loss / 10} for seed in range(3)}
        for name, loss in zip("abcde", (3.0, 2.5, 2.0, 1.0, 0.8), strict=True)
    }
    questions = {name: {"loss": "lm" if name < "d" else "mlm"} for name in values}
    baselines = {"a": "a", "b": "a", "c": "c", "d": "c", "e": "c"}
    scores = scores_of(values, {}, questions, baselines, lambda score: score == "loss")
    assert "difference" not in scores["a"]["loss"]
    assert scores["b"]["loss"]["difference"]["mean"] == pytest.approx(-0.5)
    assert "difference" not in scores["c"]["loss"]
    assert "difference" not in scores["d"]["loss"]
    assert scores["d"]["loss"]["among"] == ["d", "e"]
    # What the baseline has not measured is compared with the first that has.
    assert scores["e"]["loss"]["difference"]["baseline"] == "d"
    assert scores["e"]["loss"]["difference"]["mean"] == pytest.approx(-0.2)
    assert scores["e"]["loss"]["may_be_best"]
    assert scores["d"]["cb: accuracy"]["difference"]["mean"] == pytest.approx(-0.1)
