"""Who may write a run, and what it may be continued with."""

import json
import os
import re

import numpy as np
import pytest
from conftest import run, sentences
from training.runs import figures

from t5x_lite.resolve import text_data
from t5x_lite.training.loop import train


def test_a_second_run_in_the_same_directory_is_refused(tmp_path, config_file, make):
    """While the first one goes on, and not once it has ended."""
    workdir = tmp_path / "run"
    resolved, corpus = make(**{"training.steps": 3})
    command = ("train", f"--config={config_file(**{'training.steps': 3})}", f"--workdir={workdir}")
    refused = []

    def start_another(record):
        if record["step"] == 2:
            refused.append(run(*command, code=2)[1])

    train(resolved, text_data(resolved, corpus), workdir, start_another)
    assert len(refused) == 1
    assert "another run is going on there" in refused[0]
    run(*command)


def test_going_on_with_other_settings_or_text(trained, tmp_path, text_file):
    workdir, command = trained
    before = (workdir / "config.json").read_text()
    _, err = run(*command, "--config.optimizer.learning_rate=0.5", code=78)
    assert "optimizer.learning_rate: the run in" in err
    assert "0.001, now it is 0.5" in err
    run(*command, "--config.data.validation_fraction=0.3", code=78)
    store = f"--config.data.store={tmp_path / 'store'}"
    written, text = text_file.stat(), text_file.read_text()
    try:
        text_file.write_text(text + "\n\nand more")
        _, err = run(*command, store, code=65)
        assert "another text" in err
    finally:
        text_file.write_text(text)
        os.utime(text_file, ns=(written.st_atime_ns, written.st_mtime_ns))
    assert (workdir / "config.json").read_text() == before

    out, _ = run(*command, "--config.training.steps=8")
    assert "step 7/8" in out
    assert json.loads((workdir / "config.json").read_text())["training"]["steps"] == 8
    out, _ = run("evaluate", f"--workdir={workdir}", "--json")
    evaluated = json.loads(out.splitlines()[-1])
    assert evaluated["step"] == 8
    assert evaluated["loss"] == pytest.approx(figures(workdir)[-1]["loss"], rel=1e-6)
    assert evaluated["perplexity"] == pytest.approx(np.exp(evaluated["loss"]))
    out, _ = run("evaluate", f"--workdir={workdir}")
    assert f"{evaluated['loss']:,.4f}" in out


def test_fewer_steps_are_refused_and_more_say_what_becomes_of_the_schedule(trained):
    workdir, command = trained
    _, err = run(*command, "--config.training.steps=4", code=78)
    assert f"training.steps: got 4, but the run in {workdir} has done 6" in err
    out, _ = run(*command, "--config.training.steps=7")
    assert "the last step: 6 before, 7 now" in out
    assert "the learning rate decays to the new end" in out
    out, _ = run(*command, "--config.training.steps=7")
    assert "the new end" not in out


def test_more_epochs_move_the_end_as_more_steps_do(tmp_path, config_file):
    text = tmp_path / "short.txt"
    text.write_text(sentences(30))
    settings = {"data.source": str(text), "data.epochs": 1, "training.steps": 100}
    command = ("train", f"--config={config_file(**settings)}", f"--workdir={tmp_path / 'run'}")
    end = int(re.search(r"step \d+/(\d+)", run(*command)[0])[1])
    out, _ = run(*command, "--config.training.steps=200")  # the epochs end the run where they did
    assert f"already at step {end} of {end}" in out
    assert "the new end" not in out
    out, _ = run(*command, "--config.data.epochs=2")
    later = int(re.search(r"step \d+/(\d+)", out)[1])
    assert later > end
    assert f"the last step: {end} before, {later} now" in out


def test_text_may_move_between_two_starts_but_not_change(tmp_path, config_file):
    old, new, workdir = tmp_path / "old.txt", tmp_path / "new.txt", tmp_path / "run"
    old.write_text(sentences(100))
    command = ("train", f"--config={config_file(**{'training.steps': 2})}", f"--workdir={workdir}")
    run(*command, f"--config.data.source={old}")
    old.rename(new)
    out, _ = run(*command, f"--config.data.source={new}", "--config.training.steps=4")
    assert "step 3/4" in out
    run("evaluate", f"--workdir={workdir}")
    new.write_text(sentences(100, seed=1))
    for name in ("evaluate", "report"):
        _, err = run(name, f"--workdir={workdir}", code=65)
        assert "was started on another text" in err


def test_what_is_not_ours_is_left_alone(tmp_path, config_file):
    path = config_file()
    other = tmp_path / "other"
    other.mkdir()
    (other / "metrics.jsonl").write_text("mine")
    _, err = run("train", f"--config={path}", f"--workdir={other}", code=2)
    assert "holds a metrics.jsonl that no run wrote" in err
    assert (other / "metrics.jsonl").read_text() == "mine"
    assert not (other / "config.json").exists()
    (other / "metrics.jsonl").rename(other / "tokenizer")
    _, err = run("train", f"--config={path}", f"--workdir={other}", code=2)
    assert "holds a tokenizer that no run wrote" in err
    (tmp_path / "file").write_text("mine")
    _, err = run("train", f"--config={path}", f"--workdir={tmp_path / 'file'}", code=74)
    assert "cannot be written" in err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_config_json_is_checked_like_any_config(trained):
    workdir, _ = trained
    config = json.loads((workdir / "config.json").read_text())
    wrong = config | {"model": config["model"] | {"num_heads": 3}}
    (workdir / "config.json").write_text(json.dumps(wrong))
    _, err = run("evaluate", f"--workdir={workdir}", code=78)
    assert "model.num_heads: 3 does not divide" in err


# Starting from another run.


def test_directories_that_are_not_for_runs_are_refused(tmp_path, config_file, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    config = f"--config={config_file()}"
    (home / "mine.txt").touch()
    for place in ("/", "/usr", home):
        _, err = run("train", config, f"--workdir={place}", code=2)
        assert "is no directory of its own, and holds files; name a new one" in err
    assert sorted(path.name for path in home.iterdir()) == ["mine.txt"]
    if os.getuid() == 0:
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        (theirs / "a.txt").touch()
        os.chown(theirs, 12345, 12345)
        _, err = run("train", config, f"--workdir={theirs}", code=2)
        assert "belongs to somebody else" in err
