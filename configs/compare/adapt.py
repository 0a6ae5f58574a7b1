"""Is an encoder-decoder that was made from a decoder better than the decoder itself, trained for as
long, and than an encoder-decoder from scratch (a small version of Zhang et al., 2025,
"Encoder-Decoder Gemma")? Both stacks and the cross-attention begin as copies of the decoder's, and
learn prefix language modelling or UL2 for the last fifth of the steps. The paper says that it is,
with prefix language modelling for generation and with UL2 for understanding.

`:tiny` is gpt_tiny with Muon; docs/compared.md has its table. `:small` has GPT-2's size and recipe,
and was not trained here.

python -m t5x_lite compare --config=compare/adapt --workdir=DIR --jobs=2
"""

import t5x_lite
from t5x_lite.config import CompareConfig, default, variant

RECIPES = {"tiny": "gpt_tiny", "small": "gpt2_small"}


def get_config(size: str = "tiny"):
    """Return the comparison with the recipe RECIPES[size]."""
    config = default(CompareConfig)
    config.seeds = 3
    config.title = f"A decoder, and encoder-decoders made from it, {size}"
    config.papers = ("zhang2025a", "tay2023")
    config.base = t5x_lite.get_config(variant(RECIPES, size), **{"optimizer.schedule": "constant"})
    if size == "tiny":
        config.base.data.tokenizer = "sentencepiece(vocab_size=2048)"
        config.base.optimizer.update(name="muon", learning_rate=1e-2)

    window = config.base.data.lengths.sequence_length

    def encoder_decoder(objective, inputs, targets):
        lengths = {"sequence_length": 0, "inputs": inputs, "targets": targets}
        model = {"architecture": "encoder_decoder"}
        return {"objective": objective, "model": model, "data": {"lengths": lengths}}

    prefix = encoder_decoder("prefix_lm", window // 2, window // 2)
    ul2 = encoder_decoder("ul2", window * 11 // 12, window * 11 // 16)
    first, last = {"until": "80%"}, {"optimizer": {"schedule": "linear", "warmup_steps": 0}}
    config.cells = {
        "decoder": {"stages": (first, last)},
        "prefix_from_decoder": {"stages": (first, prefix | last)},
        "ul2_from_decoder": {"stages": (first, ul2 | last)},
        "prefix_from_nothing": {"stages": (prefix | first, prefix | last)},
    }
    config.match = "flops"
    config.other_objectives = False
    return config
