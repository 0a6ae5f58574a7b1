"""Scores on examples that did not choose what they are scored with."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from t5x_lite.config import Task
from t5x_lite.data.tasks.examples import Examples
from t5x_lite.data.tasks.kinds.kind import Example
from t5x_lite.finetuning.scoring import (
    cross_fitted,
    in_first_half,
    keep_predictions,
    score_on_halves,
)

TASK = Task(name="t", kind="classify", source="x.tsv", labels=("a", "b"))


def examples(count: int, texts: int = 0) -> list[Example]:
    return [
        Example(number, f"text {number % (texts or count)}", "", number % 2, (), None, {})
        for number in range(count)
    ]


def right(predictions, asked) -> float:
    return np.mean([p == e.label for p, e in zip(predictions, asked, strict=True)])


def test_halves_keep_examples_of_one_text_together():
    asked = examples(400, texts=100)
    first = in_first_half(asked)
    assert 0.35 < np.mean(first) < 0.65
    of_text = {example.text: half for example, half in zip(asked, first, strict=True)}
    assert all(of_text[example.text] == half for example, half in zip(asked, first, strict=True))
    # Examples without a text, which a prompt is made of, are divided one by one.
    nameless = [replace(example, text="") for example in asked]
    assert 0.35 < np.mean(in_first_half(nameless)) < 0.65


def test_each_half_is_scored_where_the_other_is_best():
    asked = examples(60)
    first = np.array(in_first_half(asked))
    labels = np.array([example.label for example in asked])
    # Step 1 is right on the first half only, step 2 on the second, step 3 on neither.
    evaluations = {
        1: np.where(first, labels, 1 - labels),
        2: np.where(first, 1 - labels, labels),
        3: 1 - labels,
    }
    evaluations = {step: one.tolist() for step, one in evaluations.items()}
    assert right(cross_fitted(TASK, asked, evaluations), asked) == 0.0
    # Of equally good evaluations the first is taken, as BestCheckpoint does.
    evaluations = {0: labels.tolist(), **evaluations}
    assert right(cross_fitted(TASK, asked, evaluations), asked) == 1.0


def test_the_best_of_ten_guesses_is_no_better_than_a_guess():
    """The best evaluation of a model that guesses is too good; its cross-fitted score is not."""
    asked = examples(56)
    random = np.random.default_rng(0)
    best, fitted = [], []
    for _ in range(200):
        evaluations = {step: random.integers(2, size=56).tolist() for step in range(10)}
        best.append(max(right(of_step, asked) for of_step in evaluations.values()))
        fitted.append(right(cross_fitted(TASK, asked, evaluations), asked))
    assert np.mean(best) > 0.58
    assert np.mean(fitted) == pytest.approx(0.5, abs=0.015)


def test_the_examples_that_choose_settings_do_not_judge_them(tmp_path):
    """Of runs with three settings that all guess, the best is too good, and the score is not."""
    asked = examples(56)
    split = SimpleNamespace(examples=Examples(TASK, "validation", tuple(asked)))
    workdirs = [tmp_path / str(number) for number in range(3)]
    random = np.random.default_rng(0)
    best, fitted = [], []
    for _ in range(60):
        values = []
        for workdir in workdirs:
            steps = [{"step": step, "split": "validation"} for step in (1, 2, 3, 4)]
            workdir.mkdir(exist_ok=True)
            lines = [json.dumps(record) + "\n" for record in steps]
            (workdir / "metrics.jsonl").write_text("".join(lines))
            for record in steps:
                predictions = random.integers(2, size=56).tolist()
                keep_predictions(workdir, record["step"], predictions)
                values.append(right(predictions, asked))
        best.append(max(values))
        scored = score_on_halves(workdirs, split)
        fitted.append(scored.value)
    assert "each at the best evaluation and settings of the other half" in scored.on
    assert np.mean(best) > 0.58
    assert np.mean(fitted) == pytest.approx(0.5, abs=0.025)


def test_one_example_is_scored_at_the_last_evaluation():
    asked = examples(1)
    assert cross_fitted(TASK, asked, {1: [0], 2: [1]}) == [1]
