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
