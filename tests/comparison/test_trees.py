"""Cells that begin with the same stages: each is what it would be alone, and the stages are trained
once.
"""

import dataclasses
import json
from pathlib import Path

import pytest
from conftest import run, settings

import t5x_lite
from t5x_lite import manifest
from t5x_lite.comparison import cells as planning
from t5x_lite.comparison import tune
from t5x_lite.comparison.budget import steps_of_stages, with_budget
from t5x_lite.comparison.report import report as page_of
from t5x_lite.comparison.run import compare
from t5x_lite.comparison.writing import GivenTexts, write_texts
from t5x_lite.config.files import build_comparison
from t5x_lite.errors import UserError
from t5x_lite.report.page import Chart, Table
from t5x_lite.training import loaded_model
from t5x_lite.training.log import read_metrics

TRUNK = {"until": "50%", "objective": "causal_lm"}
MASKED = {
    "objective": "masked_lm",
    "model": {"architecture": "encoder"},
    "optimizer": {"schedule": "linear", "warmup_steps": 1},
}
PREFIX = {"objective": "prefix_lm", "model": {"architecture": "prefix_decoder"}}
CELLS = {
    "causal": {},
    "masked": {"stages": (TRUNK, MASKED)},
    "prefix": {"stages": (TRUNK, PREFIX | {"until": "75%"}, {})},
    "prefix_masked": {"stages": (TRUNK, PREFIX | {"until": "75%"}, MASKED)},
}


@pytest.fixture(autouse=True)
def quiet():
    with t5x_lite.messages_to(lambda line: None):
        yield


def comparison(text_file, **more) -> dict:
    """Four ways through three stages."""
    base = settings(text_file, **{"model.positions": "rotary", "training.steps": 12})
    base["optimizer"] = {"schedule": "constant"}
    return {
        "base": base,
        "cells": CELLS,
        "match": "steps",
        "evaluations": 2,
        "span_count": 8,
        "span_context": 6,
        "ngram": False,
        "other_objectives": False,
        **more,
    }


def arrays(workdir: Path, step: int) -> dict:
    return manifest.read(workdir / f"checkpoints/{step}")["arrays"]


