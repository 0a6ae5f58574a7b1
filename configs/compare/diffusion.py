"""Does masked diffusion beat language modelling when there is little text, and do both together
beat each alone (small versions of Prabhudesai et al., 2025, "Diffusion Beats Autoregressive in
Data-Constrained Settings", and of Samuel and Charpentier, 2025, "Dual-objective Language Models")?
All cells read the same few tokens again and again, with the same model except for its attention
mask. Their bits per byte can be compared; for diffusion they are an upper bound. One of the
decoders has dropout, because a decoder that only memorises its text would be too weak a baseline.

`:tiny` is gpt_tiny on 131 thousand tokens, read 4, 16 and 64 times; docs/compared.md has its table
for two seeds on WikiText-2. `:small` has GPT-2's size and recipe on 100 million tokens, and was not
trained here.

python -m t5x_lite compare --config=compare/diffusion --workdir=DIR --jobs=2
"""

import t5x_lite
from t5x_lite.config import CompareConfig, default, variant

RECIPES = {"tiny": "gpt_tiny", "small": "gpt2_small"}
UNIQUE_TOKENS = {"tiny": 2**17, "small": 10**8}
EPOCHS = (4, 16, 64)


def get_config(size: str = "tiny"):
    """Return the comparison with the recipe RECIPES[size]."""
    recipe = variant(RECIPES, size)
    config = default(CompareConfig)
    config.seeds = 3
    config.title = f"Language modelling or diffusion, over and over, {size}"
    config.papers = ("prabhudesai2025", "samuel2025", "sahoo2024", "nie2025")
    config.base = t5x_lite.get_config(recipe)
    config.base.data.unique_tokens = UNIQUE_TOKENS[size]
    if size == "tiny":
        config.base.optimizer.update(name="muon", learning_rate=1e-2)
        config.base.data.tokenizer = "sentencepiece(vocab_size=2048)"
    # A row of diffusion has two more special tokens than a decoder's.
    length = config.base.data.lengths.sequence_length
    causal = {"data": {"lengths": {"sequence_length": length - 2}}}
    config.cells = {
        "causal": causal,
        "causal_dropout": causal | {"model": {"dropout": 0.1}},
        "both": causal | {"objective": "causal_lm + masked_diffusion"},
        "diffusion": {"objective": "masked_diffusion", "model": {"architecture": "encoder"}},
    }
    config.baseline = "causal"
    config.budgets = tuple(float(epochs * UNIQUE_TOKENS[size]) for epochs in EPOCHS)
    config.evaluations = 16
    config.decide_by = "bits_per_byte_bound"
    config.other_objectives = False
    config.prompts = ("Return the", "The module")
    return config
