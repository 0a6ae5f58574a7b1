import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from model.auxiliary import CountingMLP
from model.proofs import ROW, SEGMENTS, check_gradients, context, draw, random_params, small

from t5x_lite.model.blocks import Block
from t5x_lite.model.parts.attention import SelfAttention
from t5x_lite.model.parts.table import FEED_FORWARDS, MIXERS
from t5x_lite.model.transformer import Transformer

BLOCKS = {
    "norms before": {"norm": "rms_norm"},
    "norms after": {"norm_position": "post"},
    "parts in parallel": {"parallel_residual": True},
    "parts in parallel, a norm each": {"parallel_residual": True, "shared_norm": False},
    "norms on outputs": {"norm_position": "output", "norm": "rms_norm"},
    "norms on both sides": {"norm_position": "both"},
    "ReZero": {"rezero": True, "norm": "none"},
    "Universal": {"positions": "universal"},
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_gradients_of_blocks(kind):
    def block(part, x):
        return part(x, jnp.array(3), context(encoded=jnp.flip(x, 1)))[0]

    check_gradients(Block(small(**BLOCKS[kind])), block)


def test_the_first_mixer_may_read_the_stream_as_it_is():
    """In the first layer, and in no other."""
    x = jax.random.normal(jax.random.key(0), (2, 5, 6))
    block = Block(small(dtype="float32"))
    shapes = jax.eval_shape(block.init, jax.random.key(0), x, 0, context())
    params = draw(nn.meta.unbox(shapes))

    def difference(depth, **settings):
        """What the first layer norm changes."""
        block = Block(small(dtype="float32", **settings))
        scaled = jax.tree.map(jnp.copy, params)
        scaled["params"]["attention_norm"]["scale"] *= 2
        found = [block.apply(p, x, depth, context())[0] for p in (params, scaled)]
        return float(jnp.abs(found[0] - found[1]).max())

    assert difference(0) > 0.1
    assert difference(0, first_norm=False) == 0
    assert difference(1, first_norm=False) == difference(1)


ENCODER_DECODER = {"architecture": "encoder_decoder", "num_decoder_layers": 3}
WAYS = {
    "a decoder": {},
    "unscanned": {"scan": False},
    "recomputed": {"remat": True},
    "one shared block": {"shared_layers": "all"},
    "an encoder": {"architecture": "encoder"},
    "both stacks": ENCODER_DECODER,
    "both stacks, unscanned and recomputed": ENCODER_DECODER | {"scan": False, "remat": True},
}
# The encoder reads a row with less padding than the decoder.
BOTH = ROW | {
    "encoder_tokens": SEGMENTS,
    "encoder_segments": jnp.ones((2, 5), int),
    "encoder_positions": jnp.broadcast_to(jnp.arange(5), (2, 5)),
}


def positions_of_layers(config) -> dict[str, list[int]]:
    """How many positions that are no padding each layer sees: by stack, one number a layer."""
    real = {"encoder": 10, "decoder": 9}
    layers = {"encoder": config.num_layers, "decoder": config.num_decoder_layers}
    if config.architecture == "decoder":
        layers.pop("encoder")
    return {stack: [real[stack]] * count for stack, count in layers.items() if count}


@pytest.mark.parametrize("way", WAYS)
def test_auxiliary_losses_are_summed_over_the_real_positions_and_layers_of_a_stack(exchange, way):
    """By their closed forms, and so are their gradients."""
    exchange(FEED_FORWARDS, "mlp", CountingMLP)
    with jax.enable_x64(True):
        config = small(**WAYS[way])
        params = random_params(config)
        stacks = positions_of_layers(config)

        def auxiliary(params):
            return Transformer(config).apply({"params": params}, BOTH).auxiliary

        losses = jax.jit(auxiliary)(params)
        assert set(losses) == set(stacks)

        # The parameter of each layer, of shape [layers, 1]; of a shared block [1].
        def tolls(params):
            return sum(found["toll"] for found in auxiliary(params).values())

        slopes = jax.jit(jax.grad(tolls))(params)
        for stack, counts in stacks.items():
            assert set(losses[stack]) == {"tax", "toll", "size"}
            assert float(losses[stack]["tax"]) == 3 * sum(counts)
            (name,) = set(params[stack]) & {"layers", "block"}
            toll = params[stack][name]["feed_forward"]["toll"]
            slope = slopes[stack][name]["feed_forward"]["toll"]
            expected = (np.broadcast_to(toll.reshape(-1), len(counts)) * counts).sum()
            assert float(losses[stack]["toll"]) == pytest.approx(expected, rel=1e-12)
            if name == "block":
                counts = [sum(counts)]
            np.testing.assert_array_equal(slope.reshape(-1), counts)


def test_how_auxiliary_losses_are_computed_changes_nothing(exchange):
    """Values and gradients: scanned or not, recomputed or not; the gradient reaches all layers."""
    exchange(FEED_FORWARDS, "mlp", CountingMLP)
    found = []
    with jax.enable_x64(True):
        params = random_params(small(**ENCODER_DECODER))
        for way in ({}, {"scan": False}, {"remat": True}):
            config = small(**ENCODER_DECODER, **way)

            def loss(params, config=config):
                found = Transformer(config).apply({"params": params}, BOTH).auxiliary
                return found["encoder"]["size"] + found["decoder"]["size"]

            found.append(jax.jit(jax.value_and_grad(loss))(params))
        for other in found[1:]:
            for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(other), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
        gradient = found[0][1]
        for stack in ("encoder", "decoder"):
            layers = gradient[stack]["layers"]
            kernels = layers["feed_forward"]["mlp"]["wi"]["kernel"]
            assert (np.abs(kernels).max((1, 2)) > 0).all()
        assert (gradient["embedding"] != 0).any()


class TaxedAttention(SelfAttention):
    """An attention with an auxiliary loss of the same name as the feed-forward part's."""

    def __call__(self, x_BTD, context, memory=None):
        y, _ = super().__call__(x_BTD, context, memory)
        return y, {"tax": 10.0 * (context.segments > 0).sum()}


def test_losses_of_one_name_are_added_within_a_block(exchange):
    exchange(FEED_FORWARDS, "mlp", CountingMLP)
    exchange(MIXERS, "attention", TaxedAttention)
    config = small(dtype="float32")
    output = Transformer(config).apply({"params": random_params(config)}, ROW)
    assert float(output.auxiliary["decoder"]["tax"]) == (3 + 10) * 9 * config.num_layers


def test_parts_without_auxiliary_losses_have_none():
    config = small(dtype="float32")
    output = Transformer(config).apply({"params": random_params(config)}, ROW)
    assert output.auxiliary == {"decoder": {}}
