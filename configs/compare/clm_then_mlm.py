"""Should encoders still be pretrained with masked language modelling only? A model first learns to
predict the next word and then to fill masks, with different shares of the same FLOPs (a small
version of Gisserot-Boukhlef et al., 2025, "Should We Still Pretrain Encoders with Masked Language
Modeling?"). In all cells the learning rate is constant until it falls in the last quarter.

The cells share their beginnings: the decoder is trained once, and encoders continue from it after a
quarter, a half and three quarters of the budget. `:tiny` is bert_tiny; docs/compared.md has its
table. `:base` has the recipe of BERT base, and was not trained here.

python -m t5x_lite compare --config=compare/clm_then_mlm --workdir=DIR --jobs=2
"""

import t5x_lite
from t5x_lite.config import CompareConfig, default, variant

RECIPES = {"tiny": "bert_tiny", "base": "bert_base"}
MASKED = {"objective": "masked_lm(noise_density=0.4)"}
DECAY = {**MASKED, "optimizer": {"schedule": "linear", "warmup_steps": 0}}


def get_config(size: str = "tiny"):
    """Return the comparison with the recipe RECIPES[size]."""
    recipe = variant(RECIPES, size)
    config = default(CompareConfig)
    config.seeds = 3
    config.title = f"Causal language modelling first, masks after, {size}"
    config.papers = ("gisserot-boukhlef2025",)
    config.base = t5x_lite.get_config(recipe, **{"optimizer.schedule": "constant"})
    if size == "tiny":
        config.base.optimizer.update(name="muon", learning_rate=5e-3)
    # An encoder's row has two more special tokens than a decoder's.
    window = config.base.data.lengths.sequence_length - 2
    causal = {
        "objective": "causal_lm",
        "model": {"architecture": "decoder", "token_types": 0},
        "data": {"lengths": {"sequence_length": window}},
    }
    until = [{**causal, "until": "25%"}, {**causal, "until": "50%"}, {**causal, "until": "75%"}]
    masked = {**MASKED, "until": "75%"}
    anew = {"fresh_optimizer": True}  # the old moments are of another loss
    config.cells = {
        "mlm": {"stages": (masked, DECAY)},
        "clm25": {"stages": (*until[:1], masked | anew, DECAY)},
        "clm50": {"stages": (*until[:2], masked | anew, DECAY)},
        "clm75": {"stages": (*until[:3], DECAY | anew)},
    }
    config.baseline = "mlm"
    config.match = "flops"
    config.other_objectives = False
    config.finetune = ("data.epochs=1", "optimizer.learning_rate=5e-3") if size == "tiny" else ()
    return config
