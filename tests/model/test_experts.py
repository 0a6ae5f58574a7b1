"""Mixtures of experts, against a loop over tokens."""

import dataclasses
import re
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model.proofs import SEGMENTS, check_gradients, context, draw, random_params, small

from t5x_lite.config import Mesh, Model
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.errors import UserError
from t5x_lite.model.blocks import Block
from t5x_lite.model.check import check_model
from t5x_lite.model.dropout import Noise
from t5x_lite.model.flops import forward_flops
from t5x_lite.model.parts.contract import StackShape
from t5x_lite.model.parts.experts import Experts
from t5x_lite.model.parts.table import layers_of_period, make_feed_forward
from t5x_lite.model.transformer import (
    Transformer,
    count_active_parameters,
    count_parameters,
    parameter_shapes,
)
from t5x_lite.resolve import resolve_model

T5_BASE = {
    "architecture": "encoder_decoder",
    "num_layers": 12,
    "d_model": 768,
    "num_heads": 12,
    "d_ff": 3072,
    "norm": "rms_norm",
    "bias": False,
    "positions": "relative",
}


def run(part, params, x, segments, noise=None, drops=True):
    """What the block makes of the part on one device."""

    @jax.jit  # much faster to compile than each of its operations
    def compute(params, x, segments):
        stack = SimpleNamespace(segments=segments, noise=noise or Noise(jnp.arange(len(x))))
        rngs = {"dropout": jax.random.key(7)}
        return part.apply({"params": params}, x, stack, drops, method=_whole, rngs=rngs)

    return compute(params, x, segments)


def params_of(part):
    """Random ones."""

    def init():
        x = jnp.zeros((2, 5, part.config.d_model))
        return nn.meta.unbox(part.init(jax.random.key(0), x, context(), True, method=_whole))

    return draw(jax.eval_shape(init)["params"])


def _whole(part, x, stack, drops):
    routed = part.dispatch(x, stack, drops)
    return part.combine(part.compute(routed.sent, stack), routed, routed.counts)


def by_hand(part, params, x, segments):
    """Token by token: what comes out, balance, and how many choices were dropped."""
    p = jax.tree.map(np.asarray, params)
    E, K = part.num, part.top_k
    y, chosen, likely, dropped = np.zeros_like(x), np.zeros(E), np.zeros(E), 0.0
    for b, row in enumerate(np.asarray(x)):
        taken = np.zeros(E, int)
        for t, token in enumerate(row):
            if segments[b, t] == 0:
                continue
            logits = token @ p["router"]["kernel"]
            probability = np.exp(logits) / np.exp(logits).sum()
            best = np.argsort(-probability, kind="stable")[:K]
            gates = probability[best] / (probability[best].sum() if K > 1 else 1)
            likely += probability
            for expert, gate in zip(best, gates, strict=True):
                chosen[expert] += 1
                taken[expert] += 1
                if taken[expert] > part.slots(len(row)):
                    dropped += 1 / K
                    continue
                hidden = np.maximum(token @ p["wi"][expert], 0)
                if part.kind == "gated_mlp":
                    hidden = hidden * (token @ p["gate"][expert])
                y[b, t] += gate * hidden @ p["wo"][expert]
    balance = part.balance * E * (chosen / chosen.sum() * likely).sum()
    return y, balance, dropped


CASES = [
    {"num": num, "top_k": top_k, "capacity": capacity, "kind": kind, "d_ff": d_ff}
    for num in (1, 2, 5)
    for top_k in (1, 2, 3)
    if top_k <= num
    for capacity in (0.3, 1.0, 4.0)
    for kind, d_ff in (("mlp", 0), ("gated_mlp", 3))
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case.values())))
def test_it_is_a_loop_over_tokens(case):
    with jax.enable_x64(True):
        config = small(activation="relu")
        part = Experts(config, **case)
        rng = np.random.default_rng(1)
        x = rng.normal(size=(2, 24, config.d_model))
        segments = np.ones((2, 24), int)
        segments[1, 15:] = 0
        params = params_of(part)
        y, found = run(part, params, jnp.asarray(x), jnp.asarray(segments))
        expected, balance, dropped = by_hand(part, params, x, segments)
        np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)
        assert float(found["balance"]) == pytest.approx(balance, rel=1e-10)
        assert float(found["dropped"].total) == pytest.approx(dropped)
        if case["capacity"] == 0.3 and case["num"] > 1:
            assert dropped


