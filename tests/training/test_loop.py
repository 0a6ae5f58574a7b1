"""Runs as a user has them: killed, stopped, misused, on several processes."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT, run, run_apart, sentences, start
from proof_sharding import SIMULATED

from t5x_lite.training import metrics

TIMES = ("tokens_per_second", "seconds", "train_seconds", "mfu")


def figures(workdir) -> list[dict]:
    """The records of a run, times aside."""
    records = metrics.read(workdir / "metrics.jsonl")
    return [{key: value for key, value in record.items() if key not in TIMES} for record in records]


def state(workdir) -> list[np.ndarray]:
    """Every array of the newest checkpoint, parameters and optimizer state, in order."""
    import orbax.checkpoint as ocp

    step = max(
        int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit()
    )
    tree = ocp.StandardCheckpointer().restore((workdir / f"checkpoints/{step}/default").resolve())
    import jax

    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def assert_same(a, b):
    assert figures(a) == figures(b)
    for x, y in zip(state(a), state(b), strict=True):
        assert x.dtype == y.dtype
        assert x.tobytes() == y.tobytes()


def wait_for(workdir, count):
    """Until the run has written that many records."""
    for _ in range(1200):
        if len(metrics.read(workdir / "metrics.jsonl")) >= count:
            return
        time.sleep(0.05)
    raise AssertionError("the run wrote no records")


SLOW = {
    "training.steps": 40,
    "training.checkpoint_every": 7,
    "training.eval_every": 5,
    "data.batch_size": 8,
}


def test_killed_and_started_again_ends_bitwise_the_same(tmp_path, config_file):
    """benchmarks/kills.py kills every family, and oftener."""
    more = {"optimizer.name": "adafactor", "model.dropout": 0.1}
    path = config_file("span_corruption", "encoder_decoder", **SLOW, **more)
    run_apart("train", f"--config={path}", f"--workdir={tmp_path / 'whole'}")
    when = random.Random(0)
    for count in (3, when.randrange(8, 30)):
        process = start("train", f"--config={path}", f"--workdir={tmp_path / 'killed'}")
        wait_for(tmp_path / "killed", count)
        process.kill()
        process.communicate()
    run_apart("train", f"--config={path}", f"--workdir={tmp_path / 'killed'}")
    assert_same(tmp_path / "whole", tmp_path / "killed")
    steps = [(record["step"], record["split"]) for record in figures(tmp_path / "whole")]
    assert len(set(steps)) == len(steps) == 48
    assert sorted(
        p.name for p in (tmp_path / "whole/checkpoints").iterdir() if p.name.isdigit()
    ) == ["40"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_save_and_the_same_command_goes_on(tmp_path, config_file, number, code):
    path = config_file(
        **{**SLOW, "training.steps": 400, "training.checkpoint_every": 0, "training.eval_every": 0}
    )
    command = ("train", f"--config={path}", f"--workdir={tmp_path / 'run'}")
    process = start(*command)
    wait_for(tmp_path / "run", 3)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, out + err
    assert "which is saved" in err
    assert "Traceback" not in err
    stopped = figures(tmp_path / "run")[-1]["step"]
    out, _ = run_apart(*command)
    assert f"step {stopped + 1}/400" in out
    assert f"step {stopped}/400" not in out
    run_apart("train", f"--config={path}", f"--workdir={tmp_path / 'whole'}")
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_a_second_run_in_the_same_directory_is_refused(tmp_path, config_file):
    path = config_file(**{**SLOW, "training.steps": 4000})
    process = start("train", f"--config={path}", f"--workdir={tmp_path / 'run'}")
    wait_for(tmp_path / "run", 2)
    _, err = run("train", f"--config={path}", f"--workdir={tmp_path / 'run'}", code=2)
    assert "another run is going on there" in err
    process.kill()
    process.communicate()


def test_what_is_not_finite_stops_the_run_before_it_is_saved(tmp_path, config_file):
    more = {
        "optimizer.learning_rate": 100.0,
        "optimizer.grad_clip_norm": 0.0,
        "model.norm_epsilon": 0.0,
        "model.init_stddev": 10.0,
    }
    path = config_file(
        **more,
        **{
            "optimizer.warmup_steps": 0,
            "training.checkpoint_every": 1,
            "training.steps": 300,
            "model.num_layers": 6,
        },
    )
    _, err = run("train", f"--config={path}", f"--workdir={tmp_path}", code=76)
    step = int(err.split("step ")[1].split(":")[0])
    saved = [int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit()]
    assert max(saved, default=0) == step - 1
    if saved:
        assert all(np.isfinite(leaf).all() for leaf in state(tmp_path))


def test_a_validation_that_is_not_finite_stops_the_run(tmp_path, make, monkeypatch):
    from t5x_lite.errors import NOT_FINITE, UserError
    from t5x_lite.training import loop

    monkeypatch.setattr(loop.Run, "evaluate", lambda *_: {"loss": float("nan"), "accuracy": 0.0})
    with pytest.raises(UserError, match="step 3: loss is nan") as caught:
        loop.train(*make(**{"training.steps": 3}), tmp_path / "run")
    assert caught.value.code == NOT_FINITE
    assert not list((tmp_path / "run/checkpoints").iterdir())


def test_waiting_for_data_is_what_no_step_computes_in(tmp_path, make, monkeypatch):
    from t5x_lite.training import loop

    made = loop.Run.batch
    monkeypatch.setattr(loop.Run, "batch", lambda *args: time.sleep(0.2) or made(*args))
    loop.train(*make(**{"training.steps": 6}), tmp_path / "slow")
    assert metrics.read(tmp_path / "slow/metrics.jsonl")[5]["seconds"]["data"] > 0.5
    monkeypatch.setattr(loop, "_is_done", lambda pending: False)
    loop.train(*make(**{"training.steps": 6}), tmp_path / "busy")
    assert metrics.read(tmp_path / "busy/metrics.jsonl")[5]["seconds"]["data"] == 0


def test_going_on_with_other_settings_or_text(tmp_path, config_file, text_file):
    command = ("train", f"--config={config_file()}", f"--workdir={tmp_path / 'run'}")
    run(*command)
    before = (tmp_path / "run/config.json").read_text()
    _, err = run(*command, "--config.optimizer.learning_rate=0.5", code=78)
    assert "optimizer.learning_rate: the run in" in err
    assert "0.001, now it is 0.5" in err
    _, err = run(*command, "--config.data.validation_fraction=0.3", code=78)
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text() + "\n\nand more")
    store = f"--config.data.store={tmp_path / 'store'}"
    old = text_file.stat()
    text = text_file.read_text()
    try:
        text_file.write_text(other.read_text())
        _, err = run(*command, store, code=65)
        assert "another text" in err
    finally:
        text_file.write_text(text)
        os.utime(text_file, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert (tmp_path / "run/config.json").read_text() == before
    out, _ = run(*command, "--config.training.steps=8")
    assert "step 7/8" in out
    assert json.loads((tmp_path / "run/config.json").read_text())["training"]["steps"] == 8
    out, _ = run("evaluate", f"--workdir={tmp_path / 'run'}", "--json")
    evaluated = json.loads(out.splitlines()[-1])
    assert evaluated["step"] == 8
    assert evaluated["loss"] == pytest.approx(figures(tmp_path / "run")[-1]["loss"], rel=1e-6)


def test_a_checkpoint_that_cannot_be_read_is_one_sentence(tmp_path, config_file):
    command = ("train", f"--config={config_file()}", f"--workdir={tmp_path / 'run'}")
    run(*command)
    _, err = run("evaluate", f"--workdir={tmp_path}", code=66)
    assert f"holds several runs; name one: {tmp_path / 'run'}" in err
    for path in (tmp_path / "run/checkpoints/6").rglob("*"):
        if path.is_file() and path.stat().st_size > 100:
            path.write_bytes(b"\0" * 50)
    _, err = run(*command, "--config.training.steps=9", code=66)
    assert "no usable checkpoint" in err
    (tmp_path / "run/checkpoints/8").mkdir()
    _, err = run(*command, "--config.training.steps=9", code=66)
    assert "checkpoints/8: no usable checkpoint" in err


def test_a_checkpoint_of_other_settings_is_refused_though_its_shapes_are_the_same(
    tmp_path, config_file
):
    workdir = tmp_path / "run"
    command = ("train", f"--config={config_file()}", f"--workdir={workdir}")
    run(*command)
    config = json.loads((workdir / "config.json").read_text())
    (workdir / "config.json").write_text(
        json.dumps(config | {"model": config["model"] | {"num_heads": 4}})
    )
    for again in (
        ("evaluate", f"--workdir={workdir}"),
        (*command, "--config.model.num_heads=4", "--config.training.steps=9"),
    ):
        _, err = run(*again, code=78)
        assert "model.num_heads: now 4" in err
        assert "checkpoints/6 was made with 2; bring the old value back" in err


def test_text_may_move_between_two_starts(tmp_path, config_file):
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text(sentences(100))
    command = ("train", f"--config={config_file()}", f"--workdir={tmp_path / 'run'}")
    run(*command, f"--config.data.source={old}")
    old.rename(new)
    out, _ = run(*command, f"--config.data.source={new}", "--config.training.steps=8")
    assert "step 7/8" in out
    run("evaluate", f"--workdir={tmp_path / 'run'}")


def test_damaged_records_are_refused_and_kept(tmp_path, config_file):
    workdir, path = tmp_path / "run", config_file(**{"training.steps": 3})
    run("train", f"--config={path}", f"--workdir={workdir}")
    more = ("train", f"--config={path}", f"--workdir={workdir}", "--config.training.steps=4")
    whole = (workdir / "metrics.jsonl").read_bytes()
    for damaged in (b"5\n", b"\xff\n", b'{"step"\n'):
        (workdir / "metrics.jsonl").write_bytes(damaged + whole)
        _, err = run(*more, code=66)
        assert "metrics.jsonl, line 1: not a record" in err
        assert (workdir / "metrics.jsonl").read_bytes() == damaged + whole
    (workdir / "metrics.jsonl").write_bytes(
        whole + b'{"step": 4, "spl'
    )  # a line that a kill cut short
    (workdir / "corpus.json").write_text("null")
    _, err = run(*more, code=66)
    assert "corpus.json: holds NoneType" in err
    (tmp_path / "other").mkdir()
    (tmp_path / "other/metrics.jsonl").write_text("mine")
    _, err = run("train", f"--config={path}", f"--workdir={tmp_path / 'other'}", code=2)
    assert "that no run wrote" in err
    assert (tmp_path / "other/metrics.jsonl").read_text() == "mine"
    assert not (tmp_path / "other/config.json").exists()
    (tmp_path / "other/metrics.jsonl").rename(tmp_path / "other/tokenizer")
    _, err = run("train", f"--config={path}", f"--workdir={tmp_path / 'other'}", code=2)
    assert "holds a tokenizer that no run wrote" in err
    config = json.loads((workdir / "config.json").read_text())
    (workdir / "config.json").write_text(
        json.dumps(config | {"model": config["model"] | {"num_heads": 3}})
    )
    _, err = run("evaluate", f"--workdir={workdir}", code=78)
    assert "model.num_heads: 3 does not divide" in err


def test_a_file_in_the_way_is_one_sentence(tmp_path, config_file):
    (tmp_path / "file").write_text("mine")
    _, err = run("train", f"--config={config_file()}", f"--workdir={tmp_path / 'file'}", code=74)
    assert "cannot be written" in err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("mesh.fsdp=2", "does not make the 1 devices here"),
        ("mesh.data=3", "mesh: data 3"),
    ],
)
def test_meshes_that_do_not_fit(tmp_path, config_file, setting, words):
    _, err = run(
        "train",
        f"--config={config_file()}",
        f"--config.{setting}",
        f"--workdir={tmp_path / 'run'}",
        code=78,
    )
    assert words in err
    assert not (tmp_path / "run").exists()


def test_keeping_profiling_and_tensorboard(tmp_path, config_file):
    more = {
        "training.checkpoint_every": 2,
        "training.keep_every": 3,
        "training.profile": [2, 3],
        "training.steps": 7,
    }
    run("train", f"--config={config_file(**more)}", f"--workdir={tmp_path / 'run'}")
    saved = {p.name for p in (tmp_path / "run/checkpoints").iterdir() if p.name.isdigit()}
    assert saved == {"3", "6", "7"}  # 3 is kept although no checkpoint_every falls there
    assert list((tmp_path / "run/profile").rglob("*.xplane.pb"))
    assert list((tmp_path / "run/tensorboard").glob("events*"))
    record = metrics.read(tmp_path / "run/metrics.jsonl")[0]
    needed = {
        "step",
        "split",
        "loss",
        "accuracy",
        "tokens_per_second",
        "mfu",
        "learning_rate",
        "gradient_norm",
    }
    assert needed <= set(record)
    assert set(record["seconds"]) == {"step", "compile", "data", "evaluation", "checkpoint"}


def test_two_processes_train_to_the_losses_of_one(tmp_path, config_file):
    path = config_file(
        **{"training.steps": 12, "training.eval_every": 6, "training.checkpoint_every": 6}
    )
    run("train", f"--config={path}", f"--workdir={tmp_path / 'one'}")
    command = [
        sys.executable,
        ROOT / "launch/local",
        "2",
        "train",
        f"--config={path}",
        f"--workdir={tmp_path / 'two'}",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = figures(tmp_path / "one"), figures(tmp_path / "two")
    assert [(r["step"], r["split"]) for r in one] == [(r["step"], r["split"]) for r in two]
    for a, b in zip(one, two, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["loss_tokens"] == b["loss_tokens"]


def test_two_processes_stop_together_and_go_on(tmp_path, config_file):
    path = config_file(**{"training.steps": 3000, "data.batch_size": 8})
    workdir = tmp_path / "run"
    command = [
        sys.executable,
        ROOT / "launch/local",
        "2",
        "train",
        f"--config={path}",
        f"--workdir={workdir}",
    ]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(workdir, 3)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 143, out + err
    assert [p for p in (workdir / "checkpoints").iterdir() if p.name.isdigit()]


def test_launch_local_says_how_it_is_used():
    done = subprocess.run([ROOT / "launch/local"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage: launch/local N" in done.stderr


def test_a_dead_process_ends_the_others(tmp_path, config_file):
    path = config_file(**{"training.steps": 100_000})
    command = [
        sys.executable,
        ROOT / "launch/local",
        "2",
        "train",
        f"--config={path}",
        f"--workdir={tmp_path / 'run'}",
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(tmp_path / "run", 2)
    children = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True
    ).stdout.split()
    os.kill(int(children[1]), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0


def test_evaluate_on_another_mesh_and_only_on_the_same_text(tmp_path, config_file):
    text = tmp_path / "mine.txt"
    text.write_text(sentences(100))
    command = (
        "train",
        f"--config={config_file()}",
        f"--config.data.source={text}",
        f"--workdir={tmp_path / 'run'}",
    )
    run(*command)
    command_line = ("evaluate", f"--workdir={tmp_path / 'run'}", "--json")
    process = start(*command_line, env=os.environ | SIMULATED)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["loss"] == pytest.approx(
        figures(tmp_path / "run")[-1]["loss"], rel=1e-6
    )
    text.write_text(sentences(100, seed=1))
    for name in ("evaluate", "report"):
        _, err = run(name, f"--workdir={tmp_path / 'run'}", code=65)
        assert "was started on another text" in err


def test_a_profile_outlives_a_resume_and_fewer_steps_are_refused(tmp_path, config_file):
    command = (
        "train",
        f"--config={config_file(**{'training.steps': 4})}",
        f"--workdir={tmp_path / 'run'}",
    )
    run(*command)
    run(*command, "--config.training.steps=7", "--config.training.profile=[2,20]")
    assert list((tmp_path / "run/profile").rglob("*.xplane.pb"))
    _, err = run(*command, code=78)
    assert "training.steps: got 4, but the run in" in err
    (tmp_path / "run/metrics.jsonl").unlink()
    run(*command, "--config.training.steps=7")
    _, err = run("report", f"--workdir={tmp_path / 'run'}", code=66)
    assert "has not been evaluated yet" in err


def test_a_full_disk_is_one_sentence_and_the_run_goes_on_when_there_is_room(
    tmp_path, make, monkeypatch
):
    import shutil

    from t5x_lite.errors import IO_ERROR, UserError
    from t5x_lite.training.loop import train

    found, room = make(**{"training.steps": 4}), [10**9, 1000, 10**9]
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=room[0]))
    train(*found, tmp_path / "whole")
    room.pop(0)
    with pytest.raises(
        UserError, match=r"no room for .* step 4, which takes .* 0.0 MB are free"
    ) as caught:
        train(*found, tmp_path / "run")
    assert caught.value.code == IO_ERROR
    room.pop(0)
    train(*found, tmp_path / "run")
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_a_run_made_longer_says_what_becomes_of_its_schedule(tmp_path, config_file):
    command = (
        "train",
        f"--config={config_file(**{'training.steps': 4})}",
        f"--workdir={tmp_path / 'run'}",
    )
    run(*command)
    out, _ = run(*command, "--config.training.steps=6")
    assert (
        "training.steps: 4 before, 6 now: from here on the learning rate decays to the new end"
        in out
    )
    out, _ = run(*command, "--config.training.steps=6")
    assert "the new end" not in out
