"""Whole runs as a user has them: killed, misused, on several processes."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from conftest import ROOT, run, start, with_devices
from training.runs import assert_same, figures, saved_state, saved_steps, wait_for

from t5x_lite import resolve as resolving
from t5x_lite.errors import NOT_FINITE, UserError
from t5x_lite.resolve import text_data
from t5x_lite.training import loop, metrics, processes

SLOW = {
    "training.steps": 40,
    "training.checkpoint_every": 7,
    "training.eval_every": 5,
    "data.batch_size": 8,
}


@pytest.mark.parametrize(
    "cell",
    [
        ("causal_lm", "decoder"),
        pytest.param(("span_corruption", "encoder_decoder"), marks=pytest.mark.slow),
    ],
)
def test_killed_and_started_again_ends_bitwise_the_same(tmp_path, config_file, cell):
    """benchmarks/kills.py kills every family, and oftener. What was not killed is not a process of
    its own, but compiled with the same flags.
    """
    settings = {"optimizer.name": "adafactor", "model.dropout": 0.1}
    path = config_file(*cell, **SLOW, **settings)
    run("train", f"--config={path}", f"--workdir={tmp_path / 'whole'}")
    process = start(
        "train",
        f"--config={path}",
        f"--workdir={tmp_path / 'killed'}",
        env=dict(os.environ),
    )
    wait_for(tmp_path / "killed", random.Random(0).randrange(3, 30))
    process.kill()
    process.communicate()
    run("train", f"--config={path}", f"--workdir={tmp_path / 'killed'}")
    assert_same(tmp_path / "whole", tmp_path / "killed")
    steps = [(record["step"], record["split"]) for record in figures(tmp_path / "whole")]
    assert len(set(steps)) == len(steps) == 48
    assert saved_steps(tmp_path / "whole") == [40]


def test_what_is_not_finite_stops_the_run_before_it_is_saved(tmp_path, config_file):
    settings = {
        "optimizer.learning_rate": 100.0,
        "optimizer.grad_clip_norm": 0.0,
        "optimizer.warmup_steps": 0,
        "model.norm_epsilon": 0.0,
        "model.init_stddev": 10.0,
        "model.num_layers": 6,
        "training.checkpoint_every": 1,
        "training.steps": 300,
    }
    path = config_file(**settings)
    _, err = run("train", f"--config={path}", f"--workdir={tmp_path}", code=76)
    step = int(err.split("step ")[1].split(":")[0])
    saved = saved_steps(tmp_path)
    assert max(saved, default=0) == step - 1
    if saved:
        assert all(np.isfinite(leaf).all() for leaf in saved_state(tmp_path))


def test_a_validation_that_is_not_finite_stops_the_run(tmp_path, make, monkeypatch):
    monkeypatch.setattr(loop.Run, "evaluate", lambda *_: {"loss": float("nan"), "accuracy": 0.0})
    resolved, corpus = make(**{"training.steps": 3})
    with pytest.raises(UserError, match="step 3: loss is nan") as caught:
        loop.train(resolved, text_data(resolved, corpus), tmp_path / "run")
    assert caught.value.code == NOT_FINITE
    assert not list((tmp_path / "run/checkpoints").iterdir())


@pytest.mark.slow
def test_waiting_for_data_is_what_no_step_computes_in(tmp_path, make, monkeypatch):
    batch = loop.Run.batch
    monkeypatch.setattr(loop.Run, "batch", lambda *args: time.sleep(0.2) or batch(*args))
    resolved, corpus = make()
    loop.train(resolved, text_data(resolved, corpus), tmp_path / "slow")
    assert metrics.read(tmp_path / "slow/metrics.jsonl")[5]["seconds"]["data"] > 0.5
    monkeypatch.setattr(loop, "_is_done", lambda pending: False)
    loop.train(resolved, text_data(resolved, corpus), tmp_path / "busy")
    assert metrics.read(tmp_path / "busy/metrics.jsonl")[5]["seconds"]["data"] == 0


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("mesh.fsdp=2", "does not make the 1 devices here"),
        ("mesh.data=3", "mesh: data 3"),
    ],
)
def test_meshes_that_do_not_fit(tmp_path, config_file, setting, words):
    workdir = tmp_path / "run"
    command = ("train", f"--config={config_file()}", f"--config.{setting}")
    _, err = run(*command, f"--workdir={workdir}", code=78)
    assert words in err
    assert not workdir.exists()


def test_the_rows_are_planned_once(tmp_path, config_file, monkeypatch):
    """By the command, before jax is imported, and by nothing after it."""
    plan_rows, plan, planned = resolving.plan_rows, resolving.plan_objective, []
    monkeypatch.setattr(
        resolving, "plan_rows", lambda *args: planned.append("rows") or plan_rows(*args)
    )
    monkeypatch.setattr(
        resolving, "plan_objective", lambda *args: planned.append("plan") or plan(*args)
    )
    path = config_file(**{"training.steps": 2})
    run("train", f"--config={path}", f"--workdir={tmp_path / 'run'}")
    assert planned == ["plan", "rows"]


@pytest.mark.parametrize("workers", [0, 2])
def test_only_batches_move_to_the_device_while_a_run_goes_on(tmp_path, make, monkeypatch, workers):
    """Placing them is the one transfer that is meant; what is fetched is fetched explicitly. No
    step waits for another.
    """
    seen = []
    train_steps, batch = loop._train_steps, loop.Run.batch

    def place(*args):
        with jax.transfer_guard("allow"):
            return batch(*args)

    def guarded(*args):
        with jax.transfer_guard("disallow"):
            with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
                jax.jit(lambda x: x + 1)(np.ones(3))  # the guard is on
            train_steps(*args)
            seen.append(True)

    monkeypatch.setattr(loop.Run, "batch", place)
    monkeypatch.setattr(loop, "_train_steps", guarded)
    settings = {"training.eval_every": 2, "training.checkpoint_every": 2, "data.workers": workers}
    settings |= {"training.steps": 4, "model.dropout": 0.1}
    resolved, corpus = make(**settings)
    loop.train(resolved, text_data(resolved, corpus), tmp_path / "run")
    assert seen
    assert [record["step"] for record in figures(tmp_path / "run")] == [1, 2, 2, 3, 4, 4]


# Several processes.


def launched(*args, **more) -> subprocess.Popen:
    """launch/local, with two processes."""
    command = [sys.executable, ROOT / "launch/local", "2", *args]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **{"cwd": ROOT, **pipes, **more})


def test_two_processes_train_to_the_losses_of_one(tmp_path, config_file):
    path = config_file(
        **{"training.steps": 12, "training.eval_every": 6, "training.checkpoint_every": 6}
    )
    run("train", f"--config={path}", f"--workdir={tmp_path / 'one'}")
    process = launched("train", f"--config={path}", f"--workdir={tmp_path / 'two'}")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, out + err
    one, two = figures(tmp_path / "one"), figures(tmp_path / "two")
    assert [(r["step"], r["split"]) for r in one] == [(r["step"], r["split"]) for r in two]
    for a, b in zip(one, two, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["loss_tokens"] == b["loss_tokens"]


@pytest.mark.slow
def test_two_processes_stop_together_and_go_on(tmp_path, config_file):
    path = config_file(**{"training.steps": 3000, "data.batch_size": 8})
    workdir = tmp_path / "run"
    process = launched("train", f"--config={path}", f"--workdir={workdir}")
    wait_for(workdir, 3)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 143, out + err
    assert saved_steps(workdir)


def test_launch_local_says_how_it_is_used():
    done = subprocess.run([ROOT / "launch/local"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("launch/local: got nothing, expected a number of processes")


def test_a_dead_process_ends_the_others(tmp_path, config_file):
    path = config_file(**{"training.steps": 100_000})
    workdir = tmp_path / "run"
    process = launched("train", f"--config={path}", f"--workdir={workdir}", cwd=tmp_path)
    wait_for(workdir, 2)
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    children = listed.stdout.split()
    os.kill(int(children[1]), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0


def of_each(config, count: int, workdirs, **more) -> list[subprocess.Popen]:
    """So many processes of a run, started one by one as a cluster does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    processes = []
    for number in range(count):
        environment = os.environ | {
            "T5X_LITE_COORDINATOR": address,
            "T5X_LITE_PROCESSES": str(count),
            "T5X_LITE_PROCESS": str(number),
        }
        args = ["train", f"--config={config}", f"--workdir={workdirs[number]}"]
        args += [f"--config.{key}={value[number]}" for key, value in more.items()]
        processes.append(start(*args, env=environment))
    return processes


