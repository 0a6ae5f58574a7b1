"""BERT's question, GPT's, or both? One decoder, one recipe, three objectives (Charpentier and
Samuel, 2024, "GPT or BERT: why not both?", in small): language modelling, masked next-token
prediction, and half of the rows each. All spend the same FLOPs.

Not trained to its end here. On the built-in text:

python -m t5x_lite compare --config=compare/bert_or_gpt --workdir=DIR --seeds=3
"""

import t5x_lite
from t5x_lite.config import CompareConfig, default

OBJECTIVES = {
    "gpt": "causal_lm",
    "bert": "masked_next_token",
    "both": "causal_lm + masked_next_token",
}


def get_config():
    config = default(CompareConfig)
    config.title = "Language modelling, masked next-token prediction, or both"
    config.base = t5x_lite.get_config("gpt_tiny")
    config.base.optimizer.update(name="muon", learning_rate=1e-2)
    config.cells = {name: {"objective": objective} for name, objective in OBJECTIVES.items()}
    config.baseline = "gpt"
    config.match = "flops"
    return config
