"""Tuning each cell of a comparison before its seeds are trained."""

import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import run, settings

from t5x_lite.comparison import cells as planning
from t5x_lite.comparison import tune
from t5x_lite.config import Data
from t5x_lite.config.files import build_comparison, load_comparison
from t5x_lite.data.store.corpus import hold_out
from t5x_lite.data.store.prepare import prepare
from t5x_lite.errors import UserError

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


def test_each_cell_chooses_its_rate_with_a_seed_and_a_text_that_are_not_reported(
    tmp_path, text_file
):
    """A rate of 0 learns nothing, and one of 100 diverges, or as good as that."""
    config = of_two(text_file, tune_budget=0.5)
    (tmp_path / "config.py").write_text(f"def get_config():\n    return {config!r}\n")
    workdir = tmp_path / "run"
    command = ("compare", f"--config={tmp_path / 'config.py'}", f"--workdir={workdir}")
    rates = "--tune=optimizer.learning_rate=0,3e-3,100"
    out, _ = run(*command, rates, "--dry-run")
    assert "tuned before: 6 tries of 0.5 of the budget each" in out
    assert not (workdir / "tuning").exists()

    out, _ = run(*command, rates)
    results = json.loads((workdir / "report.json").read_text())
    for cell in ("gpt", "bert"):
        losses = results["tuning"][cell]["losses"]
        assert losses["learning_rate=3e-3"] < losses["learning_rate=0"]
        assert results["tuning"][cell]["chosen"] == "learning_rate=3e-3"
        assert results["tuning"][cell]["at_end"] == []
        assert results["tuning"][cell]["share"] == 1.5  # three tries of half the steps
        reported = json.loads((workdir / cell / "config.json").read_text())
        tried = json.loads((workdir / f"tuning/{cell},learning_rate=3e-3/config.json").read_text())
        for one, seed, steps in ((reported, 0, 8), (tried, 2**31 - 1, 4)):
            assert one["optimizer"]["learning_rate"] == 3e-3
            assert (one["seed"], one["training"]["steps"]) == (seed, steps)
    page = (workdir / "report.md").read_text()
    assert "How each model was tuned" in page
    assert "No setting was tuned" not in page

    # The same command trains nothing again, and one with a value more only that.
    before = {path: path.stat().st_mtime_ns for path in workdir.glob("tuning/*/metrics.jsonl")}
    assert len(before) == 6
    out, _ = run(*command, rates.replace("100", "100,1e-3"))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "gpt,learning_rate=1e-3: training" in out
    assert "gpt,learning_rate=3e-3: training" not in out


def test_tries_at_once_and_one_that_diverges(tmp_path, text_file, monkeypatch):
    config = build_comparison(
        of_two(text_file, tune={"optimizer": {"learning_rate": (1e-3, 2e-3), "beta1": (0.5, 0.9)}})
    )
    cells = planning.plan_cells(config, tmp_path)
    tries = tune.plan_tries(config, cells, tmp_path)
    assert len({one.directory for one in tries}) == len(tries) == 8
    assert tries[1].values == {"optimizer.learning_rate": 1e-3, "optimizer.beta1": 0.9}
    assert tries[1].label == "learning_rate=0.001,beta1=0.9"
    assert tries[1].tuned.config.optimizer.beta1 == tries[1].config.optimizer.beta1 == 0.9

    # The lowest loss wins; what diverged cannot.
    losses = dict(zip((one.directory for one in tries), (3, None, 2, 4, *[None] * 4), strict=True))
    monkeypatch.setattr(tune, "loss_of_try", lambda config, directory: losses[directory])
    (chosen,), shown = tune.tuned_cells(cells[:1], tries)
    assert chosen.resolved.config.optimizer.learning_rate == 2e-3
    assert chosen.resolved.config.optimizer.beta1 == 0.5
    assert chosen.resolved.steps == cells[0].resolved.steps
    assert shown["gpt"]["at_end"] == ["optimizer.learning_rate", "optimizer.beta1"]
    with pytest.raises(UserError, match=r"all tries of bert diverged .* try lower learning rates"):
        tune.tuned_cells(cells, tries)
    same, nothing = tune.tuned_cells(cells, [])
    assert (same, nothing) == (cells, {})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"objective": ("causal_lm", "prefix_lm")}, "tune.objective: changes what a cell is"),
        ({"model": {"d_model": (16, 32)}}, "tune.model.d_model: changes what a cell is"),
        ({"data": {"batch_size": (8, 16)}}, "tune.data.batch_size: changes what a cell is"),
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


@pytest.mark.parametrize("sources", ["one", "two"])
def test_what_tunes_is_the_end_of_the_training_text_and_nothing_that_judges(
    tmp_path, text_file, sources
):
    source = str(text_file)
    if sources == "two":
        other = tmp_path / "other.txt"
        other.write_text("\n".join(f"a dog sees {n} cats" for n in range(400)))
        source = f"{text_file} + 2 * {other}"
    data = Data(**{**settings(text_file)["data"], "source": source, "lengths": Data().lengths})
    corpus = prepare(replace(data, document="line", validation_fraction=0.08))
    held_out = hold_out(corpus)
    eos = corpus.tokenizer.vocabulary.eos
    for before, after in zip(corpus.sources, held_out.sources, strict=True):
        tokens = [np.asarray(after.tokens[split]) for split in ("train", "validation")]
        np.testing.assert_array_equal(np.concatenate(tokens), before.tokens["train"])
        assert tokens[0][-1] == eos  # whole documents on both sides
        assert 0 < len(tokens[1]) <= len(before.tokens["validation"])
        assert len(tokens[1]) <= len(before.tokens["train"]) // 10
    assert held_out.manifest["validation"] != corpus.manifest["validation"]
    assert held_out.manifest["train"] != corpus.manifest["train"]
