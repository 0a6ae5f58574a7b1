"""What a comparison would need elsewhere: the steps of its runs, and sums that can be added up."""

import dataclasses
import json

import pytest
from comparison.test_run import comparison
from comparison.test_windows import PRESETS
from conftest import refusal, run, slow

from t5x_lite.comparison.cells import plan_comparison
from t5x_lite.comparison.estimate import estimate, in_words
from t5x_lite.config.files import build_comparison, load_comparison
from t5x_lite.hardware import parse_topology
from t5x_lite.planning.plan import Assumptions, make_plan

LENGTHS_OF_GPT = {"lengths": {"sequence_length": 40}}
H100 = parse_topology("h100:1x1")


@pytest.mark.parametrize("positions", ["rotary", "learned"])
@pytest.mark.parametrize(
    "more",
    [
        {"match": "raw_tokens"},
        {"match": "model_tokens", "budget": 4e4},
        {"match": "flops", "budget": 0, "budgets": (2e8, 1e9)},
        {"match": "steps", "budget": 0},
        {"match": "steps", "budget": 0, "adapt_tokens": 6 * 8 * 40},
    ],
)
def test_cells_get_the_steps_that_they_are_trained_for(tmp_path, text_file, more, positions):
    values = comparison(text_file, **more)
    values["base"]["model"]["positions"] = positions
    config = build_comparison(values)
    trained, _, questions = plan_comparison(config, tmp_path)
    found = {cell.name: cell for cell in estimate(config, H100).cells}
    assert list(found) == [cell.name for cell in trained]
    for cell in trained:
        assert found[cell.name].steps == cell.total["steps"]
        assert found[cell.name].plan.parameters == cell.cost.parameters
        assert found[cell.name].flops == pytest.approx(cell.total["flops"], rel=0.01)
        # The rows of an adapted T5 are longer than its table of positions.
        left_out = ("bert",) if positions == "rotary" else ("bert", "t5")
        is_adapted = questions.adaptation and cell.name not in left_out
        assert (found[cell.name].adapted is not None) == bool(is_adapted)
    if questions.adaptation:
        assert found["gpt"].adapted.config.training.steps == 6


def test_an_adaptation_that_would_be_refused_is(text_file):
    config = build_comparison(comparison(text_file, adapt_tokens=1000))
    assert "adapt_tokens: got 1,000, but a step of 8 rows" in refusal(estimate, config, H100)
    encoders = dataclasses.replace(config, cells={"bert": config.cells["bert"]}, adapt_tokens=960)
    words = "adapt_tokens: no cell can be a prefix language model"
    assert words in refusal(estimate, dataclasses.replace(encoders, baseline=""), H100)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"seed": 3}, "seed: cells have different seeds"),
        ({"data": {"epochs": 2}}, "cells.gpt.data.epochs: the budget says how long"),
        ({"data": {"lengths": {"sequence_length": 20}}}, "have room for different windows"),
        ({"model": {"lm_head": False}}, "model.lm_head: got False, but causal_lm predicts tokens"),
    ],
)
def test_what_cannot_be_compared_is_not_planned(tmp_path, text_file, changed, reason):
    """As `compare` refuses it, too."""
    values = comparison(text_file)
    values["cells"]["gpt"] = changed | {"data": LENGTHS_OF_GPT | changed.get("data", {})}
    config = build_comparison(values)
    assert reason in refusal(estimate, config, H100)
    assert reason in refusal(plan_comparison, config, tmp_path)


def test_what_does_not_fit_is_said_with_what_would_help():
    settings = ["model.dtype=bfloat16", "budget=1e9"]
    config = load_comparison("gpt_tiny", settings, ["data.batch_size=16,100000"])
    found = estimate(config, H100)
    assert [cell.largest.fits for cell in found.cells] == [True, False]
    shown = in_words(found)
    assert "do not fit: batch_size=100000; set model.remat=True" in shown
    assert "training.microbatches" in shown


def test_stages_are_planned_one_by_one(text_file):
    stages = ({"until": "25%"}, {"objective": "prefix_lm"})
    values = comparison(text_file, match="steps", budget=40)
    values["cells"] = {"one": {}, "two": {"stages": stages}}
    values["base"]["data"]["lengths"] = {"sequence_length": 40}
    values["base"]["training"]["steps"] = 8
    one, two = estimate(build_comparison(values), H100).cells
    assert [plan.config.training.steps for plan in two.stages] == [10, 30]
    assert two.steps == one.steps == 40
    assert two.flops == pytest.approx(one.flops * 0.25 + two.plan.flops * 30, rel=1e-6)


