"""Decision accuracy in cases whose answer is known; test_run.py has its table."""

import numpy as np
import pytest

from t5x_lite.comparison.decisions import decision_accuracy
from t5x_lite.comparison.statistics import Rule, Scored

CELLS = ("a", "b", "c", "d", "e")
SEEDS = 5
NAMES = {budget: {cell: f"{cell}-{budget}" for cell in CELLS} for budget in (1.0, 2.0, 4.0)}
ALIKE: dict[str, dict[str, str]] = {name: {} for of in NAMES.values() for name in of.values()}


def scored(of_budgets, score="loss"):
    """budget → [cells, seeds] as cell → score."""
    return {
        NAMES[budget][cell]: {score: Scored(list(range(len(row))), np.array(row), None, None)}
        for budget, rows in of_budgets.items()
        for cell, row in zip(CELLS, rows, strict=True)
    }


def levels(noise=0.0, order=(0, 1, 2, 3, 4), seed=0):
    """Scores of cells one apart, in this order."""
    drawn = np.random.default_rng(seed).normal(size=(len(CELLS), SEEDS))
    return np.array(order)[:, None] + noise * drawn


def test_budgets_that_agree_and_that_contradict():
    found = decision_accuracy(
        NAMES, scored({1.0: levels(order=(4, 3, 2, 1, 0)), 2.0: levels(), 4.0: levels(0.01)}), ALIKE
    )["loss"]
    assert [one["budget"] for one in found] == [1.0, 2.0]
    assert [one["accuracy"] for one in found] == [0.0, 1.0]
    assert {one["pairs"] for one in found} == {one["different"] for one in found} == {10}
    assert found[1]["seeds"] == [1.0] * SEEDS


def test_one_swap_is_one_pair():
    """Kendall's tau of the two orders is 1 − 2 · 1 / 10."""
    swapped = levels(order=(0, 2, 1, 3, 4))
    (found, _) = decision_accuracy(
        NAMES, scored({1.0: swapped, 2.0: levels(), 4.0: levels(0.01)}), ALIKE
    )["loss"]
    assert found["accuracy"] == found["accuracy_of_different"] == 0.9


def test_noise_decides_as_a_coin_does():
    accuracies = [
        decision_accuracy(
            {1.0: NAMES[1.0], 4.0: NAMES[4.0]},
            scored({1.0: levels(1e6, seed=seed), 4.0: levels(0.01)}),
            ALIKE,
        )["loss"][0]["accuracy"]
        for seed in range(100)
    ]
    assert np.mean(accuracies) == pytest.approx(0.5, abs=0.05)


def test_pairs_that_do_not_differ_are_counted_apart():
    """Two groups of cells: all pairs within a group are noise."""
    order = (0, 0, 0, 50, 50)
    of_budgets = {1.0: levels(1.0, order, 1), 2.0: levels(), 4.0: levels(1.0, order, 2)}
    (found, _) = decision_accuracy(NAMES, scored(of_budgets), ALIKE)["loss"]
    assert (found["pairs"], found["different"]) == (10, 6)
    assert found["accuracy_of_different"] == 1.0 > found["accuracy"]
    (strict, _) = decision_accuracy(NAMES, scored(of_budgets), ALIKE, Rule(alpha=1e-12))["loss"]
    assert (strict["different"], strict["accuracy_of_different"]) == (0, None)


def test_one_seed_has_no_significant_pairs():
    of_budgets = {budget: levels()[:, :1] for budget in NAMES}
    (found, _) = decision_accuracy(NAMES, scored(of_budgets), ALIKE)["loss"]
    assert (found["accuracy"], found["different"], found["seeds"]) == (1.0, 0, [1.0])


def test_only_scores_that_measure_the_same_are_compared():
    asked = {name: {"loss": "lm" if name[0] in "ab" else "masks"} for name in ALIKE}
    everything = scored({budget: levels() for budget in NAMES})
    (found, _) = decision_accuracy(NAMES, everything, asked)["loss"]
    assert found["pairs"] == 1 + 3


def test_cells_and_seeds_that_are_missing():
    everything = scored({budget: levels() for budget in NAMES})
    everything["a-1.0"]["loss"] = Scored([7, 3], np.array([0.0, 0.0]), None, None)
    everything["b-1.0"] = everything["c-4.0"] = {}
    smallest, middle = decision_accuracy(NAMES, everything, ALIKE)["loss"]
    assert (smallest["pairs"], middle["pairs"]) == (3, 6)  # of a, d, e and of a, b, d, e
    assert smallest["seeds"] == [1.0] * SEEDS  # seed 7 has no other cell
    assert decision_accuracy(NAMES, {name: {} for name in ALIKE}, ALIKE) == {}
    assert decision_accuracy({1.0: NAMES[1.0]}, everything, ALIKE) == {}


def test_equal_scores_decide_nothing():
    tied = {1.0: levels(), 2.0: levels(order=(0,) * 5), 4.0: levels(order=(0, 0, 1, 1, 1))}
    smallest, middle = decision_accuracy(NAMES, scored(tied), ALIKE)["loss"]
    assert (smallest["pairs"], smallest["accuracy"]) == (6, 1.0)
    assert (middle["pairs"], middle["accuracy"]) == (6, 0.0)
    nan = levels()
    nan[0] = np.nan
    (found, _) = decision_accuracy(NAMES, scored({1.0: nan, 2.0: nan, 4.0: levels(0.01)}), ALIKE)[
        "loss"
    ]
    assert (found["pairs"], found["accuracy"]) == (10, 0.6)