@pytest.mark.parametrize("spec", ["experts(num=3, top_k=2)", "experts(num=2, top_k=1, every=1)"])
def test_gradients(spec):
    def block(part, x):
        y, auxiliary = part(x, jnp.array(3), context())
        return y.sum() + auxiliary["balance"]

    check_gradients(Block(small(feed_forward=spec, d_ff=5)), block)


def a_part(**options):
    """A part with random parameters, and two rows for it."""
    part = Experts(small(activation="relu", dtype="float32"), **{"num": 4, "jitter": 0.0} | options)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 24, 6)), jnp.float32)
    return part, params_of(part), x


def test_no_position_depends_on_a_later_one():
    """Though experts are full, and the choices of later tokens many."""
    part, params, x = a_part(capacity=0.4)
    segments = jnp.ones((2, 24), int)
    y, found = run(part, params, x, segments)
    assert float(found["dropped"].total) > 5
    for cut in (2, 5, 11):
        other, _ = run(part, params, x.at[:, cut:].set(7.0), segments)
        np.testing.assert_array_equal(other[:, :cut], y[:, :cut])
        assert (other[:, cut:] != y[:, cut:]).any()


def test_rows_do_not_depend_on_each_other():
    part, params, x = a_part(capacity=0.4)
    y, _ = run(part, params, x, jnp.ones((2, 24), int))
    alone, _ = run(part, params, x[1:], jnp.ones((1, 24), int))
    np.testing.assert_allclose(y[1:], alone, atol=1e-6)


def test_padding_takes_no_slot_and_learns_nothing():
    part, params, x = a_part(capacity=0.4)
    front = jnp.ones((2, 24), int).at[:, :12].set(0)
    y, found = run(part, params, x, front)
    assert (y[:, :12] == 0).all()
    other, found_otherwise = run(part, params, x.at[:, :12].set(3.0), front)
    np.testing.assert_array_equal(y, other)
    assert found["balance"] == found_otherwise["balance"]


def test_no_token_is_dropped_while_text_is_generated():
    part, params, x = a_part(capacity=0.1)
    segments = jnp.ones((2, 24), int)
    assert float(run(part, params, x, segments)[1]["dropped"].total) > 0
    y, found = run(part, params, x, segments, drops=False)
    assert float(found["dropped"].total) == 0
    one, _ = run(part, params, x[:, 3:4], segments[:, :1], drops=False)
    np.testing.assert_allclose(one[:, 0], y[:, 3], atol=1e-6)


def test_the_router_is_jittered_in_training_alone():
    """By numbers that follow from a row's place in the batch."""
    part, params, x = a_part(jitter=0.3)
    segments, rows = jnp.ones((2, 24), int), jnp.arange(2)
    quiet, _ = run(part, params, x, segments)
    noisy, _ = run(part, params, x, segments, Noise(rows, is_on=True))
    assert (noisy != quiet).any()
    of_last, _ = run(part, params, x[1:], segments[1:], Noise(rows[1:], is_on=True))
    np.testing.assert_allclose(noisy[1:], of_last, atol=1e-6)
    still, _ = run(*a_part(jitter=0.0), segments, Noise(rows, is_on=True))
    np.testing.assert_array_equal(still, quiet)


def test_dropout_is_that_of_a_row():
    """It follows from a row's place in the batch; experts that are not asked draw nothing."""
    part, params, x = a_part()
    part = part.clone(config=dataclasses.replace(part.config, ff_dropout=0.5))
    segments, rows = jnp.ones((2, 24), int), jnp.arange(2)
    quiet, _ = run(part, params, x, segments)
    noisy, _ = run(part, params, x, segments, Noise(rows, is_on=True))
    assert (noisy != quiet).any()
    of_last, _ = run(part, params, x[1:], segments[1:], Noise(rows[1:], is_on=True))
    np.testing.assert_allclose(noisy[1:], of_last, atol=1e-6)
    many = jnp.broadcast_to(x[:1], (400, *x.shape[1:]))
    mean, _ = run(part, params, many, jnp.ones((400, 24), int), Noise(jnp.arange(400), is_on=True))
    np.testing.assert_allclose(mean.mean(0), quiet[0], atol=0.25)


def test_experts_that_are_equally_busy_are_balanced():
    """At its least the loss of a token is its weight (Fedus et al., 2022, eq. 4)."""
    part, params, x = a_part(balance=0.5)
    params["router"]["kernel"] = jnp.zeros_like(params["router"]["kernel"])
    _, found = run(part, params, x, jnp.ones((2, 24), int))
    assert float(found["balance"]) == pytest.approx(0.5 * 48)
    slope = jax.grad(lambda p: run(part, p, x, jnp.ones((2, 24), int))[1]["balance"])(params)
    assert float(jnp.abs(slope["router"]["kernel"]).max()) > 0


