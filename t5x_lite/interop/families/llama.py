"""LLaMA 1 to 3 (Touvron et al., 2023; Grattafiori et al., 2024) and the decoders built like them:
Mistral (Jiang et al., 2023), Qwen 2 and 3 (Yang et al., 2024, 2025), OLMo 2 (OLMo Team, 2024), and
Gemma 2 and 3 (Gemma Team, 2024, 2025; only the text models of Gemma 3).
"""

import dataclasses
from typing import Any

from t5x_lite.config import ModelDimensions
from t5x_lite.errors import BAD_DATA, UserError
from t5x_lite.interop.families.family import (
    ACTIVATION_NAMES,
    ConfigJson,
    Family,
    Location,
    ModelFields,
)
from t5x_lite.interop.families.rotary import (
    read_layers,
    read_rotary,
    write_layers,
    write_rotary,
    write_rotary_by_type,
)


def heads_of(config: ConfigJson) -> ModelFields:
    """Read the rotary angles and the sizes of heads."""
    return {
        "positions": read_rotary(config),
        "head_dim": config.get("head_dim") or 0,
        "num_kv_heads": config.get("num_key_value_heads") or 0,
    }


def attention_fields(config: ConfigJson) -> ModelFields:
    """Also read whether the attention layers have biases."""
    biases = "all" if config.get("attention_bias") else "none"
    return heads_of(config) | {"attention_bias": biases}


def attention_settings(model: ModelDimensions) -> ConfigJson:
    """Write the settings that attention_fields reads."""
    return write_rotary(model) | {
        "head_dim": model.head_dim,
        "num_key_value_heads": model.num_kv_heads,
        "attention_bias": model.attention_bias == "all",
    }


def _llama_fields(config: ConfigJson) -> ModelFields:
    """Also read whether the feed-forward layers have biases."""
    return attention_fields(config) | {"bias": bool(config.get("mlp_bias"))}


def _llama_settings(model: ModelDimensions) -> ConfigJson:
    """Write the settings that _llama_fields reads."""
    return attention_settings(model) | {"mlp_bias": model.bias}


# The kernels of a layer, without its norms.
PROJECTIONS: dict[str, str | Location] = {
    "decoder/layers/attention/query": "model.layers.*.self_attn.q_proj",
    "decoder/layers/attention/key": "model.layers.*.self_attn.k_proj",
    "decoder/layers/attention/value": "model.layers.*.self_attn.v_proj",
    "decoder/layers/attention/out": "model.layers.*.self_attn.o_proj",
    "decoder/layers/feed_forward/wi": "model.layers.*.mlp.gate_proj",
    "decoder/layers/feed_forward/gate": "model.layers.*.mlp.up_proj",
    "decoder/layers/feed_forward/wo": "model.layers.*.mlp.down_proj",
}

LLAMA = Family(
    class_name="LlamaForCausalLM",
    class_without_head="LlamaModel",
    settings={
        "num_hidden_layers": "num_layers",
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        "hidden_act": "activation",
        "rms_norm_eps": "norm_epsilon",
        "max_position_embeddings": "max_length",
        "vocab_size": "vocab_size",
        "tie_word_embeddings": "tie_embeddings",
        "attention_dropout": "attention_dropout",
    },
    defaults={
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "attention_dropout": 0.0,
    },
    # null means as many K/V heads as heads, a window over the whole text, or no cap.
    nullable=frozenset(
        {
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "num_key_value_heads",
            "sliding_window",
        }
    ),
    supported={"pretraining_tp": 1},
    constants={
        "architecture": "decoder",
        "feed_forward": "gated_mlp",
        "norm": "rms_norm",
    },
    other_fields=_llama_fields,
    other_settings=_llama_settings,
    modules=PROJECTIONS
    | {
        "decoder/layers/attention_norm": "model.layers.*.input_layernorm",
        "decoder/layers/feed_forward_norm": "model.layers.*.post_attention_layernorm",
        "decoder/final_norm": "model.norm",
    },
    tensors={
        "embedding": "model.embed_tokens.weight",
        "head/output": "lm_head.weight",
    },
    prefix="model.",
    copies={"lm_head.weight": "embedding"},
    adds_bos=True,
)


def _like_llama(name: str, **changes: Any) -> Family:
    """Return a variant of LLAMA whose class names begin with `name`, and which sets bias=False."""
    constants = LLAMA.constants | {"bias": False} | changes.pop("constants", {})
    here: dict[str, Any] = {"class_without_head": f"{name}Model", "supported": {}}
    return dataclasses.replace(
        LLAMA,
        class_name=f"{name}ForCausalLM",
        constants=constants,
        **(here | changes),
    )


