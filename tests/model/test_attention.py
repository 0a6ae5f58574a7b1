from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from model.proofs import POSITIONS, QUIET, SEGMENTS, check_gradients, context, small

from t5x_lite.config import Model
from t5x_lite.model import dense
from t5x_lite.model.blocks import StackContext
from t5x_lite.model.masks import AttentionMask
from t5x_lite.model.parts.attention import CrossAttention, SelfAttention
from t5x_lite.resolve import resolve_model

KINDS = {
    "as many key as query heads": {"head_dim": 4},
    "multi-query": {"num_kv_heads": 1, "bias": False},
    "grouped-query": {"num_heads": 6, "num_kv_heads": 3, "scale_attention": False},
    "each head normalised": {"qk_norm": "head", "norm": "rms_norm", "query_width": 2},
    "all heads normalised": {"qk_norm": "all", "num_kv_heads": 1, "attention_bias": "qkv"},
    "soft cap": {"attention_softcap": 1.5, "bias": False, "attention_bias": "all"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_attention(kind):
    """tests/model/test_positions.py has those of each kind of positions."""
    attention = SelfAttention(small(positions="none", **KINDS[kind]))
    check_gradients(attention, lambda part, x: part(x, context())[0])


def test_gradients_of_attention_to_an_encoder():
    """Of positions that an attention to an encoder must not have."""

    def cross_attend(attention, x):
        mask = AttentionMask(SEGMENTS, SEGMENTS[:, 2:])
        shared = {"cross_mask": mask, "cross_mask_bias": mask.bias(), "encoded": x[:, 2:]}
        return attention(x, StackContext(SEGMENTS, POSITIONS, mask, mask.bias(), QUIET, **shared))

    check_gradients(CrossAttention(small(positions="rotary", head_dim=4)), cross_attend)


def test_with_mimetic_init_a_token_attends_to_itself_in_the_encoder():
    model = {"architecture": "encoder_decoder", "positions": "relative", "bias": False}
    config = small(**model, mimetic_init=True, d_model=64, init_stddev=0.02, dtype="float32")
    rng = np.random.default_rng(0)
    encoded = jnp.asarray(rng.normal(size=(2, 5, 64)))
    decoder_sees = rng.permutation(5)
    x = encoded[:, decoder_sees]
    segments = jnp.ones((2, 5), int)
    mask = AttentionMask(segments, segments)
    shared = {"cross_mask": mask, "cross_mask_bias": mask.bias(), "encoded": encoded}
    attention = CrossAttention(config)
    stack = StackContext(segments, segments, mask, mask.bias(), QUIET, **shared)
    found, variables = attention.init_with_output(jax.random.key(0), x, stack)
    # The output is that of the token's own value: what one key alone would give.
    params = variables["params"]
    value = nn.meta.unbox(params["value"]["kernel"])
    out = nn.meta.unbox(params["out"]["kernel"])
    np.testing.assert_allclose(found, x @ value @ out, atol=1e-3)


def test_attention_is_that_of_the_paper():
    model = Model(d_model=8, num_heads=2, bias=False, init_stddev=1.0)
    config = resolve_model(model, vocab_size=10, max_length=5)
    x = jax.random.normal(jax.random.key(1), (1, 5, 8))
    segments = jnp.ones((1, 5), int)
    mask = AttentionMask(segments, segments, causal=True)
    causal = StackContext(segments, jnp.arange(5)[None], mask, mask.bias(), QUIET)
    attention = SelfAttention(config)
    params = nn.meta.unbox(attention.init(jax.random.key(0), x, causal))
    found, auxiliary = attention.apply(params, x, causal)
    w = {name: np.asarray(value["kernel"], np.float64) for name, value in params["params"].items()}
    x0 = np.asarray(x[0], np.float64)
    heads = []
    for h in (slice(0, 4), slice(4, 8)):
        q, k, v = x0 @ w["query"][:, h], x0 @ w["key"][:, h], x0 @ w["value"][:, h]
        scores = np.where(np.tri(5) > 0, q @ k.T / 2, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        heads.append(weights / weights.sum(-1, keepdims=True) @ v)
    np.testing.assert_allclose(found[0], np.concatenate(heads, -1) @ w["out"], rtol=1e-4, atol=1e-5)
    assert auxiliary == {}


@pytest.mark.parametrize(
    "kind",
    [
        {"num_kv_heads": 2, "positions": "rotary"},
        pytest.param({"num_kv_heads": 1, "bias": False}, marks=pytest.mark.slow),
        pytest.param(
            {"head_dim": 6, "lora_rank": 2, "lora_targets": ("query", "value", "out")},
            marks=pytest.mark.slow,
        ),
        {"dtype": "bfloat16", "positions": "relative"},
    ],
)
def test_projections_that_split_heads_in_the_product_are_the_same(kind, monkeypatch):
    """As TPUs compute them."""
    model = Model(**{"d_model": 16, "num_heads": 4, "init_stddev": 0.5} | kind)
    config = resolve_model(model, vocab_size=10, max_length=8)
    attention, x = SelfAttention(config), jax.random.normal(jax.random.key(1), (2, 5, 16))
    params = nn.meta.unbox(attention.init(jax.random.key(0), x, context()))
    params = jax.tree.map(lambda leaf: leaf + 0.1, params)  # none is zero at first

    def outputs_and_gradients():
        def total(params, x):
            y = attention.apply(params, x, context())[0].astype(jnp.float32)
            return (y * jnp.sin(jnp.arange(y.size).reshape(y.shape))).sum(), y

        gradients, y = jax.grad(total, (0, 1), has_aux=True)(params, x)
        tangent = jax.jvp(lambda x: total(params, x)[0], (x,), (jnp.cos(x),))[1]
        return y, gradients, tangent

    expected = jax.jit(lambda: outputs_and_gradients())()
    splits = []
    monkeypatch.setattr(dense, "heads_in_product", lambda *of: splits.append(of) or True)
    found = jax.jit(lambda: outputs_and_gradients())()
    assert splits
    error = 0.05 if config.dtype == "bfloat16" else 1e-4
    jax.tree.map(partial(np.testing.assert_allclose, rtol=error, atol=error), found, expected)
