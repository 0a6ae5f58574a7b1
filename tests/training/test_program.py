"""What devices compute, before any of them does."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from proof_sharding import module_of_the_manual

from t5x_lite.config.permission import allow
from t5x_lite.errors import UserError
from t5x_lite.parallel.mesh import use_mesh
from t5x_lite.resolve import text_data
from t5x_lite.training.loop import Run
from t5x_lite.training.optimizer import OPTIMIZERS
from t5x_lite.training.program import Program


@pytest.mark.parametrize(
    ("objective", "architecture", "more"),
    [
        pytest.param("masked_lm(second='order')", "encoder", {}, marks=pytest.mark.slow),
        pytest.param("span_corruption", "encoder_decoder", {}, marks=pytest.mark.slow),
        ("causal_lm", "decoder", {"training.microbatches": 2}),
    ],
)
def test_what_is_lowered_without_data_is_the_step_of_a_run(make, objective, architecture, more):
    resolved, corpus = make(objective, architecture, **more)
    run = Run(resolved, text_data(resolved, corpus))
    compiled = Program(run.resolved, run.batches.raw_tokens).trace().lower().compile()
    with run.within():
        batch = run.batch(run.batches, 0)
        expected = run.train_step(run.fresh_state(), batch)
        seed, rate = np.uint32(run.resolved.config.seed), run.program.rate(np.int32(0))
        found = compiled(run.fresh_state(), batch, seed, rate, {})
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"training.steps": 10**9}, {"optimizer.schedule": "constant"}],
    ids=lambda other: next(iter(other)),
)
def test_runs_that_differ_only_in_this_share_one_program(make, other):
    """So the cache of compiled programs on disk has it, too."""
    texts = []
    for settings in ({}, other):
        resolved, _ = make("causal_lm", "decoder", **{"model.dropout": 0.1, **settings})
        texts.append(Program(resolved).trace().lower().as_text())
    assert texts[0] == texts[1]


def test_experts_cannot_be_balanced_exactly(make):
    more = {"training.exact": True, "data.batch_size": 16, "model.feed_forward": "experts(num=2)"}
    resolved, _ = make("causal_lm", "decoder", **more)
    with pytest.raises(UserError, match="experts are balanced over the rows of all devices"):
        Program(resolved)


@pytest.mark.parametrize("name", [*OPTIMIZERS, "my_shampoo.shampoo"])
def test_an_optimizer_that_multiplies_matrices_is_not_exact(make, name, tmp_path):
    """proof_sharding.py has the others, whose parameters are the same on four devices."""
    more = {"training.exact": True, "data.batch_size": 16, "optimizer.name": name}
    more["optimizer.weight_decay"] = 0.0  # Adafactor has none
    module_of_the_manual("own-optimizer.md", "my_shampoo.py", tmp_path)
    with allow(["my_shampoo"]):
        resolved, _ = make("causal_lm", "decoder", **more)
        if name in ("muon", "my_shampoo.shampoo"):
            with pytest.raises(UserError, match="the optimizer multiplies matrices"):
                Program(resolved)
        else:
            Program(resolved)


def precisions(resolved) -> set[tuple[str, str]]:
    """Return the precisions of the operands of all products in a step."""
    lines = Program(resolved).trace().lower().as_text().splitlines()
    products = [line for line in lines if "stablehlo.dot_general" in line]
    assert len(products) > 10
    found = [re.findall(r"precision = \[(\w+), (\w+)\]", line) for line in products]
    return {pair for pairs in found for pair in pairs or [("none", "none")]}


@pytest.mark.parametrize(
    ("objective", "architecture", "more"),
    [
        ("masked_lm", "encoder", {"model.positions": "transformer_xl"}),
        ("causal_lm", "decoder", {"model.mixer": "lstm", "optimizer.name": "muon"}),
        ("span_corruption", "encoder_decoder", {"model.positions": "shaw"}),
    ],
)
def test_float32_is_float32_on_every_device(make, objective, architecture, more):
    """By default matrix units round float32: a GPU's to TF32, a TPU's to bfloat16."""
    resolved, _ = make(objective, architecture, **more)
    assert precisions(resolved) == {("HIGHEST", "HIGHEST")}


def test_other_precisions_are_for_those_who_name_them(make):
    resolved, _ = make("causal_lm", "decoder")
    with use_mesh(None, resolved.model):  # as inference on one device has it
        lowered = jax.jit(jnp.dot).lower(np.ones(2, np.float32), np.ones(2, np.float32))
    assert "[HIGHEST, HIGHEST]" in lowered.as_text()
    with jax.default_matmul_precision("tensorfloat32"):
        assert precisions(resolved) == {("HIGH", "HIGH")}
    resolved, _ = make("causal_lm", "decoder", **{"model.dtype": "bfloat16"})
    assert precisions(resolved) == {("DEFAULT", "DEFAULT")}