def test_a_tree_is_its_leaves(text_file, tmp_path):
    """A leaf has the bits that it has alone, every trunk is trained once, and what was spent on it
    counts in each leaf.
    """
    pairs = [
        {"sentence_good": f"the cat {verb} it.", "sentence_bad": f"it {verb} cat the.", "UID": verb}
        for verb in ("sees", "hears", "likes")
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    more = {
        "score_curves": True,
        "tasks": (f"blimp({tmp_path}/pairs.jsonl)",),
        "blanks": ("the ___ sees it.",),
        "prompts": ("the cat",),
    }
    config, workdir = build_comparison(comparison(text_file, **more)), tmp_path / "tree"
    lines: list[str] = []
    with t5x_lite.messages_to(lines.append):
        report = compare(config, workdir)
    trained = [line for line in lines if line.startswith("stage ") and not line.endswith(": done")]
    assert len([line for line in trained if "trunks" in line]) == 2
    assert {path.name for path in (workdir / "trunks").iterdir()} == {"masked-1", "prefix-2"}
    assert {of["steps"] for of in report["cells"].values()} == {12}
    assert {of["raw_tokens"] for of in report["cells"].values()} == {12 * 8 * 38}
    assert not any(of["inherited"] for of in report["cells"].values())

    stages = report["recipes"]["stages"]
    assert stages["masked"] == "causal_lm to step 6 → masked_lm on encoder to step 12"
    assert stages["causal"] == []
    assert not any(key.startswith("start.") for key in report["recipes"])
    # Curves go back as far as the objective does, and time is that of all stages.
    of_masked, of_prefix = (report["cells"][name]["runs"][name] for name in ("masked", "prefix"))
    assert of_masked["curve"]["loss"][0][0] == 7
    assert of_prefix["curve"]["loss"][0][0] == 10
    trunk = read_metrics(workdir / "trunks/masked-1/metrics.jsonl")
    own = read_metrics(workdir / "masked/metrics.jsonl")
    seconds = sum(one.get("train_seconds", 0) for one in trunk + own)
    assert of_masked["seconds"] == pytest.approx(seconds)

    # Scores were asked at each evaluation and at the end of each stage; the last is the cell's own.
    steps = {"causal": [6, 12], "masked": [6, 12], "prefix": [6, 9, 12]}
    for name, expected in steps.items():
        of_cell = report["cells"][name]
        curves = of_cell["runs"][name]["score_curves"]
        left = "span_bits_left"
        assert [step for step, _ in curves[left]] == expected
        assert {step for step, _ in curves["blimp: grouped accuracy"]} == {*expected}
        for score in (left, "blimp: grouped accuracy"):
            assert curves[score][-1][1] == pytest.approx(of_cell["scores"][score]["mean"])
    of_causal = report["cells"]["causal"]["runs"]["causal"]["score_curves"]
    assert [step for step, _ in of_causal["bits_per_byte"]] == [6, 12]
    sections = {section.heading: section.parts for section in page_of(report).sections}
    drawn = [part.description for part in sections["Learning curves"] if isinstance(part, Chart)]
    first = (
        "blimp: grouped accuracy",
        "span bits per byte, text before",
        "span bits per byte, text on both",
    )
    assert all(text.startswith(start) for text, start in zip(drawn, first, strict=False))

    # Texts were given, too: to what was a decoder at first and became an encoder, each kind once.
    for name, expected in steps.items():
        assert [one["step"] for one in report["examples"][name]] == expected
    was_decoder, is_encoder = report["examples"]["masked"]
    assert "continuation" in was_decoder
    assert len(is_encoder["words"][0]) == 5
    shown = sections["What each model writes"]
    tables = {part.caption: part.rows for part in shown if isinstance(part, Table)}
    assert [row[0] for row in tables["prefix: the cat (temperature 0.8, top_p 0.9)"]] == [
        *"69",
        "12",
    ]
    loaded = loaded_model.load(f"{workdir}/causal@12")
    assert (
        write_texts(loaded, GivenTexts(prompts=("the cat",))) == report["examples"]["causal"][-1:]
    )

    *_, cell = planning.plan_cells(config, workdir)
    t5x_lite.train(cell.config, tmp_path / "alone")
    assert arrays(workdir / cell.name, 12) == arrays(tmp_path / "alone", 12)


def test_each_seed_has_trunks_of_its_own(text_file, tmp_path):
    config = build_comparison(comparison(text_file, seeds=2))
    runs = planning.seeded_runs(config, planning.plan_cells(config, tmp_path), tmp_path)
    assert {one.name: [path.name for path in one.trunks] for one in runs} == {
        "causal": [],
        "masked": ["masked-1"],
        "prefix": ["masked-1", "prefix-2"],
        "prefix_masked": ["masked-1", "prefix-2"],
        "causal-seed1": [],
        "masked-seed1": ["masked-seed1-1"],
        "prefix-seed1": ["masked-seed1-1", "prefix-seed1-2"],
        "prefix_masked-seed1": ["masked-seed1-1", "prefix-seed1-2"],
    }
    *_, last = runs
    assert [stage.resolved.config.seed for stage in last.stages] == [1, 1, 1]
    assert last.stages[2].resolved.config.init_from == str(tmp_path / "trunks/prefix-seed1-2")


@pytest.mark.parametrize("match", ["raw_tokens", "model_tokens", "flops"])
def test_every_leaf_spends_the_budget(text_file, tmp_path, match):
    """Also where stages cost differently, and then the trunk is the same in all."""
    config = build_comparison(comparison(text_file, match=match, budget=0.0, cells=CELLS))
    cells = planning.plan_cells(config, tmp_path)
    spent = [cell.total[match] for cell in cells]
    most = max(planning.spent(cost, 1.0)[match] for cell in cells for cost in cell.costs)
    assert max(spent) - min(spent) <= 1.5 * most
    trunks = {one.trunks[0] for one in planning.seeded_runs(config, cells, tmp_path) if one.trunks}
    assert len(trunks) == 1


def test_a_schedule_over_all_ends_with_the_leaf(text_file, tmp_path):
    """Then leaves of different lengths share nothing, since their rates differ from the start."""
    values = comparison(text_file, match="flops", budget=0.0)
    values["base"]["optimizer"] = {"schedule": "cosine"}
    config = build_comparison(values)
    runs = planning.seeded_runs(config, planning.plan_cells(config, tmp_path), tmp_path)
    first = {one.trunks[0] for one in runs if one.trunks}
    assert len(first) > 1


def test_what_begins_otherwise_has_a_trunk_of_its_own(text_file, tmp_path):
    """Another text of the same settings but its name, another way to handle bad steps."""
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text()[::-1])
    stages = (TRUNK, {})
    cells = {
        "a": {"stages": stages},
        "b": {"stages": stages, "data": {"source": str(other)}},
        "c": {"stages": stages, "training": {"skip_step": True}},
        "d": {"stages": stages, "training": {"keep_every": 3}},
    }
    values = comparison(text_file, cells=cells)
    config = build_comparison(values)
    runs = planning.seeded_runs(config, planning.plan_cells(config, tmp_path), tmp_path)
    assert len({one.trunks for one in runs}) == 4
    # And if they start from different models.
    with t5x_lite.messages_to(lambda line: None):
        for name in ("x", "y"):
            t5x_lite.train(values["base"], tmp_path / name)
    cells = {name: {"stages": stages, "init_from": str(tmp_path / name)} for name in ("x", "y")}
    config = build_comparison(comparison(text_file, cells=cells))
    runs = planning.seeded_runs(config, planning.plan_cells(config, tmp_path), tmp_path)
    assert len({one.trunks for one in runs}) == 2


