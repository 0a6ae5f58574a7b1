"""The first sentences of a comparison's report."""

from typing import Any

import pytest

from t5x_lite.comparison import report
from t5x_lite.report.page import Chart

TASK, ADAPTED, LEFT = "rte: accuracy", "adapted_bits", "span_bits_left"


def answer(
    *scores: str, cells: int = 2, best: int = 1, seeds: int = 3, heads=None, **counted: dict
) -> str:
    """Return the sentences on cells of which the first ones may be the best, and the first beats
    what only counts.
    """
    names = [f"model{number}" for number in range(cells)]
    of_cells = {}
    for number, name in enumerate(names):
        of_score: dict[str, Any] = {
            "mean": 0.5 - number / 100,
            "among": names,
            "may_be_best": number < best if seeds > 1 else None,
            "beats": dict.fromkeys(counted, number == 0 if seeds > 1 else None),
        }
        if number:
            of_score |= {"mean": 0.5 + number / 100} if TASK not in scores else {}
        of_cells[name] = {"scores": dict.fromkeys(scores, of_score), "baseline": names[0]}
    return report._answer(
        {
            "cells": of_cells,
            "counting": counted,
            "seeds": seeds,
            "scaling": {},
            "failed": {},
            "adapt_tokens": 2000,
            "tasks": {TASK: {"heads": heads or {}}},
        }
    )


def test_spans_are_said_only_where_nothing_better_was_asked():
    given_left = "Given only the text before a gap, model0 predicts it best"
    assert answer(LEFT).startswith(given_left)
    adapted = "After reading 2000 tokens as prefix language models, given the text before a gap, "
    assert answer(LEFT, ADAPTED).startswith(adapted)
    assert given_left not in answer(LEFT, ADAPTED)
    said = answer(LEFT, TASK)
    assert said == "On rte, model0 has the best accuracy (model0 50.0%, model1 49.0%)."
    assert answer(TASK, heads={"model0": "lm", "model1": "lm"}) == said
    said = answer(TASK, heads={"model0": "lm", "model1": "class"})
    assert said.startswith("On rte, which not all answer in words, model0 has the best accuracy")


def test_models_that_may_be_the_best_are_named_or_counted():
    assert "is not resolved between model0 and model1 (model0 50.0%" in answer(
        TASK, cells=3, best=2
    )
    assert "between model0, model1 and model2 (" in answer(TASK, cells=3, best=3)
    assert "is not resolved between 6 models (model0 50.0%" in answer(TASK, cells=10, best=6)


@pytest.mark.parametrize("score", [LEFT, ADAPTED])
@pytest.mark.parametrize(("bits", "is_fewer"), [(0.4, True), (0.6, False)])
def test_a_trigram_model_stands_beside_bits(score, bits, is_fewer):
    said = answer(score, **{"Kneser-Ney trigram": {score: bits}})
    assert f"which only counts, needs {bits:.3f} given the text before" in said
    assert ("fewer than any of these models" in said) == is_fewer


def test_models_that_counting_beats_are_named_or_counted():
    bag = {"bag of words": {TASK: 0.55}}
    assert "model1 is not shown to beat a bag of words (55.0%)." in answer(TASK, **bag)
    assert "model1, model2 and model3 are not" in answer(TASK, cells=4, **bag)
    assert "9 of 10 models are not shown to beat" in answer(TASK, cells=10, **bag)


def test_one_seed_says_so_first():
    assert answer(TASK, seeds=1).startswith("One seed: how much luck matters is not known. On rte:")
    assert "A bag of words gets 55.0%." in answer(TASK, seeds=1, **{"bag of words": {TASK: 0.55}})


@pytest.mark.parametrize("metric", report.TRAINING_CURVES)
def test_a_metric_that_was_recorded_is_drawn_in_its_unit(metric):
    title, unit, _ = report.TRAINING_CURVES[metric]
    curve = {"loss": [], metric: [[step, 2 * unit] for step in (1, 2, 3)]}
    run = {"curve": curve, "validation_curve": {"loss": []}}
    spent = dict.fromkeys(report.UNITS, 3.0)
    of_cell = {"runs": {"gpt": run}, "objective": "causal_lm", **spent}
    (chart,) = report._learning_curves({"match": "steps", "cells": {"gpt": of_cell}})
    assert isinstance(chart, Chart)
    assert chart.description.startswith(title)
    assert [point["y"] for point in chart.spec["data"]["values"]] == [2, 2, 2]
