"""Conversions: every parameter has its source, and where the masks agree the model is the same."""

from dataclasses import dataclass, replace
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from model.proofs import ROW, apply, random_params, small

from t5x_lite.config import Architecture
from t5x_lite.errors import UserError
from t5x_lite.model import masks
from t5x_lite.model.heads import HEADS, head_params, logits
from t5x_lite.training.conversions import CONVERSIONS, Converter, between, convert

ENCODER_ROW = {key.replace("decoder", "encoder"): value for key, value in ROW.items()}
# What each conversion is tried with: options, settings of the old and of the new model.
OPTIONS = {
    "decoder_to_encoder_decoder": [
        "(cross_attention='self')",
        "(cross_attention='zero')",
        "(cross_attention='fresh')",
    ],
    "encoder_to_encoder_decoder": ["", "(cross_attention='self')"],
    "grow_depth": ["(order='stack')", "(order='interleave')", "(order='identity')"],
}
VARIANTS = [
    name + options for name in CONVERSIONS for options in OPTIONS.get(name, [""])
]  # fmt: skip
SETTINGS = {
    "plain": {},
    "rotary and gated": {
        "d_model": 8,
        "positions": "rotary",
        "feed_forward": "gated_mlp",
        "norm": "rms_norm",
    },
    "untied": {"tie_embeddings": False, "mlm_head": True, "embedding_norm": True},
    "shared layers": {"shared_layers": "all"},
    "local and global": {"layer_pattern": ("local", "global"), "local_rules": ("window(size=2)",)},
    "alone": {"scan": False, "bias": False, "norm_position": "both"},
}


@pytest.fixture(autouse=True)
def doubles():
    with jax.enable_x64(True):
        yield


def models(variant: str, **settings):
    """The old and the new model of a conversion."""
    declared = CONVERSIONS[variant.partition("(")[0]]
    (before, *_), (after, *_) = declared.before or ["decoder"], declared.after or ["decoder"]
    changes = {
        "num_layers": {"num_layers": 4},
        "max_length": {"max_length": 9},
        "vocab_size": {"vocab_size": 17},
        "d_model": {"d_model": 2 * settings.get("d_model", 6), "num_heads": 4, "d_ff": 21},
    }
    new = next((changes[name] for name in declared.changes if name in changes), {})
    if settings.get("mlm_head") and "encoder_decoder" in (before, after):
        settings = settings | {"mlm_head": False}
    old = small(architecture=before, **settings)
    return old, small(architecture=after, **(settings | new))


def converted(variant: str, old, new, params):
    """The parameters of the new model, and the paths of those that are drawn."""
    fresh = flatten_dict(random_params(new, seed=1), sep="/")
    made, drawn = convert(
        Converter(variant), flatten_dict(params, sep="/"), fresh, new, lambda path: "head" in path
    )
    return made | {path: fresh[path] for path in drawn}, drawn, fresh


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_has_a_source_of_its_shape(variant, settings):
    if "identity" in variant and settings.get("norm_position"):
        pytest.skip("identity is for pre-norm")
    if "shared_layers" in settings and variant.startswith("grow_depth"):
        pytest.skip("one layer is repeated: there is nothing to grow")
    old, new = models(variant, **settings)
    Converter(variant).check(old, new)
    params = random_params(old)
    made, drawn, fresh = converted(variant, old, new, params)
    assert {path: leaf.shape for path, leaf in made.items()} == {
        path: leaf.shape for path, leaf in fresh.items()
    }
    # What is drawn is what the conversion says, and no more.
    expected = {
        "new_vocabulary": lambda path: path in ("embedding", "head/output", "head/bias"),
        "encoder_to_encoder_decoder": lambda path: "cross_attention" in path,
        "decoder_to_encoder_decoder(cross_attention='fresh')": lambda path: "cross_" in path,
    }.get(variant, lambda path: False)
    assert set(drawn) == set(filter(expected, fresh))
    # The state of a run is donated, so its arrays must be different ones.
    assert len({id(leaf) for leaf in made.values()}) == len(made)


def hidden(model, params, row):
    return np.asarray(apply(model, params, row).hidden_states)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize(
    "variant",
    [
        "decoder_to_prefix_decoder",
        "prefix_decoder_to_decoder",
        "decoder_to_encoder_decoder(cross_attention='zero')",
        "grow_depth(order='identity')",
    ],
)
def test_the_new_model_computes_what_the_old_one_did(variant, settings):
    if settings.get("norm_position") and "order" in variant:
        pytest.skip("identity is for pre-norm")
    if "shared_layers" in settings and variant.startswith("grow_depth"):
        pytest.skip("one layer is repeated: there is nothing to grow")
    if settings.get("norm_position") and "zero" in variant:
        pytest.skip("a norm after a part makes something of nothing")
    old, new = models(variant, **settings)
    params = random_params(old)
    made, _, _ = converted(variant, old, new, params)
    row = ENCODER_ROW | ROW
    if "prefix" in variant:
        row |= {"decoder_prefix": jnp.zeros_like(ROW["decoder_tokens"], dtype=bool)}
    np.testing.assert_allclose(
        hidden(new, unflatten_dict(made, sep="/"), row), hidden(old, params, row), atol=1e-10
    )


