"""Steps at which a run diverges: known by their figures, left out, or gone back from."""

import json
import math
import os
import shutil
import signal

import jax
import numpy as np
import pytest
from conftest import run, slow
from training.runs import assert_same, figures, saved_state, saved_steps

from t5x_lite import manifest
from t5x_lite.errors import NOT_FINITE, TERMINATED, UserError
from t5x_lite.progress import messages_to
from t5x_lite.resolve import text_data
from t5x_lite.training import loop, run_history
from t5x_lite.training.best import BestCheckpoint
from t5x_lite.training.health import WINDOW, Health
from t5x_lite.training.optimizer import OPTIMIZERS
from t5x_lite.training.rollback import remedy

STEPS = {"training.steps": 30, "training.checkpoint_every": 5, "training.log_every": 1}


def met(figures):
    health = Health()
    return [health.record(step, *each) for step, each in enumerate(figures, 1)], health


def test_spikes_are_unhealthy_and_what_a_run_does_is_not():
    rng = np.random.default_rng(0)
    losses = 2 + 5 * np.exp(-np.arange(400) / 50) + rng.normal(0, 0.1, 400)
    norms = np.exp(rng.normal(0, 0.3, 400))
    verdicts, _ = met(zip(losses, norms, strict=True))
    assert all(verdicts)
    for step, loss, norm in [(4, 1e12, 1), (10, 30, 1), (50, 30, 1), (200, 9, 1), (300, 2, 1e4)]:
        for bad in ((loss, norm), (math.nan, norm), (loss, math.inf)):
            changed = [list(each) for each in zip(losses, norms, strict=True)]
            changed[step - 1] = list(bad)
            verdicts, _ = met(changed)
            assert [i for i, healthy in enumerate(verdicts, 1) if not healthy] == [step]


def test_a_run_that_has_diverged_stays_unhealthy():
    """What is unhealthy does not become the measure of what is healthy."""
    verdicts, _ = met([(2.0, 1.0)] * 50 + [(9.0, 1.0)] * 500)
    assert verdicts == [True] * 50 + [False] * 500


def test_a_run_that_continues_decides_alike():
    rng = np.random.default_rng(0)
    each = list(zip(rng.normal(2, 0.1, 300), np.exp(rng.normal(0, 0.3, 300)), strict=True))
    whole, limits = Health(), {}
    for step, one in enumerate(each, 1):
        limits[step] = whole.limits(step)
        whole.record(step, *one)
    for stop in (1, 7, 8, 9, 100, 299):
        _, health = met(each[:stop])
        health = Health(json.loads(json.dumps(health.to_json())))
        for step in range(stop + 1, 301):
            assert health.limits(step) == limits[step]
            health.record(step, *each[step - 1])
        assert health.to_json() == whole.to_json()
    assert len(whole.to_json()["figures"]) == WINDOW + 1


@pytest.fixture
def poison(monkeypatch):
    """Make the losses of some batches NaN, or huge, by their weights."""

    def apply(value, *numbers):
        rows = loop.Run.batch

        def batch(self, batches, number):
            made = rows(self, batches, number)
            if batches is self.batches and number in numbers:
                key = "decoder_weights"
                made = {**made, key: made[key] * jax.numpy.float32(value)}
            return made

        monkeypatch.setattr(loop.Run, "batch", batch)

    return apply


def train(make, workdir, **more):
    """Train a small run, and return what it said."""
    said = []
    resolved, corpus = make(**{**STEPS, **more})
    with messages_to(said.append):
        loop.train(resolved, text_data(resolved, corpus), workdir)
    return "\n".join(said)


def test_a_run_goes_back_and_skips_what_it_has_read(make, tmp_path, poison):
    """It ends with the parameters of a run that never met those batches."""
    poison(math.nan, 17)
    said = train(make, tmp_path / "run", **{"training.rollback": 1})
    assert "back to step 15; the batches of steps 16 to 18 are skipped" in said
    (event,) = run_history.events(tmp_path / "run")
    assert (event["from"], event["to"], event["next_batch"]) == (18, 15, 18)
    steps = [record["step"] for record in figures(tmp_path / "run") if record["split"] == "train"]
    assert steps == list(range(1, 31))
    assert all(np.isfinite(leaf).all() for leaf in saved_state(tmp_path / "run"))

    # The same again, to the last bit; also if it is stopped after it went back.
    train(make, tmp_path / "again", **{"training.rollback": 1})
    assert_same(tmp_path / "run", tmp_path / "again")
    shutil.rmtree(tmp_path / "again/checkpoints/30")
    assert saved_steps(tmp_path / "again") == [25]
    train(make, tmp_path / "again", **{"training.rollback": 1})
    assert_same(tmp_path / "run", tmp_path / "again")


