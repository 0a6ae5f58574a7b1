"""The report of a task, from what its runs have written."""

import json

import pytest

from t5x_lite.config import Task
from t5x_lite.finetuning.results import answers_of
from t5x_lite.report import task_report

LABELS = ("a|b", "<i>x</i>", "(no label)")


def answers(tmp_path, task, records):
    path = tmp_path / "predictions/validation.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    return answers_of(tmp_path, task)


def record(prediction, label, text="text\nof it"):
    return {"id": 0, "text": text, "prediction": prediction, "label": label}


def results_of(tmp_path):
    task = Task(name="t", source="t.tsv", labels=LABELS)
    records = [record(None, LABELS[2]), record(LABELS[0], LABELS[0]), record(LABELS[0], LABELS[1])]
    curves = {"curve": [[1, 2.0]], "validation_curve": [[2, 1.5]], "metric_curve": [[2, 0.5]]}
    return {
        "title": "t <b>",
        "task": "t",
        "metric": "accuracy",
        "parameters": 10,
        "trained_parameters": 3,
        "chosen": {},
        "seeds": [0, 1],
        "reached": {"accuracy": {"mean": 0.5, "standard_deviation": 0.1}},
        "scored": {"mean": 0.4, "standard_deviation": 0.1, "on": "halves of dev", "examples": 3},
        "cells": [{"settings": {}, "seeds": {"0": {"step": 2, "accuracy": 0.5}}}],
        "curves": {"seed 0": curves},
        **answers(tmp_path, task, records),
    }


def test_what_is_no_label_is_none_of_the_labels(tmp_path):
    confusion = results_of(tmp_path)["confusion"]
    assert confusion["predicted"] == [*LABELS, "(no label)"]
    assert confusion["of_label"] == {
        LABELS[0]: [1, 0, 0, 0],
        LABELS[1]: [1, 0, 0, 0],
        LABELS[2]: [0, 0, 0, 1],
    }


def test_pages_hold_their_figures_and_no_foreign_markup(tmp_path):
    results = results_of(tmp_path)
    task_report.write(results, tmp_path)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "<i>" not in page
    assert "&lt;i&gt;x&lt;/i&gt;" in page
    assert "Accuracy 0.4000 on halves of dev (3 examples)." in page
    assert "accuracy 0.5000 ± 0.1000 (mean and standard deviation of 2 seeds)" in page
    assert "Trained: 3 of 10 parameters" in page
    lines = (tmp_path / "report.md").read_text("utf-8").splitlines()
    assert "| a\\|b | 1 | 0 | 0 | 0 |" in lines
    assert "**text of it**" in lines
    assert "> None, labelled (no label)" in lines
    assert not any("<i>" in line for line in lines)


@pytest.mark.parametrize(
    ("kind", "metric", "records", "expected"),
    [
        (
            "extract",
            "exact_match",
            [record("The Play.", ["play"]), record("x", "y")],
            {
                "Examples of wrong predictions": ["x"],
                "Examples of right predictions": ["The Play."],
            },
        ),
        (
            "regress",
            "pearson",
            [record(1.0, 1.5), record(1.0, 4.0), record(None, 0.1)],
            {"Largest errors": [1.0, 1.0, None]},
        ),
        ("generate", "rouge1", [record("a text", "b")], {"Examples of predictions": ["a text"]}),
        ("choose", "accuracy", [record(None, "b")], {"Examples of wrong predictions": [None]}),
    ],
)
def test_what_is_shown_of_each_kind(tmp_path, kind, metric, records, expected):
    task = Task(name="t", kind=kind, source="t.tsv", choices=("c",), metrics=(metric,))
    found = answers(tmp_path, task, records)
    assert "confusion" not in found
    shown = {heading: [r["prediction"] for r in of] for heading, of in found["shown"].items()}
    assert shown == expected