@pytest.mark.parametrize("differs", ["--workdir", "optimizer.learning_rate"])
def test_processes_that_differ_say_in_what(tmp_path, config_file, differs):
    """One of them would wait for ever."""
    workdirs = [tmp_path / "a"] * 2
    more = {"optimizer.learning_rate": [0.1, 0.2]}
    if differs == "--workdir":
        workdirs, more = [tmp_path / "a", tmp_path / "b"], {}
    processes = of_each(config_file(), 2, workdirs, **more)
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 78, err
        (line,) = (line for line in err.splitlines() if line.startswith("t5x_lite: "))
        assert line.startswith(f"t5x_lite: {differs} is ")
        assert "in process 0, and " in line
        assert "in process 1; start all with the same command" in line
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, "process 1"),
        pytest.param(0, "process 0, which coordinates the others,", marks=pytest.mark.slow),
    ],
)
def test_a_process_that_has_stopped_is_named(tmp_path, config_file, number, words):
    path = config_file(**{"training.steps": 100_000, "training.stuck_after": 5.0})
    workdir = tmp_path / "run"
    first, second = of_each(path, 2, [workdir] * 2)
    try:
        wait_for(workdir, 3)
        stopped, other = (first, second) if number == 0 else (second, first)
        stopped.send_signal(signal.SIGSTOP)
        _, err = other.communicate(timeout=120)
        assert other.returncode == 142, err
        (line,) = (line for line in err.splitlines() if line.startswith("t5x_lite: "))
        assert f"{words} gives no sign of life; this process is at step" in line
        assert "_train_steps" in (workdir / f"stacks-{1 - number}.txt").read_text()
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh", [{}, {"tensor": 4}, {"fsdp": 2, "tensor": 2}, {"fsdp": 4}, {"sequence": 2}]
)
def test_devices_of_two_processes_train_to_the_losses_of_one(tmp_path, config_file, mesh):
    """Two devices in each: every axis but `data` runs within and across processes."""
    path = config_file(
        **{"training.steps": 6, "training.checkpoint_every": 3, "model.num_heads": 4}
    )
    axes = [f"--config.mesh.{axis}={size}" for axis, size in mesh.items()]
    run("train", f"--config={path}", f"--workdir={tmp_path / 'one'}")
    arguments = ["train", f"--config={path}", f"--workdir={tmp_path / 'two'}", *axes]
    process = launched(*arguments, env=with_devices(2))
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, out + err
    for a, b in zip(figures(tmp_path / "one"), figures(tmp_path / "two"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
    # What two have written, one and four read: whole, and on a mesh.
    whole = run("evaluate", f"--workdir={tmp_path / 'two'}")[0]
    args = ["evaluate", f"--workdir={tmp_path / 'two'}", "--mesh=fsdp=2,tensor=2"]
    on_four = start(*args, env=with_devices(4)).communicate(timeout=120)[0]
    losses = [float(text.split("loss ")[1].split()[0]) for text in (whole, on_four)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_run_that_moves_again_goes_on(tmp_path, monkeypatch):
    """And one whose first steps are slow, or that evaluates, is not timed."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    kept = {"t5x_lite/beats/1": json.dumps([7, "step", 0.0])}
    service = SimpleNamespace(
        key_value_set=lambda key, value, allow_overwrite: kept.__setitem__(key, value),
        key_value_dir_get=lambda where: list(kept.items()),
    )
    monkeypatch.setattr(processes, "_client", lambda: service)
    ended = []
    monkeypatch.setattr(processes.os, "_exit", ended.append)
    phase = ["step"]
    with processes.Heartbeat(tmp_path / "stacks", lambda: phase[0], 0.2) as heartbeat:
        time.sleep(0.5)  # the first step
        heartbeat.finished(1)
        heartbeat.finished(2)
        phase[0] = "evaluation"
        time.sleep(0.5)
        phase[0] = "step"
        for step in range(3, 20):
            time.sleep(0.05)
            heartbeat.finished(step)
        assert not ended
        heartbeat._seconds.extend([0.0] * 50)
        deadline = time.monotonic() + 10
        while not ended and time.monotonic() < deadline:
            time.sleep(0.05)
    assert 142 in ended
    assert "_watch" in (tmp_path / "stacks").read_text()
