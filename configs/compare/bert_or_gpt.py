"""BERT's objective, GPT's, or both? One decoder and one recipe with three objectives (a small
version of Charpentier and Samuel, 2024, "GPT or BERT: why not both?"): language modelling, masked
next-token prediction, and a mixture with half of the rows each. All cells spend the same FLOPs.

`:tiny` is for a laptop; docs/compared.md has its table. `:small` has GPT-2's size and recipe. It
needs a GPU and 100 million words of your own, as in the BabyLM challenge, and was not trained here.
On the built-in text:

python -m t5x_lite compare --config=compare/bert_or_gpt --workdir=DIR
"""

import t5x_lite
from t5x_lite.config import CompareConfig, default
from t5x_lite.errors import BAD_CONFIG, UserError, nearest

RECIPES = {"tiny": "gpt_tiny", "small": "gpt2_small"}
OBJECTIVES = {
    "gpt": "causal_lm",
    "bert": "masked_next_token",
    "both": "causal_lm + masked_next_token",
}


def get_config(size: str = "tiny"):
    """Return the comparison of the three objectives with the recipe RECIPES[size]."""
    if size not in RECIPES:
        raise UserError(BAD_CONFIG, f"bert_or_gpt:{size}: no such size; {nearest(size, RECIPES)}")
    config = default(CompareConfig)
    config.seeds = 3
    config.title = f"Language modelling, masked next-token prediction, or both, {size}"
    config.base = t5x_lite.get_config(RECIPES[size])
    config.papers = ("charpentier2024",)
    if size == "tiny":
        config.base.optimizer.update(name="muon", learning_rate=1e-2)
    config.cells = {name: {"objective": objective} for name, objective in OBJECTIVES.items()}
    config.baseline = "gpt"
    config.match = "flops"
    config.update(
        finetune=("data.epochs=1", "optimizer.learning_rate=5e-3") if size == "tiny" else (),
        blanks=("The ___ was very large .", "He went to the ___ ."),
        prompts=("The film was", "In the morning"),
    )
    return config
