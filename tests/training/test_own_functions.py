"""Functions of the user's own that fail, or return what they should not: one sentence that names
the setting, before anything is trained. Objectives have tests/data/objectives/test_contract.py.
"""

import pytest
from conftest import refusal, run
from proof_sharding import module_of_the_manual
from training.runs import figures

from t5x_lite.config import Task
from t5x_lite.data.tasks.metrics import find_metric

MODULE = """
import jax.numpy as jnp
def fails(*args, **options): raise ValueError("boom")
def nothing(*args, **options): return None
def numbers(*args, **options): return [1, 2]
def infinite(*args, **options): return jnp.inf
def number(*args, **options): return 1.0
def text(*args, **options): return "good"
class Plain: ...
"""
SETTINGS = {
    "optimizer.schedule": ("fails", "nothing", "numbers", "infinite", "text"),
    "optimizer.name": ("fails", "nothing", "number"),
    "training.loggers": ("fails",),
    "training.callbacks": ("fails", "number"),
    "model.attention_rules": ("fails", "nothing"),
    "model.heads": ("fails", "nothing"),
    "model.mixer": ("fails", "Plain"),
    "model.feed_forward": ("nothing", "Plain"),
    "model.norm": ("number", "Plain"),
    "model.positions": ("numbers", "Plain"),
}


@pytest.mark.parametrize(
    ("key", "name"), [(key, name) for key, names in SETTINGS.items() for name in names]
)
def test_a_bad_function_is_named(key, name, config_file, write_module, tmp_path):
    write_module("mine", MODULE)
    value = f"mine.{name}"
    is_list = key.endswith(("loggers", "callbacks", "rules", "heads"))
    path = config_file(**{key: (value,) if is_list else value})
    _, err = run("train", f"--config={path}", f"--workdir={tmp_path}/run", code=78)
    assert err.startswith(f"t5x_lite: {key}") or f"\nt5x_lite: {key}" in err
    assert value in err
    assert len(err.splitlines()[-1]) < 300


def test_those_of_the_manual_train_a_run_together(config_file, tmp_path, monkeypatch):
    """The schedule stays at the peak and falls in the last fifth of 10 steps."""
    own = {
        "optimizer.name": "my_adopt.adopt",
        "optimizer.schedule": "my_schedule.warmup_stable_decay(tail=0.2)",
        "optimizer.average": "my_average.since(step=2)",
    }
    monkeypatch.syspath_prepend(tmp_path)
    for value in own.values():
        module_of_the_manual("own-optimizer.md", f"{value.partition('.')[0]}.py", tmp_path)
    more = {"optimizer.warmup_steps": 0, "optimizer.learning_rate": 0.01, "training.steps": 10}
    run("train", f"--config={config_file(**own, **more)}", f"--workdir={tmp_path}/run")
    records = [one for one in figures(tmp_path / "run") if one["split"] == "train"]
    rates = [one["learning_rate"] for one in records]
    assert rates == pytest.approx([0.01] * 8 + [0.005, 0], abs=1e-7)
    assert records[-1]["loss"] < records[0]["loss"]


@pytest.mark.parametrize("name", ["fails", "numbers", "infinite", "text"])
@pytest.mark.usefixtures("own_code")
def test_a_bad_metric_is_named(name, write_module):
    write_module("mine", MODULE)
    task = Task(name="a", source="a.tsv", metrics=(f"mine.{name}",))
    message = refusal(find_metric(task, f"mine.{name}").score, task, [], [])
    assert message.startswith(f"task.metrics: mine.{name}")
