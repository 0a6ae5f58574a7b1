import re

import pytest
from interop_cases import MODELS, make_dimensions

from t5x_lite.errors import UserError
from t5x_lite.interop.families.bert import BERT, ROBERTA
from t5x_lite.interop.families.family import Location
from t5x_lite.interop.families.gpt import GPT2
from t5x_lite.interop.families.llama import LLAMA
from t5x_lite.interop.families.t5 import T5
from t5x_lite.interop.families.table import FAMILIES, differences, find_family
from t5x_lite.interop.huggingface import stored_parameters


def family_name(name: str) -> str:
    return re.split("[ ,]", name)[0]


# Config files.


# Families that hold the same models: the first is the one that is written.
ALIKE = [
    ("roberta", "xlm-roberta", "camembert"),
    ("t5", "mt5"),
    ("llama", "mistral"),
    # A BERT is a RoBERTa whose positions begin at 0.
    ("bert", "roberta", "xlm-roberta", "camembert", "electra"),
    # Without types it is a DistilBERT, or one with a type of zeros.
    ("distilbert", "bert", "roberta", "xlm-roberta", "camembert", "electra"),
]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_of_its_family_and_of_no_other(name):
    model = make_dimensions(name)
    fitting = [other for other in FAMILIES if fits(FAMILIES[other], model)]
    fitting.sort(key=lambda other: len(FAMILIES[other].written_otherwise(model)))
    assert family_name(name) in fitting
    assert find_family(model) == fitting[0]
    if len(fitting) > 1:
        assert any(set(fitting) <= set(alike) for alike in ALIKE), fitting


def fits(family, model) -> bool:
    """True if a family holds the model."""
    try:
        return not differences(family, model)
    except UserError:  # it has no models of such sizes
        return False


GPT2_CONFIG = {"n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 16, "vocab_size": 530}
LLAMA_CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "hidden_act": "silu",
    "vocab_size": 530,
}
T5_CONFIG = {
    "num_layers": 2,
    "d_model": 8,
    "num_heads": 2,
    "d_kv": 4,
    "d_ff": 12,
    "vocab_size": 530,
}
ROBERTA_CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "hidden_act": "gelu",
    "max_position_embeddings": 514,
    "vocab_size": 530,
}


def test_settings_that_are_left_out_have_the_defaults_of_transformers():
    fields = GPT2.read_config({**GPT2_CONFIG, "n_inner": None})
    assert fields["activation"] == "gelu_tanh"
    assert fields["norm_epsilon"] == 1e-5
    assert fields["tie_embeddings"]
    assert fields["d_ff"] == 0  # follows from d_model
    fields = LLAMA.read_config(LLAMA_CONFIG)
    assert fields["positions"] == "rotary"
    assert fields["max_length"] == 2048
    assert not fields["tie_embeddings"]


def test_positions_of_roberta_begin_after_the_id_of_padding():
    fields = ROBERTA.read_config(ROBERTA_CONFIG)
    assert (fields["max_length"], fields["positions"]) == (512, "learned(offset=2)")


def test_robertas_have_one_activation():
    """The head of `transformers` applies gelu, whatever hidden_act says."""
    with pytest.raises(UserError, match=r"hidden_act='relu': .* only read with 'gelu'"):
        ROBERTA.read_config({**ROBERTA_CONFIG, "hidden_act": "relu"})
    with pytest.raises(UserError, match=r"bert needs model\.positions='learned' "):
        find_family(make_dimensions("roberta", activation="relu"))
    assert differences(ROBERTA, make_dimensions("roberta", activation="relu")) == [
        ("activation", "relu", "gelu")
    ]


