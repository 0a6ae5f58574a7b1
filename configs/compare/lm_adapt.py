"""Can a T5 that has only filled gaps continue a text, and how much does it learn in a last tenth of
its steps as a prefix language model (a small version of the LM adaptation of Lester et al., 2021,
§2.2, and of the opposite, UL2R: Tay et al., 2022)? The paper says that it cannot, which ruins
prompts, and that a tenth is enough.

`:tiny` is t5_tiny with Muon; docs/compared.md has its table. `:base` has the recipe of T5 1.1 base,
and was not trained here.

python -m t5x_lite compare --config=compare/lm_adapt --workdir=DIR --jobs=2
"""

import t5x_lite
from t5x_lite.config import CompareConfig, default, variant

# The recipe, and the raw tokens of a row
RECIPES = {"tiny": ("t5_tiny", 128), "base": ("t5_1_1_base", 568)}


def get_config(size: str = "tiny"):
    """Return the comparison with the recipe RECIPES[size]."""
    recipe, window = variant(RECIPES, size)
    config = default(CompareConfig)
    config.seeds = 3
    config.title = f"Gaps, then language modelling, {size}"
    config.papers = ("lester2021", "tay2022")
    config.base = t5x_lite.get_config(recipe, **{"optimizer.schedule": "constant"})
    if size == "tiny":
        config.base.data.tokenizer = "sentencepiece(vocab_size=2048)"
        config.base.optimizer.update(name="muon", learning_rate=5e-3)
    lengths = {"inputs": window // 2, "targets": window // 2}
    prefix = {"objective": "prefix_lm", "data": {"lengths": lengths}}
    first, last = {"until": "90%"}, {"optimizer": {"schedule": "linear", "warmup_steps": 0}}
    config.cells = {
        "gaps": {"stages": (first, last)},
        "adapted": {"stages": (first, prefix | last)},
        "prefix": {"stages": (prefix | first, prefix | last)},
        "prefix_then_gaps": {"stages": (prefix | first, last)},
    }
    config.match = "flops"
    config.other_objectives = False
    return config
