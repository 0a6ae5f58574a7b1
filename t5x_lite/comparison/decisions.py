"""How often a comparison under a small budget decides as it does under the largest one.

Architectures, objectives and data are chosen in small experiments, in the hope that large ones
would decide alike. A comparison with several budgets measures whether they do: its decision
accuracy (Magnusson et al., 2025, "DataDecide: How to Predict Best Pretraining Data with Small
Experiments").
"""

from collections.abc import Collection, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from t5x_lite.comparison.statistics import Rule, Scored, decide, difference

Pair = tuple[str, str]  # two cells, without their budget


def decision_accuracy(
    names: Mapping[float, Mapping[str, str]],
    scored: Mapping[str, Mapping[str, Scored]],
    questions: Mapping[str, Mapping[str, str]],
    rule: Rule = Rule(),
) -> dict[str, list[dict[str, Any]]]:
    """Return how often each smaller budget decides as the largest one does, for each score.

    Under the largest budget, the means over all seeds decide which of two cells is better. Under a
    smaller one each seed decides by itself, as for people who train every small model once.

    Args:
        names: budget → name of a cell without its budget → name of the cell.
        scored: cell → score → its seeds, see statistics.scored_cells.
        questions: cell → score → key that says what it measures, see statistics.scores_of. Only
            scores with the same key are compared.
        rule: how differences under the largest budget get their verdicts.

    Returns:
        score → for each smaller budget, a dict with the entries
        "budget", and "largest", the largest budget;
        "pairs", the number of pairs of cells that are compared;
        "accuracy", the share of them that both budgets decide alike, as the mean over seeds; by
        chance it is 0.5;
        "seeds", this share for each seed;
        "different", the number of pairs that differ significantly under the largest budget, and
        "accuracy_of_different", the share of these; None if there are none.

    >>> losses = {"a-1": (3.0, 3.2), "b-1": (3.1, 3.1), "a-2": (2.5, 2.4), "b-2": (2.8, 2.9)}
    >>> scored = {
    ...     cell: {"loss": Scored([0, 1], np.array(of_seeds), None, None)}
    ...     for cell, of_seeds in losses.items()
    ... }
    >>> names = {1.0: {"a": "a-1", "b": "b-1"}, 2.0: {"a": "a-2", "b": "b-2"}}
    >>> (found,) = decision_accuracy(names, scored, {cell: {} for cell in losses})["loss"]
    >>> found["accuracy"], found["seeds"]
    (0.5, [1.0, 0.0])
    """
    *smaller, largest = sorted(names)
    found: dict[str, list[dict[str, Any]]] = {}
    for score in dict.fromkeys(score for of_cell in scored.values() for score in of_cell):
        signs, different = _decided(_pairs(names[largest], scored, questions, score), rule)
        for budget in smaller:
            pairs = _pairs(names[budget], scored, questions, score)
            # pair → seed → True if it decides as the largest budget does
            alike = {
                pair: {seed: sign == signs[pair] for seed, sign in of_seeds.items()}
                for pair, both in pairs.items()
                if pair in signs and (of_seeds := _signs_of_seeds(*both))
            }
            if not (of_seeds := _shares(alike, signs)):
                continue
            of_different = _shares(alike, different)
            one = {
                "budget": budget,
                "largest": largest,
                "pairs": len(alike),
                "accuracy": float(np.mean(of_seeds)),
                "seeds": of_seeds,
                "different": len(alike.keys() & different),
                "accuracy_of_different": float(np.mean(of_different)) if of_different else None,
            }
            found.setdefault(score, []).append(one)
    return found


def _pairs(
    names: Mapping[str, str],
    scored: Mapping[str, Mapping[str, Scored]],
    questions: Mapping[str, Mapping[str, str]],
    score: str,
) -> dict[Pair, tuple[Scored, Scored]]:
    """Return one score of every two cells of a budget for which it measures the same."""
    having = [(base, cell) for base, cell in names.items() if score in scored.get(cell, {})]
    return {
        (one, other): (scored[cell][score], scored[other_cell][score])
        for (one, cell), (other, other_cell) in combinations(having, 2)
        if questions[cell].get(score) == questions[other_cell].get(score)
    }


def _decided(
    pairs: Mapping[Pair, tuple[Scored, Scored]], rule: Rule
) -> tuple[dict[Pair, float], set[Pair]]:
    """Return the sign of each difference that is not 0, and the pairs that differ significantly."""
    differences = {pair: difference(*both, correlation=None) for pair, both in pairs.items()}
    decide(differences, rule)
    signs = {pair: float(np.sign(found["mean"])) for pair, found in differences.items()}
    decided = {pair: sign for pair, sign in signs.items() if abs(sign) == 1}
    return decided, {pair for pair in decided if differences[pair]["verdict"] == "different"}


def _signs_of_seeds(one: Scored, other: Scored) -> dict[int, float]:
    """Return the sign of the difference of each seed that both cells have."""
    of_other = dict(zip(other.seeds, other.of_seeds, strict=True))
    return {
        seed: float(np.sign(score - of_other[seed]))
        for seed, score in zip(one.seeds, one.of_seeds, strict=True)
        if seed in of_other
    }


def _shares(alike: Mapping[Pair, Mapping[int, bool]], pairs: Collection[Pair]) -> list[float]:
    """Return the share of these pairs that each seed decides alike."""
    of_pairs = [of_seeds for pair, of_seeds in alike.items() if pair in pairs]
    seeds = sorted({seed for of_seeds in of_pairs for seed in of_seeds})
    return [
        float(np.mean([of_seeds[seed] for of_seeds in of_pairs if seed in of_seeds]))
        for seed in seeds
    ]
