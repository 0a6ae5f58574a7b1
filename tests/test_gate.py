"""Data is not code, and does not travel: whichever setting of somebody else's config.json or
report.json names a module, a file or an address, no command imports, opens or calls it.

The commands and the settings are those of their tables, so a new one is tried, too.
"""

import io
import json
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from conftest import run, settings
from outside import MODULE, SECRET, watching

import t5x_lite
from t5x_lite.__main__ import main
from t5x_lite.commands import COMMANDS
from t5x_lite.config import RunConfig
from t5x_lite.config.files import build, flatten, nested
from t5x_lite.config.roles import CODE, PATH, SENDS, SOURCES, TOKENIZER, Role, roles
from t5x_lite.errors import BAD_CONFIG, UserError

# How each command is given somebody else's run, or the report of somebody else's comparison.
GIVEN = {
    "prepare": ["--config={run}"],
    "plan": ["--config={run}", "--topology=cpu:1"],
    "train": ["--config={run}", "--workdir={new}"],
    "finetune": [
        *("--init={run}", "--task=classify(mine.tsv, text=sentence)", "--workdir={new}"),
        # Refused once the run is read, so that nothing is trained.
        *("--verify=off", "--config.training.microbatches=7"),
    ],
    "evaluate": ["--workdir={run}", "--verify=off"],
    "generate": ["--workdir={run}", "the cat", "--max-new-tokens=1", "--verify=off"],
    "fill": ["--workdir={run}", "the ___ sat", "--verify=off"],
    "score": ["--workdir={run}", "the cat", "--verify=off"],
    "embed": ["--workdir={run}", "the cat", "--verify=off"],
    # Refused once the first run is read, so that nothing is served.
    "play": ["--workdir={run}", "--beside={new}", "--port=0", "--verify=off"],
    "compare": ["--config={run}", "--grid=seed=0,1", "--workdir={new}", "--dry-run"],
    "report": ["--workdir={new}", "{run}"],
    "rerun": ["{report}", "--workdir={new}"],
    "inspect": ["--config={run}", "--examples=1"],
    "export": ["--workdir={run}", "{new}", "--verify=off"],
    "verify": ["{run}"],
}
# Commands that read no config.json of ours.
GIVEN_NONE = {"import", "list", "doctor", "completion", "watch"}


def test_every_command_is_tried():
    assert GIVEN.keys() | GIVEN_NONE == COMMANDS.keys()


# Of what is refused, or was done; not of a command that is wrong.
CODES = (0, 2, 65, 66, 78)


