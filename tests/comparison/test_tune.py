"""Tuning each cell of a comparison before its seeds are trained."""

import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import run, settings

from t5x_lite.comparison import cells as planning
from t5x_lite.comparison import report, tune
from t5x_lite.comparison.evaluations import kept_answer
from t5x_lite.config import Data, Task, to_dict
from t5x_lite.config.files import build_comparison, load, load_comparison
from t5x_lite.data.store.corpus import SPLITS, hold_out
from t5x_lite.data.store.prepare import prepare
from t5x_lite.errors import UserError
from t5x_lite.report.page import short

TWO = {
    "gpt": {"data": {"lengths": {"sequence_length": 40}}},
    "bert": {
        "objective": "masked_lm",
        "model": {"architecture": "encoder"},
        "data": {"lengths": {"sequence_length": 42}},
    },
}


def of_two(text_file, **more) -> dict:
    """Return a comparison of two small cells, of which nothing more is asked."""
    base = settings(text_file)
    del base["data"]["lengths"]
    return {
        "base": base,
        "cells": TWO,
        "budget": 8 * 8 * 40,
        "evaluations": 1,
        "span_count": 0,
        "ngram": False,
        "other_objectives": False,
        **more,
    }


def test_cells_whose_masks_change_during_the_run_are_tuned(tmp_path, text_file):
    """What a step costs depends on how many steps there are; a rate does not change it."""
    cells = {
        "gpt": {},
        "both": {"objective": "causal_lm + masked_next_token(noise_density=linear(0.3, 0.15))"},
    }
    config = of_two(
        text_file, cells=cells, match="flops", budget=1e9, tune={"optimizer.learning_rate": (0.1,)}
    )
    config["base"]["data"]["lengths"] = {"sequence_length": 40}
    cells = planning.plan_cells(build_comparison(config), tmp_path)
    assert len(tune.plan_tries(build_comparison(config), cells, tmp_path)) == 2
    steps = cells[1].config.training.steps
    again = planning.plan_cells(
        build_comparison({**config, "budget": steps, "match": "steps"}), tmp_path
    )
    assert cells[1].costs == again[1].costs


def test_each_cell_chooses_its_rate_with_a_seed_and_a_text_that_are_not_reported(
    tmp_path, text_file
):
    """A rate of 0 learns nothing, and one of 100 diverges, or as good as that."""
    own = tmp_path / "text.txt"
    own.write_text(text_file.read_text())
    config = of_two(own, tune_budget=0.5)
    (tmp_path / "config.py").write_text(f"def get_config():\n    return {config!r}\n")
    workdir = tmp_path / "run"
    command = ("compare", f"--config={tmp_path / 'config.py'}", f"--workdir={workdir}")
    rates = "--tune=optimizer.learning_rate=0,3e-3,100"
    out, _ = run(*command, rates, "--dry-run")
    assert "tuning: 6 tries with 0.5 of the budget each" in out
    assert not (workdir / "tuning").exists()

    run(*command, "--tune=optimizer.learning_rate=3e-3,100")
    results = json.loads((workdir / "report.json").read_text())
    assert results["tuning"]["gpt"]["chosen"] == "learning_rate=3e-3"
    assert results["tuning"]["gpt"]["at_end"] == ["optimizer.learning_rate"]

    # A value more: what was tried before is not tried again.
    before = {path: path.stat().st_mtime_ns for path in workdir.glob("tuning/*/metrics.jsonl")}
    assert len(before) == 4
    out, _ = run(*command, rates)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "gpt,learning_rate=0: training" in out
    assert "gpt,learning_rate=3e-3: training" not in out
    results = json.loads((workdir / "report.json").read_text())
    for cell in ("gpt", "bert"):
        losses = results["tuning"][cell]["losses"]
        assert losses["learning_rate=3e-3"] < losses["learning_rate=0"]
        assert results["tuning"][cell]["chosen"] == "learning_rate=3e-3"
        assert results["tuning"][cell]["at_end"] == []
        assert results["tuning"][cell]["share"] == 1.5  # three tries of half the steps
        # The validation text, which is reported, chooses nothing.
        judged_by = [
            json.loads((workdir / place / "corpus.json").read_text())["validation"]
            for place in (cell, f"tuning/{cell},learning_rate=0")
        ]
        assert "held out of" in judged_by[1]
        assert judged_by[0] != judged_by[1]
        reported = json.loads((workdir / cell / "config.json").read_text())
        tried = json.loads((workdir / f"tuning/{cell},learning_rate=3e-3/config.json").read_text())
        for one, seed, steps in ((reported, 0, 8), (tried, 2**31 - 1, 4)):
            assert one["optimizer"]["learning_rate"] == 3e-3
            assert (one["seed"], one["training"]["steps"]) == (seed, steps)
    page = (workdir / "report.md").read_text()
    assert "How each model was tuned" in page
    assert "for 0.5 of the steps here, with a seed that is not reported" in page
    flops = [cell["flops"] for cell in results["cells"].values()]
    assert f"This took {short(1.5 * sum(flops))} FLOPs, beside the {short(sum(flops))}" in page
    assert "No setting was tuned" not in page

    # Another choice does not pass for the runs that are there, and other text tunes anew.
    _, err = run(*command, "--tune=optimizer.learning_rate=0", code=78)
    assert "chooses optimizer.learning_rate=0.0 now, and was trained with 0.003; remove" in err
    own.write_text(own.read_text().replace("cat", "cow"))
    out, _ = run(
        *command[:-1],
        f"--workdir={workdir}",
        "--tune=optimizer.learning_rate=3e-3",
        "--cells=gpt",
        code=65,
    )
    assert "gpt,learning_rate=3e-3: training" in out
    assert "bert,learning_rate=3e-3: training" not in out


