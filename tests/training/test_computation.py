"""Runs share what is compiled if it is the same for both, and only then."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.config import Optimizer
from t5x_lite.config.roles import RATE, settings_with
from t5x_lite.resolve import text_data
from t5x_lite.training.computation import forget_programs
from t5x_lite.training.loop import Run
from t5x_lite.training.optimizer import OPTIMIZERS
from t5x_lite.training.schedules import SCHEDULES, make_schedule

SMALL = {"model.num_layers": 1, "model.d_model": 8, "model.num_heads": 1}
# Another value of each setting that decides the learning rate.
RATES = {
    "learning_rate": 0.03,
    "schedule": "linear",
    "schedule_unit": "tokens",
    "warmup_steps": 1,
    "initial_lr_ratio": 0.5,
    "decay_steps": 500,
    "final_lr_ratio": 0.25,
}
# Another value of settings that decide what is computed.
OTHERS = {
    "optimizer.name": "lion",
    "optimizer.beta1": 0.8,
    "optimizer.beta2": 0.9,
    "optimizer.epsilon": 1e-3,
    "optimizer.weight_decay": 0.1,
    "optimizer.grad_clip_norm": 0.5,
    "optimizer.average": "ema",
    "training.z_loss": 0.01,
    "training.label_smoothing": 0.1,
    "training.microbatches": 2,
    "training.loss_chunk": 8,
    "model.dropout": 0.2,
    "model.d_ff": 24,
    "data.split_documents": True,
}
OF_EVALUATION = ("training.", "model.", "data.")


@pytest.fixture
def run_of(make):
    def run(objective="causal_lm", **settings):
        resolved, corpus = make(objective, **SMALL, **settings)
        return Run(resolved, text_data(resolved, corpus))

    return run


def three_steps(run):
    """The state and the metrics after three steps of a run."""
    with run.within():
        state = run.fresh_state()
        for step in range(3):
            state, metrics = run.train_step(state, run.batch(run.batches, step))
    return jax.device_get((state, metrics))


def assert_shared_and_as_alone(run_of, first, second):
    """The second run takes the programs of the first, and trains as without it."""
    forget_programs()
    before, run = run_of(**first), run_of(**second)
    three_steps(before)
    assert run.program.computation is before.program.computation
    found = three_steps(run)
    forget_programs()
    alone = run_of(**second)
    assert alone.program.computation is not before.program.computation
    jax.tree.map(np.testing.assert_array_equal, found, three_steps(alone))


def test_every_setting_of_the_rate_is_tried():
    assert set(RATES) == settings_with(Optimizer, RATE)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_seeds_and_rates_share_a_program(run_of, name):
    rule = {"optimizer.name": name}
    others = {f"optimizer.{setting}": value for setting, value in RATES.items()}
    assert_shared_and_as_alone(run_of, rule, rule | others | {"seed": 1, "training.steps": 2000})


@pytest.mark.parametrize("setting", RATES)
def test_each_setting_of_the_rate_acts_and_shares_a_program(run_of, setting):
    """The first of the three steps is of the warm-up, the last of the decay."""
    first = {"optimizer.warmup_steps": 2}
    second = first | {f"optimizer.{setting}": RATES[setting]}
    assert_shared_and_as_alone(run_of, first, second)
    rates = [run_of(**settings).program.rate for settings in (first, second)]
    assert any(rates[0](step) != rates[1](step) for step in np.arange(3, dtype=np.int32))


@pytest.mark.parametrize("setting", OTHERS)
def test_what_computes_otherwise_is_not_shared(run_of, setting):
    one, other = run_of(), run_of(**{setting: OTHERS[setting]})
    assert one.program.computation is run_of().program.computation
    assert one.program.computation is not other.program.computation
    is_evaluated = setting.startswith(OF_EVALUATION)
    assert (one.program.eval_step is other.program.eval_step) != is_evaluated


def test_an_average_over_another_length_is_not_shared(run_of):
    runs = [run_of(**{"optimizer.average": "tail(share=0.5)", "training.steps": n}) for n in (6, 8)]
    assert runs[0].program.computation is not runs[1].program.computation


OWN = """
import jax.numpy as jnp
from t5x_lite.training.optimizer import OPTIMIZERS

def rule(config, schedule, axes):
    return OPTIMIZERS["adamw"](config, schedule, axes)

def share(place, config):
    return jnp.ones(())

def average(now):
    return 0.5
"""


@pytest.mark.usefixtures("own_code")
@pytest.mark.parametrize(
    ("setting", "value", "is_shared"),
    [
        ("optimizer.name", "own_rules.rule", False),
        ("optimizer.average", "own_rules.average", False),
        # Its rates are computed outside of the program.
        ("optimizer.schedule", "own_rules.share", True),
    ],
)
def test_own_code_is_never_shared(run_of, write_module, setting, value, is_shared):
    write_module("own_rules", OWN)
    runs = [run_of(**{setting: value}) for _ in range(2)]
    assert (runs[0].program.computation is runs[1].program.computation) == is_shared


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rates_are_those_of_the_schedule_and_of_one_type(run_of, schedule):
    """Programs that take rates of one type are equal."""
    settings = {"schedule": schedule, "warmup_steps": 2, "final_lr_ratio": 0.1}
    run = run_of(**{f"optimizer.{name}": value for name, value in settings.items()})
    of_step = make_schedule(run.resolved.config.optimizer, run.resolved.steps, 1.0)
    for step in np.arange(5, dtype=np.int32):
        rate = run.program.rate(step)
        assert (rate.dtype, rate.aval.weak_type) == (jnp.float32, False)
        assert rate == jax.jit(of_step)(step)


def test_states_in_float64_have_their_types_before_jax_has_enabled_them(run_of):
    """Costs are counted, and stages are checked, before a run enables 64 bits."""
    with jax.enable_x64(False):
        shapes = run_of(**{"model.dtype": "float64", "model.d_ff": 20}).program.computation.shapes
    types = {leaf.dtype for leaf in jax.tree.leaves((shapes.params, shapes.opt_state))}
    assert types - {jnp.dtype("int32")} == {jnp.dtype("float64")}
