"""Cohere's Command R (2024): the class of `transformers` for decoders with PaLM's parallel blocks
(Chowdhery et al., 2022).
"""

from t5x_lite.config import ModelDimensions
from t5x_lite.errors import BAD_DATA, UserError
from t5x_lite.interop.families.family import ConfigJson, Family, Location, ModelFields
from t5x_lite.interop.families.llama import (
    LLAMA,
    PROJECTIONS,
    attention_fields,
    attention_settings,
)


def _cohere_fields(config: ConfigJson) -> ModelFields:
    """Read angles, heads, biases, and the factor of the output layer."""
    scale, width = config["logit_scale"], config["hidden_size"]
    is_scaled = abs(scale - width**-0.5) < 1e-6
    if not is_scaled and scale != 1:
        reason = f"we read only models with 1 or hidden_size^-½ = {width**-0.5:.6f}"
        raise UserError(BAD_DATA, f"config.json: logit_scale={scale}: {reason}")
    return attention_fields(config) | {"scale_logits": is_scaled}


def _cohere_settings(model: ModelDimensions) -> ConfigJson:
    """Write the settings that _cohere_fields reads."""
    scale = model.d_model**-0.5 if model.scale_logits else 1.0
    return attention_settings(model) | {"logit_scale": scale}


def _rotated(module: str) -> Location:
    """Return the location of a kernel whose features are rotated."""
    return Location(module, pairs_are_neighbours=True)


COHERE = Family(
    class_name="CohereForCausalLM",
    class_without_head="CohereModel",
    settings={
        "layer_norm_eps" if key == "rms_norm_eps" else key: name
        for key, name in LLAMA.settings.items()
    },
    defaults={
        "hidden_act": "silu",
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "attention_dropout": 0.0,
        "attention_bias": False,
        "logit_scale": 0.0625,
    },
    supported={"use_qk_norm": False},
    constants={
        "architecture": "decoder",
        "feed_forward": "gated_mlp",
        "parallel_residual": True,
        "bias": False,
    },
    other_fields=_cohere_fields,
    other_settings=_cohere_settings,
    modules=PROJECTIONS
    | {
        "decoder/layers/attention/query": _rotated("model.layers.*.self_attn.q_proj"),
        "decoder/layers/attention/key": _rotated("model.layers.*.self_attn.k_proj"),
        "decoder/layers/norm": "model.layers.*.input_layernorm",
        "decoder/final_norm": "model.norm",
    },
    tensors=LLAMA.tensors,
    prefix="model.",
    copies=LLAMA.copies,
    adds_bos=True,
)
