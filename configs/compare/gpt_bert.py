"""BERT's objective, GPT's, or both? One decoder learns to predict the next word, or masked words
with all other words visible, or a mixture of both (a small version of Charpentier and Samuel, 2024,
"GPT or BERT: why not both?"). As in its code, spans of one to three tokens are masked, and their
share falls from 30 to 15 % of the tokens. The paper finds the mixture better than either objective,
at any ratio.

`:tiny` is gpt_tiny with Muon; docs/compared.md has its table, and an older one of three cells, made
when single tokens were masked at a constant rate. `:small` has GPT-2's size and recipe. It needs a
GPU and 100 million words of your own, as in the BabyLM challenge, and was not trained here. On the
built-in text:

python -m t5x_lite compare --config=compare/gpt_bert --workdir=DIR --jobs=2
"""

import t5x_lite
from t5x_lite.config import CompareConfig, default, variant

RECIPES = {"tiny": "gpt_tiny", "small": "gpt2_small"}
MASKS = "masked_next_token(choice='short_span', noise_density=linear(0.3, 0.15))"
OBJECTIVES = {
    "gpt": "causal_lm",
    "15_to_1": f"15 * causal_lm + {MASKS}",
    "1_to_1": f"causal_lm + {MASKS}",
    "1_to_15": f"causal_lm + 15 * {MASKS}",
    "bert": MASKS,
}


def get_config(size: str = "tiny"):
    """Return the comparison with the recipe RECIPES[size]."""
    config = default(CompareConfig)
    config.seeds = 3
    config.title = f"Language modelling, masked next-token prediction, or both, {size}"
    config.papers = ("charpentier2024",)
    config.base = t5x_lite.get_config(variant(RECIPES, size))
    if size == "tiny":
        config.base.data.tokenizer = "sentencepiece(vocab_size=2048)"
        config.base.optimizer.update(name="muon", learning_rate=1e-2)
    config.cells = {name: {"objective": objective} for name, objective in OBJECTIVES.items()}
    config.baseline = "gpt"
    config.match = "flops"
    config.finetune = ("data.epochs=1", "optimizer.learning_rate=5e-3") if size == "tiny" else ()
    config.blanks = ("The ___ was very large .", "He went to the ___ .")
    config.prompts = ("The film was", "In the morning")
    return config