# What it is made of.


def sized(feed_forward: str):
    """Narang et al.'s T5 base (2021, table 1)."""
    return resolve_model(Model(**T5_BASE, feed_forward=feed_forward), 32_128, 512)


def test_sizes_are_those_of_the_published_models():
    """Narang et al., 2021, table 1, in millions."""
    switch = sized("experts(num=32, top_k=1, every=4)")
    two = sized("experts(num=32, top_k=2, capacity=1.0, d_ff=1536, every=4)")
    assert round(count_parameters(sized("mlp")) / 1e6) == 223
    assert round(count_parameters(switch) / 1e6, 1) == 1100.7
    assert round(count_parameters(two) / 1e6, 1) == 647.7
    router = 6 * 32 * 768
    assert count_active_parameters(switch) == count_parameters(sized("mlp")) + router
    assert count_active_parameters(two) == count_parameters(sized("mlp")) + router


def test_flops_are_those_of_the_experts_of_a_token():
    rows, stack = RowShape(512, 114), StackShape(512, 512, bidirectional=True)
    dense, switch = sized("mlp"), sized("experts(num=32, top_k=1, every=4)")
    router = 2 * 768 * 32 * (3 * 512 + 3 * 114)
    difference = forward_flops(switch, rows, 114) - forward_flops(dense, rows, 114)
    assert difference == pytest.approx(router)
    half = make_feed_forward(layers_of_period(sized("experts(num=4, top_k=2, d_ff=1536)"))[0])
    assert half.flops(stack) - 2 * 512 * 768 * 4 == make_feed_forward(dense).flops(stack)


def test_one_layer_of_so_many_has_experts():
    spec = "experts(num=3, top_k=1, every=3, kind='gated_mlp')"
    config = small(num_layers=6, feed_forward=spec, dtype="float32")
    layers = parameter_shapes(config)["decoder"]["layers"]
    assert sorted(layers) == ["block_0", "block_1", "block_2"]
    for place in (0, 1):
        assert sorted(layers[f"block_{place}"]["feed_forward"]) == ["gate", "wi", "wo"]
        assert layers[f"block_{place}"]["feed_forward"]["wi"]["kernel"].shape == (2, 6, 7)
    assert layers["block_2"]["feed_forward"]["wi"].shape == (2, 3, 6, 7)
    assert layers["block_2"]["feed_forward"]["router"]["kernel"].shape == (2, 6, 3)


def test_layers_are_computed_in_their_order():
    """Scanned in periods or written out: those of a model that has them one by one."""
    with jax.enable_x64(True):
        row = {f"decoder_{key}": SEGMENTS for key in ("tokens", "segments", "positions")}
        states = []
        for scan in (True, False):
            config = small(num_layers=4, feed_forward="experts(num=2, every=2)", scan=scan)
            params = random_params(config)
            states.append(Transformer(config).apply({"params": params}, row).hidden_states)
        np.testing.assert_allclose(*states, rtol=1e-12)


@pytest.mark.parametrize(
    ("settings", "mesh", "words"),
    [
        ({"feed_forward": "experts(num=2, top_k=3)"}, {}, "top_k is 3, of 2 experts; lower it"),
        ({"feed_forward": "experts(num=3)"}, {"expert": 2}, "mesh.expert = 2 does not divide"),
        ({"feed_forward": "experts(d_ff=5)"}, {"tensor": 2}, "d_ff is 5, which mesh.tensor = 2"),
        ({"feed_forward": "experts(every=3)"}, {}, "model.num_layers: 2 is no multiple of 3"),
        ({"feed_forward": "experts(every=2)", "shared_layers": "all"}, {}, "layers differ"),
        ({"feed_forward": "mlp"}, {"expert": 2}, "no part of this model has experts; set it to 1"),
        ({"feed_forward": "experts(nmu=3)"}, {}, "has no option nmu; did you mean num?"),
        ({"feed_forward": "experts(capacity=0)"}, {}, "capacity: got 0.0, expected between 0 and"),
    ],
)
def test_what_cannot_be_is_refused(settings, mesh, words):
    with pytest.raises(UserError, match=re.escape(words)):
        check_model(small(**settings), RowShape(decoder=5), Mesh(data=1, **mesh))
