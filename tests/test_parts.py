"""Each part of the model alone: gradients against finite differences, kernels against the reference, closed forms."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT
from flax import linen as nn
from jax.test_util import check_grads

from t5x_lite.config import ACTIVATIONS, POSITIONS, Model
from t5x_lite.errors import Refusal
from t5x_lite.model import heads, kernels, layers, positions
from t5x_lite.model.attention import Attention
from t5x_lite.model.transformer import Block, Context, Transformer, shapes

SMALL = {"width": 6, "heads": 2, "layers": 2, "vocab_size": 11, "vocab_multiple": 4, "max_length": 5, "ff_width": 7}
SEGMENTS = jnp.array([[1, 1, 1, 2, 2], [1, 1, 1, 1, 0]])
PLACES = jnp.array([[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]])
SIGHT = kernels.Sight(SEGMENTS, SEGMENTS, causal=True, packed=True)
ROW = {
    f"decoder_{key}": value for key, value in {"tokens": SEGMENTS, "segments": SEGMENTS, "positions": PLACES}.items()
}


def small(**settings) -> Model:
    return Model(**{**SMALL, "dtype": "float64", "init_stddev": 0.5, "embedding_stddev": 0.5, **settings})


def attend(attention, x):
    return attention(x, attention.remember(x, PLACES), SIGHT, SIGHT.hide(), positions=PLACES)


def across(attention, x):
    return attention(x, attention.remember(x[:, 2:]), seen := kernels.Sight(SEGMENTS, SEGMENTS[:, 2:]), seen.hide())


def block(part, x):
    context = Context(PLACES, SIGHT, across=SIGHT, encoded=jnp.flip(x, 1)).prepared(None)
    return part(x, {"number": jnp.array(3)}, context)[0]


def embed(model, x):
    return model.embed(ROW, "decoder") + x


def whole(model, x):
    return model.everything(ROW)[0][..., :11] + x[..., :1]


def bias(part, x):
    return jnp.einsum("bts,bhts->bht", x[..., :5], jnp.broadcast_to(part(SIGHT.distance(), True), (2, 2, 5, 5)))


def head(part, x):
    table = jax.random.normal(jax.random.key(5), (part.config.embedding_size or 6, 12))
    return part(x, table)[..., :11]


PARTS = {
    **{f"feed-forward {a}": (layers.FeedForward, {"activation": a}) for a in ACTIVATIONS},
    **{f"feed-forward gated {a}": (layers.FeedForward, {"activation": a, "gated": True}) for a in ACTIVATIONS},
    **{norm: (layers.Norm, {"norm": norm}) for norm in ("layer_norm", "rms_norm")},
    **{f"attention {p}": (Attention, {"positions": p, "head_size": 4, "shaw_distance": 2}, attend) for p in POSITIONS},
    "multi-query attention": (Attention, {"kv_heads": 1, "bias": False}, attend),
    "grouped-query attention": (Attention, {"heads": 6, "kv_heads": 3, "scale_attention": False}, attend),
    "attention to an encoder": (
        lambda config: Attention(config, own=False),
        {"positions": "rotary", "head_size": 4},
        across,
    ),
    "relative bias": (positions.RelativeBias, {}, bias),
    "block, norms before": (Block, {"norm": "rms_norm"}, block),
    "block, norms behind": (Block, {"norm_position": "post"}, block),
    "block, parts in parallel": (Block, {"parallel": True}, block),
    "block, ReZero": (Block, {"rezero": True, "norm": "none"}, block),
    "block, Universal": (Block, {"positions": "universal"}, block),
    "embeddings, learned": (Transformer, {"token_types": 2, "embedding_norm": True, "position_offset": 1}, embed),
    "embeddings, factorised": (Transformer, {"embedding_size": 3, "scale_embeddings": True}, embed),
    "head, tied": (heads.Head, {"scale_logits": True}, head),
    "head, untied": (heads.Head, {"tied": False}, head),
    "head, BERT's": (heads.Head, {"mlm_head": True, "architecture": "encoder"}, head),
    "head, factorised": (heads.Head, {"embedding_size": 3}, head),
    "classifier": (heads.Classifier, {"classes": 3}, lambda part, x: part(x[:, 0])),
    "decoder": (Transformer, {"positions": "relative", "remat": True}, whole),
    "decoder of one block": (Transformer, {"positions": "alibi", "shared_layers": "all"}, whole),
}


@pytest.mark.parametrize("name", PARTS)
def test_gradients_against_finite_differences(name):
    """For random parameters, since what starts at 0 or 1 would hide mistakes; each of them must matter."""
    with jax.enable_x64(True):
        part, settings, *method = PARTS[name]
        module, x = part(small(**settings)), jax.random.normal(jax.random.key(2), (2, 5, 6), jnp.float64)
        call = method[0] if method else lambda part, x: part(x)
        shapes = jax.eval_shape(lambda: nn.meta.unbox(module.init(jax.random.key(0), x, method=call)))
        leaves, tree = jax.tree.flatten(shapes)
        keys = jax.random.split(jax.random.key(1), len(leaves))
        drawn = [0.5 * jax.random.normal(key, leaf.shape, jnp.float64) for key, leaf in zip(keys, leaves, strict=True)]
        variables = jax.tree.unflatten(tree, drawn)

        @jax.jit
        def f(variables, x):
            return jnp.sin(module.apply(variables, x, method=call)).sum()

        check_grads(f, (variables, x), order=1, modes=["rev"], atol=1e-6, rtol=1e-5, eps=1e-5)
        for path, slope in jax.tree_util.tree_leaves_with_path(jax.grad(f)(variables, x)):
            assert (slope != 0).any(), path


def looked_at(positions: str):
    """What an attention of these relative positions gives, and its parameters and x: [5, 6] each."""
    config = small(positions=positions, head_size=4, shaw_distance=2, bias=False)
    x = jax.random.normal(jax.random.key(2), (1, 5, 6), jnp.float64)
    segments, module = jnp.ones((1, 5), int), Attention(config)
    sight = kernels.Sight(segments, segments)

    def call(part):
        return part(x, part.remember(x), sight, sight.hide())

    shapes = jax.eval_shape(lambda: nn.meta.unbox(module.init(jax.random.key(0), method=call)))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), shapes)
    return module.apply(params, method=call)[0], params["params"], np.asarray(x[0])


def by_hand(w, x, logit, value):
    """The same, one pair of positions at a time: logit(h, q, k, i, j) and value(v, i, j) as a paper writes them."""
    heads = []
    for h in range(2):
        q, k, v = (x @ w[name]["kernel"][:, 4 * h : 4 * h + 4] for name in ("query", "key", "value"))
        e = np.array([[logit(h, q[i], k[j], i, j) / 2 for j in range(5)] for i in range(5)])
        a = np.exp(e) / np.exp(e).sum(1, keepdims=True)
        heads.append([sum(a[i, j] * value(v[j], i, j) for j in range(5)) for i in range(5)])
    return np.concatenate(heads, -1) @ w["out"]["kernel"]


def test_relative_positions_of_shaw():
    """Equations 3 and 4 of the paper: a vector on the key and one on the value, by the distance clipped to ± 2."""
    with jax.enable_x64(True):
        got, w, x = looked_at("shaw")
        near = lambda i, j: np.clip(j - i, -2, 2) + 2  # noqa: E731
        expected = by_hand(
            w,
            x,
            lambda h, q, k, i, j: q @ (k + w["shaw"]["keys"][near(i, j)]),
            lambda v, i, j: v + w["shaw"]["values"][near(i, j)],
        )
        np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_relative_positions_of_transformer_xl():
    """Its four terms: content, the content's place, and a bias of either that is the same everywhere."""
    with jax.enable_x64(True):
        got, w, x = looked_at("transformer_xl")
        own = w["relative"]

        def logit(h, q, k, i, j):
            r = positions.sinusoidal(jnp.array(j - i), 6) @ own["project"]["kernel"][:, 4 * h : 4 * h + 4]
            return q @ k + q @ r + own["u"][h] @ k + own["v"][h] @ r

        np.testing.assert_allclose(got, by_hand(w, x, logit, lambda v, i, j: v), rtol=1e-9)