@dataclass(frozen=True)
class Causal:
    """A rule under which an encoder sees what a decoder does."""

    def __call__(self, queries, keys):
        return queries["positions"][:, :, None] >= keys["positions"][:, None, :]

    def visible(self, positions, bidirectional):
        return (positions + 1) / 2


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("variant", ["decoder_to_encoder", "encoder_to_decoder"])
def test_where_masks_agree_the_model_is_the_same(variant, settings, monkeypatch):
    monkeypatch.setitem(masks.RULES, "causal", Causal)
    if "layer_pattern" in settings:
        settings = settings | {"local_rules": ("window(size=2)", "causal")}
    old, new = models(variant, **settings)
    params = random_params(old)
    made, _, _ = converted(variant, old, new, params)

    def causal(model):
        rules = ("causal",) if model.architecture == "encoder" else ()
        local = model.local_rules if model.architecture == "encoder" else model.local_rules[:1]
        return replace(model, attention_rules=rules, local_rules=local)

    row = ENCODER_ROW | ROW
    np.testing.assert_allclose(
        hidden(causal(new), unflatten_dict(made, sep="/"), row),
        hidden(causal(old), params, row),
        atol=1e-10,
    )


def logits_of(model, params, row):
    """The logits of every position of the stack that is scored."""
    output = apply(model, params, row)
    return np.asarray(logits(model, head_params(params), HEADS["lm"].read(output, row)))


# What grows, and how many times
GROWTH = {
    "features and heads": {"d_model": 2, "num_heads": 2, "num_kv_heads": 2},
    "all": {"d_model": 3, "num_heads": 3, "num_kv_heads": 3, "d_ff": 2},
    "hidden units": {"d_ff": 3},
    "heads": {"num_heads": 2, "num_kv_heads": 2},
}
WIDENED = SETTINGS | {
    "grouped": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 3, "qk_norm": "all"},
    "T5": {"architecture": "encoder_decoder", "positions": "relative", "scale_logits": True},
    "scaled": {"scale_embeddings": True},
    "scaled T5": {"scale_embeddings": True, "scale_logits": True},
    "BERT": {"architecture": "encoder", "mlm_head": True, "token_types": 2},
    "BERT, post": {
        "architecture": "encoder",
        "mlm_head": True,
        "norm_position": "post",
        "embedding_norm": True,
    },
    "factorised": {"embedding_size": 4},
    "experts": {"feed_forward": "experts(num=2, top_k=1, d_ff=5, capacity=4.0)"},
    "shaw": {"positions": "shaw"},
}


@pytest.mark.parametrize(
    ("settings", "growth"),
    [(name, "all") for name in WIDENED] + [("plain", growth) for growth in GROWTH],
)
def test_a_wider_model_computes_what_the_narrow_one_did(settings, growth):
    old = small(**WIDENED[settings])
    sizes = {key: getattr(old, key) * times for key, times in GROWTH[growth].items()}
    new = small(**(WIDENED[settings] | sizes | {"head_dim": old.head_dim}))
    Converter("grow_width(noise=0)").check(old, new)
    params = random_params(old)
    made, drawn, fresh = converted("grow_width(noise=0)", old, new, params)
    assert not drawn
    assert {path: leaf.shape for path, leaf in made.items()} == {
        path: leaf.shape for path, leaf in fresh.items()
    }
    row = ENCODER_ROW | ROW
    wide = logits_of(new, unflatten_dict(made, sep="/"), row)
    np.testing.assert_allclose(wide, logits_of(old, params, row), atol=1e-10)


def test_noise_tells_copies_apart():
    old, new = models("grow_width")
    params = random_params(old)
    made, _, _ = converted("grow_width", old, new, params)
    exact, _, _ = converted("grow_width(noise=0)", old, new, params)
    kernel = "decoder/layers/feed_forward/wi/kernel"
    relative = made[kernel] / exact[kernel] - 1
    assert 0.005 < relative.std() < 0.02
    assert not np.allclose(made[kernel][..., :7], made[kernel][..., 7:14], rtol=1e-4)
    np.testing.assert_array_equal(made["embedding"], exact["embedding"])


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_one_stack_is_kept(stack):
    variant = f"encoder_decoder_to_{stack}"
    old, new = models(variant)
    params = random_params(old)
    made, _, _ = converted(variant, old, new, params)
    kept = {path: leaf for path, leaf in flatten_dict(params, sep="/").items() if path in made}
    assert set(kept) == set(made)
    assert all(np.array_equal(kept[path], made[path]) for path in made)