def test_a_run_goes_back_further_if_that_does_not_help(make, tmp_path, poison):
    """Every batch from 17 on is bad: twice it goes back, then it ends, and says what to do."""
    poison(math.nan, *range(17, 100))
    with pytest.raises(UserError, match="loss is nan") as caught:
        train(make, tmp_path / "run", **{"training.rollback": 2})
    assert caught.value.code == NOT_FINITE
    assert "decoder_weights" not in str(caught.value)
    events = run_history.events(tmp_path / "run")
    assert [event["to"] for event in events] == [15, 10]
    assert saved_steps(tmp_path / "run")[-1] == 10


def test_a_step_is_left_out_and_nothing_else(make, tmp_path, poison):
    """Parameters and moments are as if there had been no such step, to the last bit."""
    poison(math.nan, 17, 21)
    said = train(make, tmp_path / "run", **{"training.skip_step": True})
    assert "step 18: loss nan, gradient norm nan; its update is left out" in said
    records = [record for record in figures(tmp_path / "run") if record["split"] == "train"]
    assert [record["step"] for record in records if record["skipped_steps"] == 1] == [19, 20, 21]
    assert records[-1]["skipped_steps"] == 2
    assert all(np.isfinite(leaf).all() for leaf in saved_state(tmp_path / "run"))
    facts = manifest.read(tmp_path / "run/checkpoints/30")
    assert facts["health"]["skipped"] == 2

    shutil.copytree(tmp_path / "run", tmp_path / "again")
    shutil.rmtree(tmp_path / "again/checkpoints/30")
    train(make, tmp_path / "again", **{"training.skip_step": True})
    assert_same(tmp_path / "run", tmp_path / "again")


@pytest.mark.parametrize(("value", "number"), [(math.nan, 0), (math.inf, 1), (math.inf, 7)])
def test_early_steps_are_left_out_too(make, tmp_path, poison, value, number):
    """Before there is anything to compare with, what is not finite is still bad."""
    poison(value, number)
    train(make, tmp_path / "run", **{"training.skip_step": True, "training.steps": 9})
    assert all(np.isfinite(leaf).all() for leaf in saved_state(tmp_path / "run"))


