"""Functions of the user's own that fail, or return what they should not: one sentence that names
the setting, before anything is trained. Objectives have tests/data/objectives/test_contract.py.
"""

import pytest
from conftest import refusal, run

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


@pytest.mark.parametrize("name", ["fails", "numbers", "infinite", "text"])
@pytest.mark.usefixtures("own_code")
def test_a_bad_metric_is_named(name, write_module):
    write_module("mine", MODULE)
    task = Task(name="a", source="a.tsv", metrics=(f"mine.{name}",))
    message = refusal(find_metric(task, f"mine.{name}").score, task, [], [])
    assert message.startswith(f"task.metrics: mine.{name}")