def test_stages_stretch_with_the_budget(text_file):
    values = comparison(text_file)
    values["base"]["training"]["steps"] = 100
    cell = build_comparison(values).cells["prefix_masked"]
    assert steps_of_stages(cell) == (50, 25, 25)
    longer = with_budget(cell, (500, 300, 200), evaluations=2)
    assert steps_of_stages(longer) == (500, 300, 200)
    assert longer.optimizer.warmup_steps == 1000
    linear = dataclasses.replace(cell.optimizer, warmup_steps=10, decay_steps=100)
    of_other_lengths = with_budget(dataclasses.replace(cell, optimizer=linear), (50, 5, 20), 1)
    assert of_other_lengths.optimizer.warmup_steps == 10
    assert of_other_lengths.optimizer.decay_steps == of_other_lengths.training.steps == 75
    assert longer.stages[2]["optimizer"]["warmup_steps"] == 8
    assert steps_of_stages(with_budget(longer, (50, 30, 20), evaluations=2)) == (50, 30, 20)


def test_leaves_are_tuned_with_their_stages(text_file, tmp_path):
    rates = {"optimizer": {"learning_rate": (1e-3, 1e-2)}}
    values = comparison(text_file, tune=rates, cells={"masked": CELLS["masked"]})
    config = build_comparison(values)
    cells = planning.plan_cells(config, tmp_path)
    tries = tune.plan_tries(config, cells, tmp_path)
    assert not tune.run_tries(tries, 1, tmp_path / "logs")
    (cell,), shown, _ = tune.tuned_cells(cells, tries)
    rate = 1e-2 if "0.01" in shown["masked"]["chosen"] else 1e-3
    assert [stage.resolved.config.optimizer.learning_rate for stage in cell.stages] == [rate] * 2
    assert cell.total == cells[0].total
    of_a_stage = build_comparison(values | {"tune": {"optimizer": {"warmup_steps": (1, 2)}}})
    with pytest.raises(UserError, match=r"tune\.optimizer\.warmup_steps: a stage has a value"):
        tune.plan_tries(of_a_stage, cells, tmp_path)


@pytest.mark.slow
def test_a_stage_that_fails_fails_what_goes_on_from_it(text_file, tmp_path):
    diverging = {
        "until": "50%",
        "optimizer": {"learning_rate": 100.0, "weight_decay": 10.0, "warmup_steps": 0},
    }
    cells = {"good": {}, "bad": {"stages": (diverging, {})}}
    path, workdir = tmp_path / "config.py", tmp_path / "run"
    path.write_text(f"def get_config():\n    return {comparison(text_file, cells=cells)!r}\n")
    _, err = run("compare", f"--config={path}", f"--workdir={workdir}", "--jobs=2", code=76)
    assert "1 of 2 runs failed: bad: step" in err


def test_a_stage_with_short_rows_is_left_out_of_what_it_cannot_read(text_file, tmp_path):
    """Spans are chosen for the rows of the last stage."""
    short = {"until": "50%", "data": {"lengths": {"sequence_length": 12}}}
    cells = {"grown": {"stages": (short, {})}}
    more = {"cells": cells, "score_curves": True, "equal_windows": False}
    lines: list[str] = []
    with t5x_lite.messages_to(lines.append):
        report = compare(build_comparison(comparison(text_file, **more)), tmp_path)
    curves = report["cells"]["grown"]["runs"]["grown"]["score_curves"]
    assert [step for step, _ in curves["span_bits_left"]] == [12]
    assert any("step 6 is left out of spans: " in line for line in lines)


def test_curves_of_a_mixture_go_on_after_those_of_one_objective(text_file, tmp_path):
    """Its own loss does not say its bits per byte, so its checkpoints are asked. A stage on another
    text has no part in the curve.
    """
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text()[::-1])
    mixture = {"objective": "causal_lm + masked_next_token"}
    cells = {
        "mixed": {"stages": ({"until": "50%"}, mixture)},
        "moved": {"stages": ({"until": "50%", "data": {"source": str(other)}} | mixture, {})},
    }
    more = {"cells": cells, "score_curves": True, "span_count": 0}
    report = compare(build_comparison(comparison(text_file, **more)), tmp_path / "tree")
    steps = {
        name: [step for step, _ in of["runs"][name]["score_curves"]["bits_per_byte"]]
        for name, of in report["cells"].items()
    }
    assert steps == {"mixed": [6, 12], "moved": [12]}
    mixed = report["cells"]["mixed"]
    last = mixed["runs"]["mixed"]["score_curves"]["bits_per_byte"][-1][1]
    assert last == pytest.approx(mixed["scores"]["bits_per_byte"]["mean"], rel=1e-6)
