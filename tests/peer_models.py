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
from t5x_lite.training.run_directory import LoadedModel

torch: Any = pytest.importorskip("torch", reason="make test-peers has it")
transformers: Any = pytest.importorskip("transformers")

TOLERANCE = 1e-4  # of logits of about 1
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
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
    make_model = getattr(transformers, f"{peer.family}{peer.head}")
    torch.manual_seed(0)
    config = make_config(**{"vocab_size": vocab_size, **peer.settings})
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