@pytest.mark.parametrize(
    "way",
    [
        {},
        slow({"training.microbatches": 2}),
        {"training.exact": True},
    ],
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_rule_can_leave_an_update_out(make, name, way):
    """However its state is made up and its gradient summed: all but the number of steps stays."""
    more = {"optimizer.name": name, "optimizer.average": "ema", "data.batch_size": 16, **way}
    more |= {"model.d_model": 128, "model.num_layers": 1}  # wide enough for all of Adafactor
    resolved, corpus = make(**more)
    data = text_data(resolved, corpus)
    if name == "muon" and "training.exact" in way:
        with pytest.raises(UserError, match="multiplies matrices"):
            loop.Run(resolved, data)
        return
    trained = loop.Run(resolved, data)
    with trained.within():
        state = trained.fresh_state()
        batch = trained.batch(trained.batches, 0)
        before = jax.tree.map(np.array, state)
        skipped, metrics = trained.train_step(state, batch, (0.0, 0.0))
        assert metrics["skipped"] == 1
        after = jax.tree.map(np.array, skipped)
        changed, metrics = trained.train_step(skipped, batch, (math.inf, math.inf))
        assert metrics["skipped"] == 0
    assert after.step == before.step + 1
    kept = jax.tree.leaves((before.params, before.opt_state))
    for a, b in zip(kept, jax.tree.leaves((after.params, after.opt_state)), strict=True):
        assert a.tobytes() == b.tobytes()
    assert any(
        map(np.any, jax.tree.leaves(jax.tree.map(np.subtract, changed.params, before.params)))
    )


def test_a_run_that_learns_nothing_ends(make, tmp_path, poison):
    poison(math.nan, *range(12, 100))
    with pytest.raises(UserError, match="updates of 10 steps in a row were left out") as caught:
        train(make, tmp_path / "run", **{"training.skip_step": True})
    assert caught.value.code == NOT_FINITE


def test_a_signal_that_comes_as_a_run_goes_back_is_heeded(make, tmp_path, poison, monkeypatch):
    poison(math.nan, 17)
    go_back = loop.go_back

    def signalled(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return go_back(*arguments)

    monkeypatch.setattr(loop, "go_back", signalled)
    with pytest.raises(UserError, match="stopped after step 16 of 30") as caught:
        train(make, tmp_path / "run", **{"training.rollback": 1})
    assert caught.value.code == TERMINATED
    train(make, tmp_path / "run", **{"training.rollback": 1})
    monkeypatch.undo()
    poison(math.nan, 17)
    train(make, tmp_path / "undisturbed", **{"training.rollback": 1})
    assert (
        saved_state(tmp_path / "run")[0].tobytes()
        == saved_state(tmp_path / "undisturbed")[0].tobytes()
    )


def test_going_back_needs_checkpoints(make):
    with pytest.raises(UserError, match="nothing is saved to go back to"):
        make(**{"training.rollback": 1})


def test_the_best_parameters_survive_going_back(tmp_path):
    """Of two evaluations the better one is lost, since a run goes back to before it."""
    origin = ({"model.vocab_size": 1}, "run", {})
    params = {"a": jax.numpy.ones(3)}
    records = []

    def evaluate(best, step, value):
        best.record(step, {"task_x": value}, params)
        records.append({"step": step, "split": "validation", "task_x": value})
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / "metrics.jsonl").write_text(lines)

    best = BestCheckpoint(tmp_path, origin, "task_x", 0, 0)
    for step, value in ((10, 0.5), (25, 0.6)):
        evaluate(best, step, value)
    best.close()
    records.pop()
    best = BestCheckpoint(tmp_path, origin, "task_x", 20, 0)
    evaluate(best, 30, 0.45)
    best.close()
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["10"]


def test_leaving_out_changes_no_healthy_run(make, tmp_path):
    train(make, tmp_path / "plain")
    train(make, tmp_path / "guarded", **{"training.skip_step": True, "training.rollback": 3})
    for a, b in zip(
        saved_state(tmp_path / "plain"), saved_state(tmp_path / "guarded"), strict=True
    ):
        assert a.tobytes() == b.tobytes()


def test_an_unhealthy_state_replaces_no_healthy_checkpoint(make, tmp_path, monkeypatch):
    """From step 18 on its loss is far above the others, but finite."""
    read = loop.mean_metrics

    def far(sums):
        values = read(sums)
        far.step += 1
        return values | ({"loss": 3e12, "total_loss": 3e12} if far.step >= 18 else {})

    far.step = 0
    monkeypatch.setattr(loop, "mean_metrics", far)
    said = train(make, tmp_path / "run")
    assert saved_steps(tmp_path / "run") == [10, 15, 30]
    healthy = [manifest.read(tmp_path / f"run/checkpoints/{s}")["healthy"] for s in (10, 15, 30)]
    assert healthy == [True, True, False]
    assert "step 20: the loss or the gradient norm is far above" in said


def test_the_advice_works(tmp_path, config_file):
    """A rate that is too high is lowered from a step on, and the change is recorded."""
    settings = {"training.steps": 12, "training.checkpoint_every": 4, "training.log_every": 1}
    config = config_file(**settings, **{"optimizer.learning_rate": 0.01})
    command = ("train", f"--config={config}", f"--workdir={tmp_path / 'run'}")
    run(*command, "--config.training.steps=8")
    lower = "--config.optimizer.learning_rate=0.001"
    _, err = run(*command, lower, code=78)
    assert "optimizer.learning_rate: the run in" in err
    assert "add --change to change it from here on" in err
    _, err = run(*command, "--change", "--config.model.num_heads=4", code=78)
    assert "model.num_heads" in err
    out, _ = run(*command, lower, "--change", "--config.optimizer.grad_clip_norm=0.5")
    assert "optimizer.learning_rate: 0.01 before, 0.001 after step 8" in out
    (event,) = run_history.events(tmp_path / "run")
    changed = {"optimizer.learning_rate": [0.01, 0.001], "optimizer.grad_clip_norm": [1.0, 0.5]}
    assert event == {"event": "change", "after_step": 8, "settings": changed}
    rates = {
        r["step"]: r["learning_rate"] for r in figures(tmp_path / "run") if "learning_rate" in r
    }
    assert rates[9] < rates[8] / 2
    run("evaluate", f"--workdir={tmp_path / 'run'}")
    run(*command, lower, "--config.optimizer.grad_clip_norm=0.5")  # it has ended


def test_the_message_names_weights_that_are_not_finite(make, tmp_path, monkeypatch):
    resolved, corpus = make(**STEPS)
    data = text_data(resolved, corpus)
    batches = data.batches("train")
    rows = type(batches).batch_at

    def batch_at(self, step, rows_of=None):
        made = rows(self, step, rows_of)
        if self is batches and step == 5:
            made["decoder_weights"] = made["decoder_weights"] * np.float32("nan")
        return made

    monkeypatch.setattr(type(batches), "batch_at", batch_at)
    assert "decoder_weights of the rows 0, 1" in remedy(resolved.config, batches, 6, 5, 0)
    assert "correct objective=causal_lm" in remedy(resolved.config, batches, 6, 5, 0)
    assert "add --change" in remedy(resolved.config, batches, 6, 4, 0)
    assert "model.init_stddev" in remedy(resolved.config, batches, 1, 0, 0)
