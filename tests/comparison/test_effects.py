"""Effects of crossed factors against the analysis of variance, and for cells that are all alike."""

from itertools import combinations, product

import numpy as np
import pytest
from scipy import stats

from t5x_lite.comparison import report
from t5x_lite.comparison.effects import effects_of, levels_of, weights_of_effects
from t5x_lite.comparison.statistics import Rule, Sample, scored_cells
from t5x_lite.report.page import Bold

LEVELS = ["e-a", "e-b", "d-a", "d-b"]


SCORE = "which_land: exact match"


def found_in(values, sample=None, rule=Rule()):
    """Effects in one score: values has an array of [seeds] or [seeds, units] for each cell."""
    runs = {
        cell: {seed: {SCORE: one} for seed, one in enumerate(of_cell)}
        for cell, of_cell in values.items()
    }
    samples = {cell: {SCORE: sample} if sample else {} for cell in values}
    effects = effects_of(scored_cells(runs, samples), {cell: {} for cell in values}, rule)
    return {effect: of[SCORE] for effect, of in effects.items()}


def test_two_times_two_is_the_analysis_of_variance():
    """With equal spreads and unpaired seeds, the mean effects are those of a two-way table, and the
    product is the difference of differences.
    """
    random = np.random.default_rng(0)
    values = {cell: random.normal(place, 1, 4) for place, cell in enumerate(LEVELS)}
    effects = found_in(values)
    means = {cell: of.mean() for cell, of in values.items()}
    of_decoder = (means["d-a"] + means["d-b"] - means["e-a"] - means["e-b"]) / 2
    of_product = means["d-b"] - means["d-a"] - means["e-b"] + means["e-a"]
    assert effects["d instead of e"]["mean"] == pytest.approx(of_decoder)
    assert effects["d instead of e × b instead of a"]["mean"] == pytest.approx(of_product)

    # The variance of a sum is the sum of variances, each weighed by the square of its weight.
    variance = sum(of.var(ddof=1) / 4 for of in values.values())
    assert effects["d instead of e"]["variance"] == pytest.approx(variance / 4)
    assert effects["d instead of e × b instead of a"]["variance"] == pytest.approx(variance)


def test_an_effect_of_seeds_in_common_is_the_t_test_of_its_values():
    random = np.random.default_rng(0)
    of_seed = random.normal(0, 10, 6)
    values = {cell: of_seed + random.normal(place, 1, 6) for place, cell in enumerate(LEVELS)}
    found = found_in(values)["b instead of a"]
    assert found["is_paired"]
    of_seeds = (values["e-b"] - values["e-a"] + values["d-b"] - values["d-a"]) / 2
    assert found["p"] == pytest.approx(stats.ttest_1samp(of_seeds, 0).pvalue)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0)])
def test_no_interval_of_an_effect_holds_what_cannot_be(bounds):
    """All right with one level and all wrong with the other: the effect is at its bound."""
    sample = Sample(np.ones(19), np.arange(19), bounds)
    width = bounds[1] - bounds[0]
    values = {cell: np.full((5, 19), bounds[cell.endswith("b")]) for cell in LEVELS}
    effects = found_in(values, sample)
    assert effects["b instead of a"]["high"] == width > effects["b instead of a"]["low"]
    assert effects["d instead of e"]["mean"] == 0
    for found in effects.values():
        for suffix in ("", "_over_units", "_otherwise"):
            assert -2 * width <= found[f"low{suffix}"] <= found[f"high{suffix}"] <= 2 * width


def test_an_effect_over_examples_is_that_of_its_scores_of_examples():
    """A product of accuracies lies between −2 and 2, so its interval is as much wider near them."""
    random = np.random.default_rng(0)
    sample = Sample(np.ones(50), np.arange(50), bounds=(0.0, 1.0))
    values = {cell: random.integers(0, 2, (3, 50)).astype(float) for cell in LEVELS}
    found = found_in(values, sample)["d instead of e × b instead of a"]
    of_examples = sum(
        sign * values[cell].mean(0) for cell, sign in zip(LEVELS, (1, -1, -1, 1), strict=True)
    )
    with_bounds = np.append(of_examples, [2, -2])
    assert found["center"] == pytest.approx(with_bounds.mean())
    over_units = with_bounds.var(ddof=1) / 52
    over_seeds = sum(of.mean(1).var(ddof=1) / 3 for of in values.values())
    assert found["variance"] == pytest.approx(over_units + over_seeds)


def test_a_true_effect_of_one_factor_is_found_and_no_other():
    random = np.random.default_rng(0)
    sample = Sample(np.ones(24), np.arange(24), bounds=(0.0, 1.0))
    rates = {"e-a": 1.0, "e-b": 0.05, "d-a": 1.0, "d-b": 0.05}
    values = {cell: (random.random((5, 24)) < rate).astype(float) for cell, rate in rates.items()}
    verdicts = {effect: found["verdict"] for effect, found in found_in(values, sample).items()}
    assert verdicts == {
        "d instead of e": "open",
        "b instead of a": "different",
        "d instead of e × b instead of a": "open",
    }