def _mistral_fields(config: ConfigJson) -> ModelFields:
    """Also read the window, which all layers share."""
    fields, window, layers = heads_of(config), config["sliding_window"], config["num_hidden_layers"]
    types = ["full_attention" if window is None else "sliding_attention"] * layers
    return fields | read_layers(types, layers, window, fields["positions"])


def _mistral_settings(model: ModelDimensions) -> ConfigJson:
    """Write the settings that _mistral_fields reads."""
    settings = attention_settings(model)
    del settings["attention_bias"]  # Mistral has no such setting
    return settings | {"sliding_window": write_layers(model)["sliding_window"]}


MISTRAL = _like_llama(
    "Mistral",
    defaults=LLAMA.defaults
    | {"max_position_embeddings": 131_072, "num_key_value_heads": 8, "sliding_window": 4096},
    other_fields=_mistral_fields,
    other_settings=_mistral_settings,
)


def _qwen_fields(config: ConfigJson) -> ModelFields:
    """Also read which layers attend to a window."""
    fields = heads_of(config)
    slides = config["use_sliding_window"] and config["sliding_window"] is not None
    # Version 4 of `transformers` has max_window_layers: the number of layers before the first one
    # that attends to a window.
    first, layers = config["max_window_layers"], config["num_hidden_layers"]
    follows = [slides and layer >= first for layer in range(layers)]
    types = ["sliding_attention" if local else "full_attention" for local in follows]
    types = config.get("layer_types") or types
    window = config["sliding_window"] if slides else None
    return fields | read_layers(types, layers, window, fields["positions"])


def _qwen3_fields(config: ConfigJson) -> ModelFields:
    """Read a Qwen 3, where attention_bias is a setting."""
    return attention_fields(config) | _qwen_fields(config)


def _qwen2_fields(config: ConfigJson) -> ModelFields:
    """Read a Qwen 2, whose queries, keys and values always have a bias."""
    return _qwen_fields(config) | {"attention_bias": "qkv"}


def _qwen_settings(model: ModelDimensions) -> ConfigJson:
    """Write the settings that _qwen_fields reads."""
    layers = write_layers(model)
    kinds = layers["layer_types"]
    slides = layers["sliding_window"] is not None
    settings = attention_settings(model) | layers | {"use_sliding_window": slides}
    if slides:  # for version 4 of transformers
        settings["max_window_layers"] = kinds.index("sliding_attention")
    return settings


def _qwen2_settings(model: ModelDimensions) -> ConfigJson:
    """Write a Qwen 2."""
    settings = _qwen_settings(model)
    del settings["attention_bias"], settings["head_dim"]  # Qwen 2 has neither setting
    return settings