def test_a_stack_that_is_kept_keeps_its_relative_positions():
    for stack in ("encoder", "decoder"):
        variant = f"encoder_decoder_to_{stack}"
        old, new = models(variant, positions="relative")
        Converter(variant).check(old, new)
        made, _, _ = converted(variant, old, new, random_params(old))
        assert f"{stack}/relative_bias/embedding" in made


def test_layers_are_copied_in_order():
    numbers = {}
    for order in ("stack", "interleave", "identity"):
        variant = f"grow_depth(order={order!r})"
        old, new = small(num_layers=3), small(num_layers=7)
        params = jax.tree.map(jnp.ones_like, random_params(old))
        path = "decoder/layers/feed_forward/wo/kernel"
        leaves = flatten_dict(params, sep="/")
        leaves[path] *= jnp.arange(1, 4)[:, None, None]
        made, _, _ = converted(variant, old, new, unflatten_dict(leaves, sep="/"))
        numbers[order] = made[path][:, 0, 0].tolist()
    assert numbers == {
        "stack": [1, 2, 3, 1, 2, 3, 1],
        "interleave": [1, 1, 1, 2, 2, 3, 3],
        "identity": [1, 0, 0, 2, 0, 3, 0],
    }


def test_positions_are_interpolated():
    old, new = models("longer_positions")
    params = random_params(old)
    made, _, _ = converted("longer_positions", old, new, params)
    table = np.asarray(params["position_embedding"])
    places = (np.arange(9) + 0.5) * 5 / 9 - 0.5
    for column, expected in zip(made["position_embedding"].T, table.T, strict=True):
        np.testing.assert_allclose(column, np.interp(places, np.arange(5), expected), atol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "variant", "reason"),
    [
        (
            {"architecture": "encoder"},
            {"architecture": "decoder"},
            "decoder_to_encoder",
            "got architectures encoder and decoder",
        ),
        (
            {"positions": "relative"},
            {"architecture": "encoder", "positions": "relative"},
            "decoder_to_encoder",
            "relative positions count distances in other buckets",
        ),
        (
            {"positions": "relative"},
            {"architecture": "encoder_decoder", "positions": "relative"},
            "decoder_to_encoder_decoder",
            "relative positions count distances in other buckets",
        ),
        (
            {"num_layers": 2},
            {"architecture": "encoder", "num_layers": 3},
            "decoder_to_encoder",
            "got 3 layers in the encoder, but the stack it is made from has 2",
        ),
        ({"num_layers": 3}, {"num_layers": 2}, "grow_depth", "got 2 layers in the decoder, but"),
        (
            {"layer_pattern": ("local", "global"), "num_layers": 2},
            {"layer_pattern": ("local", "global"), "num_layers": 3},
            "grow_depth",
            "got 3 layers made from 2, whose kinds repeat every 2; use multiples of 2",
        ),
        (
            {"norm_position": "post"},
            {"norm_position": "post", "num_layers": 4},
            "grow_depth(order=identity)",
            "order=identity needs norms before each part",
        ),
        ({}, {"d_model": 9, "num_heads": 3}, "grow_width", "got model.d_model=9, but init_from"),
        ({}, {"d_model": 12}, "grow_width", "got heads of width 6, 2 with 2, but init_from has 3"),
        (
            {"norm_position": "post"},
            {"norm_position": "post", "d_model": 12, "num_heads": 4},
            "grow_width",
            "the table of tokens is the output layer, with no norm of its own before it",
        ),
        *(
            (
                {"positions": positions},
                {"positions": positions, "d_model": 12, "num_heads": 4},
                "grow_width",
                f"mixer attention, positions {positions}; expected attention",
            )
            for positions in ("sinusoidal", "universal", "alibi", "transformer_xl")
        ),
    ],
)
def test_what_cannot_be_converted(old, new, variant, reason):
    with pytest.raises(UserError, match=reason):
        Converter(variant).check(small(**old), small(**new))


@pytest.mark.parametrize("before", get_args(Architecture))
@pytest.mark.parametrize("after", get_args(Architecture))
def test_one_conversion_is_found_for_each_pair_of_architectures(before, after):
    found = [
        name
        for name, declared in CONVERSIONS.items()
        if before in declared.before and after in declared.after
    ]
    old, new = small(architecture=before), small(architecture=after)
    assert found == [between(old, new)] * (before != after)
    if before != after:
        Converter(found[0]).check(old, new)
        converted(found[0], old, new, random_params(old))
