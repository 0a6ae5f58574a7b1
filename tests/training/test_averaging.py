"""Averages of the parameters: what they are, and that everything but training reads them."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import refusal, run, settings

import t5x_lite
from t5x_lite import manifest
from t5x_lite.config import Optimizer, RunConfig, Task
from t5x_lite.config.files import build
from t5x_lite.finetuning.recipe import config_of
from t5x_lite.training.averaging import (
    AVERAGE,
    AVERAGES,
    Moment,
    average_or_newest,
    averaged,
    check_average,
    find_average,
    tail,
)
from t5x_lite.training.checkpoint import Checkpoints
from t5x_lite.training.log import read_metrics
from t5x_lite.training.optimizer import OPTIMIZERS, check_optimizer, make_optimizer
from t5x_lite.training.update_rule import UpdateRule

ALL = ["ema(decay=0.6)", "tail(share=0.5)"]


@pytest.fixture(autouse=True)
def quiet():
    with t5x_lite.messages_to(lambda line: None):
        yield


def test_all_averages_are_tested():
    assert {name.partition("(")[0] for name in ALL} == {*AVERAGES}


def averages_of(average: str, path: np.ndarray, before: int = 0) -> list[float]:
    """The average after each step of a parameter that takes these values, the last of them in a
    stage that begins after the first `before`.
    """
    weight = find_average(Optimizer(average=average))
    rule = averaged(
        UpdateRule(*optax.stateless(lambda to, _: to)), weight, before, len(path) - before
    )
    params = jnp.float32(0)
    state, found = rule.init(params) | {AVERAGE: jnp.float32(1e6)}, []  # forgotten at once
    for value in path.astype(np.float32):
        updates, state = rule.update(value - params, state, params)
        params = optax.apply_updates(params, updates)
        found.append(float(average_or_newest(params, state)))
    return found


def test_an_ema_is_the_weighted_sum_that_it_says():
    path = np.random.default_rng(0).normal(size=60)
    found = averages_of("ema(decay=0.8)", path)
    for steps in (1, 2, 10, 60):
        kept = [min(0.8, (n - 1) / (n + 8)) for n in range(1, steps + 1)]
        weights = [(1 - kept[n]) * np.prod(kept[n + 1 :]) for n in range(steps)]
        assert sum(weights) == pytest.approx(1)
        assert found[steps - 1] == pytest.approx(weights @ path[:steps], rel=1e-4)


@pytest.mark.parametrize("before", [0, 30])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.25, 0.5, 1.0])
def test_a_tail_is_the_mean_of_the_last_steps(share, before):
    path = np.random.default_rng(0).normal(size=70)
    found = averages_of(f"tail(share={share})", path, before)
    steps = len(path) - before
    first = before + int(np.ceil((1 - share) * steps))
    assert found[-1] == pytest.approx(np.mean(path[min(first, 69) :]), rel=1e-4, abs=1e-6)
    # Before it begins, the average is the newest parameters.
    assert found[before:first] == pytest.approx(path[before:first], rel=1e-5)


def raw(workdir: Path, step: int) -> dict:
    """Checksums of the parameters that are trained."""
    recorded = manifest.read(workdir / f"checkpoints/{step}")["arrays"]
    of_params = {path: array for path, array in recorded.items() if path.startswith("params/")}
    assert of_params
    return of_params


def kept_parameters(workdir: Path, steps: list[int]) -> list:
    return [t5x_lite.load(f"{workdir}@{step}").params for step in steps]


@pytest.fixture(scope="module")
def plain(text_file, tmp_path_factory):
    """Six steps without an average, all kept."""
    workdir = tmp_path_factory.mktemp("plain") / "run"
    t5x_lite.train(settings(text_file) | {"training": TRAINING}, workdir)
    return workdir


TRAINING = {"steps": 6, "log_every": 1, "keep_every": 1, "eval_every": 2}


def with_average(text_file, average: str, **training) -> dict:
    config = settings(text_file)
    return config | {"optimizer": {"average": average}, "training": TRAINING | training}


@pytest.mark.parametrize("average", ALL)
def test_a_run_trains_as_without_and_shows_the_average(plain, text_file, tmp_path, average):
    workdir = tmp_path / "run"
    config = with_average(text_file, average)
    model = t5x_lite.train(config, workdir)
    assert raw(workdir, 6) == raw(plain, 6)
    weight = find_average(Optimizer(average=average))
    expected = None
    for step, params in enumerate(kept_parameters(plain, [*range(1, 7)]), 1):
        share = float(weight(Moment(step, step, 6)))
        before = params if expected is None else expected
        expected = jax.tree.map(lambda a, p, w=share: a + w * (p - a), before, params)
        of_step = t5x_lite.load(f"{workdir}@{step}").params
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), of_step, expected)
    with pytest.raises(AssertionError):  # it is not what the run without has
        jax.tree.map(np.testing.assert_array_equal, model.params, kept_parameters(plain, [6])[0])

    # The validation loss in the records is that of what is read.
    recorded = [one for one in read_metrics(workdir / "metrics.jsonl") if one["split"] != "train"]
    assert [one["step"] for one in recorded] == [2, 4, 6]
    evaluated = t5x_lite.evaluate(f"{workdir}@4")
    assert evaluated["loss"] == pytest.approx(recorded[1]["loss"], rel=1e-6)
    unlike = [one for one in read_metrics(plain / "metrics.jsonl") if one["split"] != "train"]
    assert recorded[-1]["loss"] != unlike[-1]["loss"]


def test_a_run_that_is_continued_has_the_same_average(text_file, tmp_path):
    average = "tail(share=0.5)"
    t5x_lite.train(with_average(text_file, average), tmp_path / "whole")
    half = with_average(text_file, average)
    t5x_lite.train(half, tmp_path / "half")
    checkpoints = tmp_path / "half/checkpoints"
    Checkpoints(checkpoints, {}).remove_after(3)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["1", "2", "3"]
    t5x_lite.train(half, tmp_path / "half")
    whole, continued = (
        manifest.read(tmp_path / name / "checkpoints/6")["arrays"] for name in ("whole", "half")
    )
    assert whole == continued
    refused = refusal(t5x_lite.train, with_average(text_file, ""), tmp_path / "half")
    assert f"has {average!r}, now it is ''" in refused


def test_the_next_stage_begins_with_the_average(plain, text_file, tmp_path):
    stages = (
        {"until": 3, "optimizer": {"average": "tail(share=1.0)"}},
        {"optimizer": {"learning_rate": 0.0}},
    )
    config = settings(text_file) | {"training": TRAINING, "stages": stages}
    trained = t5x_lite.train(config, tmp_path / "run")
    newest = kept_parameters(plain, [1, 2, 3])
    expected = jax.tree.map(lambda *arrays: np.mean(arrays, 0), *newest)
    check = partial(np.testing.assert_allclose, atol=1e-6)
    jax.tree.map(check, trained.params, expected)
    with pytest.raises(AssertionError):
        jax.tree.map(check, trained.params, newest[-1])


def test_the_average_of_an_adapted_model_is_that_of_its_updates(plain, text_file, tmp_path):
    """The parameters that are frozen have no average, and are those of the base."""
    config = settings(text_file, **{"model.lora_rank": 8, "training.steps": 3})
    config |= {"init_from": str(plain), "adapt": "lora"}
    config["training"] |= {"keep_every": 1}
    found = {}
    for average in ("", "tail(share=1.0)"):
        workdir = tmp_path / (average or "none")
        config["optimizer"] = {"average": average, "learning_rate": 1e-2, "warmup_steps": 0}
        t5x_lite.train(config, workdir)
        found[average] = kept_parameters(workdir, [1, 2, 3])
    newest = found[""]
    expected = jax.tree.map(lambda *arrays: np.mean(arrays, 0), *newest)
    check = partial(np.testing.assert_allclose, atol=1e-6)
    jax.tree.map(check, found["tail(share=1.0)"][-1], expected)
    with pytest.raises(AssertionError):
        jax.tree.map(check, newest[-1], expected)


def test_an_ema_goes_on_through_stages(text_file, tmp_path):
    config = with_average(text_file, "ema(decay=0.6)", eval_every=0)
    t5x_lite.train(config, tmp_path / "whole")
    t5x_lite.train(config | {"stages": ({"until": 2}, {"until": 4}, {})}, tmp_path / "cut")
    whole, cut = (
        manifest.read(tmp_path / name / "checkpoints/6")["arrays"] for name in ("whole", "cut")
    )
    assert any(f"opt_state/{AVERAGE}/" in path for path in whole)
    assert whole == cut


def test_the_best_parameters_of_a_task_are_those_that_were_judged(text_file, tmp_path):
    rows = ["the cat sees it\tcats", "a dog hears it\tdogs"] * 8
    (tmp_path / "pets").mkdir()
    for split in ("train", "dev"):
        (tmp_path / f"pets/{split}.tsv").write_text("\n".join(["text\tlabel", *rows]))
    t5x_lite.train(settings(text_file), tmp_path / "base")
    workdir = tmp_path / "tuned"
    run(
        "finetune", f"--init={tmp_path / 'base'}", f"--workdir={workdir}",
        f"--task=classify({tmp_path}/pets, validation=dev, test=)",
        "--config.optimizer.average=ema(decay=0.9)", "--config.optimizer.learning_rate=1e-2",
        "--config.data.epochs=3", "--config.data.batch_size=4", "--config.training.keep_every=1",
        "--config.training.eval_every=1",
    )  # fmt: skip
    best = max(map(int, (path.name for path in (workdir / "best").iterdir())))
    of_best, of_run = (
        manifest.read(workdir / f"{directory}/{best}")["arrays"]
        for directory in ("best", "checkpoints")
    )
    assert of_best == {
        path.replace(f"opt_state/{AVERAGE}", "params"): array
        for path, array in of_run.items()
        if path.startswith(f"opt_state/{AVERAGE}/")
    }


@pytest.mark.parametrize("average", ALL)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_can_have_an_average(name, average):
    """The updates are those of the rule alone, in every kind of state."""
    axes = {"kernel": ("embed", "mlp"), "bias": ("mlp",)}
    params = {"kernel": jnp.ones((4, 6)), "bias": jnp.ones(6)}
    grads = jax.tree.map(jnp.ones_like, params)
    rule = make_optimizer(Optimizer(name=name), lambda step: 0.1, axes, steps=4)
    with_one = make_optimizer(
        Optimizer(name=name, average=average), lambda step: 0.1, axes, steps=4
    )
    state, its = rule.init(params), with_one.init(params)
    for _ in range(4):
        expected, state = rule.update(grads, state, params)
        updates, its = with_one.update(grads, its, params)
        jax.tree.map(np.testing.assert_array_equal, updates, expected)
        params = optax.apply_updates(params, updates)
    average_of = average_or_newest(params, its)
    assert jax.tree.map(jnp.shape, average_of) == jax.tree.map(jnp.shape, params)
    assert average_or_newest(params, state) is params


@pytest.mark.parametrize(
    ("average", "words"),
    [
        ("emma", "optimizer.average=emma: no such average; did you mean ema?"),
        ("ema(decay=1.5)", "decay: got 1.5, expected between 0 and 1"),
        ("tail(steps=5)", "tail has no option steps; expected one of share"),
    ],
)
def test_what_is_no_average(average, words):
    assert words in refusal(check_optimizer, Optimizer(average=average))


MINE = """
import jax.numpy as jnp