@pytest.mark.parametrize(
    ("feed_forward_proj", "feed_forward", "activation"),
    [
        ("relu", "mlp", "relu"),
        ("gated-gelu", "gated_mlp", "gelu_tanh"),
        ("gated-silu", "gated_mlp", "silu"),
        ("gelu_new", "mlp", "gelu_tanh"),
        ("gelu", "mlp", "gelu"),
    ],
)
def test_feed_forward_parts_of_t5(feed_forward_proj, feed_forward, activation):
    fields = T5.read_config({**T5_CONFIG, "feed_forward_proj": feed_forward_proj})
    assert (fields["feed_forward"], fields["activation"]) == (feed_forward, activation)
    name = "t5" if feed_forward == "mlp" else "t5 1.1"
    model = make_dimensions(name, feed_forward=feed_forward, activation=activation)
    assert T5.write_config(model)["feed_forward_proj"] == feed_forward_proj


def test_where_llama_states_its_angles():
    """transformers 5 has rope_parameters, 4 has rope_theta."""
    for settings in (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_theta": 500_000},
        {"rope_theta": 500_000, "rope_scaling": None},
    ):
        fields = LLAMA.read_config({**LLAMA_CONFIG, **settings})
        assert fields["positions"] == "rotary(base=500000.0)"
    for key in ("type", "rope_type"):
        with pytest.raises(UserError, match="rope_scaling: rope_type='dynamic': expected one"):
            LLAMA.read_config({**LLAMA_CONFIG, "rope_scaling": {key: "dynamic"}})


@pytest.mark.parametrize(
    ("family", "config", "settings", "message"),
    [
        # Two keys that say different things; both are read.
        (T5, "T5", {"dense_act_fn": "gelu_new"}, "dense_act_fn='gelu_new', but .* means 'relu'"),
        (T5, "T5", {"is_gated_act": True}, "is_gated_act=True, but"),
        (
            LLAMA,
            "LLAMA",
            {
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
                "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            },
            "rope_parameters and rope_scaling describe different angles; correct one",
        ),
        (
            LLAMA,
            "LLAMA",
            {"rope_parameters": {"rope_theta": 1e4}, "rope_theta": 5e5},
            "rope_theta is 500000.0 and, in rope_parameters, 10000.0; correct one",
        ),
        (LLAMA, "LLAMA", {"rope_parameters": {"factor": 8.0}}, "got {'factor': 8.0}"),
        # Keys of which nothing is known.
        (
            LLAMA,
            "LLAMA",
            {"sliding_window": 4096},
            "sliding_window=4096: unknown",
        ),
        (
            BERT,
            "ROBERTA",
            {"embedding_size": 8},
            "embedding_size=8: unknown",
        ),
        # Keys that are known to matter.
        (GPT2, "GPT2", {"quantization_config": {"bits": 4}}, "only read with null"),
        (GPT2, "GPT2", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
        (GPT2, "GPT2", {"is_decoder": True}, "is_decoder=True"),
    ],
)
def test_a_setting_that_is_not_read_is_known_to_be_harmless(family, config, settings, message):
    of_family = {"T5": T5_CONFIG, "LLAMA": LLAMA_CONFIG, "ROBERTA": ROBERTA_CONFIG}
    stated = {**of_family.get(config, GPT2_CONFIG), **settings}
    with pytest.raises(UserError, match=message):
        family.read_config(stated)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_what_every_config_has_is_read(model_type):
    """Keys that say nothing of the computation, and neutral values."""
    family = FAMILIES[model_type]
    config = family.write_config(make_dimensions(model_type))
    plain = family.read_config(config)
    more = {
        "architectures": ["X"],
        "_name_or_path": "x",
        "torch_dtype": "bfloat16",
        "use_cache": False,
        "id2label": {"0": "no"},
        "task_specific_params": {"a": {"length_penalty": 2.0}},
        "pruned_heads": {},
        "repetition_penalty": 1.0,
        "transformers_version": "4.57.1",
    }
    assert family.read_config(config | more) == plain


def test_config_files_that_cannot_be_read():
    with pytest.raises(UserError, match=r"tie_word_embeddings=False: .* only read with True"):
        BERT.read_config({**ROBERTA_CONFIG, "tie_word_embeddings": False})
    with pytest.raises(UserError, match="has no n_embd, expected a model of this kind"):
        GPT2.read_config({"n_layer": 2})
    with pytest.raises(UserError, match="activation 'exp': expected one of gelu, gelu_python"):
        GPT2.read_config({**GPT2_CONFIG, "activation_function": "exp"})


# Families.


def test_models_of_no_family_are_refused_by_what_differs():
    with pytest.raises(UserError, match=r"gpt2 needs model.positions='learned' \(is 'alibi'\)$"):
        find_family(make_dimensions("gpt2", positions="alibi"))
    with pytest.raises(UserError, match=r"needs model.activation='gelu' \(is 'elu'\)$"):
        find_family(make_dimensions("gpt2", activation="elu"))
    with pytest.raises(UserError, match=r"llama needs model.rezero=False \(is True\)$"):
        find_family(make_dimensions("llama", rezero=True))
    with pytest.raises(UserError, match=r"t5 needs model.architecture='encoder_decoder'"):
        find_family(make_dimensions("t5", architecture="decoder", num_decoder_layers=0))
    with pytest.raises(UserError, match=r"gpt2 needs model.embedding_size=8 \(is 4\)"):
        find_family(make_dimensions("gpt2", embedding_size=4))


def test_a_pattern_is_that_of_the_layers_that_there_are():
    """Of six in a model of two, all are local; of one kind alone, there is none."""
    six = ("local",) * 5 + ("global",)
    assert find_family(make_dimensions("gemma3_text", layer_pattern=six)) == "gemma3_text"
    assert find_family(make_dimensions("llama", layer_pattern=("global",))) == "llama"


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        # Keys that a class does not read.
        ("gpt_neox", {"rope_theta": 700.0}, "rope_theta=700.0: a model of this kind does not read"),
        ("gpt_neox", {"partial_rotary_factor": 0.75}, "partial_rotary_factor=0.75: a model of"),
        ("modernbert", {"rope_theta": 5000.0}, "rope_theta=5000.0: a model of this kind does not"),
        ("llama", {"rotary_emb_base": 5.0}, "rotary_emb_base=5.0: a model of this kind does not"),
        # Angles that are not stated by type.
        (
            "modernbert",
            {"rope_parameters": {"rope_theta": 5e5}},
            "expected those of full_attention",
        ),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 5e5}}, "expected those of full_atten"),
    ],
)
def test_angles_that_a_class_does_not_read_are_refused(name, settings, message):
    family = FAMILIES[family_name(name)]
    config = family.write_config(make_dimensions(name))
    with pytest.raises(UserError, match=message):
        family.read_config(config | settings)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_scaled_angles_need_their_factor(kind):
    """`transformers` has no default for it, or one that follows from other lengths."""
    config = LLAMA.write_config(make_dimensions("llama"))
    with pytest.raises(UserError, match=f"{kind} has no factor; add it"):
        LLAMA.read_config(config | {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4}})