SIGHTS = {
    "packed": {"packed": True},
    "packed, causal": {"packed": True, "causal": True},
    "packed, prefix": {"packed": True, "causal": True, "prefix": True},
    "one segment": {},
    "one segment, causal": {"causal": True},
    "one segment, prefix": {"causal": True, "prefix": True},
}


def drawn(sight: str, length: int = 24, groups: int = 2, size: int = 8):
    """Random q, k, v, a sight and the queries that are no padding."""
    rng = np.random.default_rng(0)
    how = dict(SIGHTS[sight])
    segments = np.sort(rng.integers(1, 4, (2, length)), 1)
    segments[0, -5:] = 0
    if not how.get("packed"):
        segments = np.minimum(segments, 1)
    if how.pop("prefix", False):
        how["prefix"] = jnp.asarray(rng.random((2, length)) < 0.2)
    shape = {"q": 4, "k": groups, "v": groups}
    made = [jnp.asarray(rng.normal(size=(2, h, length, size)), jnp.float32) for h in shape.values()]
    return made, kernels.Sight(jnp.asarray(segments), jnp.asarray(segments), **how), (segments > 0)[:, None, :, None]


def same_as_reference(kernel, made, sight, real, bias=None, **tolerance):
    """Values and gradients, where a query is no padding."""

    def loss(kernel, q, k, v):
        y = jnp.where(real, kernel(q, k, v, sight, bias), 0)
        return jnp.sin(y).sum(), y

    def computed(kernel):
        return jax.tree.leaves(jax.jit(jax.value_and_grad(partial(loss, kernel), (0, 1, 2), True))(*made))

    for got, expected in zip(computed(kernel), computed(kernels.reference), strict=True):
        np.testing.assert_allclose(got, expected, **tolerance)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("least_half", [5, 256])
