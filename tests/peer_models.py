"""What the tests against `transformers` share: models of it with random weights, as they are there
and as we read them, and the logits of both.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT

from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rows.layouts import RowShape, lay_out
from t5x_lite.data.tokenizers.tokenizer import Tokenizer, train_sentencepiece
from t5x_lite.interop import convert
from t5x_lite.model.heads import head_params, logits
from t5x_lite.model.transformer import Transformer
from t5x_lite.training.loaded_model import LoadedModel

torch: Any = pytest.importorskip("torch", reason="make test-peers has it")
transformers: Any = pytest.importorskip("transformers")

TOLERANCE = 1e-4  # of logits of about 1
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
DECODER = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 40}
MODERNBERT = {
    **SIZES,
    "num_hidden_layers": 4,
    "local_attention": 6,
    "max_position_embeddings": 40,
    **{f"{name}_token_id": 3 for name in ("pad", "cls", "sep")},
}
T5 = {
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 48,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
}


class Peer(NamedTuple):
    """A class of `transformers`, and the settings of its config."""

    family: str
    head: str
    settings: dict[str, Any]
    untied: bool = False  # whether T5 gets an output layer of its own
    make_model: str = ""  # the class, if it is not the family and the head


PEERS = {
    "bert": Peer("Bert", "ForMaskedLM", {**SIZES, "max_position_embeddings": 40}),
    "bert with two heads": Peer("Bert", "ForPreTraining", {**SIZES, "max_position_embeddings": 40}),
    "roberta": Peer(
        "Roberta", "ForMaskedLM", {**SIZES, "max_position_embeddings": 42, "type_vocab_size": 1}
    ),
    "gpt2": Peer(
        "GPT2", "LMHeadModel", {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 40}
    ),
    "t5 1.0": Peer("T5", "ForConditionalGeneration", T5),
    "t5 1.1": Peer(
        "T5", "ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu"}, untied=True
    ),
    "llama": Peer(
        "Llama", "ForCausalLM", {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 40}
    ),
    "llama, tied": Peer(
        "Llama",
        "ForCausalLM",
        {**SIZES, "tie_word_embeddings": True, "rope_theta": 5e5, "head_dim": 10},
    ),
    "llama 3.1": Peer(
        "Llama",
        "ForCausalLM",
        {
            **DECODER,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "openai-gpt": Peer(
        "OpenAIGPT", "LMHeadModel", {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 40}
    ),
    "cohere": Peer(
        "Cohere", "ForCausalLM", {**DECODER, "logit_scale": 32**-0.5, "pad_token_id": 3}
    ),
    "mistral": Peer("Mistral", "ForCausalLM", {**DECODER, "sliding_window": 5}),
    "qwen2": Peer("Qwen2", "ForCausalLM", DECODER),
    "qwen3": Peer("Qwen3", "ForCausalLM", {**DECODER, "head_dim": 10}),
    "olmo2": Peer("Olmo2", "ForCausalLM", DECODER),
    "gemma2": Peer(
        "Gemma2",
        "ForCausalLM",
        {**DECODER, "sliding_window": 5, "head_dim": 10, "query_pre_attn_scalar": 24},
    ),
    "gemma3_text": Peer(
        "Gemma3Text",
        "ForCausalLM",
        {**DECODER, "num_hidden_layers": 7, "sliding_window": 5, "head_dim": 12},
        make_model="Gemma3ForCausalLM",
    ),
    "gpt_neox": Peer("GPTNeoX", "ForCausalLM", {**SIZES, "max_position_embeddings": 40}),
    "mt5": Peer("MT5", "ForConditionalGeneration", T5, untied=True),
    "umt5": Peer("UMT5", "ForConditionalGeneration", T5, untied=True),
    "bart": Peer(
        "Bart",
        "ForConditionalGeneration",
        {
            "d_model": 32,
            "encoder_layers": 3,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 40,
        },
    ),
    "xlm-roberta": Peer(
        "XLMRoberta", "ForMaskedLM", {**SIZES, "max_position_embeddings": 42, "type_vocab_size": 1}
    ),
    "camembert": Peer(
        "Camembert", "ForMaskedLM", {**SIZES, "max_position_embeddings": 42, "type_vocab_size": 1}
    ),
    "distilbert": Peer(
        "DistilBert",
        "ForMaskedLM",
        {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 40},
    ),
    "electra": Peer(
        "Electra",
        "ForMaskedLM",
        {**SIZES, "embedding_size": 20, "max_position_embeddings": 40},
    ),
    "modernbert": Peer("ModernBert", "ForMaskedLM", MODERNBERT),
    "modernbert-decoder": Peer("ModernBertDecoder", "ForCausalLM", MODERNBERT),
    "esm": Peer(
        "Esm",
        "ForMaskedLM",
        {**SIZES, "position_embedding_type": "rotary", "pad_token_id": 1},
    ),
    "esm, learned": Peer(
        "Esm",
        "ForMaskedLM",
        {**SIZES, "emb_layer_norm_before": True, "pad_token_id": 1, "max_position_embeddings": 42},
    ),
}


class Case(NamedTuple):
    """One model, there and here."""

    peer: Any  # the module of `transformers`
    path: Path  # its directory
    loaded: LoadedModel  # the same, as we read it


def small_tokenizer() -> Tokenizer:
    """Of 640 ids, and those of special tokens."""
    return train_sentencepiece([(ROOT / "tests/golden/corpus.txt").read_text()], 640)


def make_peer(peer: Peer, vocab_size: int, path: Path) -> Any:
    """A model in float32, every weight of it random; saved, too."""
    make_config = getattr(transformers, f"{peer.family}Config")
    make_model = getattr(transformers, peer.make_model or f"{peer.family}{peer.head}")
    torch.manual_seed(0)
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    config = make_config(**{"vocab_size": vocab_size, **ids, **peer.settings})
    model = make_model(config).eval()
    if peer.untied:
        config.scale_decoder_outputs = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    with torch.no_grad():
        for parameter in model.parameters():
            stddev = 0.2 if parameter.ndim > 1 else 0.5
            parameter.copy_(torch.randn_like(parameter) * stddev)
    model.save_pretrained(path)
    return model


def read_peer(path: Path, tokenizer: Tokenizer) -> LoadedModel:
    """A model of `transformers`, as we read it."""
    tokenizer.save(path / "t5x_lite_tokenizer")
    loaded = convert.read(path, f"{path}/t5x_lite_tokenizer/")
    return replace(loaded, params=jax.tree.map(jnp.asarray, loaded.params))


def random_texts(lengths, size, seed=0) -> list[np.ndarray]:
    """Texts of random ids."""
    rng = np.random.default_rng(seed)
    return [rng.integers(5, size - 5, length) for length in lengths]


def our_logits(
    loaded: LoadedModel,
    inputs: list[np.ndarray],
    targets: list[np.ndarray],
    row_of_text: np.ndarray | None = None,
    rows: int = 0,
) -> np.ndarray:
    """Logits [rows, 30, vocabulary] at every position of the stack that predicts.

    Args:
        inputs: what an encoder reads.
        targets: what a decoder reads, shifted.
        row_of_text: which row each text is packed into; None: each is a row.
    """
    vocabulary = loaded.tokenizer.vocabulary
    length = 30
    if loaded.model.architecture == "encoder":
        all_positions = Ragged.from_rows([np.arange(len(ids)) for ids in inputs])
        texts = Ragged.from_rows(inputs)
        pairs = Pairs(texts, texts, scored=all_positions)
        shape = RowShape(encoder=length, scored=length)
    elif loaded.model.architecture == "encoder_decoder":
        pairs = Pairs(Ragged.from_rows(inputs), Ragged.from_rows(targets))
        shape = RowShape(encoder=length, decoder=length)
    else:
        pairs = Pairs(Ragged.empty(len(targets)), Ragged.from_rows(targets))
        shape = RowShape(decoder=length)
    row = lay_out(pairs, shape, vocabulary, row_of_text, rows)
    row = jax.tree.map(jnp.asarray, row)

    transformer: Any = Transformer(loaded.model, packed=row_of_text is not None)
    output = transformer.apply({"params": loaded.params}, row)
    all_logits = logits(loaded.model, head_params(loaded.params), output.hidden_states)
    return np.asarray(all_logits)[..., : vocabulary.size]


def peer_logits(
    case: Case, inputs: list[np.ndarray], targets: list[np.ndarray]
) -> list[np.ndarray]:
    """Logits of each text alone: [positions, vocabulary]."""
    architecture = case.loaded.model.architecture
    start = case.loaded.tokenizer.vocabulary.start
    results = []
    for input_ids, target_ids in zip(inputs, targets, strict=True):
        encoder_ids = torch.tensor(input_ids)[None]
        decoder_ids = torch.tensor(np.concatenate([[start], target_ids[:-1]]))[None]
        with torch.no_grad():
            if architecture == "encoder":
                output = case.peer(encoder_ids)
            elif architecture == "encoder_decoder":
                output = case.peer(encoder_ids, decoder_input_ids=decoder_ids)
            else:
                output = case.peer(decoder_ids)
        if hasattr(output, "prediction_logits"):  # of two heads
            results.append(output.prediction_logits[0].numpy())
        else:
            results.append(output.logits[0].numpy())
    return results