def tenth(now):
    return 0.1


def bad(now):
    return now.step * 2.0


def late(now):
    return jnp.where(now.step > 11, 2.0, 1.0)


def branching(now):
    return 1.0 if now.step < 3 else 0.5
"""


@pytest.mark.usefixtures("own_code")
def test_an_average_of_ones_own(write_module, text_file, tmp_path):
    write_module("averages", MINE)
    for name, steps, reason in (
        ("bad", 12, "returned 2.0 at step 1, expected a number from 0 to 1"),
        ("late", 12, "returned 2.0 at step 12, expected a number from 0 to 1"),
        ("branching", 12, "failed (TracerBoolConversionError"),
    ):
        config = settings(text_file, **{"training.steps": steps})
        config["optimizer"] = {"average": f"averages.{name}"}
        sentence = refusal(t5x_lite.train, config, tmp_path / name)
        assert sentence.startswith(f"optimizer.average=averages.{name}: ")
        assert reason in sentence
        assert not (tmp_path / name).exists()
    check_average(Optimizer(average="averages.late"), steps=11)


@pytest.mark.usefixtures("own_code")
def test_an_average_begins_with_the_parameters_of_init_from(
    plain, write_module, text_file, tmp_path
):
    """Not with those that were drawn before these were loaded."""
    write_module("averages", MINE)
    config = settings(text_file) | {"init_from": str(plain)}
    config["optimizer"] = {"average": "averages.tenth", "learning_rate": 0.0}
    params = t5x_lite.train(config, tmp_path / "run").params
    check = partial(np.testing.assert_allclose, atol=1e-6)
    jax.tree.map(check, params, kept_parameters(plain, [6])[0])


@pytest.mark.parametrize("share", [0.05, 0.15, 0.3, 0.45, 0.7, 0.85, 0.95])
@pytest.mark.parametrize("steps", [20, 100, 1000])
def test_a_tail_has_the_steps_of_its_share(share, steps):
    numbers = np.arange(1, steps + 1)
    weights = np.asarray(tail(Moment(numbers, numbers, steps), share))
    assert (weights < 1).sum() == round(share * steps) - 1
    assert weights[-1] == pytest.approx(1 / round(share * steps))


def test_a_task_is_learned_without_the_average_of_the_pretraining(text_file):
    config = build(RunConfig, with_average(text_file, "ema"))
    task = Task(name="mine", kind="classify", source="a.tsv", labels=("a", "b"))
    assert config_of(config, task).optimizer.average == ""