def test_the_plain_kernel_is_the_reference(monkeypatch, least_half, sight, groups):
    monkeypatch.setattr(kernels, "_LEAST_HALF", least_half)
    made, how, real = drawn(sight, groups=groups)
    bias = jax.random.normal(jax.random.key(0), (1, 4, 24, 24))

    def plain(q, k, v, sight, bias):
        return kernels.plain(q, k, v, sight, sight.hide(bias))

    same_as_reference(plain, made, how, real, bias, rtol=1e-4, atol=1e-5)


NEEDS = {
    "one segment a row, no bias": ({}, {}),
    "several segments a row": ({}, {"packed": True}),
    "a prefix seen both ways": ({}, {"prefix": SEGMENTS > 0}),
    "T5's relative bias, or ALiBi": ({"positions": "alibi"}, {}),
    "positions of Shaw or Transformer-XL": ({"positions": "transformer_xl"}, {}),
    "dropout on attention weights": ({"attention_dropout": 0.1}, {}),
    "float32": ({"dtype": "float32"}, {}),
    "rows of no multiple of 128": ({}, {"length": 100}),
    "one token at a time": ({}, {"queries": 1}),
}


@pytest.mark.parametrize("need", NEEDS)
def test_the_table_of_kernels_is_that_of_the_readme(need):
    (line,) = (line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith(f"| {need} |"))
    settings, how = NEEDS[need]
    config, length = Model(**{"width": 128, "heads": 2, "dtype": "bfloat16", **settings}), how.pop("length", 256)
    queries = jnp.ones((2, how.pop("queries", length)), int)
    sight = kernels.Sight(queries, jnp.ones((2, length), int), causal=True, **how)
    expected = [cell.split(",")[0].strip() for cell in line.split("|")[2:5]]
    dropout = config.attention_dropout > 0
    assert [kernels.choose(config, sight, dropout, platform) for platform in ("cpu", "gpu", "tpu")] == expected


def test_a_kernel_that_is_named_computes_or_is_refused():
    """A model that names one can be made on any machine; rows that it cannot compute are refused when they are met."""
    config = Model(**SMALL, attention="splash")
    abstract = shapes(config)
    with pytest.raises(Refusal, match="5 × 5 are no multiples of 128"):
        jax.eval_shape(lambda params: Transformer(config).apply({"params": params}, ROW), abstract)
    long = jax.tree.map(lambda x: jnp.zeros((1, 128), jnp.int32), ROW)
    text = str(jax.make_jaxpr(lambda params: Transformer(config).apply({"params": params}, long))(abstract))
    assert "pallas_call" in text
    with pytest.raises(Refusal, match="takes no bias"):
        kernels.choose(Model(attention="splash", positions="relative"), SIGHT)


@pytest.mark.parametrize(("sight", "groups"), [("packed, causal", 2), ("one segment", 4)])
def test_splash_attention_is_the_reference(sight, groups):
    """As its interpreter computes it; no TPU is needed."""
    made, how, real = drawn(sight, 128, groups, 64)
    same_as_reference(partial(kernels.splash, interpret=True), made, how, real, rtol=1e-3, atol=1e-4)