def test_money_adds_up():
    """Two cells with three seeds, tuned with four tries of half a run each."""
    config = load_comparison("gpt_tiny", ["model.dtype=bfloat16", "seeds=3"], ["seed=7"])
    config = dataclasses.replace(
        config,
        tune={"optimizer": {"learning_rate": (1e-3, 3e-3), "beta2": (0.95, 0.99)}},
        tune_budget=0.5,
    )
    found = estimate(config, parse_topology("h100:1x8"), Assumptions(mfu=0.3, dollars=2.5))
    (cell,) = found.cells
    run_of_cell = make_plan(cell.plan.config, parse_topology("h100:1x8"), Assumptions(mfu=0.3))
    hours = 24 * run_of_cell.days
    assert found.parts().keys() == {"training", "tuning"}
    for part, times in {"training": 3, "tuning": 4 * 0.5}.items():
        expected = (times * hours, times * hours * 8 * 2.5)
        assert found.parts()[part] == pytest.approx(expected)
    assert found.cost == pytest.approx((5 * hours, 5 * hours * 8 * 2.5))


def test_what_is_not_known_is_no_zero():
    """H100 in float32, and a price that nobody has named."""
    config = load_comparison("gpt_tiny", [], ["model.num_layers=2,4"])
    found = estimate(config, H100)
    assert found.cost == (None, None)
    assert found.as_json()["dollars"] is None
    why = "the speed of h100 in float32 is not known: no time, no price; set --tflops"
    assert f"{why}, or model.dtype=bfloat16" in in_words(found)
    timed = dataclasses.replace(config, match="seconds", budget=10.0)
    assert f"match=seconds: {why}" in refusal(estimate, timed, H100)
    of_cpu = in_words(estimate(config, parse_topology("cpu:1")))
    assert "bfloat16" not in of_cpu
    # One of two has a time.
    mixed = load_comparison("gpt_tiny", [], ["model.dtype=bfloat16,float32"])
    assert f"dtype=float32: {why}" in in_words(estimate(mixed, H100))
    known = estimate(timed, H100, Assumptions(mfu=0.5, tflops=10.0))
    for cell in known.cells:
        assert cell.steps * cell.plan.step_seconds == pytest.approx(10, abs=cell.plan.step_seconds)


def test_an_mfu_that_the_roofline_does_not_allow_is_named():
    config = load_comparison("gpt_tiny", ["model.dtype=bfloat16"], ["model.num_layers=2,4"])
    hopeful = in_words(estimate(config, H100, Assumptions(mfu=0.9)))
    assert (
        "an MFU of 90% is more than the roofline allows for: num_layers=2, num_layers=4" in hopeful
    )
    assert "more than the roofline" not in in_words(estimate(config, H100))


@pytest.mark.parametrize(
    "preset",
    [name if name in ("quickstart", "worlds:facts") else slow(name) for name in PRESETS],
)
def test_every_preset_is_planned_without_its_text(preset):
    config = load_comparison(f"compare/{preset}", ["model.dtype=bfloat16"])
    found = estimate(config, H100, Assumptions(mfu=0.4))
    shown = in_words(found)
    for cell in found.cells:
        assert cell.steps > 0
        assert cell.name in shown
    assert found.cost.hours > 0
    assert "in all" in shown


def test_command(tmp_path):
    command = ("plan", "--config=compare/quickstart", "--topology=v5e:2x4")
    bfloat16 = ("--config.model.dtype=bfloat16", "--config.mesh.data=8", "--config.seeds=2")
    out, _ = run(*command, *bfloat16)
    assert "training: 3 cells × 2 seeds" in out
    assert "dollars: 1.20 per device and hour, list price" in out
    record = json.loads(run(*command, *bfloat16, "--json")[0])
    assert record["cells"].keys() == {"bert", "gpt", "gpt_denoising"}
    assert record["hours"] == pytest.approx(
        2 * sum(cell["hours"] for cell in record["cells"].values())
    )
    for option in ("--search", "--scale", "--splits", f"--workdir={tmp_path}"):
        _, err = run(*command, option, code=2)
        name = option.partition("=")[0]
        assert f"is a comparison, for which there is no {name}; leave it out" in err
