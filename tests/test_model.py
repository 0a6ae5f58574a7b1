import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import CELLS
from flax import linen as nn
from jax.test_util import check_grads

from t5x_lite.config import Model
from t5x_lite.data import batches
from t5x_lite.data.layouts import Shape
from t5x_lite.model import attention, flops, kernels, layers, positions
from t5x_lite.model.heads import head_weights, logits
from t5x_lite.model.products import product, product_turned
from t5x_lite.model.transformer import Transformer, initialise, shapes
from t5x_lite.training import rundir
from t5x_lite.training.step import fresh_state, make_evaluation, make_gradient, make_train_step


def fresh(config, seed=0):
    return jax.jit(lambda: nn.meta.unbox(initialise(config, jax.random.key(seed)))["params"])()


def resolved(make, *args, **more):
    config, corpus = make(*args, **more)
    return rundir.resolve(config, corpus.tokenizer.vocabulary), batches.make(config, corpus, "train").batch_at(0)


HOW = [
    {"model.scan": False, "training.loss_chunk": 1000},
    {"model.remat": True, "training.loss_chunk": 5},
    {"training.microbatches": 4},
]


@pytest.mark.parametrize(("objective", "architecture"), [CELLS[0], CELLS[-1]])
def test_how_it_is_computed_changes_nothing(make, objective, architecture):
    with jax.enable_x64(True):
        plain, batch = resolved(make, objective, architecture, **{"model.dtype": "float64"})
        params = fresh(plain.model)
        expected = jax.jit(make_gradient(plain))(params, batch, None)
        for how in HOW:
            other, _ = resolved(make, objective, architecture, **{"model.dtype": "float64"}, **how)
            got = jax.jit(make_gradient(other))(params, batch, None)
            same = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-13, err_msg=str(how))
            jax.tree.map(same, got, expected)
            jax.tree.map(same, jax.jit(make_evaluation(other))(params, batch), expected[1])


VARIANTS = [
    {"positions": "relative", "gated": True, "norm": "rms_norm", "decoder_layers": 2, "shared_embeddings": False},
    {"positions": "transformer_xl", "shared_stacks": True, "norm_position": "post", "kv_heads": 1, "tied": False},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_gradients_against_finite_differences(make, variant):
    """Of whole encoder-decoders; tests/test_parts.py has each part."""
    with jax.enable_x64(True):
        more = {f"model.{key}": value for key, value in variant.items()}
        more |= {"model.dtype": "float64", "model.width": 8, "data.batch_size": 2, "model.layers": 1}
        more |= {"model.init_stddev": 0.3, "model.embedding_stddev": 0.5}
        config, batch = resolved(make, "span_corruption", "encoder_decoder", **more)
        params = fresh(config.model)
        model = Transformer(config.model)

        def loss(params):
            hidden = model.apply({"params": params}, batch)
            out = jax.nn.log_softmax(logits(config.model, head_weights(params), hidden))
            targets = batch["decoder_targets"][..., None]
            return (jnp.take_along_axis(out, targets, -1)[..., 0] * batch["decoder_weights"]).mean()

        check_grads(jax.jit(loss), (params,), order=1, modes=["rev"], atol=1e-5, rtol=1e-4)


def test_padded_embedding_rows_never_win(make):
    config, _ = resolved(make)
    out = logits(config.model, params := head_weights(fresh(config.model)), jnp.ones((2, 16)))
    assert params["kernel"].shape[1] == out.shape[-1] == 640 > config.model.vocab_size
    assert (out[:, config.model.vocab_size :] < -1e8).all()


def test_relative_buckets_cover_the_published_ranges():
    """As the paper says: 32 buckets, exact up to 8 (16 one-sided), logarithmic up to 128, all further ones together."""
    ahead = positions.relative_buckets(np.arange(0, 400), True, 32, 128)
    assert ahead[1:8].tolist() == list(range(17, 24))
    assert (np.diff(ahead[1:]) >= 0).all()
    assert set(ahead[128:]) == {31}
    back = positions.relative_buckets(-np.arange(0, 400), False, 32, 128)
    assert back[:16].tolist() == list(range(16))
    assert set(back[128:]) == {31}
    assert (positions.relative_buckets(np.arange(0, 9), False, 32, 128) == 0).all()


def test_rotary_depends_on_distance_alone():
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))

    def product(i, j):
        at = [positions.rotate(x, jnp.full((1, 1), p)) for x, p in ((q, i), (k, j))]
        return float((at[0] * at[1]).sum())

    assert product(3, 1) == pytest.approx(product(45, 43), abs=1e-5)
    assert product(3, 1) != pytest.approx(product(3, 2), abs=1e-3)