_QWEN_DEFAULTS = LLAMA.defaults | {
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
QWEN2 = _like_llama(
    "Qwen2",
    adds_bos=False,
    defaults=_QWEN_DEFAULTS,
    other_fields=_qwen2_fields,
    other_settings=_qwen2_settings,
)


def _norms_of_heads(offset: float = 0.0) -> dict[str, str | Location]:
    """Return the norms of queries and keys."""
    return {
        f"decoder/layers/attention/{ours}_norm": Location(
            f"model.layers.*.self_attn.{theirs}_norm", offset=offset
        )
        for ours, theirs in (("query", "q"), ("key", "k"))
    }


QWEN3 = _like_llama(
    "Qwen3",
    adds_bos=False,
    defaults=_QWEN_DEFAULTS | {"head_dim": 128},
    constants={"qk_norm": "head"},
    other_fields=_qwen3_fields,
    other_settings=_qwen_settings,
    modules=LLAMA.modules | _norms_of_heads(),
)

OLMO2 = _like_llama(
    "Olmo2",
    adds_bos=False,
    defaults=LLAMA.defaults | {"rms_norm_eps": 1e-5},
    constants={"qk_norm": "all", "norm_position": "output"},
    other_fields=attention_fields,
    other_settings=attention_settings,
    modules=PROJECTIONS
    | _norms_of_heads()
    | {
        "decoder/layers/attention_output_norm": "model.layers.*.post_attention_layernorm",
        "decoder/layers/feed_forward_output_norm": "model.layers.*.post_feedforward_layernorm",
        "decoder/final_norm": "model.norm",
    },
)


# Gemma. Its norms multiply by 1 + scale.


def _gemma_fields(config: ConfigJson) -> ModelFields:
    """Read what Gemma 2 and 3 share."""
    if config.get("use_bidirectional_attention"):
        reason = "a decoder that sees what is ahead; expected false"
        raise UserError(BAD_DATA, f"config.json: use_bidirectional_attention=True: {reason}")
    return attention_fields(config) | {
        "query_width": config["query_pre_attn_scalar"],
        "attention_softcap": float(config.get("attn_logit_softcapping") or 0),
        "logits_softcap": float(config.get("final_logit_softcapping") or 0),
    }


def _gemma_settings(model: ModelDimensions) -> ConfigJson:
    """Write the settings that _gemma_fields reads."""
    activation = ACTIVATION_NAMES[model.activation]
    return attention_settings(model) | {
        "hidden_activation": activation.replace("gelu_new", "gelu_pytorch_tanh"),
        "query_pre_attn_scalar": model.query_width,
        "attn_logit_softcapping": model.attention_softcap or None,
        "final_logit_softcapping": model.logits_softcap or None,
    }


def _layer_types(config: ConfigJson, period: int) -> list[str]:
    """Read the types of layers. In old files, the last layer of each period is global."""
    stated = config.get("layer_types")
    if stated:
        return stated
    is_global = [(layer + 1) % period == 0 for layer in range(config["num_hidden_layers"])]
    return ["full_attention" if everywhere else "sliding_attention" for everywhere in is_global]


def _gemma2_fields(config: ConfigJson) -> ModelFields:
    """Read a Gemma 2, in which every second layer attends to a window."""
    fields = _gemma_fields(config)
    types, layers = _layer_types(config, period=2), config["num_hidden_layers"]
    return fields | read_layers(types, layers, config["sliding_window"], fields["positions"])


def _gemma2_settings(model: ModelDimensions) -> ConfigJson:
    """Write a Gemma 2."""
    return _gemma_settings(model) | write_layers(model)


_GEMMA_SETTINGS = {
    "hidden_activation" if key == "hidden_act" else key: name
    for key, name in LLAMA.settings.items()
}
_GEMMA_DEFAULTS = LLAMA.defaults | {
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_GEMMA_MODULES = PROJECTIONS | {
    f"decoder/{ours}": Location(f"model.{theirs}", offset=1.0)
    for ours, theirs in {
        "layers/attention_norm": "layers.*.input_layernorm",
        "layers/attention_output_norm": "layers.*.post_attention_layernorm",
        "layers/feed_forward_norm": "layers.*.pre_feedforward_layernorm",
        "layers/feed_forward_output_norm": "layers.*.post_feedforward_layernorm",
        "final_norm": "norm",
    }.items()
}
GEMMA2 = _like_llama(
    "Gemma2",
    settings=_GEMMA_SETTINGS,
    defaults=_GEMMA_DEFAULTS | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    # hidden_act is not read, since the class reads hidden_activation.
    harmless=frozenset({"hidden_act", "cache_implementation"}),
    constants={"norm_position": "both", "scale_embeddings": True},
    other_fields=_gemma2_fields,
    other_settings=_gemma2_settings,
    modules=_GEMMA_MODULES,
)


_OF_LOCAL_LAYERS = ("max_position_embeddings", "rope_parameters", "rope_local_base_freq")


def _gemma3_fields(config: ConfigJson) -> ModelFields:
    """Read a Gemma 3, whose local layers have rotary angles of their own."""
    if config.get("attn_logit_softcapping"):
        got = config["attn_logit_softcapping"]
        reason = "Gemma 3 does not read it; expected null"
        raise UserError(BAD_DATA, f"config.json: attn_logit_softcapping={got}: {reason}")
    types = _layer_types(config, period=config.get("sliding_window_pattern") or 6)
    everywhere = read_rotary(config, "full_attention", base=1_000_000.0)
    # In old files, rope_scaling applies only to global layers, so leave it out here.
    nearby = {key: config.get(key) for key in _OF_LOCAL_LAYERS}
    local = read_rotary(nearby, "sliding_attention", base_key="rope_local_base_freq")
    layers, window = config["num_hidden_layers"], config["sliding_window"]
    return _gemma_fields(config) | read_layers(types, layers, window, everywhere, local)


def _gemma3_settings(model: ModelDimensions) -> ConfigJson:
    """Write a Gemma 3."""
    settings = _gemma_settings(model) | write_layers(model)
    settings.pop("rope_scaling", None)
    return settings | write_rotary_by_type(model, "rope_theta", "rope_local_base_freq")


GEMMA3 = _like_llama(
    "Gemma3",
    class_without_head="Gemma3TextModel",
    settings=_GEMMA_SETTINGS,
    defaults=_GEMMA_DEFAULTS | {"max_position_embeddings": 131_072},
    harmless=frozenset({"hidden_act", "cache_implementation", "_sliding_window_pattern"}),
    constants={"norm_position": "both", "scale_embeddings": True, "qk_norm": "head"},
    other_fields=_gemma3_fields,
    other_settings=_gemma3_settings,
    modules=_GEMMA_MODULES | _norms_of_heads(offset=1.0),
)
