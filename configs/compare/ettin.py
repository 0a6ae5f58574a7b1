"""Is an encoder as good if it was a decoder first, and a decoder if it was an encoder? One pair of
models keeps its objectives, and one pair swaps them for the last fifth of the steps (a small
version of Weller et al., 2025, "Seq vs Seq: An Open Suite of Paired Encoders and Decoders"). The
paper says no: each is best with its own objective from the start.

`:tiny` is bert_tiny with Muon; docs/compared.md has its table. `:base` has the recipe of BERT base,
and was not trained here.

python -m t5x_lite compare --config=compare/ettin --workdir=DIR --jobs=2
"""

import t5x_lite
from t5x_lite.config import CompareConfig, default, variant

RECIPES = {"tiny": "bert_tiny", "base": "bert_base"}


def get_config(size: str = "tiny"):
    """Return the comparison with the recipe RECIPES[size]."""
    config = default(CompareConfig)
    config.seeds = 3
    config.title = f"Encoders and decoders, and each made from the other, {size}"
    config.papers = ("weller2025",)
    config.base = t5x_lite.get_config(variant(RECIPES, size), **{"optimizer.schedule": "constant"})
    if size == "tiny":
        config.base.data.tokenizer = "sentencepiece(vocab_size=2048)"
        config.base.optimizer.update(name="muon", learning_rate=1e-2)
    masked = {"objective": "masked_lm(noise_density=0.3)"}
    causal = {
        "objective": "causal_lm",
        "model": {"architecture": "decoder", "token_types": 0},
        # An encoder's row has two more special tokens.
        "data": {"lengths": {"sequence_length": config.base.data.lengths.sequence_length - 2}},
    }
    first, last = {"until": "80%"}, {"optimizer": {"schedule": "linear", "warmup_steps": 0}}
    config.cells = {
        "encoder": {"stages": (masked | first, masked | last)},
        "encoder_from_decoder": {"stages": (causal | first, masked | last)},
        "decoder": {"stages": (causal | first, causal | last)},
        "decoder_from_encoder": {"stages": (masked | first, causal | last)},
    }
    config.match = "flops"
    config.other_objectives = False
    return config
