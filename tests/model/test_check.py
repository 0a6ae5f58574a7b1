"""What contradicts a model is said by its parts, before anything is computed."""

import pytest
from flax import linen as nn

from t5x_lite.config import Mesh, Model, ModelDimensions
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.errors import UserError
from t5x_lite.model.check import check_model, check_settings
from t5x_lite.model.parts.norms import NORMS
from t5x_lite.model.parts.table import make_mixer
from t5x_lite.model.transformer import parameter_shapes
from t5x_lite.resolve import resolve_model

DECODER, AHEAD = RowShape(decoder=8), RowShape(decoder=8, looks_ahead=True)
BOTH = {"architecture": "encoder_decoder"}
LSTM = {"mixer": "lstm", "positions": "none"}


@pytest.mark.parametrize(
    ("model", "rows", "words"),
    [
        ({"num_kv_heads": 3}, DECODER, "model.num_kv_heads: 3 does not divide model.num_heads 4"),
        (
            {"mixer": "atention"},
            DECODER,
            "model.mixer=atention: no such part; did you mean",
        ),
        (
            {"norm": "layr_norm"},
            DECODER,
            "model.norm=layr_norm: no such part; did you mean",
        ),
        ({"activation": "gelux"}, DECODER, "model.activation: got 'gelux'; did you mean gelu?"),
        ({"feed_forward": "mlp(size=3)"}, DECODER, "mlp has no option size; it has none"),
        ({"positions": "rotary(bas=3)"}, DECODER, "has no option bas; did you mean base?"),
        ({"positions": "rotary(base=0.5)"}, DECODER, "base: got 0.5, expected between 1.0 and"),
        ({"positions": "rotary("}, DECODER, "expected name or name"),
        (
            {"positions": "rotary", "head_dim": 7},
            DECODER,
            "expected an even number",
        ),
        ({"positions": "relative(buckets=7)"}, DECODER, "buckets=7, expected an even number"),
        (
            {"positions": "relative(distance=16)"},
            DECODER,
            "distance=16, expected more than half",
        ),
        (
            {"positions": "relative"},
            AHEAD,
            "which tell a decoder nothing of what is ahead",
        ),
        ({"positions": "shaw", "prefix_length": 2}, DECODER, "positions shaw know no prefix"),
        ({"max_length": 4}, DECODER, "model.max_length: got 4, but data.lengths go up to 8"),
        (LSTM, AHEAD, "model.mixer: got lstm, which reads one way"),
        (LSTM | {"positions": "rotary"}, DECODER, "positions=rotary: is a part of attention"),
        (LSTM | {"prefix_length": 3}, DECODER, "mixer lstm has no keys and values"),
        (
            LSTM | BOTH | {"shared_stacks": True},
            DECODER,
            "an LSTM reads both ways in encoders",
        ),
        (LSTM | {"architecture": "prefix_decoder"}, DECODER, "reads a prefix one way only"),
        (
            {"layer_pattern": ("local",), "local_positions": "rotary"},
            DECODER,
            "model.positions: got learned beside local_positions=rotary, expected rotary(…) or",
        ),
        (
            {"positions": "rotary", "layer_pattern": ("local",), "local_positions": "alibi"},
            DECODER,
            "model.local_positions: got alibi",
        ),
        (
            {"layer_pattern": ("local",), "local_rules": ("windo(size=3)",)},
            DECODER,
            "model.local_rules=windo: no such rule; did you mean window?",
        ),
        (LSTM | {"layer_pattern": ("local",)}, DECODER, "layer_pattern: mixer lstm has no"),
        (
            {"positions": "rotary(scaling='linear(factor=0.5)')"},
            DECODER,
            "factor: got 0.5, expected at least 1",
        ),
        (
            {"positions": "shaw", "attention_softcap": 3.0},
            DECODER,
            "model.attention_softcap: positions shaw add to logits after it; set it to 0",
        ),
        (
            {"positions": "rotary", "layer_pattern": ("local",), "local_positions": "rotry"},
            DECODER,
            "model.local_positions=rotry: no such part",
        ),
        (
            {
                "positions": "rotary",
                "layer_pattern": ("local",),
                "local_positions": "rotary(fraction=0.01)",
            },
            DECODER,
            "model.local_positions=rotary(fraction=0.01): 0 features",
        ),
        (
            {"positions": "rotary(scaling='llama3(low=9.0)')"},
            DECODER,
            "low=9.0, expected less than high=4.0",
        ),
        (
            {"positions": "rotary(base=1.0, scaling='yarn')"},
            DECODER,
            "yarn with base=1.0, expected a base above 1",
        ),
        ({"qk_norm": "head", "norm": "none"}, DECODER, "model.qk_norm=head: model.norm is none"),
        (LSTM | {"qk_norm": "head"}, DECODER, "model.qk_norm: mixer lstm has no attention"),
        (
            BOTH | {"positions": "alibi", "shared_input_layers": False},
            DECODER,
            "neither a table of positions nor embedding_norm",
        ),
        ({"mimetic_init": True}, DECODER, "model.mimetic_init: needs architecture encoder_decoder"),
        (
            BOTH | {"mimetic_init": True, "num_kv_heads": 2},
            DECODER,
            "model.mimetic_init: needs positions relative, as many num_kv_heads as num_heads; set",
        ),
    ],
)
def test_contradictions_of_parts(model, rows, words):
    with pytest.raises(UserError) as caught:
        check_settings(Model(**model), rows)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        ({"expert": 2}, "mesh.expert: got 2, but no part of this model has experts"),
        ({"tensor": 3}, "model.num_heads is 4, which mesh.tensor = 3 does not divide"),
        ({"fsdp": 3}, "model.d_model is 128, which mesh.fsdp = 3 does not divide"),
        ({"sequence": 3}, "data.lengths: 8 positions are no multiple of 2 × mesh.sequence 3"),
    ],
)
def test_contradictions_of_meshes(mesh, words):
    model = resolve_model(Model(), vocab_size=8, max_length=8)
    check_model(model, DECODER)
    with pytest.raises(UserError) as caught:
        check_model(model, DECODER, Mesh(data=1, **mesh))
    assert words in str(caught.value)


class Silent(nn.Module):
    """A mixer that does not say what it costs."""

    config: ModelDimensions


def test_a_part_that_states_no_flops_cannot_be_built(exchange):
    from t5x_lite.model.parts.table import MIXERS

    exchange(MIXERS, "attention", Silent)
    model = resolve_model(Model(), vocab_size=8, max_length=8)
    with pytest.raises(UserError, match=r"model.mixer=attention: states no FLOPs.* flops\(stack\)"):
        make_mixer(model, parent=None)


class Unnamed(nn.Module):
    """A norm that does not name the axes of its parameter."""

    config: ModelDimensions

    @nn.compact
    def __call__(self, x):
        return x * self.param("scale", nn.initializers.ones, (x.shape[-1],))


def test_a_parameter_that_does_not_name_its_axes_is_refused(exchange):
    exchange(NORMS, "rms_norm", Unnamed)
    model = resolve_model(Model(norm="rms_norm"), vocab_size=8, max_length=8)
    expected = "the parameter decoder/final_norm/scale is not declared by with_axes"
    with pytest.raises(UserError, match=expected):
        parameter_shapes(model)
