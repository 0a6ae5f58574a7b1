"""T5 1.0 (Raffel et al., 2020), T5 1.1 (Shazeer, 2020; released checkpoints), mT5 (Xue et al.,
2021) and umT5 (Chung et al., 2023).
"""

import dataclasses

from t5x_lite.config import ModelDimensions
from t5x_lite.errors import BAD_DATA, UserError
from t5x_lite.interop.families.family import ACTIVATION_NAMES, ConfigJson, Family, ModelFields
from t5x_lite.model.parts.options import write_part
from t5x_lite.model.parts.positions import POSITIONS, make_positions


def _t5_fields(config: ConfigJson, per_layer: bool = False) -> ModelFields:
    """Read the feed-forward part, the decoder's layers, the scaling of logits, and dropout."""
    # feed_forward_proj is relu, or gated-gelu, which in T5 1.1 means the tanh approximation.
    gated, _, activation = config["feed_forward_proj"].rpartition("-")
    if gated and activation == "gelu":
        activation = "gelu_new"
    # Version 4 of `transformers` also writes these two. They follow from feed_forward_proj, but
    # override it if they are stated.
    for key, follows in (("dense_act_fn", activation), ("is_gated_act", bool(gated))):
        stated = config.get(key, follows)
        if stated != follows:
            reason = f"feed_forward_proj={config['feed_forward_proj']!r} means {follows!r}"
            raise UserError(BAD_DATA, f"config.json: {key}={stated!r}, but {reason}; correct one")
    positions = write_part(
        POSITIONS,
        "relative",
        buckets=config["relative_attention_num_buckets"],
        distance=config["relative_attention_max_distance"],
        per_layer=per_layer,
    )
    return {
        "activation": activation,
        "positions": positions,
        "feed_forward": "gated_mlp" if gated else "mlp",
        "num_decoder_layers": config.get("num_decoder_layers", config["num_layers"]),
        "scale_logits": config.get("scale_decoder_outputs", config["tie_word_embeddings"]),
        "attention_dropout": config["dropout_rate"],
        "ff_dropout": config["dropout_rate"],
    }


def _t5_settings(model: ModelDimensions) -> ConfigJson:
    """Write the settings that _t5_fields reads."""
    feed_forward = ACTIVATION_NAMES[model.activation]
    if model.feed_forward == "gated_mlp":
        if model.activation == "gelu_tanh":
            feed_forward = "gelu"
        feed_forward = f"gated-{feed_forward}"
    positions = make_positions(model)
    return {
        "feed_forward_proj": feed_forward,
        "relative_attention_num_buckets": getattr(positions, "buckets", 32),
        "relative_attention_max_distance": getattr(positions, "distance", 128),
        "num_decoder_layers": model.num_decoder_layers or model.num_layers,
        # In `transformers` this setting also decides whether logits are scaled.
        "tie_word_embeddings": model.scale_logits,
        "is_encoder_decoder": model.is_encoder_decoder,
    }


