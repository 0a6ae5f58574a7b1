"""Every legal config.json of the families is read as the same model, or refused with the setting
that we cannot compute.
"""

import shutil
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="make test-peers has it")
pytest.importorskip("torch")

import transformers
from interop_cases import change_config
from peer_models import (
    PEERS,
    TOLERANCE,
    Case,
    make_peer,
    our_logits,
    peer_logits,
    random_texts,
    read_peer,
    small_tokenizer,
)
from transformers.activations import ACT2FN

from t5x_lite.errors import UserError

# Those that need an argument, or are modules with parameters of their own, no config can name.
ACTIVATIONS = sorted(set(ACT2FN) - {"prelu", "xielu"})

BERT: dict[str, list[Any]] = {
    "hidden_act": ACTIVATIONS,
    "layer_norm_eps": [1e-3, 0.1],
    "type_vocab_size": [1, 5],
    "num_attention_heads": [1, 2, 8],
    "intermediate_size": [1, 100],
    "num_hidden_layers": [1, 5],
    "max_position_embeddings": [34, 64],
    "vocab_size": [1024],
    "tie_word_embeddings": [False],
    "is_decoder": [True],
    "pad_token_id": [3],
    "chunk_size_feed_forward": [1],
    "hidden_dropout_prob": [0.3],
    "attention_probs_dropout_prob": [0.0],
    "position_embedding_type": ["relative_key"],
}
BERT_LIKE = BERT | {"hidden_act": ["gelu", "relu", "gelu_new"]}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 10_000.0,
    "original_max_position_embeddings": 10,
}
LLAMA_LIKE: dict[str, list[Any]] = {
    "hidden_act": ["gelu", "relu", "silu"],
    "rms_norm_eps": [1e-3, 0.1],
    "num_key_value_heads": [None, 1, 4],
    "intermediate_size": [1, 100],
    "num_hidden_layers": [1, 5],
    "max_position_embeddings": [30, 64],
    "vocab_size": [1024],
    "tie_word_embeddings": [True],
    "rope_theta": [100.0, 1e6],
    "rope_parameters": [
        {"rope_type": "default", "rope_theta": 500.0},
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0},
        {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0},
        LLAMA3,
        YARN,
        YARN | {"attention_factor": 0.7, "beta_fast": 16.0, "beta_slow": 2.0},
        YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False},
    ],
}
LLAMA = LLAMA_LIKE | {"head_dim": [2, 6, 64], "attention_bias": [True]}
SLIDING: dict[str, list[Any]] = {
    "use_sliding_window": [True],
    "sliding_window": [3],
    "max_window_layers": [0, 1],
    "layer_types": [["sliding_attention", "full_attention", "full_attention"]],
}
GEMMA: dict[str, list[Any]] = {
    "hidden_activation": ["gelu", "relu", "gelu_new"],
    "rms_norm_eps": [1e-3],
    "num_hidden_layers": [1, 3],
    "vocab_size": [1024],
    "tie_word_embeddings": [False],
    "query_pre_attn_scalar": [1, 100],
    "final_logit_softcapping": [None, 1.5],
    "attention_bias": [True],
    "sliding_window": [1, 2, 30],
    "use_bidirectional_attention": [True],
}
MT5: dict[str, list[Any]] = {
    "feed_forward_proj": ["relu", "gated-relu", "gated-silu", "gelu"],
    "layer_norm_epsilon": [1e-3],
    "d_kv": [7],
    "d_ff": [100],
    "num_decoder_layers": [None, 1],
    "relative_attention_num_buckets": [8],
    "relative_attention_max_distance": [20],
    "vocab_size": [1024],
}
MODERNBERT = {
    "hidden_activation": ACTIVATIONS,
    "classifier_activation": ["relu"],
    "norm_eps": [1e-3],
    "num_attention_heads": [1, 2, 8],
    "intermediate_size": [1, 100],
    "num_hidden_layers": [1, 2, 7],
    "norm_bias": [True],
    "attention_bias": [True],
    "mlp_bias": [True],
    "classifier_bias": [True],
    "decoder_bias": [False],
    "local_attention": [2, 20],
    "layer_types": [
        ["full_attention"] * 4,
        ["sliding_attention"] * 4,
        ["sliding_attention", "full_attention"] * 2,
        ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    ],
    "rope_parameters": [
        {
            "full_attention": {"rope_type": "default", "rope_theta": 50.0},
            "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
        },
    ],
}
VARIANTS: dict[str, dict[str, list[Any]]] = {
    "bert": BERT,
    "roberta": BERT,
    "gpt2": {
        "activation_function": ACTIVATIONS,
        "layer_norm_epsilon": [1e-3, 0.1],
        "n_inner": [None, 1, 100],
        "n_head": [1, 2, 8],
        "n_layer": [1, 5],
        "n_positions": [30, 64],
        "vocab_size": [1024],
        "tie_word_embeddings": [False],
        "scale_attn_weights": [False],
        "scale_attn_by_inverse_layer_idx": [True],
        "reorder_and_upcast_attn": [True],
        "add_cross_attention": [True],
        "resid_pdrop": [0.3],
    },
    "t5 1.0": {
        "feed_forward_proj": [*ACTIVATIONS, *(f"gated-{name}" for name in ACTIVATIONS)],
        "layer_norm_epsilon": [1e-3, 0.1],
        "d_kv": [1, 7, 16],
        "d_ff": [1, 100],
        "num_heads": [1, 3],
        "num_layers": [1],
        "num_decoder_layers": [None, 1, 4],
        "relative_attention_num_buckets": [2, 4, 8, 9, 64],
        "relative_attention_max_distance": [10, 20, 1000],
        "vocab_size": [1024],
        "tie_word_embeddings": [False],
        "dropout_rate": [0.0],
    },
    "t5 1.1": {
        "layer_norm_epsilon": [1e-3],
        "d_kv": [7],
        "num_decoder_layers": [None, 1],
        "relative_attention_num_buckets": [8],
        "tie_word_embeddings": [False],
    },
    "llama": LLAMA | {"mlp_bias": [True], "pretraining_tp": [2]},
    "llama 3.1": {
        "rope_parameters": [
            LLAMA3 | {"low_freq_factor": 2.0},
            LLAMA3 | {"high_freq_factor": 9.0},
            LLAMA3 | {"original_max_position_embeddings": 4},
            LLAMA3 | {"rope_theta": 100.0},
        ],
    },
    "openai-gpt": {
        "afn": ["relu", "silu", "swish"],
        "layer_norm_epsilon": [1e-3],
        "n_head": [1, 8],
        "n_positions": [34],
        "vocab_size": [1024],
    },
    "cohere": {
        "logit_scale": [1.0, 0.3],
        "num_key_value_heads": [None, 1, 4],
        "attention_bias": [True],
        "use_qk_norm": [True],
        "layer_norm_eps": [1e-3],
        "tie_word_embeddings": [False],
        "rope_parameters": [{"rope_type": "default", "rope_theta": 100.0}],
    },
    "mistral": LLAMA | {"sliding_window": [None, 1, 2, 30], "num_key_value_heads": [1, 4]},
    "qwen2": LLAMA_LIKE | SLIDING,
    "qwen3": LLAMA | SLIDING,
    "olmo2": LLAMA,
    "gemma2": GEMMA | {"attn_logit_softcapping": [None, 1.0], "head_dim": [2, 64]},
    "gemma3_text": GEMMA
    | {
        "rope_parameters": [
            {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        ],
        "attn_logit_softcapping": [2.0],
    },
    "gpt_neox": {
        "hidden_act": ACTIVATIONS,
        "layer_norm_eps": [1e-3, 0.1],
        "num_attention_heads": [1, 2, 8],
        "intermediate_size": [1, 100],
        "num_hidden_layers": [1, 5],
        "vocab_size": [1024],
        "tie_word_embeddings": [True],
        "use_parallel_residual": [False],
        "attention_bias": [False],
        "rope_parameters": [
            {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
            {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4, "partial_rotary_factor": 1.0},
        ],
    },
    "mt5": MT5,
    "umt5": MT5 | {"tie_word_embeddings": [False]},
    "bart": {
        "activation_function": ACTIVATIONS,
        "encoder_ffn_dim": [100],
        "decoder_attention_heads": [2],
        "encoder_layers": [1],
        "decoder_layers": [1, 4],
        "scale_embedding": [True],
        "max_position_embeddings": [34],
        "vocab_size": [1024],
        "encoder_layerdrop": [0.5],
    },
    "xlm-roberta": BERT_LIKE,
    "camembert": BERT_LIKE,
    "distilbert": {
        "activation": ["gelu", "relu", "silu"],
        "hidden_dim": [100],
        "n_heads": [1, 8],
        "n_layers": [1, 5],
        "sinusoidal_pos_embds": [True],
        "vocab_size": [1024],
        "tie_word_embeddings": [False],
    },
    "electra": BERT_LIKE | {"embedding_size": [8, 32, 40], "summary_type": ["mean"]},
    "modernbert": MODERNBERT,
    "modernbert-decoder": MODERNBERT,
    "esm": {
        "num_attention_heads": [1, 2, 8],
        "intermediate_size": [1, 100],
        "emb_layer_norm_before": [True],
        "token_dropout": [True],
        "position_embedding_type": ["absolute", "relative_key"],
        "rope_theta": [100.0],
        "layer_norm_eps": [1e-3],
    },
}
CASES = [
    (family, key, value)
    for family, settings in VARIANTS.items()
    for key, values in settings.items()
    for value in values
]


@pytest.fixture(scope="module")
def tokenizer():
    return small_tokenizer()


def test_there_are_many():
    assert len(CASES) + len(ADDED) >= 400
    assert len(VARIANTS) >= 20


@pytest.mark.parametrize(("family", "key", "value"), CASES, ids=str)
def test_a_variant_is_the_same_model_or_refused_by_name(family, key, value, tmp_path, tokenizer):
    base = PEERS[family]
    changed = base._replace(settings={**base.settings, key: value})
    model = make_peer(changed, tokenizer.vocabulary.size, tmp_path)
    try:
        loaded = read_peer(tmp_path, tokenizer)
    except UserError as refusal:
        reason = str(refusal)
    else:
        reason = ""
    if reason:
        kind = value["rope_type"] if isinstance(value, dict) else str(value).removeprefix("gated-")
        # By its key, by its value, or as a setting of ours that cannot have it.
        assert key in reason or repr(kind) in reason or reason.startswith("model.")
        return
    assert_equal(Case(model, tmp_path, loaded))


def assert_equal(case):
    """Logits of both are the same."""
    size = case.loaded.tokenizer.vocabulary.size
    inputs = random_texts((25, 9), size)
    targets = random_texts((23, 6), size, seed=1)
    ours = our_logits(case.loaded, inputs, targets)
    for mine, theirs in zip(ours, peer_logits(case, inputs, targets), strict=True):
        assert np.abs(mine[: len(theirs)] - theirs[:, :size]).max() < TOLERANCE


# Keys that are added to a config.json, most of which the class knows nothing of.
KEYS: dict[str, Any] = {
    "sliding_window": 3,
    "use_sliding_window": True,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "rope_theta": 77.0,
    "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    "partial_rotary_factor": 0.5,
    "attention_bias": True,
    "attn_logit_softcapping": 0.5,
    "final_logit_softcapping": 0.5,
    "query_pre_attn_scalar": 3,
    "scale_embedding": True,
    "logit_scale": 0.5,
    "embedding_multiplier": 3.0,
    "is_decoder": True,
    "use_bidirectional_attention": True,
    "position_embedding_type": "relative_key",
    "layer_norm_eps": 0.1,
    "rms_norm_eps": 0.1,
    "norm_eps": 0.1,
    "layer_norm_epsilon": 0.1,
    "qk_norm": True,
    "use_parallel_residual": False,
    "scale_attn_weights": False,
}
ADDED = [(family, key) for family in VARIANTS for key in KEYS]


@pytest.fixture(scope="module")
def saved(tokenizer, tmp_path_factory):
    """Family → its directory, written once."""

    @cache
    def save(family):
        path = tmp_path_factory.mktemp("peer")
        make_peer(PEERS[family], tokenizer.vocabulary.size, path)
        return path

    return save


@pytest.mark.parametrize(("family", "key"), ADDED)
def test_a_key_that_is_added_changes_both_alike_or_is_refused(
    family, key, tmp_path, tokenizer, saved
):
    shutil.copytree(saved(family), tmp_path, dirs_exist_ok=True)
    change_config(tmp_path, **{key: KEYS[key]})
    try:
        loaded = read_peer(tmp_path, tokenizer)
    except UserError:
        return
    peer = PEERS[family]
    make_model = getattr(transformers, peer.make_model or f"{peer.family}{peer.head}")
    assert_equal(Case(make_model.from_pretrained(tmp_path).eval(), tmp_path, loaded))
