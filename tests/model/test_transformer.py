import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model.proofs import ROW, check_gradient, check_gradients, draw, random_params, small

from t5x_lite.data.rows.batches import make_batches
from t5x_lite.model.heads import head_params, logits
from t5x_lite.model.transformer import Transformer

EMBEDDINGS = {
    "learned": {"token_types": 2, "embedding_norm": True, "positions": "learned(offset=1)"},
    "factorised": {"embedding_size": 3, "scale_embeddings": True},
}
DECODERS = {
    "relative positions, recomputed": {"positions": "relative", "remat": True},
    "one block": {"positions": "alibi", "shared_layers": "all"},
    "local and global layers": {
        "positions": "rotary(base=50.0)",
        "head_dim": 4,
        "layer_pattern": ("global", "local"),
        "local_rules": ("window(size=2)",),
        "local_positions": "none",
        "first_norm": False,
        "logits_softcap": 3.0,
    },
}


@pytest.mark.parametrize("kind", EMBEDDINGS)
def test_gradients_of_embeddings(kind):
    model = Transformer(small(**EMBEDDINGS[kind]))
    check_gradients(model, lambda model, x: model.embed(ROW, "decoder") + x)


@pytest.mark.parametrize("kind", DECODERS)
def test_gradients_of_decoders(kind):
    def vocabulary_logits(model, x):
        hidden = model(ROW).hidden_states
        return model.head(hidden, model.embedding.T)[..., :11] + x[..., :1]

    check_gradients(Transformer(small(**DECODERS[kind])), vocabulary_logits)


ENCODER_DECODERS = [
    {
        "positions": "relative",
        "feed_forward": "gated_mlp",
        "norm": "rms_norm",
        "num_decoder_layers": 2,
        "shared_embeddings": False,
    },
    {
        "positions": "transformer_xl",
        "shared_stacks": True,
        "norm_position": "post",
        "num_kv_heads": 1,
        "tie_embeddings": False,
    },
    {
        "positions": "learned(offset=2)",
        "shared_input_layers": False,
        "embedding_norm": True,
        "norm_position": "both",
    },
]


@pytest.mark.parametrize("variant", ENCODER_DECODERS, ids=str)
def test_gradients_of_encoder_decoders(make, variant):
    """On rows as data makes them; the other tests of this folder have each part."""
    with jax.enable_x64(True):
        settings = {
            "data.batch_size": 2,
            "model.dtype": "float64",
            "model.d_model": 8,
            "model.num_layers": 1,
            **{f"model.{key}": value for key, value in variant.items()},
        }
        resolved, corpus = make("span_corruption", "encoder_decoder", **settings)
        data, model = resolved.config.data, resolved.model
        batch = make_batches(resolved.rows, data, 0, corpus, "train").batch_at(0)
        batch = jax.tree.map(jnp.asarray, batch)

        def loss(params):
            hidden = Transformer(model).apply({"params": params}, batch).hidden_states
            log_probabilities = jax.nn.log_softmax(logits(model, head_params(params), hidden))
            targets = batch["decoder_targets"][..., None]
            by_target = jnp.take_along_axis(log_probabilities, targets, -1)[..., 0]
            return (by_target * batch["decoder_weights"]).mean()

        check_gradient(loss, random_params(model, stddev=0.3))


FAMILIES = {
    "decoder": {"positions": "rotary", "head_dim": 4, "num_kv_heads": 1},
    "encoder": {
        "architecture": "encoder",
        "norm_position": "post",
        "scan": False,
        "num_layers": 1,
    },
    "encoder_decoder": {
        "architecture": "encoder_decoder",
        "positions": "relative",
        "feed_forward": "gated_mlp",
        "norm": "rms_norm",
        "remat": True,
    },
    "shaw": {"positions": "shaw", "shared_layers": "all", "parallel_residual": True},
}


def hidden_states_of(family: str, dtype: str):
    """The function from parameters to hidden states, random parameters, and a direction of them."""
    model = small(**FAMILIES[family], dtype=dtype, vocab_multiple=1)
    row = ROW | {key.replace("decoder", "encoder"): value for key, value in ROW.items()}

    def hidden_states(params):
        return Transformer(model).apply({"params": params}, row).hidden_states

    params = random_params(model)
    return hidden_states, params, random_params(model, seed=1, stddev=1.0)


def dot(a, b) -> float:
    """The inner product of two trees, in float64."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return sum(
        float(np.vdot(np.asarray(x, np.float64), np.asarray(y, np.float64))) for x, y in pairs
    )


@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 1e-4), ("bfloat16", 0.05)])
@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
def test_forward_derivatives_of_hidden_states_are_those_of_reverse_mode(family, dtype, rounding):
    """⟨u, J v⟩ = ⟨Jᵀ u, v⟩, J v by jvp and by linearize."""
    f, params, v = hidden_states_of(family, dtype)
    u = draw(jax.eval_shape(f, params), seed=2, stddev=1.0)

    @jax.jit
    def derivatives(params, v, u):
        _, by_jvp = jax.jvp(f, (params,), (v,))
        _, linear = jax.linearize(f, params)
        _, pull = jax.vjp(f, params)
        return by_jvp, linear(v), pull(u)[0]

    by_jvp, by_linearize, gradient = derivatives(params, v, u)
    assert by_jvp.dtype == dtype
    size = np.sqrt(dot(u, u) * dot(by_jvp, by_jvp))
    assert dot(u, by_jvp) == pytest.approx(dot(gradient, v), abs=rounding * size)
    assert dot(u, by_jvp) == pytest.approx(dot(u, by_linearize), abs=rounding * size)


@pytest.mark.parametrize("family", FAMILIES)
def test_forward_derivatives_of_hidden_states_are_finite_differences(family):
    """In float64; and those of float32 are the same within its digits."""
    with jax.enable_x64(True):
        f, params, direction = hidden_states_of(family, "float64")
        step = 1e-6

        @jax.jit
        def both(params, direction):
            ahead = f(jax.tree.map(lambda p, v: p + step * v, params, direction))
            back = f(jax.tree.map(lambda p, v: p - step * v, params, direction))
            return (ahead - back) / (2 * step), jax.jvp(f, (params,), (direction,))[1]

        expected, exact = both(params, direction)
        scale = float(jnp.abs(exact).max())
        np.testing.assert_allclose(exact, expected, rtol=0, atol=1e-7 * scale)
    f, params, direction = hidden_states_of(family, "float32")
    _, single = jax.jit(lambda p, v: jax.jvp(f, (p,), (v,)))(params, direction)
    np.testing.assert_allclose(single, exact, rtol=0, atol=1e-3 * scale)