T5 = Family(
    class_name="T5ForConditionalGeneration",
    class_without_head="T5Model",
    encoder_class="T5EncoderModel",
    settings={
        "num_layers": "num_layers",
        "d_model": "d_model",
        "num_heads": "num_heads",
        "d_kv": "head_dim",
        "d_ff": "d_ff",
        "layer_norm_epsilon": "norm_epsilon",
        "vocab_size": "vocab_size",
        "dropout_rate": "dropout",
    },
    defaults={
        "feed_forward_proj": "relu",
        "layer_norm_epsilon": 1e-6,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "tie_word_embeddings": True,
        "dropout_rate": 0.1,
    },
    # The tensors say whether there is a decoder; relative positions are not limited in number.
    harmless=frozenset({"is_encoder_decoder", "n_positions"}),
    constants={
        "architecture": "encoder_decoder",
        "norm": "rms_norm",
        "bias": False,
        "scale_attention": False,
    },
    other_fields=_t5_fields,
    other_settings=_t5_settings,
    tied_by_tensors=True,
    scales_in_kernels=True,
    modules={
        # The encoder: self-attention, feed-forward.
        "encoder/layers/attention_norm": "encoder.block.*.layer.0.layer_norm",
        "encoder/layers/attention/query": "encoder.block.*.layer.0.SelfAttention.q",
        "encoder/layers/attention/key": "encoder.block.*.layer.0.SelfAttention.k",
        "encoder/layers/attention/value": "encoder.block.*.layer.0.SelfAttention.v",
        "encoder/layers/attention/out": "encoder.block.*.layer.0.SelfAttention.o",
        "encoder/layers/feed_forward_norm": "encoder.block.*.layer.1.layer_norm",
        "encoder/layers/feed_forward/wi": "encoder.block.*.layer.1.DenseReluDense.wi_0",
        "encoder/layers/feed_forward/gate": "encoder.block.*.layer.1.DenseReluDense.wi_1",
        "encoder/layers/feed_forward/wo": "encoder.block.*.layer.1.DenseReluDense.wo",
        "encoder/final_norm": "encoder.final_layer_norm",
        # The decoder: self-attention, cross-attention, feed-forward.
        "decoder/layers/attention_norm": "decoder.block.*.layer.0.layer_norm",
        "decoder/layers/attention/query": "decoder.block.*.layer.0.SelfAttention.q",
        "decoder/layers/attention/key": "decoder.block.*.layer.0.SelfAttention.k",
        "decoder/layers/attention/value": "decoder.block.*.layer.0.SelfAttention.v",
        "decoder/layers/attention/out": "decoder.block.*.layer.0.SelfAttention.o",
        "decoder/layers/cross_attention_norm": "decoder.block.*.layer.1.layer_norm",
        "decoder/layers/cross_attention/query": "decoder.block.*.layer.1.EncDecAttention.q",
        "decoder/layers/cross_attention/key": "decoder.block.*.layer.1.EncDecAttention.k",
        "decoder/layers/cross_attention/value": "decoder.block.*.layer.1.EncDecAttention.v",
        "decoder/layers/cross_attention/out": "decoder.block.*.layer.1.EncDecAttention.o",
        "decoder/layers/feed_forward_norm": "decoder.block.*.layer.2.layer_norm",
        "decoder/layers/feed_forward/wi": "decoder.block.*.layer.2.DenseReluDense.wi_0",
        "decoder/layers/feed_forward/gate": "decoder.block.*.layer.2.DenseReluDense.wi_1",
        "decoder/layers/feed_forward/wo": "decoder.block.*.layer.2.DenseReluDense.wo",
        "decoder/final_norm": "decoder.final_layer_norm",
    },
    modules_without_gate={
        "encoder/layers/feed_forward/wi": "encoder.block.*.layer.1.DenseReluDense.wi",
        "decoder/layers/feed_forward/wi": "decoder.block.*.layer.2.DenseReluDense.wi",
    },
    tensors={
        "embedding": "shared.weight",
        "encoder/relative_bias/embedding": (
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        ),
        "decoder/relative_bias/embedding": (
            "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        ),
        "head/output": "lm_head.weight",
    },
    copies={
        "lm_head.weight": "embedding",
        "encoder.embed_tokens.weight": "embedding",
        "decoder.embed_tokens.weight": "embedding",
    },
)


def _mt5_fields(config: ConfigJson) -> ModelFields:
    """Read an mT5, whose class never scales logits."""
    return _t5_fields(config) | {"scale_logits": False}


def _mt5_settings(model: ModelDimensions) -> ConfigJson:
    """Write the settings of an mT5. Only its tensors tell whether its embeddings are tied."""
    return _t5_settings(model) | {"tie_word_embeddings": model.tie_embeddings}


MT5 = dataclasses.replace(
    T5,
    class_name="MT5ForConditionalGeneration",
    class_without_head="MT5Model",
    encoder_class="MT5EncoderModel",
    defaults=T5.defaults | {"feed_forward_proj": "gated-gelu"},
    other_fields=_mt5_fields,
    other_settings=_mt5_settings,
)

_BIAS = "layer.0.SelfAttention.relative_attention_bias.weight"
UMT5 = dataclasses.replace(
    T5,
    class_name="UMT5ForConditionalGeneration",
    class_without_head="UMT5Model",
    encoder_class="UMT5EncoderModel",
    defaults=T5.defaults | {"feed_forward_proj": "gated-gelu"},
    harmless=T5.harmless | {"scalable_attention"},  # in the published files; no class reads it
    other_fields=lambda config: _t5_fields(config, per_layer=True),
    # Each layer has biases of its own.
    tensors={
        "embedding": "shared.weight",
        "encoder/layers/attention/relative_bias/embedding": f"encoder.block.*.{_BIAS}",
        "decoder/layers/attention/relative_bias/embedding": f"decoder.block.*.{_BIAS}",
        "head/output": "lm_head.weight",
    },
)
