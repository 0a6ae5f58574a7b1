"""`verify`: runs, suites of runs and exports, whole and damaged."""

import json
import shutil

import pytest
from conftest import run

from t5x_lite import manifest
from t5x_lite.training.optimizer import OPTIMIZERS


def lines(out: str) -> dict[str, str]:
    """What verify said, whole or damaged, by the name of the part."""
    found = [line for line in out.splitlines() if line.startswith(("whole", "damaged"))]
    words = [line.split(maxsplit=2) for line in found]
    return {path.rstrip(":").rsplit("/", 1)[1]: state for state, path, *_ in words}


def test_a_whole_run_is_whole(trained):
    out, _ = run("verify", trained.workdir)
    parts = {"config.json", "run.json", "tokenizer", "metrics.jsonl", "6"}
    assert lines(out) == dict.fromkeys(parts, "whole")
    assert "all 5 parts are what was written" in out


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_every_optimizer_is_verified(tmp_path, config_file, name):
    """Its arrays have the same names when they are saved, restored and verified."""
    more = {"optimizer.name": name, "training.steps": 1, "model.d_model": 128}
    command = ("train", f"--config={config_file(**more)}", f"--workdir={tmp_path / 'run'}")
    run(*command)
    out, _ = run("verify", tmp_path / "run")
    assert "all 5 parts are what was written" in out
    out, _ = run(*command, "--config.training.steps=2")
    assert "damaged" not in out


def rewrite(path, change):
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


DAMAGES = {
    "a setting": (
        "config.json",
        lambda w: rewrite(w / "config.json", lambda c: c["model"].update(num_heads=4)),
        "model.num_heads is 4, but checkpoint 6 was made with 2",
    ),
    "a figure": (
        "metrics.jsonl",
        lambda w: (w / "metrics.jsonl").write_text(
            (w / "metrics.jsonl").read_text().replace('"loss": ', '"loss": 1', 1)
        ),
        "a record has changed since the checkpoint was saved",
    ),
    "a lost record": (
        "metrics.jsonl",
        lambda w: (w / "metrics.jsonl").write_text(
            "".join((w / "metrics.jsonl").read_text().splitlines(keepends=True)[1:])
        ),
        "a record has changed since the checkpoint was saved",
    ),
    "another text": (
        "tokenizer",
        lambda w: rewrite(w / "corpus.json", lambda c: c.update(tokenizer="0123456789abcdef")),
        "but corpus.json has 0123456789abcdef",
    ),
    "a checkpoint's file": (
        "6",
        lambda w: (w / "checkpoints/6/_METADATA").write_text("{}"),
        "_METADATA has 2 bytes, expected",
    ),
    "another run": (
        "6",
        lambda w: rewrite(w / "run.json", lambda c: c.update(id="another")),
        "it is a checkpoint of another run",
    ),
    "an array": (
        "6",
        lambda w: damage_array(w / "checkpoints/6"),
        "params/embedding is not what was in memory when it was saved",
    ),
}


def damage_array(checkpoint):
    """Let the files hold another array than the one that was in memory."""
    facts = manifest.read(checkpoint)
    facts["arrays"]["params/embedding"][2] ^= 1
    manifest.write(checkpoint, facts, ("_CHECKPOINT_METADATA", "commit_success.txt"))


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_damaged_is_named(trained, name):
    part, damage, words = DAMAGES[name]
    damage(trained.workdir)
    out, err = run("verify", trained.workdir, code=66)
    assert lines(out)[part] == "damaged"
    assert words in out
    assert "1 of 5 parts are damaged" in err


def test_a_run_is_checked_by_a_relative_path(trained, monkeypatch):
    monkeypatch.chdir(trained.workdir.parent)
    out, _ = run("verify", "run")
    assert "all 5 parts are what was written" in out


@pytest.mark.parametrize("name", ["run.json", "config.json", "tokenizer", "corpus.json"])
def test_what_is_missing_is_named(trained, tmp_path, name):
    """Also in a suite, in a run that is called as a part of one, and beside a whole run."""
    (tmp_path / "suite").mkdir()
    for copy in ("best", "whole"):
        shutil.copytree(trained.workdir, tmp_path / "suite" / copy)
    path = tmp_path / "suite/best" / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if name == "corpus.json":  # not read for anything that was trained
        run("verify", tmp_path / "suite")
        return
    out, _ = run("verify", tmp_path / "suite", code=66)
    assert f"damaged  {tmp_path / 'suite/best'}" in out
    assert f"damaged  {tmp_path / 'suite/whole'}" not in out


def test_the_arrays_are_left_out_if_only_files_are_asked(trained):
    damage_array(trained.workdir / "checkpoints/6")
    run("verify", trained.workdir, "--verify=files")


def test_several_runs_and_an_export_are_found(trained, tmp_path):
    suite = tmp_path / "suite"
    for name in ("a", "b"):
        shutil.copytree(trained.workdir, suite / "cells" / name)
    run("export", f"--workdir={trained.workdir}", suite / "exported")
    out, _ = run("verify", suite)
    assert "all 11 parts are what was written" in out
    record = manifest.read(suite / "exported")
    assert record["step"] == 6
    assert record["run"] == json.loads((trained.workdir / "run.json").read_text())["id"]

    path = suite / "exported/model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    out, err = run("verify", suite, code=66)
    assert "1 of 11 parts are damaged" in err
    assert "exported: model.safetensors has changed since it was written" in out
    _, err = run("import", suite / "exported", f"--workdir={tmp_path / 'back'}", code=65)
    assert "model.safetensors has changed since it was written; bring it back" in err


@pytest.mark.parametrize(
    ("path", "words"), [("none", "no such directory"), ("", "no run and no export is there")]
)
def test_what_holds_nothing_is_refused(tmp_path, path, words):
    _, err = run("verify", tmp_path / path, code=66)
    assert words in err
