"""Does a model gain if it alternates between predicting the next word and predicting masks, and
switches its attention accordingly (a small version of Yu et al., 2024, "AntLM: Bridging Causal and
Masked Language Models", with the shares of its BabyLlama: 4, 16 and 4 epochs)? The paper says that
a decoder and an encoder both do.

`:tiny` is bert_tiny with Muon; docs/compared.md has its table. `:base` has the recipe of BERT base,
and was not trained here.

python -m t5x_lite compare --config=compare/antlm --workdir=DIR --jobs=2
"""

import t5x_lite
from t5x_lite.config import CompareConfig, default, variant

RECIPES = {"tiny": "bert_tiny", "base": "bert_base"}
# The objectives of each cell, one per stage
ORDERS = {
    "mlm": ("mlm", "mlm", "mlm"),
    "clm_mlm_clm": ("clm", "mlm", "clm"),
    "clm": ("clm", "clm", "clm"),
    "mlm_clm_mlm": ("mlm", "clm", "mlm"),
}


def get_config(size: str = "tiny"):
    """Return the comparison with the recipe RECIPES[size]."""
    config = default(CompareConfig)
    config.seeds = 3
    config.title = f"One objective, or two in turns, {size}"
    config.papers = ("yu2024",)
    config.base = t5x_lite.get_config(variant(RECIPES, size), **{"optimizer.schedule": "constant"})
    if size == "tiny":
        config.base.data.tokenizer = "sentencepiece(vocab_size=2048)"
        config.base.optimizer.update(name="muon", learning_rate=1e-2)
    causal = {
        "objective": "causal_lm",
        "model": {"architecture": "decoder", "token_types": 0},
        # An encoder's row has two more special tokens.
        "data": {"lengths": {"sequence_length": config.base.data.lengths.sequence_length - 2}},
    }
    learn = {"mlm": {"objective": "masked_lm"}, "clm": causal}
    decay = {"optimizer": {"schedule": "linear", "warmup_steps": 0}}
    ends = ({"until": "17%"}, {"until": "83%"}, decay)
    cells = {}
    for name, order in ORDERS.items():
        stages = [learn[objective] | end for objective, end in zip(order, ends, strict=True)]
        cells[name] = {"stages": tuple(stages)}
    config.cells = cells
    config.match = "flops"
    config.other_objectives = False
    return config
