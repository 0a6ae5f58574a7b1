"""Adaptation: every text-to-text model is asked for spans as a prefix language model."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from conftest import CELLS, MORE_CELLS, run, settings

from t5x_lite.comparison import side_runs
from t5x_lite.comparison.adaptation import (
    Adaptation,
    adapt,
    plan_adaptation,
    plan_adapted_run,
    steps_of,
)
from t5x_lite.config.files import build_comparison
from t5x_lite.errors import NOT_FINITE, UserError
from t5x_lite.progress import messages_to
from t5x_lite.resolve import text_data

FAMILIES = {
    "bert": ("masked_lm", "encoder", {"sequence_length": 42}),
    "t5": ("span_corruption", "encoder_decoder", {"inputs": 37, "targets": 9}),
    "gpt": ("causal_lm", "decoder", {"sequence_length": 40}),
}


def comparison(text_file, families=tuple(FAMILIES), **more) -> dict:
    """Return the settings of a comparison of families in windows of 40 tokens."""
    base = settings(text_file)
    del base["data"]["lengths"]
    cells = {}
    for name in families:
        objective, architecture, lengths = FAMILIES[name]
        model, data = {"architecture": architecture}, {"lengths": lengths}
        cells[name] = {"objective": objective, "model": model, "data": data}
    return {"base": base, "cells": cells, "budget": 640, "span_count": 20, "span_context": 6} | more


@pytest.mark.parametrize("split_documents", [False, True])
@pytest.mark.parametrize(("objective", "architecture"), CELLS + MORE_CELLS)
def test_every_text_to_text_model_reads_the_same(make, objective, architecture, split_documents):
    """The same windows, split at the same points, whatever lengths the objective needed."""
    setting = {"data.split_documents": split_documents and architecture != "encoder"}
    resolved, corpus = make(objective, architecture, **setting)
    config, vocabulary = resolved.config, corpus.tokenizer.vocabulary
    plan = Adaptation(8 * 20 * config.data.batch_size, window=20)
    if architecture == "encoder":
        with pytest.raises(UserError):
            plan_adapted_run(config, plan, vocabulary)
        return
    found = plan_adapted_run(config, plan, vocabulary, "runs/before")
    assert found.config.training.steps == 8
    assert found.config.init_from == "runs/before"
    assert found.model.architecture == architecture
    schedule = {"warmup_steps": 0, "decay_steps": 0}
    kept, before = (
        dataclasses.replace(one.optimizer, **schedule) for one in (found.config, config)
    )
    assert kept == before

    rows = text_data(found, corpus).batches("train").batch_at(0)
    gpt, _ = make("causal_lm", "decoder", **setting)
    expected = plan_adapted_run(gpt.config, plan, vocabulary)
    of_gpt = text_data(expected, corpus).batches("train").batch_at(0)
    for row, other in zip(scored(rows), scored(of_gpt), strict=True):
        np.testing.assert_array_equal(row, other)


def scored(batch) -> list[np.ndarray]:
    """Return the scored tokens of each row."""
    rows = zip(batch["decoder_targets"], batch["decoder_weights"], strict=True)
    return [targets[weights > 0] for targets, weights in rows]


def test_the_text_is_read_in_another_order(make):
    resolved, corpus = make("prefix_lm(mirrored=False)", "encoder_decoder")
    window = resolved.rows.members[0].window
    plan = Adaptation(window * resolved.config.data.batch_size, window)
    found = plan_adapted_run(resolved.config, plan, corpus.tokenizer.vocabulary)
    first, again = (
        text_data(one, corpus).batches("train").batch_at(0)["decoder_targets"]
        for one in (resolved, found)
    )
    assert not any(
        (row[None, : window // 2] == first[:, : window // 2]).all(1).any() for row in again
    )


def test_the_window_is_the_shortest_of_all(make):
    cells = [
        make(*cell)[0].rows
        for cell in (("causal_lm", "decoder"), ("span_corruption", "encoder_decoder"))
    ]
    windows = [cell.members[0].window for cell in cells]
    assert plan_adaptation(100, cells) == Adaptation(100, min(windows))
    assert plan_adaptation(0, cells) is None


@pytest.mark.parametrize(("batch_size", "steps"), [(8, 30), (16, 15), (32, None), (96, None)])
def test_models_with_other_batches_read_as_much(batch_size, steps):
    plan = Adaptation(tokens=30 * 8 * 40, window=40)
    if steps:
        assert steps_of(plan, batch_size) == steps
        return
    with pytest.raises(UserError, match=r"adapt_tokens: got 9,600, but a step of .* rows reads"):
        steps_of(plan, batch_size)


@pytest.fixture(scope="module")
def written(tmp_path_factory, text_file):
    """A comparison whose first cell is an encoder: its config and its directory, trained."""
    directory = tmp_path_factory.mktemp("adapted")
    values = comparison(text_file, adapt_tokens=6 * 8 * 40)
    values["base"]["model"]["positions"] = "relative"
    values["base"]["optimizer"] = {"learning_rate": 1e-2, "warmup_steps": 0}
    path = directory / "config.py"
    path.write_text(f"def get_config():\n    return {values!r}\n")
    out, _ = run("compare", f"--config={path}", f"--workdir={directory / 'run'}")
    assert "bert cannot be adapted, so it is left out there: " in out
    return path, directory / "run"


def test_adapted_models_are_compared(written):
    _, workdir = written
    results = json.loads((workdir / "report.json").read_text())
    scores = {name: of["scores"] for name, of in results["cells"].items()}
    assert "adapted_bits" not in scores["bert"]
    # The baseline is an encoder, so the first of the others is theirs.
    assert scores["t5"]["adapted_bits"]["among"] == ["t5", "gpt"]
    assert scores["gpt"]["adapted_bits"]["difference"]["baseline"] == "t5"
    assert "difference" not in scores["t5"]["adapted_bits"]
    assert scores["gpt"]["span_bits_left"]["difference"]["baseline"] == "bert"
    assert results["rule"]["score"] == "adapted_bits"
    counted = results["counting"]["Kneser-Ney trigram"]
    assert counted["adapted_bits"] == counted["span_bits_left"]
    for name in ("t5", "gpt"):
        lines = (workdir / name / "adapted/metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[-2])["raw_tokens"] == 6 * 8 * 40
        # It starts from the run: one that starts afresh has a higher loss.
        first = json.loads(lines[0])["loss"]
        assert (
            first
            < json.loads((workdir / name / "metrics.jsonl").read_text().split("\n")[0])["loss"]
        )
    # Only a model that ends what it fills in is asked where it ends.
    assert set(results["span_ends"]["t5"]) == {"left", "both"}
    assert results["span_ends"]["gpt"] == results["span_ends"]["bert"] == {}
    assert results["hours"]["adaptation"] > 0
    text = (workdir / "report.md").read_text()
    assert (
        "After reading 1920 tokens as prefix language models, given the text before a gap" in text
    )
    assert "| gpt | t5 | bits per byte, adapted |" in text
    assert "What knowing the end of a span is worth" in text


def test_adapted_models_are_kept(written, tmp_path):
    path, workdir = written
    command = ("compare", f"--config={path}", f"--workdir={workdir}")
    out, _ = run(*command)
    assert "adapted: training" not in out
    before = (workdir / "gpt/adapted.json").read_text()
    run("report", f"--workdir={tmp_path / 'two'}", workdir / "t5", workdir / "gpt")
    out, _ = run(*command, "--config.span_count=10")
    assert "adapted: training" not in out
    assert (workdir / "gpt/adapted.json").read_text() == before


def test_an_adaptation_that_was_stopped_goes_on_only_as_it_was(written, tmp_path):
    _, workdir = written
    copied = tmp_path / "gpt"
    shutil.copytree(workdir / "gpt", copied)
    said = []
    with messages_to(said.append):
        assert adapt(copied, Adaptation(3 * 8 * 40, 40), copied / "adapted")
    lines = (copied / "adapted/metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    trained = [record["step"] for record in records if record["split"] == "train"]
    assert trained == [1, 2, 3]


def test_an_adaptation_that_diverges_is_left_out(written, tmp_path, monkeypatch):
    def diverge(*_):
        raise UserError(NOT_FINITE, "the loss is not finite")

    _, workdir = written
    monkeypatch.setattr(side_runs, "train_stages", diverge)
    said = []
    with messages_to(said.append):
        assert not adapt(workdir / "gpt", Adaptation(320, 40), tmp_path / "adapted")
    assert said[-1] == "gpt, adapted: the loss is not finite"


def test_what_cannot_be_adapted_is_refused(tmp_path, text_file):
    with pytest.raises(UserError, match="span_count: got 0, but adapt_tokens asks for spans"):
        build_comparison(comparison(text_file, adapt_tokens=960, span_count=0))
    for families, more, reason in (
        (("t5", "gpt"), {"adapt_tokens": 5}, "a step of 8 rows reads 320 raw tokens"),
        (("bert",), {"adapt_tokens": 960}, "no cell can be a prefix language model"),
        (("t5", "gpt"), {"decide_by": "adapted_bits"}, "decide_by: got 'adapted_bits'"),
        (("gpt",), {"papers": ({},)}, "papers: got {}, expected text"),
    ):
        values = comparison(text_file, families, **more)
        path = tmp_path / "config.py"
        path.write_text(f"def get_config():\n    return {values!r}\n")
        command = ("compare", f"--config={path}", f"--workdir={tmp_path / 'run'}", "--dry-run")
        _, err = run(*command, code=78)
        assert reason in err
