"""Adaptation: every text-to-text model is asked for spans as a prefix language model."""

import dataclasses
import json

import pytest
from conftest import CELLS, MORE_CELLS, run, settings

from t5x_lite.comparison.adaptation import adapted, plan_adaptation
from t5x_lite.config.files import build_comparison
from t5x_lite.errors import UserError

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


@pytest.mark.parametrize(("objective", "architecture"), CELLS + MORE_CELLS)
def test_every_text_to_text_model_reads_the_same(make, objective, architecture):
    """Rows of the window of all cells, whatever lengths the objective needed."""
    resolved, corpus = make(objective, architecture)
    vocabulary = corpus.tokenizer.vocabulary
    adaptation = plan_adaptation(8 * 20 * resolved.config.data.batch_size, [resolved.rows])
    assert adaptation is not None
    adaptation = adaptation._replace(window=20)
    if architecture == "encoder":
        with pytest.raises(UserError):
            adapted(resolved.config, adaptation, vocabulary)
        return
    found = adapted(resolved.config, adaptation, vocabulary, "runs/before")
    (member,) = found.rows.members
    assert (found.config.objective, member.window) == ("prefix_lm", 20)
    assert found.config.training.steps == 8
    assert found.config.init_from == "runs/before"
    assert found.model.architecture == architecture
    kept = dataclasses.replace(found.config.optimizer, warmup_steps=0, decay_steps=0)
    before = dataclasses.replace(resolved.config.optimizer, warmup_steps=0, decay_steps=0)
    assert kept == before


def test_the_window_is_even_and_the_shortest_of_all(make):
    cells = [
        make(*cell)[0].rows
        for cell in (("causal_lm", "decoder"), ("span_corruption", "encoder_decoder"))
    ]
    windows = [cell.members[0].window for cell in cells]
    adaptation = plan_adaptation(100, cells)
    assert adaptation is not None
    assert adaptation.window == min(windows) // 2 * 2
    assert plan_adaptation(0, cells) is None


def test_adapted_models_are_compared(tmp_path, text_file):
    values = comparison(text_file, adapt_tokens=3 * 8 * 40)
    path = tmp_path / "config.py"
    path.write_text(f"def get_config():\n    return {values!r}\n")
    workdir = tmp_path / "run"
    out, _ = run("compare", f"--config={path}", f"--workdir={workdir}")
    assert "bert cannot be adapted, so it is left out there: " in out

    results = json.loads((workdir / "report.json").read_text())
    scores = {name: of["scores"] for name, of in results["cells"].items()}
    assert "adapted_bits" not in scores["bert"]
    assert scores["t5"]["adapted_bits"]["among"] == ["t5", "gpt"]
    counted = results["counting"]["Kneser-Ney trigram"]
    assert counted["adapted_bits"] == counted["span_bits_left"]
    for name in ("t5", "gpt"):
        lines = (workdir / name / "adapted/metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[-2])["raw_tokens"] == 3 * 8 * 40
    # Only a model with sentinels is asked where a span ends, and each question is harder.
    assert set(results["span_ends"]["t5"]) == {"left", "both"}
    assert results["span_ends"]["gpt"] == results["span_ends"]["bert"] == {}
    for of in results["span_ends"]["t5"].values():
        assert of["given_length"] < of["beginning"] < of["with_end"]
    assert results["hours"]["adaptation"] > 0

    text = (workdir / "report.md").read_text()
    assert "After 960 more tokens as prefix language models, given the text before a gap:" in text
    assert "What knowing the end of a span is worth" in text

    out, _ = run("compare", f"--config={path}", f"--workdir={workdir}")
    assert "adapting" not in out


def test_what_cannot_be_adapted_is_refused(tmp_path, text_file):
    with pytest.raises(UserError, match="span_count: got 0, but adapt_tokens asks for spans"):
        build_comparison(comparison(text_file, adapt_tokens=960, span_count=0))
    for cells, tokens, reason in (
        (("t5", "gpt"), 5, "a step of 8 rows reads 320 raw tokens"),
        (("bert",), 960, "encoder"),
    ):
        values = comparison(text_file, cells, adapt_tokens=tokens)
        path = tmp_path / "config.py"
        path.write_text(f"def get_config():\n    return {values!r}\n")
        command = ("compare", f"--config={path}", f"--workdir={tmp_path / 'run'}", "--dry-run")
        _, err = run(*command, code=78)
        assert reason in err
