import jax
import jax.numpy as jnp
import pytest

from t5x_lite.config import Model
from t5x_lite.data.rows.batches import make_batches
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.model import flops
from t5x_lite.model.heads import head_params, logits
from t5x_lite.model.transformer import Transformer, parameter_shapes
from t5x_lite.resolve import resolve_model
from t5x_lite.training.loss import make_loss, step_flops

OBJECTIVES = {
    "encoder": "masked_lm",
    "decoder": "causal_lm",
    "encoder_decoder": "span_corruption",
}


@pytest.mark.parametrize("architecture", OBJECTIVES)
@pytest.mark.parametrize("feed_forward", ["mlp", "gated_mlp"])
def test_flops_agree_with_the_compiler(make, architecture, feed_forward):
    """The compiler counts the whole square of causal attention, and elementwise work too: within
    2 % of ours.
    """
    lengths = {"sequence_length": 128}
    if architecture == "encoder_decoder":
        lengths = {"inputs": 116, "targets": 26}
    settings = {
        "data.lengths": lengths,
        "data.batch_size": 4,
        "model.d_model": 512,
        "model.num_heads": 4,
        "model.scan": False,
        "model.vocab_multiple": 1,
        "model.feed_forward": feed_forward,
        "model.mlm_head": architecture == "encoder",
        "model.activation": "relu",
    }
    resolved, corpus = make(OBJECTIVES[architecture], architecture, **settings)
    config, model = resolved.config, resolved.model
    batch = make_batches(resolved.rows, config.data, config.seed, corpus, "train").batch_at(0)
    loss = make_loss(resolved)
    lowered = jax.jit(loss.gradient).lower(parameter_shapes(model), batch, None)
    counted = lowered.cost_analysis()["flops"] / 4

    decoder = batch["decoder_tokens"].shape[1] if "decoder_tokens" in batch else 0
    encoder = batch["encoder_tokens"].shape[1] if "encoder_tokens" in batch else 0
    scored = batch["encoder_targets"].shape[1] if architecture == "encoder" else decoder
    ours = step_flops(resolved, RowShape(encoder, decoder), scored)
    masked = 3 * 4 * model.num_layers * model.d_model * decoder * (decoder - 1) / 2
    assert ours + masked == pytest.approx(counted, rel=0.02)


@pytest.mark.parametrize(
    ("mixture", "shares"),
    [
        ("15 * causal_lm + masked_next_token", {"causal_lm": 15 / 16, "masked_next_token": 1 / 16}),
        ("masked_next_token + 2 * meap", {"masked_next_token": 1 / 3, "meap": 2 / 3}),
        ("causal_lm + masked_diffusion", {"causal_lm": 0.5, "masked_diffusion": 0.5}),
        ("causal_lm + span_corruption", {"causal_lm": 0.5, "span_corruption": 0.5}),
    ],
)
def test_a_mixture_costs_the_mean_of_its_objectives(make, mixture, shares):
    """Rows that are read from left to right cost half a square of attention, whatever is beside
    them.
    """
    length = {"data.lengths": {"sequence_length": 128}}

    def cost(objective):
        resolved, _ = make(objective, "decoder", **length)
        return step_flops(resolved, resolved.rows.shape, 64)

    expected = sum(share * cost(objective) for objective, share in shares.items())
    assert cost(mixture) == pytest.approx(expected, rel=1e-9)
    assert cost("causal_lm") < cost("masked_next_token")


@pytest.mark.parametrize(
    "part",
    [
        {"num_kv_heads": 2},
        {"embedding_size": 128},
        {"tie_embeddings": False, "embedding_size": 128},
        {"positions": "shaw(distance=127)"},
        {"head_dim": 64},
        {"mlm_head": True},
        {"shared_layers": "all"},
    ],
    ids=str,
)
def test_flops_of_parts_agree_with_the_compiler(part):
    """Of the forward pass of an encoder, within 1 % of what the compiler counts for four rows."""
    settings = {"num_layers": 2, "d_model": 1024, "num_heads": 8, "activation": "relu"}
    model = Model(architecture="encoder", scan=False, **settings, **part)
    config = resolve_model(model, vocab_size=1024, max_length=256)
    row = {
        f"encoder_{key}": jax.ShapeDtypeStruct((4, 256), jnp.int32)
        for key in ("tokens", "segments", "positions")
    }

    def forward(params, row):
        hidden = Transformer(config, packed=False).apply({"params": params}, row).hidden_states
        return logits(config, head_params(params), hidden)

    lowered = jax.jit(forward).lower(parameter_shapes(config), row)
    counted = lowered.cost_analysis()["flops"] / 4
    assert flops.forward_flops(config, RowShape(256), 256) == pytest.approx(counted, rel=0.01)


def test_peaks_are_known_by_device_kind():
    assert flops.peak_flops("NVIDIA H100 80GB HBM3", "bfloat16") == 989e12
    assert flops.peak_flops("NVIDIA H100 PCIe", "bfloat16") == 756e12
    assert flops.peak_flops("TPU v5 lite", "bfloat16") == 197e12
    assert flops.peak_flops("TPU v5p", "bfloat16") == 459e12
    assert flops.peak_flops("cpu", "bfloat16") is None