def test_attention_is_that_of_the_paper():
    config = Model(width=8, heads=2, bias=False, init_stddev=1.0)
    x = jax.random.normal(jax.random.key(1), (1, 5, 8))
    sight = kernels.Sight(jnp.ones((1, 5), int), jnp.ones((1, 5), int), causal=True)

    def attend(attention):
        return attention(x, attention.remember(x), sight, sight.hide())

    part = attention.Attention(config)
    params = nn.meta.unbox(part.init(jax.random.key(0), method=attend))
    got = part.apply(params, method=attend)
    w = {name: np.asarray(value["kernel"], np.float64) for name, value in params["params"].items()}
    x0 = np.asarray(x[0], np.float64)
    heads = []
    for h in (slice(0, 4), slice(4, 8)):
        q, k, v = x0 @ w["query"][:, h], x0 @ w["key"][:, h], x0 @ w["value"][:, h]
        scores = np.where(np.tri(5) > 0, q @ k.T / 2, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        heads.append(weights / weights.sum(-1, keepdims=True) @ v)
    np.testing.assert_allclose(got[0], np.concatenate(heads, -1) @ w["out"], rtol=1e-4, atol=1e-5)


def test_unknown_axis_names_raise():
    with pytest.raises(ValueError, match="unknown axis names"):
        layers.named(nn.initializers.zeros, "embde")


@pytest.mark.parametrize("architecture", ["encoder", "decoder", "encoder_decoder"])
@pytest.mark.parametrize("gated", [False, True])
def test_flops_agree_with_the_compiler(make, architecture, gated):
    """The compiler counts the whole square of causal attention, and elementwise work too: within 2 % of ours."""
    objective = {"encoder": "masked_lm", "decoder": "causal_lm", "encoder_decoder": "span_corruption"}[architecture]
    lengths = {"inputs": 116, "targets": 26} if architecture == "encoder_decoder" else {"row": 128}
    more = {"model.width": 512, "model.heads": 4, "data.lengths": lengths, "model.scan": False, "data.batch_size": 4}
    more |= {
        "model.vocab_multiple": 1,
        "model.gated": gated,
        "model.mlm_head": architecture == "encoder",
        "model.activation": "relu",
    }
    config, batch = resolved(make, objective, architecture, **more)
    params = jax.eval_shape(lambda: fresh(config.model))
    counted = jax.jit(make_gradient(config)).lower(params, batch, None).cost_analysis()["flops"] / 4
    decoder = batch["decoder_tokens"].shape[1] if "decoder_tokens" in batch else 0
    encoder = batch["encoder_tokens"].shape[1] if "encoder_tokens" in batch else 0
    scored = batch["encoder_targets"].shape[1] if architecture == "encoder" else decoder
    ours = flops.step_flops(config.model, Shape(encoder, decoder, 0), scored)
    unseen = 3 * 4 * config.model.layers * config.model.width * decoder * (decoder - 1) / 2
    assert ours + unseen == pytest.approx(counted, rel=0.02)


@pytest.mark.parametrize(
    "part",
    [
        {"kv_heads": 2},
        {"embedding_size": 128},
        {"tied": False, "embedding_size": 128},
        {"positions": "shaw", "shaw_distance": 127},
        {"head_size": 64},
        {"mlm_head": True},
        {"shared_layers": "all"},
    ],
    ids=str,
)
def test_flops_of_parts_agree_with_the_compiler(part):
    """Of the forward pass of an encoder, within 1 % of what the compiler counts for four rows."""
    more = {"layers": 2, "width": 1024, "heads": 8, "vocab_size": 1024, "max_length": 256, "activation": "relu"}
    config = Model(architecture="encoder", scan=False, **more, **part)
    row = {f"encoder_{key}": jax.ShapeDtypeStruct((4, 256), jnp.int32) for key in ("tokens", "segments", "positions")}

    def forward(params, row):
        return logits(config, head_weights(params), Transformer(config, packed=False).apply({"params": params}, row))

    counted = jax.jit(forward).lower(shapes(config), row).cost_analysis()["flops"] / 4
    assert flops.forward_flops(config, Shape(256, 0, 0), 256) == pytest.approx(counted, rel=0.01)


def test_peaks_are_known_by_device_kind():
    assert flops.peak_flops("NVIDIA H100 80GB HBM3", "bfloat16") == 989e12
    assert flops.peak_flops("NVIDIA H100 PCIe", "bfloat16") == 756e12
    assert flops.peak_flops("TPU v5 lite", "bfloat16") == 197e12
    assert flops.peak_flops("TPU v5p", "bfloat16") == 459e12
    assert flops.peak_flops("cpu", "bfloat16") is None


def test_dropout_is_a_function_of_the_step_and_off_in_evaluation(make):
    config, batch = resolved(make, **{"model.dropout": 0.5})
    params = fresh(config.model)
    gradient = jax.jit(make_gradient(config))
    first, again, other = (float(gradient(params, batch, jax.random.key(k))[1]["nll"]) for k in (0, 0, 1))
    assert first == again != other
    still = dataclasses.replace(config, model=dataclasses.replace(config.model, dropout=0.0))
    without = jax.jit(make_gradient(still))(params, batch, None)
    assert float(gradient(params, batch, None)[1]["nll"]) == float(without[1]["nll"])


@pytest.mark.parametrize("part", ["dropout", "attention_dropout", "ff_dropout"])
def test_each_dropout_acts_by_itself_in_training(make, part):
    config, batch = resolved(make, **{f"model.{part}": 0.5})
    still = optax.set_to_zero()
    step = jax.jit(make_train_step(config, still, lambda step: 0.0))
    state = fresh_state(config, still)
    nll = [float(step(state.replace(step=jnp.int32(n)), batch)[1]["nll"]) for n in (0, 0, 1)]
    assert nll[0] == nll[1] != nll[2]


@pytest.mark.parametrize("multiply", [product, lambda x, w: product_turned(x, w.swapaxes(1, 2))])
@pytest.mark.parametrize(("n", "d", "f"), [(64, 24, 40), (64, 40, 24), (3, 5, 7)])
def test_products_sum_in_float32_and_so_do_their_gradients(n, d, f, multiply):
    """Against the exact product of the same bfloat16 operands; with both sides the narrower one, and few of each."""
    keys = jax.random.split(jax.random.key(0), 3)
    x, w, dy = (jax.random.normal(k, s) for k, s in zip(keys, [(2, n, d), (2, d, f), (2, n, f)], strict=True))
    x = x.astype(jnp.bfloat16)
    y, pull = jax.vjp(jax.jit(multiply), x, w)
    for_x, for_w = pull(dy)
    assert (y.dtype, for_x.dtype, for_w.dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)
    x, w, dy = (np.asarray(a.astype(jnp.bfloat16), np.float64) for a in (x, w, dy))
    np.testing.assert_allclose(y, x @ w, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(for_w, x.swapaxes(1, 2) @ dy, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.asarray(for_x, np.float64), dy @ w.swapaxes(1, 2), rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize(("objective", "architecture"), [CELLS[0], CELLS[1], CELLS[4], CELLS[-1]])
def test_bfloat16_is_float32_within_its_digits(make, objective, architecture):
    plain, batch = resolved(make, objective, architecture, **{"model.positions": "relative"})
    other, _ = resolved(make, objective, architecture, **{"model.positions": "relative", "model.dtype": "bfloat16"})
    params = fresh(plain.model)
    (g1, s1), (g2, s2) = (jax.jit(make_gradient(c))(params, batch, None) for c in (plain, other))
    assert float(s2["nll"]) == pytest.approx(float(s1["nll"]), rel=1e-3)
    norm = optax.tree.norm(g1)
    assert 0 < float(optax.tree.norm(jax.tree.map(jnp.subtract, g1, g2)) / norm) < 0.03
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(g2))
