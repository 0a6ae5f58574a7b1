"""BART (Lewis et al., 2020)."""

from t5x_lite.config import ModelDimensions
from t5x_lite.errors import BAD_DATA, UserError
from t5x_lite.interop.families.family import ConfigJson, Family, ModelFields
from t5x_lite.model.parts.options import write_part
from t5x_lite.model.parts.positions import POSITIONS


def _bart_fields(config: ConfigJson) -> ModelFields:
    """Read the sizes of both stacks, which must be equal except for the number of layers."""
    for encoder_key, decoder_key in (
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
    ):
        if config[decoder_key] != config[encoder_key]:
            reason = f"{encoder_key} is {config[encoder_key]}, and we read only models with equal"
            raise UserError(BAD_DATA, f"config.json: {decoder_key}={config[decoder_key]}: {reason}")
    return {"num_decoder_layers": config["decoder_layers"]}


def _bart_settings(model: ModelDimensions) -> ConfigJson:
    """Write the sizes of the decoder."""
    return {
        "decoder_layers": model.num_decoder_layers,
        "decoder_attention_heads": model.num_heads,
        "decoder_ffn_dim": model.d_ff,
        "is_encoder_decoder": True,
    }


def _stack(ours: str, theirs: str) -> dict[str, str]:
    """Return the modules of a stack."""
    layer = f"{theirs}.layers.*."
    modules = {
        f"{ours}/layers/attention_norm": f"{layer}self_attn_layer_norm",
        f"{ours}/layers/feed_forward_norm": f"{layer}final_layer_norm",
        f"{ours}/layers/feed_forward/wi": f"{layer}fc1",
        f"{ours}/layers/feed_forward/wo": f"{layer}fc2",
    }
    attentions = {"attention": "self_attn"}
    if ours == "decoder":
        attentions["cross_attention"] = "encoder_attn"
        modules[f"{ours}/layers/cross_attention_norm"] = f"{layer}encoder_attn_layer_norm"
    for attention, name in attentions.items():
        for part, projection in (
            ("query", "q_proj"),
            ("key", "k_proj"),
            ("value", "v_proj"),
            ("out", "out_proj"),
        ):
            modules[f"{ours}/layers/{attention}/{part}"] = f"{layer}{name}.{projection}"
    return modules


BART = Family(
    class_name="BartForConditionalGeneration",
    class_without_head="BartModel",
    settings={
        "encoder_layers": "num_layers",
        "d_model": "d_model",
        "encoder_attention_heads": "num_heads",
        "encoder_ffn_dim": "d_ff",
        "activation_function": "activation",
        "max_position_embeddings": "max_length",
        "vocab_size": "vocab_size",
        "scale_embedding": "scale_embeddings",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation_dropout": "ff_dropout",
    },
    defaults={
        "encoder_layers": 12,
        "encoder_attention_heads": 16,
        "encoder_ffn_dim": 4096,
        "decoder_layers": 12,
        "decoder_attention_heads": 16,
        "decoder_ffn_dim": 4096,
        "activation_function": "gelu",
        "max_position_embeddings": 1024,
        "scale_embedding": False,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
    },
    # Mostly settings for fairseq's variants of the architecture. No class of `transformers` reads
    # them any more, so only BART's values are accepted.
    supported={
        "add_bias_logits": False,
        "add_final_layer_norm": False,
        "normalize_before": False,
        "normalize_embedding": True,
        "static_position_embeddings": False,
        "extra_pos_embeddings": 2,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
    },
    # num_hidden_layers repeats encoder_layers; layerdrop affects only training.
    harmless=frozenset(
        {
            "classif_dropout",
            "decoder_layerdrop",
            "encoder_layerdrop",
            "init_std",
            "num_hidden_layers",
        }
    ),
    constants={
        "architecture": "encoder_decoder",
        "norm_position": "post",
        "norm_epsilon": 1e-5,
        "embedding_norm": True,
        "shared_input_layers": False,
        "positions": write_part(POSITIONS, "learned", offset=2),
    },
    other_fields=_bart_fields,
    other_settings=_bart_settings,
    modules={
        "embedding_norm": "model.encoder.layernorm_embedding",
        "decoder_embedding_norm": "model.decoder.layernorm_embedding",
        **_stack("encoder", "model.encoder"),
        **_stack("decoder", "model.decoder"),
    },
    tensors={
        "embedding": "model.shared.weight",
        "position_embedding": "model.encoder.embed_positions.weight",
        "decoder_position_embedding": "model.decoder.embed_positions.weight",
    },
    prefix="model.",
    copies={
        "lm_head.weight": "embedding",
        "model.encoder.embed_tokens.weight": "embedding",
        "model.decoder.embed_tokens.weight": "embedding",
    },
    zeros=frozenset({"final_logits_bias"}),
    adds_bos=True,
)
