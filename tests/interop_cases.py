"""What the tests of import and export share: a small model of every family."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5x_lite.config import Model, ModelDimensions
from t5x_lite.model.heads import Params
from t5x_lite.model.transformer import parameter_shapes
from t5x_lite.resolve import resolve_model

SMALL = {
    "num_layers": 2,
    "d_model": 8,
    "num_heads": 2,
    "d_ff": 12,
    "vocab_size": 530,
    "max_length": 16,
}
BERT = {
    "architecture": "encoder",
    "norm_position": "post",
    "embedding_norm": True,
    "mlm_head": True,
    "token_types": 2,
}
ROBERTA = {**BERT, "positions": "learned(offset=2)", "token_types": 1}
T5 = {
    "architecture": "encoder_decoder",
    "norm": "rms_norm",
    "bias": False,
    "positions": "relative",
    "scale_attention": False,
    "max_length": 0,
}
LLAMA = {
    "norm": "rms_norm",
    "bias": False,
    "positions": "rotary",
    "activation": "silu",
    "feed_forward": "gated_mlp",
    "num_kv_heads": 1,
    "tie_embeddings": False,
}
DECODER = {**LLAMA, "head_dim": 6}
GEMMA = {
    **DECODER,
    "norm_position": "both",
    "activation": "gelu_tanh",
    "scale_embeddings": True,
    "tie_embeddings": True,
    "query_width": 5,
    "layer_pattern": ("local", "global"),
    "local_rules": ("window(size=3)",),
}
MODERNBERT = {
    "architecture": "encoder",
    "embedding_norm": True,
    "first_norm": False,
    "feed_forward": "gated_mlp",
    "mlm_head": True,
    "bias": False,
    "positions": "rotary(base=160000.0)",
    "layer_pattern": ("global", "local"),
    "local_rules": ("window(size=3)",),
    "local_positions": "rotary",
}
# The models of MODELS that came with a family of their own.
FURTHER: dict[str, dict[str, Any]] = {
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "distilbert": {**BERT, "token_types": 0, "norm_epsilon": 1e-12},
    "electra": {**BERT, "embedding_size": 6},
    "electra without a head": {**BERT, "embedding_size": 6, "lm_head": False},
    "modernbert": MODERNBERT,
    "modernbert-decoder": {**MODERNBERT, "architecture": "decoder"},
    "esm": {"architecture": "encoder", "mlm_head": True, "positions": "rotary"},
    "esm, learned": {
        "architecture": "encoder",
        "mlm_head": True,
        "positions": "learned(offset=2)",
        "embedding_norm": True,
    },
    "gpt_neox": {"positions": "rotary(fraction=0.5)", "parallel_residual": True}
    | {"shared_norm": False, "tie_embeddings": False},
    "gpt_neox, tied": {"positions": "rotary", "attention_bias": "none"},
    "openai-gpt": {"activation": "gelu_tanh", "norm_position": "post", "d_ff": 0},
    "openai-gpt, untied": {
        "d_ff": 0,
        "activation": "relu",
        "norm_position": "post",
        "tie_embeddings": False,
    },
    "cohere": {
        **DECODER,
        "norm": "layer_norm",
        "parallel_residual": True,
        "tie_embeddings": True,
        "scale_logits": True,
    },
    "cohere, untied": {**DECODER, "norm": "layer_norm", "parallel_residual": True},
    "mistral": {**DECODER, "attention_rules": ("window(size=3)",)},
    "qwen2": {**DECODER, "head_dim": 0, "attention_bias": "qkv"},
    "qwen3": {**DECODER, "qk_norm": "head"},
    "olmo2": {**DECODER, "qk_norm": "all", "norm_position": "output"},
    "gemma2": {**GEMMA, "attention_softcap": 9.0, "logits_softcap": 8.0},
    "gemma2, untied": {**GEMMA, "tie_embeddings": False},
    "gemma3_text, untied": {**GEMMA, "qk_norm": "head", "tie_embeddings": False},
    "gemma3_text": {
        **GEMMA,
        "qk_norm": "head",
        "positions": "rotary(base=1000000.0, scaling='linear(factor=8.0)')",
        "local_positions": "rotary",
    },
    "mt5": {**T5, "activation": "relu", "tie_embeddings": False},
    "mt5, gated": {**T5, "activation": "relu", "feed_forward": "gated_mlp"},
    "umt5, gated": {
        **T5,
        "activation": "gelu_tanh",
        "feed_forward": "gated_mlp",
        "positions": "relative(per_layer=True)",
        "scale_logits": True,
    },
    "umt5": {
        **T5,
        "activation": "relu",
        "positions": "relative(per_layer=True)",
        "tie_embeddings": False,
    },
    "bart": {
        "architecture": "encoder_decoder",
        "norm_position": "post",
        "norm_epsilon": 1e-5,
        "embedding_norm": True,
        "shared_input_layers": False,
        "positions": "learned(offset=2)",
    },
}
MODELS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "bert with two heads": {**BERT, "num_classes": 2, "norm_epsilon": 1e-12},
    "roberta": ROBERTA,
    "gpt2": {"activation": "gelu_tanh"},
    "gpt2, untied": {"activation": "gelu_tanh", "tie_embeddings": False},
    "t5": {**T5, "activation": "relu", "scale_logits": True, "num_decoder_layers": 1},
    "t5 1.1": {
        **T5,
        "activation": "gelu_tanh",
        "feed_forward": "gated_mlp",
        "tie_embeddings": False,
        "head_dim": 6,
    },
    "llama": LLAMA,
    "bert without a head": {**BERT, "lm_head": False},
    "roberta without a head": {**ROBERTA, "lm_head": False},
    "t5 without a head": {**T5, "activation": "relu", "scale_logits": True, "lm_head": False},
    "t5 encoder": {**T5, "architecture": "encoder", "activation": "relu", "lm_head": False},
    "llama without a head": {**LLAMA, "lm_head": False},
    "llama 3.1": {
        **LLAMA,
        "positions": "rotary(base=500000.0, scaling='llama3(length=64)')",
        "attention_bias": "all",
    },
    "llama, yarn": {**LLAMA, "positions": "rotary(scaling='yarn(factor=2.0)')", "bias": True},
    **FURTHER,
}


def make_dimensions(name: str, **changes: Any) -> ModelDimensions:
    """A model of MODELS, with some fields changed."""
    model = Model(**{**SMALL, **MODELS[name], **changes})
    return resolve_model(model, vocab_size=model.vocab_size, max_length=16)


def make_params(model: ModelDimensions) -> Params:
    """Random parameters, those of norms and biases and rows of padding included."""
    rng = np.random.default_rng(0)
    shapes = parameter_shapes(model)
    return jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape, np.float32), shapes)


def change_config(directory: Path, **changes: Any) -> None:
    """Change settings of a config.json."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | changes))