@pytest.fixture(scope="module")
def secret(tmp_path_factory, text_file):
    """A directory with what data may not open: a text, a tokenizer, a task, a run."""
    directory = tmp_path_factory.mktemp(SECRET)
    (directory / "text.txt").write_text(text_file.read_text())
    (directory / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n")
    (directory / "train.tsv").write_text("sentence\tlabel\nthe cat\t1\na dog\t0\n")
    values = settings(text_file, **{"training.steps": 1})
    (directory / "run").mkdir()
    (directory / "run/config.json").write_text(json.dumps(values))
    return directory


def names_of_things(secret: Path) -> dict[str, tuple[Role, ...]]:
    """Return what may stand in a setting to reach outside, and the roles where it does."""
    return {
        f"{MODULE}.thing": (CODE, TOKENIZER),
        f"python:{MODULE}.thing": (SOURCES, PATH),
        f"{secret}/text.txt": (SOURCES, PATH),
        f"{secret}/vocab.txt": (TOKENIZER,),
        f"{secret}/run": (PATH,),
        f"{secret}/{{split}}.tsv": (PATH,),
        f"hf:{secret}": (SOURCES,),
        f"tfds:{SECRET}?data_dir={secret}": (SOURCES,),
        f"http://127.0.0.1:9/{SECRET}.txt": (SOURCES, PATH),
        "wandb": (SENDS,),
    }


def settings_with_names(
    base: dict, secret: Path, thorough: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each setting that a config.json can fill with such a name, with the whole config.

    Args:
        thorough: fill settings whose roles say that they name nothing, too.
    """
    flat, having = flatten(base), roles(RunConfig)
    for key, of_setting in having.items():
        if key.startswith("task.") and not thorough:  # this run has learned none
            continue
        for number, (name, of_name) in enumerate(names_of_things(secret).items()):
            if of_setting.isdisjoint(of_name) and not (thorough and number in (0, 2)):
                continue
            for filled in (name, [name]):
                changed = nested(flat | {key: filled})
                try:
                    build(RunConfig, changed)
                except UserError:
                    continue
                yield f"{key}={filled}", changed
                break


@pytest.fixture(scope="module")
def whole(tmp_path_factory, text_file):
    """A run on text that any data may name."""
    directory = tmp_path_factory.mktemp("whole")
    more = {"data.source": "world:facts", "training.steps": 1, "model.num_layers": 1}
    (directory / "config.py").write_text(
        f"def get_config():\n    return {settings(text_file, **more)!r}\n"
    )
    run("train", f"--config={directory}/config.py", f"--workdir={directory}/run")
    return directory / "run"


def settings_of(run_directory: Path) -> dict:
    """Return what its config.json holds."""
    return json.loads((run_directory / "config.json").read_text())


@pytest.fixture
def no_network(monkeypatch):
    """Nothing leaves this machine, even if a test fails."""

    def refuse(*_):
        raise OSError("no network in tests")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def given(whole, secret, tmp_path, monkeypatch, no_network):
    """A function that gives a command somebody else's run with this config.json, and returns what
    was imported, opened or called.
    """
    (tmp_path / f"{MODULE}.py").write_text("def thing(*args, **more): return ['the cat'] * 9\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    theirs, new, report = tmp_path / "theirs", tmp_path / "new", tmp_path / "report.json"
    write_examples(tmp_path / "mine.tsv")

    def call(command: str, config: dict, *more: str, of: Path = whole) -> list[str]:
        if not theirs.exists():
            shutil.copytree(of, theirs)
        (theirs / "config.json").write_text(json.dumps(config))
        of_comparison = {"cells": {}, "config": {"cells": {"theirs": config}}}
        report.write_text(json.dumps(of_comparison))
        arguments = [one.format(run=theirs, new=new, report=report) for one in GIVEN[command]]
        err = io.StringIO()
        with redirect_stdout(io.StringIO()), redirect_stderr(err), watching() as events:
            code = main([command, *arguments, *more])
        assert code in CODES, err.getvalue()
        assert "usage: " not in err.getvalue()
        assert "which is no option" not in err.getvalue()
        assert "Traceback" not in err.getvalue()
        shutil.rmtree(new, ignore_errors=True)
        sys.modules.pop(MODULE, None)
        return list(events)

    return call


def of_all_settings(command: str) -> Any:
    """Every setting is filled: for one command always, for the others in make test-slow."""
    marks = () if command == "inspect" else pytest.mark.slow
    return pytest.param(command, True, marks=marks, id=f"{command}, all settings")


@pytest.mark.parametrize(
    ("command", "thorough"),
    [*((command, False) for command in GIVEN), *map(of_all_settings, GIVEN)],
)
def test_no_setting_of_data_reaches_outside(command, thorough, given, whole, secret):
    tried = 0
    for name, config in settings_with_names(settings_of(whole), secret, thorough):
        assert not given(command, config), name
        tried += 1
    assert tried > (100 if thorough else 20)


@pytest.fixture(scope="module")
def learned(whole, tmp_path_factory):
    """A run that has learned a task with LoRA: it reads its examples, and another run's model."""
    directory = tmp_path_factory.mktemp("learned")
    write_examples(directory / "mine.tsv")
    task = f"classify({directory}/mine.tsv, text=sentence)"
    more = ("--adapt=lora(rank=2)", "--config.training.steps=1")
    run("finetune", f"--init={whole}", f"--task={task}", f"--workdir={directory}/run", *more)
    return directory / "run"


def write_examples(path: Path) -> None:
    lines = [f"a cat {number}\t{number % 2}" for number in range(40)]
    path.write_text("\n".join(["sentence\tlabel", *lines]))


SLOW = pytest.param("finetune", marks=pytest.mark.slow)


@pytest.mark.parametrize("command", ["evaluate", "generate", "export", "verify", SLOW])
def test_no_setting_of_a_learned_task_reaches_outside(command, given, learned, secret):
    config = settings_of(learned)
    names = names_of_things(secret)
    for key in ("init_from", "task.source", "task.prepare", "task.metrics", "data.source"):
        for name in names:
            filled = [name] if key == "task.metrics" else name
            assert not given(command, nested(flatten(config) | {key: filled}), of=learned), key


def test_a_run_of_the_users_own_reaches_what_it_names(learned, tmp_path, monkeypatch):
    """The config of a run that was trained here is known again, in any directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(learned, tmp_path / "moved")
    out, _ = run("evaluate", "--workdir=moved")
    assert "accuracy" in out
    config = settings_of(learned)
    config["training"]["log_every"] += 1  # written by somebody else
    (tmp_path / "moved/config.json").write_text(json.dumps(config))
    _, err = run("evaluate", "--workdir=moved", code=BAD_CONFIG)
    base = config["init_from"]
    assert f"init_from={base}: the file that names it is data, which opens nothing" in err
    assert f"if you trust it, add --allow-path={base}" in err
    _, err = run("evaluate", "--workdir=moved", f"--allow-path={base}", code=BAD_CONFIG)
    assert "task.source=" in err
    allowed = (f"--allow-path={base}", f"--allow-path={Path(config['task']['source']).parent}")
    assert run("evaluate", "--workdir=moved", *allowed)[0] == out


def test_a_task_is_shown_with_no_tokenizer_of_data(given, whole, secret):
    """A run that was imported has no text, and its tokenizer is read by itself."""
    config = settings_of(whole)
    config["data"] |= {"source": "", "tokenizer": f"{secret}/vocab.txt"}
    task = "--task=classify(mine.tsv, text=sentence)"
    assert not given("inspect", config, task)
    assert given("inspect", config, task, f"--allow-path={secret}")


def test_a_run_is_no_comparison(whole, tmp_path, monkeypatch, no_network):
    """A config.json with cells and tasks is none of ours: its task file is not run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{MODULE}.py").write_text("TASKS = {'mine': {'source': 'world:facts'}}\n")
    (tmp_path / "theirs").mkdir()
    config = {"base": settings_of(whole), "cells": {"a": {}}, "tasks": [f"{MODULE}.py:mine"]}
    (tmp_path / "theirs/config.json").write_text(json.dumps(config))
    with watching() as events:
        _, err = run("compare", "--config=theirs", "--workdir=new", "--dry-run", code=BAD_CONFIG)
        _, planned = run("plan", "--config=theirs", "--topology=cpu:1", code=BAD_CONFIG)
    assert "which is no setting of a run" in err
    assert "which is no setting of a run" in planned
    with watching() as of_python, pytest.raises(UserError, match="is no setting of a run"):
        t5x_lite.compare("theirs", "new")
    assert not events + of_python


def test_what_python_takes_from_data_is_checked(whole, secret, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs").mkdir()
    config = settings_of(whole)
    for key, value in (("source", f"{secret}/text.txt"), ("source", ":/../../secret.txt")):
        config["data"][key] = value
        (tmp_path / "theirs/config.json").write_text(json.dumps(config))
        for function in (t5x_lite.get_config, t5x_lite.inspect, t5x_lite.prepare):
            with watching() as events, pytest.raises(UserError, match="--allow-path"):
                function("theirs")
            assert not events
    with t5x_lite.allow(paths=[config["data"]["source"]]):
        assert t5x_lite.get_config("theirs").seed == 0


@pytest.mark.parametrize(
    ("command", "key", "name"),
    [
        ("inspect", "data.source", "{secret}/text.txt"),
        ("inspect", "data.store", "{secret}/store"),
        ("inspect", "data.tokenizer", "{secret}/vocab.txt"),
        ("inspect", "objective", f"{MODULE}.thing"),
        ("inspect", "data.source", f"python:{MODULE}.thing"),
        ("evaluate", "data.source", "{secret}/text.txt"),
        ("evaluate", "data.validation_source", "{secret}/text.txt"),
        ("report", "data.source", "{secret}/text.txt"),
        ("train", "init_from", "{secret}/run"),
    ],
)
def test_what_is_permitted_does_reach_outside(command, key, name, given, whole, secret):
    """Without this, the test above could be one that sees nothing."""
    config = nested(flatten(settings_of(whole)) | {key: name.format(secret=secret)})
    new_text = f"{command} {key}\n\n" + (secret / "text.txt").read_text()
    (secret / "text.txt").write_text(new_text)  # no store of it is in the cache
    assert not given(command, config)
    assert given(command, config, f"--allow-path={secret}", f"--allow-code={MODULE}")