def test_lengths_of_pretraining_that_are_stated_twice():
    config = LLAMA.write_config(make_dimensions("llama 3.1"))
    assert LLAMA.read_config(config | {"original_max_position_embeddings": 64})
    message = "original_max_position_embeddings is 99 and, in rope_parameters, 64"
    with pytest.raises(UserError, match=message):
        LLAMA.read_config(config | {"original_max_position_embeddings": 99})


def test_keys_of_published_files_that_no_class_reads():
    for name, keys in (
        ("gpt2", {"n_special": 0, "predict_special_tokens": True}),
        ("openai-gpt", {"n_special": 0, "predict_special_tokens": True}),
        ("umt5", {"scalable_attention": True}),
    ):
        family = FAMILIES[name]
        config = family.write_config(make_dimensions(name))
        assert family.read_config(config | keys) == family.read_config(config)


def test_how_a_model_is_trained_or_computed_makes_no_difference():
    model = make_dimensions(
        "gpt2", init="truncated", dtype="bfloat16", dropout=0.2, remat=True, vocab_multiple=1
    )
    assert find_family(model) == "gpt2"


def test_sizes_that_another_family_cannot_have_do_not_matter():
    odd_heads = make_dimensions("gpt2", d_model=6)  # rotary positions need an even head_dim
    assert find_family(odd_heads) == "gpt2"
    wide_heads = make_dimensions("llama", d_model=7, head_dim=4)  # BERT has d_model / num_heads
    assert find_family(wide_heads) == "llama"