@pytest.mark.parametrize(
    ("gpt", "bert", "deviation", "expected"),
    [
        # The losses of three rates for each of two models, and the deviation over seeds of both
        ((2.5, 2.00, 2.02), (2.3, 2.9, 2.1), 0.01, ["gpt chose 2 by 0.02 nats over 3, the choice"]),
        ((2.5, 2.00, 2.02), (2.3, 2.1, 2.9), 0.01, ["gpt chose 2 by 0.02 nats over 3 and might"]),
        ((2.5, 2.00, 2.02), (2.3, 2.1, 2.9), 0.1, ["gpt chose 2 by", "bert chose 2 by 0.2 nats"]),
        ((2.5, 2.00, 2.02), (2.3, 2.9, 2.1), 0.007, []),
        ((2.5, 2.00, 2.02), (2.3, 2.1, 2.1), None, ["One seed does not tell"]),
        ((None, 2.00, None), (2.3, 2.1, 2.9), 0.01, []),
    ],
)
def test_a_choice_that_another_seed_might_not_make_is_named(gpt, bert, deviation, expected):
    tuning, cells = {}, {}
    for name, values in (("gpt", gpt), ("bert", bert)):
        losses = dict(zip("123", values, strict=True))
        tuning[name] = {
            "losses": losses,
            "chosen": min(filter(losses.get, losses), key=losses.get),
            "steps": 1,
            "share": 1,
            "at_end": [],
        }
        loss = {"loss": {"deviation": deviation}}
        cells[name] = {"scores": loss, "flops": 1, "runs": [0], "steps": 1}
    shown = report._tuning({"tuning": tuning, "cells": cells, "tasks": {}})
    sentences = shown[2:]  # after the table and the note
    assert [one[: len(start)] for one, start in zip(sentences, expected, strict=True)] == expected


