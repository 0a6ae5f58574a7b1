"""Whole runs as a user has them: killed, and misused."""

import os
import random
import time

import jax
import numpy as np
import pytest
from conftest import run, start
from training.runs import assert_same, figures, saved_state, saved_steps, wait_for

from t5x_lite import resolve as resolving
from t5x_lite.errors import NOT_FINITE, UserError
from t5x_lite.resolve import text_data
from t5x_lite.training import loop
from t5x_lite.training.log import read_metrics

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
    """tests/faults/suite.py kills every family, and more often. The run that is not killed is in
    this process, but compiled with the same flags.
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
    assert saved_steps(tmp_path / "whole") == [35, 40]


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
    assert not (tmp_path / "run/checkpoints").exists()


@pytest.mark.slow
def test_waiting_for_data_is_what_no_step_computes_in(tmp_path, make, monkeypatch):
    batch = loop.Run.batch
    monkeypatch.setattr(loop.Run, "batch", lambda *args: time.sleep(0.2) or batch(*args))
    resolved, corpus = make()
    loop.train(resolved, text_data(resolved, corpus), tmp_path / "slow")
    assert read_metrics(tmp_path / "slow/metrics.jsonl")[5]["seconds"]["data"] > 0.5
    monkeypatch.setattr(loop, "_is_done", lambda pending: False)
    loop.train(resolved, text_data(resolved, corpus), tmp_path / "busy")
    assert read_metrics(tmp_path / "busy/metrics.jsonl")[5]["seconds"]["data"] == 0


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