def test_sizes_that_no_family_can_have():
    model = make_dimensions("gpt2", d_model=7, head_dim=3)
    with pytest.raises(
        UserError, match="this model belongs to none of the families bert, roberta, gpt2"
    ):
        find_family(model)


# Tensors.

# Names in the files that the authors have published, of the second layer where there are layers.
PUBLISHED_NAMES = {
    "bert with two heads": [
        "bert.embeddings.word_embeddings.weight",
        "bert.embeddings.LayerNorm.bias",
        "bert.encoder.layer.1.attention.self.query.weight",
        "bert.encoder.layer.1.attention.output.LayerNorm.weight",
        "bert.encoder.layer.1.intermediate.dense.bias",
        "bert.pooler.dense.weight",
        "cls.predictions.transform.LayerNorm.weight",
        "cls.predictions.bias",
        "cls.seq_relationship.bias",
    ],
    "roberta": [
        "roberta.embeddings.position_embeddings.weight",
        "roberta.encoder.layer.1.output.dense.weight",
        "lm_head.dense.weight",
        "lm_head.layer_norm.bias",
        "lm_head.bias",
    ],
    "gpt2": [
        "transformer.wte.weight",
        "transformer.wpe.weight",
        "transformer.h.1.ln_1.weight",
        "transformer.h.1.attn.c_attn.weight",
        "transformer.h.1.attn.c_attn.bias",
        "transformer.h.1.mlp.c_proj.weight",
        "transformer.ln_f.bias",
    ],
    "t5": [
        "shared.weight",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "encoder.block.1.layer.0.SelfAttention.q.weight",
        "encoder.block.1.layer.1.DenseReluDense.wi.weight",
        "decoder.block.0.layer.1.EncDecAttention.o.weight",
        "decoder.block.0.layer.2.DenseReluDense.wo.weight",
        "decoder.final_layer_norm.weight",
    ],
    "t5 1.1": [
        "encoder.block.1.layer.1.DenseReluDense.wi_0.weight",
        "decoder.block.1.layer.2.DenseReluDense.wi_1.weight",
        "decoder.block.1.layer.2.layer_norm.weight",
        "lm_head.weight",
    ],
    "llama": [
        "model.embed_tokens.weight",
        "model.layers.1.input_layernorm.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.1.post_attention_layernorm.weight",
        "model.layers.1.mlp.gate_proj.weight",
        "model.layers.1.mlp.up_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
    ],
}


@pytest.mark.parametrize("name", PUBLISHED_NAMES)
def test_tensors_have_the_names_of_published_files(name):
    stored = stored_parameters(FAMILIES[family_name(name)], make_dimensions(name))
    tensors = {tensor for parameter in stored.values() for tensor in parameter.tensors.values()}
    assert set(PUBLISHED_NAMES[name]) <= tensors


@pytest.mark.parametrize("name", MODELS)
def test_no_two_parameters_are_stored_in_one_place(name):
    stored = stored_parameters(FAMILIES[family_name(name)], make_dimensions(name))
    places = [(entry.location.name, entry.location.part) for entry in stored.values()]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_entry_of_a_table_is_used(model_type):
    family = FAMILIES[model_type]
    used = set()
    for name in MODELS:
        if family_name(name) == model_type:
            stored = stored_parameters(family, make_dimensions(name))
            used |= {entry.location.name for entry in stored.values()}
    assert set(family.tensors.values()) <= used
    for module in [*family.modules.values(), *family.modules_without_gate.values()]:
        name = module.name if isinstance(module, Location) else module
        assert f"{name}.weight" in used


def test_parameters_that_a_family_does_not_have():
    model = make_dimensions("gpt2", num_classes=2)
    message = "GPT2LMHeadModel has no place for classifier/"
    with pytest.raises(UserError, match=message):
        stored_parameters(GPT2, model)
    with pytest.raises(UserError, match="BertForMaskedLM has no place for head/dense/other"):
        BERT.locate("head/dense/other", model)
