"""Does masked diffusion beat language modelling when text is short (a small version of Prabhudesai
et al., 2025, "Diffusion Beats Autoregressive in Data-Constrained Settings")? Both learn from one
text that is read about once, five and nine times, with the same model but for its mask. Their bits
per byte can be compared: those of diffusion are an upper bound.

`:tiny` is gpt_tiny on the built-in text, half a million tokens. `:small` has GPT-2's size and
recipe, for a text of your own with 100 million tokens. Neither was trained here.

python -m t5x_lite compare --config=compare/diffusion --workdir=DIR --jobs=2
"""

import t5x_lite
from t5x_lite.config import CompareConfig, default
from t5x_lite.errors import BAD_CONFIG, UserError, nearest

RECIPES = {"tiny": "gpt_tiny", "small": "gpt2_small"}
# Raw tokens: about one, five and nine epochs, and what GPT-2 small would read of 100 million
BUDGETS = {"tiny": (2.0**19, 2.0**21, 2.0**22), "small": (1e8, 1e9, 1e10)}


def get_config(size: str = "tiny"):
    """Return the comparison with the recipe RECIPES[size]."""
    if size not in RECIPES:
        raise UserError(BAD_CONFIG, f"diffusion:{size}: no such size; {nearest(size, RECIPES)}")
    config = default(CompareConfig)
    config.seeds = 3
    config.title = f"Language modelling or diffusion, over and over, {size}"
    config.papers = ("prabhudesai2025", "sahoo2024", "nie2025")
    config.base = t5x_lite.get_config(RECIPES[size])
    if size == "tiny":
        config.base.optimizer.update(name="muon", learning_rate=1e-2)
    # A row of diffusion has two special tokens more than one of a decoder.
    length = config.base.data.lengths.sequence_length
    config.cells = {
        "causal": {"data": {"lengths": {"sequence_length": length - 2}}},
        "diffusion": {"objective": "masked_diffusion", "model": {"architecture": "encoder"}},
    }
    config.budgets = BUDGETS[size]
    config.decide_by = "bits_per_byte_bound"
    config.other_objectives = False
    config.prompts = ("Return the", "The module")
    return config