@pytest.mark.parametrize("shared", [0.0, 0.9])
@pytest.mark.parametrize("bounded", [False, True])
def test_few_tables_of_equal_cells_hold_an_effect(bounded, shared):
    """Numbers, and accuracies on 40 examples; seeds that have nothing in common, or most."""
    random = np.random.default_rng(0)
    cells = ["-".join(pair) for pair in product("vwxyz", "ab")]
    sample = Sample(np.ones(40), np.arange(40), bounds=(0.0, 1.0)) if bounded else None
    difficulty = random.normal(0, 1, 40)
    wrong = 0
    for _ in range(200):
        of_seeds = shared * random.normal(0, 1, 3)
        values = {}
        for cell in cells:
            scores = of_seeds + (1 - shared) * random.normal(0, 1, 3)
            noisy = scores[:, None] + difficulty + random.normal(0, 1, (3, 40))
            values[cell] = (noisy > 0).astype(float) if bounded else scores
        effects = found_in(values, sample)
        wrong += any(found["verdict"] == "different" for found in effects.values())
    assert wrong <= 18  # 5 % of 200, and less than three standard deviations more


def test_five_times_two_has_an_effect_of_every_choice():
    cells = ["-".join(pair) for pair in product("vwxyz", "ab")]
    effects = weights_of_effects(cells)
    assert len(effects) == 4 + 1 + 4
    for weights in effects.values():
        assert sum(weights.values()) == pytest.approx(0)
    # Also where both choices are between the same two things.
    assert len(weights_of_effects(["a-a", "a-b", "b-a", "b-b"])) == 3
    assert levels_of(cells[:-1]) == levels_of(["gpt"]) == []
    assert effects_of(scored_cells({"bert": {}, "gpt": {}}, {}), {}, Rule()) == {}


def test_three_factors_have_effects_and_interactions_of_two():
    """Of amounts that are a sum over levels and pairs of levels, each effect is what was put in."""
    random = np.random.default_rng(0)
    factors = ("ab", "cde", "fg")
    cells = ["-".join(levels) for levels in product(*factors)]
    assert levels_of(cells) == [tuple(levels) for levels in factors]
    amounts = dict.fromkeys(cells, 0.0)
    alone = {level: random.normal() for levels in factors for level in levels[1:]}
    together = {}
    for one, other in combinations(factors, 2):
        together |= {pair: random.normal() for pair in product(one[1:], other[1:])}
    for cell in cells:
        levels = cell.split("-")
        amounts[cell] += sum(alone.get(level, 0.0) for level in levels)
        amounts[cell] += sum(together.get(pair, 0.0) for pair in combinations(levels, 2))
    first = {level: levels[0] for levels in factors for level in levels}
    found = {
        effect: sum(weight * amounts[cell] for cell, weight in weights.items())
        for effect, weights in weights_of_effects(cells).items()
    }
    assert len(found) == (1 + 2 + 1) + (2 + 1 + 2)
    for one, other in together:
        effect = f"{one} instead of {first[one]} × {other} instead of {first[other]}"
        assert found[effect] == pytest.approx(together[one, other])
    # A main effect is averaged over the other factors.
    mean_of_others = sum(together["b", other] for other in "de") / 3 + together["b", "g"] / 2
    assert found["b instead of a"] == pytest.approx(alone["b"] + mean_of_others)


def test_the_report_says_what_is_resolved_and_of_one_seed_nothing():
    random = np.random.default_rng(0)
    sample = Sample(np.ones(24), np.arange(24), bounds=(0.0, 1.0))
    rates = {"e-a": 1.0, "e-b": 0.0, "d-a": 1.0, "d-b": 0.0}
    cells = {cell: {"scores": {SCORE: {}}, "runs": {cell: {}}} for cell in rates}
    shown = []
    for seeds in (3, 1):
        values = {cell: random.random((seeds, 24)) < rate for cell, rate in rates.items()}
        effects = {
            effect: {SCORE: found}
            for effect, found in found_in({c: 1.0 * v for c, v in values.items()}, sample).items()
        }
        results = {"effects": effects, "cells": cells, "rule": Rule()._asdict()}
        shown.append((report._effects(results), report._effects_in_words(results, SCORE)))
    (table, note), words = shown[0]
    assert words == [f"What changes {SCORE}: b instead of a (-1.000)."]
    assert [row[0] for row in table.rows if isinstance(row[1], Bold)] == ["b instead of a"]
    assert len(table.rows) == 3
    assert "at most 5.0% of such tables hold a false effect" in note
    assert shown[1] == ([], [])
    cells["d-b"]["runs"] = {}
    (reason,) = report._effects(results)
    assert reason == "Effects need every cell, and no run of d-b has finished."