def test_tries_at_once_and_one_that_diverges(tmp_path, text_file, monkeypatch):
    config = build_comparison(
        of_two(text_file, tune={"optimizer": {"learning_rate": (1e-3, 2e-3), "beta1": (0.5, 0.9)}})
    )
    cells = planning.plan_cells(config, tmp_path)
    tries = tune.plan_tries(config, cells, tmp_path)
    assert len({one.directory for one in tries}) == len(tries) == 8
    assert tries[1].values == {"optimizer.learning_rate": 1e-3, "optimizer.beta1": 0.9}
    assert tries[1].label == "learning_rate=0.001,beta1=0.9"
    assert tries[1].tuned.optimizer.beta1 == tries[1].config.optimizer.beta1 == 0.9

    # The lowest loss wins; what diverged cannot.
    losses = dict(zip((one.directory for one in tries), (3, None, 2, 4, *[None] * 4), strict=True))
    monkeypatch.setattr(tune, "loss_of_try", lambda config, directory: losses[directory])
    (chosen,), shown, failed = tune.tuned_cells(cells[:1], tries)
    assert not failed
    assert chosen.resolved.config.optimizer.learning_rate == 2e-3
    assert chosen.resolved.config.optimizer.beta1 == 0.5
    assert chosen.resolved.steps == cells[0].resolved.steps
    assert shown["gpt"]["at_end"] == ["optimizer.learning_rate", "optimizer.beta1"]
    (_, bert), shown, failed = tune.tuned_cells(cells, tries)
    assert (bert, list(shown)) == (cells[1], ["gpt"])
    assert "all tries of bert diverged" in str(failed["bert"])
    assert tune.tuned_cells(cells, []) == (cells, {}, {})

    # What fails otherwise fails its cell.
    def of_try(config, directory):
        if "bert" in directory.name:
            raise UserError(74, "no space")

    monkeypatch.setattr(tune, "loss_of_try", of_try)
    failed = tune.run_tries(tries[3:5], 1, tmp_path)
    assert list(failed) == ["bert"]
    assert "tuning/bert,learning_rate=0.001,beta1=0.5: no space" in str(failed["bert"])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"objective": ("causal_lm", "prefix_lm")}, "tune.objective: cells have different values"),
        ({"model": {"d_model": (16, 32)}}, "tune.model.d_model: changes what a cell is"),
        ({"data": {"batch_size": (8, 16)}}, "tune.data.batch_size: changes what a cell is"),
        ({"data": {"source": ("a.txt", "b.txt")}}, "tune.data.source: changes what a cell is"),
        ({"mesh": {"fsdp": (1, 2)}}, "tune.mesh.fsdp: changes what a cell is"),
        ({"optimizer": {"warmup_steps": (1, 2)}}, "tune.optimizer.warmup_steps: changes what"),
        ({"model": {"architecture": ("encoder",)}}, "cells have different values of it"),
        ({"optimizer": {"beta1": ([0.5], [0.9])}}, "beta1: got "),
        ({"seed": (1, 2)}, "tune.seed: changes what a cell is"),
        ({"training": {"steps": (1, 2)}}, "tune.training.steps: changes what a cell is"),
        ({"optimizer": {"lr": (1, 2)}}, "did you mean optimizer.learning_rate"),
        ({"optimizer": {"learning_rate": (1, -2)}}, "learning_rate: got -2"),
        ({"optimizer": {"learning_rate": 1e-3}}, "expected different values, such as"),
        ({"optimizer": {"learning_rate": (1e-3, 1e-3)}}, "expected different values, such as"),
        ({"optimizer": {"learning_rate": ()}}, "expected different values, such as"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_trained(
    tmp_path, text_file, values, expected
):
    config = build_comparison(of_two(text_file, tune=values))
    cells = planning.plan_cells(config, tmp_path)
    with pytest.raises(UserError, match=expected):
        tune.plan_tries(config, cells, tmp_path)


def test_each_budget_is_tuned_by_itself(tmp_path, text_file):
    values = {"optimizer": {"learning_rate": (1e-3, 2e-3)}}
    config = of_two(text_file, tune=values, budget=0, budgets=(4 * 320, 8 * 320), tune_budget=0.5)
    config = build_comparison(config)
    cells = planning.plan_cells(config, tmp_path)
    tries = tune.plan_tries(config, cells, tmp_path)
    assert len({one.directory for one in tries}) == len(tries) == 2 * 2 * 2
    assert [one.config.training.steps for one in tries] == [2] * 4 + [4] * 4
    assert [one.tuned.training.steps for one in tries] == [4] * 4 + [8] * 4


def test_a_reported_seed_tunes_nothing(text_file):
    values = {"optimizer": {"learning_rate": (1e-3, 2e-3)}}
    with pytest.raises(UserError, match="tune_seed: got 4, which is reported, too"):
        build_comparison(of_two(text_file, tune=values, tune_seed=4, seeds=2, max_seeds=5))
    build_comparison(of_two(text_file, tune=values, tune_seed=5, seeds=2, max_seeds=5))


def test_settings_of_tuning_from_the_command_line(tmp_path, text_file):
    config = of_two(text_file, tune={"optimizer": {"beta1": (0.8, 0.9)}})
    (tmp_path / "config.py").write_text(f"def get_config():\n    return {config!r}\n")
    loaded = load_comparison(
        str(tmp_path / "config.py"), ["tune_budget=0.25"], (), ["optimizer.learning_rate=1e-3,1e-2"]
    )
    assert loaded.tune_budget == 0.25
    assert len(tune.combinations(loaded.tune)) == 4
    with pytest.raises(UserError, match=r"--tune=optimizer\.beta1: expected"):
        load_comparison(str(tmp_path / "config.py"), (), (), ["optimizer.beta1"])


@pytest.mark.parametrize("sources", ["one", "two", "apart", "long"])
def test_what_tunes_is_the_end_of_the_training_text_and_nothing_that_judges(
    tmp_path, text_file, sources
):
    """One source, two, one with validation text of its own, and one of a long last document."""
    data = Data(**{**settings(text_file)["data"], "lengths": Data().lengths})
    other = tmp_path / "other.txt"
    other.write_text("\n".join(f"a dog sees {n} cats" for n in range(400)))
    data = replace(data, document="line", validation_fraction=0.08)
    if sources == "two":
        data = replace(data, source=f"{text_file} + 2 * {other}")
    if sources == "apart":
        data = replace(data, validation_source=str(other))
    if sources == "long":
        long = tmp_path / "long.txt"
        long.write_text(f"{text_file.read_text()}{'the cow ' * 900}\nthe end")
        data = replace(data, source=str(long))
    corpus = prepare(data)
    held_out = hold_out(corpus)
    eos = corpus.tokenizer.vocabulary.eos
    total = 0
    for before, after in zip(corpus.sources, held_out.sources, strict=True):
        train, validation = (np.asarray(after.tokens[split]) for split in SPLITS)
        np.testing.assert_array_equal(np.append(train, validation), before.tokens["train"])
        assert len(validation) <= np.ceil(len(before.tokens["train"]) / 10)
        if sources != "long" and len(validation):
            assert train[-1] == eos  # whole documents on both sides
        total += len(validation)
    wanted = min(corpus.manifest["validation"]["tokens"], corpus.manifest["train"]["tokens"] / 10)
    assert wanted / 2 - 2 <= total <= wanted + 2
    assert held_out.manifest["validation"] != corpus.manifest["validation"]
    assert held_out.manifest["train"] != corpus.manifest["train"]


def test_settings_of_fine_tuning_that_cannot_be_tuned_are_refused_early(tmp_path, text_file):
    for axis, expected in (
        ("optimizer.lr=1e-4,3e-4", "did you mean optimizer.learning_rate"),
        ("optimizer.learning_rate", "tune_finetune=optimizer.learning_rate: expected KEY=VALUE"),
        ("seed=1,2", "tune_finetune=seed=…: seed cannot be an axis"),
    ):
        config = of_two(text_file, tasks=("which_module",), tune_finetune=(axis,))
        with pytest.raises(UserError, match=expected):
            planning.plan_comparison(build_comparison(config), tmp_path)


@pytest.mark.parametrize(
    ("name", "settings", "new", "changed"),
    [
        ("config", load("gpt_tiny"), "adapt", {"seed": 4}),
        ("task", Task(name="t", source="x"), "turn", {"label": "other"}),
    ],
)
def test_answers_are_kept_where_only_a_setting_is_new(tmp_path, name, settings, new, changed):
    path, values = tmp_path / "answer.json", to_dict(settings)
    key = {"step": 5, name: values}
    assert kept_answer(path, key, lambda: "first") == "first"
    without = {field: value for field, value in values.items() if field != new}
    for written, expected in (
        (without, "first"),
        (values | changed, "second"),
        (without | {"gone": 1}, "second"),
        (None, "second"),
    ):
        path.write_text(json.dumps({"of": {"step": 5, name: written}, "answer": "first"}))
        assert kept_answer(path, key, lambda: "second") == expected
