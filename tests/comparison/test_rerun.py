"""A comparison made again from its report."""

import copy
import dataclasses
import json

import pytest
from conftest import run, settings

from t5x_lite.comparison.rerun import compared, read_report, values_of
from t5x_lite.comparison.results import hours_spent
from t5x_lite.comparison.run import as_asked
from t5x_lite.config.files import build_comparison
from t5x_lite.errors import UserError


@pytest.fixture
def compared_once(tmp_path, text_file):
    """The directory of a comparison of two cells, one of which is tuned away from its own rate."""
    base = settings(text_file)
    config = {
        "title": "Two",
        "base": base,
        "cells": {"one": {}, "other": {"model": {"num_layers": 2}}},
        "tune": {"optimizer": {"learning_rate": (1e-5, 3e-3)}},
        "tune_budget": 0.5,
        "budget": 6 * 8 * 40,
        "evaluations": 1,
        "span_count": 8,
        "span_context": 6,
        "prompts": (),
    }
    (tmp_path / "config.py").write_text(f"def get_config():\n    return {config!r}\n")
    run("compare", f"--config={tmp_path / 'config.py'}", f"--workdir={tmp_path / 'first'}")
    return tmp_path / "first"


def test_a_report_is_made_again_without_its_directory(compared_once, tmp_path):
    path = tmp_path / "alone.json"
    (compared_once / "report.json").rename(path)
    # As if it had trained two at once, so that this does.
    path.write_text(json.dumps(json.loads(path.read_text()) | {"jobs": 2}))
    out, _ = run("rerun", str(path), f"--workdir={tmp_path / 'again'}")
    assert (tmp_path / "again/logs/one.txt").exists()
    before, after = (json.loads(p.read_text()) for p in (path, tmp_path / "again/report.json"))
    assert f"Every score is equal to the last digit ({len(values_of(before))} in all)." in out
    assert after["config"] == before["config"]
    for key in ("tuning", "counting", "examples", "rule", "corpus"):
        assert after[key] == before[key]
    assert build_comparison(after["config"]) == read_report(path)[0]

    # It says when and on what, how long all took, and how to make it again.
    hours = before["hours"]
    assert hours["runs"] > 0 < hours["tuning"]
    assert hours["tasks"] == 0
    page = (tmp_path / "again/report.md").read_text()
    for text in ("t5x_lite rerun report.json", "in all, runs", "| date |"):
        assert text in page

    # Where something is, it would not be trained again.
    _, err = run("rerun", str(path), f"--workdir={compared_once}", code=2)
    assert "is not empty, so what it holds would not be trained again" in err


def test_what_differs_is_said():
    scores = {"loss": {"seed_numbers": [0, 1], "seeds": [2.5, 2.25]}}
    before = {
        "cells": {"gpt": {"scores": scores, "steps": 9}},
        "jobs": 2,
        "environment": {"Python": "3.11.7"},
        "corpus": {"train": {"tokens": 9}, "validation": {"tokens": 5}},
    }
    after = copy.deepcopy(before)
    after["environment"] = {"Python": "3.13.1"}
    assert compared(before, after) == ["Every score is equal to the last digit (2 in all)."]
    after["cells"]["gpt"]["scores"]["loss"]["seeds"][1] = 2.125
    assert compared(before, after) == [
        "1 of 2 scores differ, at most by 0.125 (gpt, loss, seed 1: 2.125 for 2.25).",
        "Python: 3.13.1, before 3.11.7.",
    ]
    after["corpus"]["validation"] = {"tokens": 6}
    after["cells"]["gpt"]["steps"] = 8
    after["jobs"] = 1
    after["cells"]["gpt"]["scores"]["loss"] = {"seed_numbers": [0], "seeds": [2.5]}
    assert compared(before, after) == [
        "1 of 2 are missing, such as gpt, loss, seed 1.",
        "--jobs=1, before 2.",
        "gpt: 8 steps, before 9.",
        "The validation text is another.",
        "Python: 3.13.1, before 3.11.7.",
    ]
    assert compared(after, before)[0] == "1 scores are new."
    assert compared({"cells": {}}, after) == ["The report has no scores to compare."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "no such file"),
        ("{", "expected the report.json of a comparison"),
        ("[]", "expected the report.json of a comparison"),
        ('{"cells": {}}', "has no config of a comparison; expected the report.json"),
        ('{"cells": {}, "config": {"cells": {"a": {"sed": 1}}}}', "did you mean seed"),
        ('{"cells": {"a": {"scores": {"loss": {}}}}, "config": {}}', "its scores cannot be read"),
        (
            '{"cells": {}, "config": {"tasks": ["a.py:b"], "cells": {"a": {"data": {"lengths": '
            '{"sequence_length": 8}}}}}}',
            "names code or files outside of it; if you trust it, add --allow-code=a.py",
        ),
    ],
)
def test_what_is_no_report_is_refused(tmp_path, text, expected):
    path = tmp_path / "report.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=expected):
        read_report(path)


def test_a_comparison_that_added_seeds_begins_again_with_the_first():
    cells = {"a": {"data": {"lengths": {"sequence_length": 8}}}}
    config = build_comparison({"cells": cells, "seeds": 3, "max_seeds": 12})
    for looked in range(4):
        seen = dataclasses.replace(config, seeds=3 + looked)
        assert as_asked(seen, looks=10) == config
    config = build_comparison({"cells": cells, "seeds": 3})
    assert as_asked(config, looks=1) == config


def test_hours_are_those_of_every_start(tmp_path):
    for place, seconds in (
        ("a", (10, 20)),
        ("a/tasks/rte", (30,)),
        ("a/adapted", (7,)),
        ("tuning/a,x=1", (20, 5, 40)),
    ):
        (tmp_path / place).mkdir(parents=True)
        lines = [
            json.dumps({"step": step, "split": "train", "seconds": {"step": one, "compile": 0}})
            for step, one in enumerate(seconds)
        ]
        (tmp_path / place / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    found = {name: round(hours * 3600) for name, hours in hours_spent(tmp_path).items()}
    assert found == {"runs": 20, "tasks": 30, "adaptation": 7, "tuning": 60}
