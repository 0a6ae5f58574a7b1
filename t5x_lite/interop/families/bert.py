"""Encoders: BERT (Devlin et al., 2019), RoBERTa (Liu et al., 2019), XLM-R (Conneau et al., 2020),
CamemBERT (Martin et al., 2020), DistilBERT (Sanh et al., 2019), ELECTRA (Clark et al., 2020),
ModernBERT (Warner et al., 2024), also as a decoder (Weller et al., 2025), and ESM (Rives et al.,
2021), a BERT with pre-norm.
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
from t5x_lite.interop.families.rotary import (
    read_layers,
    read_rotary,
    write_layers,
    write_rotary_by_type,
)
from t5x_lite.model.parts.options import write_part
from t5x_lite.model.parts.positions import POSITIONS, Learned, Rotary, make_positions


def _bert_tables(prefix: str) -> dict[str, str]:
    """Return the tensors of the lookup tables."""
    return {
        "embedding": f"{prefix}embeddings.word_embeddings.weight",
        "position_embedding": f"{prefix}embeddings.position_embeddings.weight",
        "type_embedding": f"{prefix}embeddings.token_type_embeddings.weight",
    }


def _bert_modules(prefix: str) -> dict[str, str]:
    """Return the modules, except the heads."""
    return {
        "embedding_norm": f"{prefix}embeddings.LayerNorm",
        "encoder/layers/attention/query": f"{prefix}encoder.layer.*.attention.self.query",
        "encoder/layers/attention/key": f"{prefix}encoder.layer.*.attention.self.key",
        "encoder/layers/attention/value": f"{prefix}encoder.layer.*.attention.self.value",
        "encoder/layers/attention/out": f"{prefix}encoder.layer.*.attention.output.dense",
        "encoder/layers/attention_norm": f"{prefix}encoder.layer.*.attention.output.LayerNorm",
        "encoder/layers/feed_forward/wi": f"{prefix}encoder.layer.*.intermediate.dense",
        "encoder/layers/feed_forward/wo": f"{prefix}encoder.layer.*.output.dense",
        "encoder/layers/feed_forward_norm": f"{prefix}encoder.layer.*.output.LayerNorm",
    }


BERT = Family(
    class_name="BertForMaskedLM",
    class_with_label_head="BertForPreTraining",
    class_without_head="BertModel",
    task_classes={
        "class": "BertForSequenceClassification",
        "number": "BertForSequenceClassification",
        "choice": "BertForMultipleChoice",
        "span": "BertForQuestionAnswering",
    },
    settings={
        "num_hidden_layers": "num_layers",
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_epsilon",
        "max_position_embeddings": "max_length",
        "type_vocab_size": "token_types",
        "vocab_size": "vocab_size",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    defaults={
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    },
    supported={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    # Settings in multilingual BERT's config.json that no class reads.
    harmless=frozenset(
        {
            "directionality",
            "pooler_fc_size",
            "pooler_num_attention_heads",
            "pooler_num_fc_layers",
            "pooler_size_per_head",
            "pooler_type",
        }
    ),
    constants={
        "architecture": "encoder",
        "norm_position": "post",
        "embedding_norm": True,
        "mlm_head": True,
    },
    modules={
        **_bert_modules("bert."),
        "head/dense": "cls.predictions.transform.dense",
        "head/norm": "cls.predictions.transform.LayerNorm",
        "classifier/pooler": "bert.pooler.dense",
        "classifier/output": "cls.seq_relationship",
    },
    task_modules={
        "classifier/output": "classifier",
        "token_head/output": "qa_outputs",
    },
    tensors={
        **_bert_tables("bert."),
        "head/bias": "cls.predictions.bias",
    },
    prefix="bert.",
    copies={
        "cls.predictions.decoder.weight": "embedding",
        "cls.predictions.decoder.bias": "head/bias",
    },
)


def _roberta_fields(config: ConfigJson) -> ModelFields:
    """Read the size of the position table."""
    # Positions are counted from pad_token_id + 1, so the rows before that one are never used.
    offset = config["pad_token_id"] + 1
    return {
        "max_length": config["max_position_embeddings"] - offset,
        "positions": write_part(POSITIONS, "learned", offset=offset),
    }


def _roberta_settings(model: ModelDimensions) -> ConfigJson:
    """Write the size of the position table, and the only activation."""
    offset = getattr(make_positions(model), "offset", 0)
    return {
        "hidden_act": "gelu",
        "max_position_embeddings": model.max_length + offset,
        "pad_token_id": offset - 1,
    }


ROBERTA = Family(
    class_name="RobertaForMaskedLM",
    class_without_head="RobertaModel",
    task_classes={
        "class": "RobertaForSequenceClassification",
        "number": "RobertaForSequenceClassification",
        "span": "RobertaForQuestionAnswering",
    },
    settings={key: name for key, name in BERT.settings.items() if name != "activation"},
    defaults={
        **BERT.defaults,
        "pad_token_id": 1,
    },
    # In `transformers` the head always applies gelu; ours applies hidden_act, so they must agree.
    supported={**BERT.supported, "hidden_act": "gelu"},
    constants={**BERT.constants, "activation": "gelu"},
    other_fields=_roberta_fields,
    other_settings=_roberta_settings,
    modules={
        **_bert_modules("roberta."),
        "head/dense": "lm_head.dense",
        "head/norm": "lm_head.layer_norm",
    },
    task_modules={
        "classifier/pooler": "classifier.dense",
        "classifier/output": "classifier.out_proj",
        "token_head/output": "qa_outputs",
    },
    tensors={
        **_bert_tables("roberta."),
        "head/bias": "lm_head.bias",
    },
    prefix="roberta.",
    copies={"lm_head.decoder.weight": "embedding", "lm_head.decoder.bias": "head/bias"},
)


def _named(family: Family, old: str, new: str) -> Family:
    """Return the same family with other class names."""
    return dataclasses.replace(
        family,
        class_name=family.class_name.replace(old, new),
        class_without_head=family.class_without_head.replace(old, new),
        task_classes={head: name.replace(old, new) for head, name in family.task_classes.items()},
    )


XLM_ROBERTA = _named(ROBERTA, "Roberta", "XLMRoberta")
CAMEMBERT = _named(ROBERTA, "Roberta", "Camembert")


# DistilBERT: BERT without types, and without settings for its norms.

_DISTILBERT_LAYER = "distilbert.transformer.layer.*."
DISTILBERT = Family(
    class_name="DistilBertForMaskedLM",
    class_without_head="DistilBertModel",
    task_classes={"span": "DistilBertForQuestionAnswering"},
    settings={
        "n_layers": "num_layers",
        "dim": "d_model",
        "n_heads": "num_heads",
        "hidden_dim": "d_ff",
        "activation": "activation",
        "max_position_embeddings": "max_length",
        "vocab_size": "vocab_size",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
    },
    defaults={
        "activation": "gelu",
        "max_position_embeddings": 512,
        "dropout": 0.1,
        "attention_dropout": 0.1,
    },
    supported={"tie_word_embeddings": True},
    # Sinusoids are stored as a table of positions like any other.
    harmless=frozenset(
        {"sinusoidal_pos_embds", "tie_weights_", "qa_dropout", "seq_classif_dropout"}
    ),
    constants=BERT.constants | {"norm_epsilon": 1e-12},
    modules={
        "embedding_norm": "distilbert.embeddings.LayerNorm",
        "encoder/layers/attention/query": f"{_DISTILBERT_LAYER}attention.q_lin",
        "encoder/layers/attention/key": f"{_DISTILBERT_LAYER}attention.k_lin",
        "encoder/layers/attention/value": f"{_DISTILBERT_LAYER}attention.v_lin",
        "encoder/layers/attention/out": f"{_DISTILBERT_LAYER}attention.out_lin",
        "encoder/layers/attention_norm": f"{_DISTILBERT_LAYER}sa_layer_norm",
        "encoder/layers/feed_forward/wi": f"{_DISTILBERT_LAYER}ffn.lin1",
        "encoder/layers/feed_forward/wo": f"{_DISTILBERT_LAYER}ffn.lin2",
        "encoder/layers/feed_forward_norm": f"{_DISTILBERT_LAYER}output_layer_norm",
        "head/dense": "vocab_transform",
        "head/norm": "vocab_layer_norm",
    },
    task_modules={"token_head/output": "qa_outputs"},
    tensors={
        "embedding": "distilbert.embeddings.word_embeddings.weight",
        "position_embedding": "distilbert.embeddings.position_embeddings.weight",
        "head/bias": "vocab_projector.bias",
    },
    prefix="distilbert.",
    copies={"vocab_projector.weight": "embedding"},
    other_heads=("pre_classifier.",),
)


# ELECTRA: the generator with its head, and the discriminator without one.

ELECTRA = Family(
    class_name="ElectraForMaskedLM",
    class_without_head="ElectraModel",
    task_classes={"span": "ElectraForQuestionAnswering"},
    settings={
        **{key: name for key, name in BERT.settings.items() if name != "activation"},
        "embedding_size": "embedding_size",
    },
    defaults=BERT.defaults | {"embedding_size": 128},
    # The generator's head always applies gelu, as RoBERTa's does.
    supported={**BERT.supported, "hidden_act": "gelu"},
    harmless=frozenset(
        {"summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"}
    ),
    constants={**BERT.constants, "activation": "gelu"},
    other_settings=lambda model: {"hidden_act": "gelu"},
    modules={
        **_bert_modules("electra."),
        "embedding_projection": "electra.embeddings_project",
        "head/dense": "generator_predictions.dense",
        "head/norm": "generator_predictions.LayerNorm",
    },
    task_modules={"token_head/output": "qa_outputs"},
    tensors={
        **_bert_tables("electra."),
        "head/bias": "generator_lm_head.bias",
    },
    prefix="electra.",
    copies={"generator_lm_head.weight": "embedding"},
    other_heads=("discriminator_predictions.",),
)


# ModernBERT: pre-norm without biases, with rotary positions, gates, and local layers.


def _modernbert_fields(config: ConfigJson, uncounted: int = 1) -> ModelFields:
    """Read biases, angles, and which layers are local.

    Args:
        uncounted: how much more our window counts than half of local_attention: 1 in an encoder,
            where only ours counts the query itself, 0 in a decoder.
    """
    for key in ("mlp_bias", "classifier_bias"):
        if config[key] != config["norm_bias"]:
            reason = f"norm_bias is {config['norm_bias']}, and we read only models with both alike"
            raise UserError(BAD_DATA, f"config.json: {key}={config[key]}: {reason}")
    if config["classifier_activation"] != config["hidden_activation"]:
        got, needed = config["classifier_activation"], config["hidden_activation"]
        reason = f"hidden_activation is {needed!r}, and we read only models with both alike"
        raise UserError(BAD_DATA, f"config.json: classifier_activation={got!r}: {reason}")
    every, layers = config.get("global_attn_every_n_layers", 3), config["num_hidden_layers"]
    types = config.get("layer_types") or [
        "sliding_attention" if layer % every else "full_attention" for layer in range(layers)
    ]
    everywhere = read_rotary(config, "full_attention", 160_000.0, base_key="global_rope_theta")
    nearby = read_rotary(config, "sliding_attention", base_key="local_rope_theta")
    window = config["local_attention"] // 2 + uncounted
    return {
        "bias": config["norm_bias"],
        "attention_bias": "all" if config["attention_bias"] else "none",
    } | read_layers(types, layers, window, everywhere, nearby)


def _modernbert_settings(model: ModelDimensions, uncounted: int = 1) -> ConfigJson:
    """Write the settings that _modernbert_fields reads."""
    layers = write_layers(model)
    window = layers.pop("sliding_window")
    biases = dict.fromkeys(("norm_bias", "mlp_bias", "classifier_bias"), model.bias)
    return {
        **biases,
        **layers,
        **write_rotary_by_type(model, "global_rope_theta", "local_rope_theta"),
        "attention_bias": model.attention_bias == "all",
        "classifier_activation": ACTIVATION_NAMES[model.activation],
        "local_attention": 2 * (window - uncounted) if window else 128,
    }


def _wqkv(part: int) -> Location:
    """Return the location of queries (0), keys (1) or values (2)."""
    return Location("model.layers.*.attn.Wqkv", part, parts=3)


MODERNBERT = Family(
    class_name="ModernBertForMaskedLM",
    class_without_head="ModernBertModel",
    settings={
        "num_hidden_layers": "num_layers",
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        "hidden_activation": "activation",
        "norm_eps": "norm_epsilon",
        "max_position_embeddings": "max_length",
        "vocab_size": "vocab_size",
        "embedding_dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "mlp_dropout": "ff_dropout",
    },
    defaults={
        "hidden_activation": "gelu",
        "norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "embedding_dropout": 0.0,
        "attention_dropout": 0.0,
        "mlp_dropout": 0.0,
        "norm_bias": False,
        "mlp_bias": False,
        "attention_bias": False,
        "classifier_bias": False,
        "classifier_activation": "gelu",
        "local_attention": 128,
    },
    supported={
        "decoder_bias": True,
        "tie_word_embeddings": True,
        "position_embedding_type": "absolute",
    },
    # How the model was initialised and how it is run; layer_norm_eps is not read.
    harmless=frozenset(
        {
            "classifier_pooling",
            "cls_token_id",
            "deterministic_flash_attn",
            "initializer_cutoff_factor",
            "layer_norm_eps",
            "reference_compile",
            "repad_logits_with_grad",
            "sparse_pred_ignore_index",
            "sparse_prediction",
        }
    ),
    constants={
        "architecture": "encoder",
        "embedding_norm": True,
        "first_norm": False,
        "feed_forward": "gated_mlp",
        "mlm_head": True,
    },
    other_fields=_modernbert_fields,
    other_settings=_modernbert_settings,
    modules={
        "embedding_norm": "model.embeddings.norm",
        # The first layer has no attention norm: it reads the embeddings directly.
        "encoder/layers/attention_norm": Location("model.layers.*.attn_norm", first_layer=1),
        "encoder/layers/attention/query": _wqkv(0),
        "encoder/layers/attention/key": _wqkv(1),
        "encoder/layers/attention/value": _wqkv(2),
        "encoder/layers/attention/out": "model.layers.*.attn.Wo",
        "encoder/layers/feed_forward_norm": "model.layers.*.mlp_norm",
        "encoder/layers/feed_forward/wi": Location("model.layers.*.mlp.Wi", 0, parts=2),
        "encoder/layers/feed_forward/gate": Location("model.layers.*.mlp.Wi", 1, parts=2),
        "encoder/layers/feed_forward/wo": "model.layers.*.mlp.Wo",
        "encoder/final_norm": "model.final_norm",
        "head/dense": "head.dense",
        "head/norm": "head.norm",
    },
    tensors={
        "embedding": "model.embeddings.tok_embeddings.weight",
        "head/bias": "decoder.bias",
    },
    prefix="model.",
    copies={"decoder.weight": "embedding"},
)


# Ettin's decoder: ModernBERT with a causal mask, and queries, keys and values apart.

_DECODER_ATTENTION = {
    f"decoder/layers/attention/{name}": f"model.layers.*.attn.{name[0]}_proj"
    for name in ("query", "key", "value")
}
MODERNBERT_DECODER = dataclasses.replace(
    MODERNBERT,
    class_name="ModernBertDecoderForCausalLM",
    class_without_head="ModernBertDecoderModel",
    # The class computes sliding_window from local_attention.
    harmless=MODERNBERT.harmless | {"sliding_window"},
    constants=MODERNBERT.constants | {"architecture": "decoder"},
    other_fields=partial(_modernbert_fields, uncounted=0),
    other_settings=partial(_modernbert_settings, uncounted=0),
    modules={
        name.replace("encoder/", "decoder/"): place for name, place in MODERNBERT.modules.items()
    }
    | _DECODER_ATTENTION
    | {"head/dense": "lm_head.dense", "head/norm": "lm_head.norm"},
)


# ESM: the class of `transformers` for a BERT with pre-norm, and rotary or learned positions.


def _esm_fields(config: ConfigJson) -> ModelFields:
    """Read the kind of positions."""
    kind, base = config["position_embedding_type"], config["rope_theta"]
    if kind == "rotary":
        return {
            "positions": write_part(POSITIONS, "rotary", base=float(base)),
            "max_length": config["max_position_embeddings"],
        }
    if kind != "absolute":
        expected = "expected 'rotary' or 'absolute'"
        raise UserError(BAD_DATA, f"config.json: position_embedding_type={kind!r}: {expected}")
    # Positions are counted from pad_token_id + 1, as in RoBERTa.
    offset = config.get("pad_token_id", 0) + 1
    return {
        "positions": write_part(POSITIONS, "learned", offset=offset),
        "max_length": config["max_position_embeddings"] - offset,
    }


def _esm_settings(model: ModelDimensions) -> ConfigJson:
    """Write the kind of positions, and token_dropout."""
    positions = make_positions(model)
    settings: ConfigJson = {
        "position_embedding_type": "rotary",
        "max_position_embeddings": model.max_length,
        "token_dropout": False,
    }
    if isinstance(positions, Rotary):
        settings["rope_theta"] = positions.base
    if isinstance(positions, Learned):
        settings["position_embedding_type"] = "absolute"
        settings["max_position_embeddings"] = positions.table_rows
        settings["pad_token_id"] = positions.offset - 1
    return settings


ESM = Family(
    class_name="EsmForMaskedLM",
    class_without_head="EsmModel",
    settings={
        "num_hidden_layers": "num_layers",
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        "layer_norm_eps": "norm_epsilon",
        "vocab_size": "vocab_size",
        "emb_layer_norm_before": "embedding_norm",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    defaults={
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 1026,
        "position_embedding_type": "absolute",
        "rope_theta": 10_000.0,
        "emb_layer_norm_before": False,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    },
    supported={
        "token_dropout": False,
        "is_folding_model": False,
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
        "hidden_act": "gelu",
    },
    harmless=frozenset({"mask_token_id", "vocab_list", "esmfold_config"}),
    constants={"architecture": "encoder", "mlm_head": True, "activation": "gelu"},
    other_fields=_esm_fields,
    other_settings=_esm_settings,
    modules={
        **_bert_modules("esm."),
        "embedding_norm": "esm.embeddings.layer_norm",
        "encoder/layers/attention_norm": "esm.encoder.layer.*.attention.LayerNorm",
        "encoder/layers/feed_forward_norm": "esm.encoder.layer.*.LayerNorm",
        "encoder/final_norm": "esm.encoder.emb_layer_norm_after",
        "head/dense": "lm_head.dense",
        "head/norm": "lm_head.layer_norm",
    },
    tensors={
        "embedding": "esm.embeddings.word_embeddings.weight",
        "position_embedding": "esm.embeddings.position_embeddings.weight",
        "head/bias": "lm_head.bias",
    },
    prefix="esm.",
    copies={"lm_head.decoder.weight": "embedding"},
    other_heads=("esm.contact_head.",),
)
