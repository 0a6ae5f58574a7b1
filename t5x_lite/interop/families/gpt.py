"""GPT (Radford et al., 2018), GPT-2 (Radford et al., 2019), GPT-NeoX (Black et al., 2022), Pythia
(Biderman et al., 2023).
"""

import dataclasses
from functools import partial

from t5x_lite.config import ModelDimensions
from t5x_lite.errors import BAD_DATA, UserError
from t5x_lite.interop.families.family import (
    ACTIVATION_NAMES,
    ConfigJson,
    Family,
    Location,
    ModelFields,
)
from t5x_lite.interop.families.rotary import read_rotary, write_rotary

# A dense layer of GPT-2, with a kernel [in, out] where torch.nn.Linear has [out, in].
_conv1d = partial(Location, kernel_layout="in_out")

GPT2 = Family(
    class_name="GPT2LMHeadModel",
    class_without_head="GPT2Model",
    settings={
        "n_layer": "num_layers",
        "n_embd": "d_model",
        "n_head": "num_heads",
        "n_positions": "max_length",
        "activation_function": "activation",
        "layer_norm_epsilon": "norm_epsilon",
        "vocab_size": "vocab_size",
        "tie_word_embeddings": "tie_embeddings",
        "resid_pdrop": "dropout",
        "embd_pdrop": "dropout",
        "attn_pdrop": "attention_dropout",
        "scale_attn_weights": "scale_attention",
    },
    defaults={
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "scale_attn_weights": True,
    },
    supported={
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    # Settings of other classes' heads, the order in which attention is computed, and n_ctx, which
    # is the length in old files.
    harmless=frozenset(
        {
            "n_ctx",
            "n_special",
            "predict_special_tokens",
            "reorder_and_upcast_attn",
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
        }
    ),
    constants={"architecture": "decoder"},
    other_fields=lambda config: {"d_ff": config.get("n_inner", 0)},
    other_settings=lambda model: {"n_inner": model.d_ff},
    modules={
        "decoder/layers/attention_norm": "transformer.h.*.ln_1",
        "decoder/layers/attention/query": _conv1d("transformer.h.*.attn.c_attn", part=0, parts=3),
        "decoder/layers/attention/key": _conv1d("transformer.h.*.attn.c_attn", part=1, parts=3),
        "decoder/layers/attention/value": _conv1d("transformer.h.*.attn.c_attn", part=2, parts=3),
        "decoder/layers/attention/out": _conv1d("transformer.h.*.attn.c_proj"),
        "decoder/layers/feed_forward_norm": "transformer.h.*.ln_2",
        "decoder/layers/feed_forward/wi": _conv1d("transformer.h.*.mlp.c_fc"),
        "decoder/layers/feed_forward/wo": _conv1d("transformer.h.*.mlp.c_proj"),
        "decoder/final_norm": "transformer.ln_f",
    },
    tensors={
        "embedding": "transformer.wte.weight",
        "position_embedding": "transformer.wpe.weight",
        "head/output": "lm_head.weight",
    },
    prefix="transformer.",
    copies={"lm_head.weight": "embedding"},
)


# GPT: GPT-2 with post-norm, under other names.

# Name of an activation in GPT's config.json → its name in other classes.
_GPT_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}


def _gpt_fields(config: ConfigJson) -> ModelFields:
    """Read the activation. d_ff is always 4 × d_model, which is also our default."""
    name = config["afn"]
    if name not in _GPT_ACTIVATIONS:
        expected = f"expected one of {', '.join(_GPT_ACTIVATIONS)}"
        raise UserError(BAD_DATA, f"config.json: afn={name!r}: {expected}")
    return {"activation": _GPT_ACTIVATIONS[name]}


def _gpt_settings(model: ModelDimensions) -> ConfigJson:
    """Write the activation under GPT's name for it."""
    name = ACTIVATION_NAMES[model.activation]
    return {"afn": "gelu" if name == "gelu_new" else name}


GPT = dataclasses.replace(
    GPT2,
    class_name="OpenAIGPTLMHeadModel",
    class_without_head="OpenAIGPTModel",
    settings={
        key: name
        for key, name in GPT2.settings.items()
        if name not in ("activation", "scale_attention")
    },
    defaults={
        "afn": "gelu",
        "n_positions": 512,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
    },
    supported={},
    constants={"architecture": "decoder", "norm_position": "post"},
    other_fields=_gpt_fields,
    other_settings=_gpt_settings,
    modules={name: module for name, module in GPT2.modules.items() if name != "decoder/final_norm"},
    tensors={
        "embedding": "transformer.tokens_embed.weight",
        "position_embedding": "transformer.positions_embed.weight",
        "head/output": "lm_head.weight",
    },
)


# GPT-NeoX.


def _neox_fields(config: ConfigJson) -> ModelFields:
    """Read the rotary angles and the biases of attention."""
    return {
        "positions": read_rotary(
            config, fraction=0.25, base_key="rotary_emb_base", fraction_key="rotary_pct"
        ),
        "attention_bias": "all" if config["attention_bias"] else "none",
    }


def _neox_settings(model: ModelDimensions) -> ConfigJson:
    """Write the settings that _neox_fields reads."""
    rotary = write_rotary(model)
    angles = rotary["rope_parameters"]
    return rotary | {
        "rotary_pct": angles.get("partial_rotary_factor", 1.0),  # both names are transformers 4's
        "rotary_emb_base": angles["rope_theta"],
        "attention_bias": model.attention_bias == "all",
    }


def _qkv(part: int) -> Location:
    """Return the location of queries (0), keys (1) or values (2)."""
    name = "gpt_neox.layers.*.attention.query_key_value"
    return Location(name, part, parts=3, by_head=True)


GPT_NEOX = Family(
    class_name="GPTNeoXForCausalLM",
    class_without_head="GPTNeoXModel",
    settings={
        "num_hidden_layers": "num_layers",
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_epsilon",
        "max_position_embeddings": "max_length",
        "vocab_size": "vocab_size",
        "tie_word_embeddings": "tie_embeddings",
        "use_parallel_residual": "parallel_residual",
        "hidden_dropout": "dropout",
        "attention_dropout": "attention_dropout",
    },
    defaults={
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
        "attention_bias": True,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    constants={"architecture": "decoder", "shared_norm": False},
    other_fields=_neox_fields,
    other_settings=_neox_settings,
    modules={
        "decoder/layers/attention_norm": "gpt_neox.layers.*.input_layernorm",
        "decoder/layers/attention/query": _qkv(0),
        "decoder/layers/attention/key": _qkv(1),
        "decoder/layers/attention/value": _qkv(2),
        "decoder/layers/attention/out": "gpt_neox.layers.*.attention.dense",
        "decoder/layers/feed_forward_norm": "gpt_neox.layers.*.post_attention_layernorm",
        "decoder/layers/feed_forward/wi": "gpt_neox.layers.*.mlp.dense_h_to_4h",
        "decoder/layers/feed_forward/wo": "gpt_neox.layers.*.mlp.dense_4h_to_h",
        "decoder/final_norm": "gpt_neox.final_layer_norm",
    },
    tensors={
        "embedding": "gpt_neox.embed_in.weight",
        "head/output": "embed_out.weight",
    },
    prefix="gpt_neox.",
    copies={"embed_out.weight": "embedding"},
)
