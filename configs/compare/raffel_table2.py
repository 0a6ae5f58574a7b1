"""Table 2 of Raffel et al. (2020): five architectures, each on denoising (their i.i.d. denoising,
15 % of the tokens) and on language modelling, with as much text for all.

`raffel_table2` is the paper's size: 12 layers, and as many tokens as t5_base reads. `:small` and
`:tiny` have the same shape for one GPU and for a laptop: half the layers where the paper halves
them, the same lengths in proportion. Tiny was trained: docs/compared.md has its table.

python -m t5x_lite compare --config=compare/raffel_table2:tiny --workdir=DIR --seeds=3 --jobs=2
"""

from typing import Any, NamedTuple

import t5x_lite
from t5x_lite.config import CompareConfig, default
from t5x_lite.errors import BAD_CONFIG, UserError, nearest


class Size(NamedTuple):
    """A recipe, the layers of a stack, and the raw tokens of a row and of the run."""

    recipe: str
    layers: int
    tokens: int
    budget: float


SIZES = {
    "base": Size("t5_base", 12, 512, 2.0**35),
    "small": Size("published:t5_small", 6, 512, 2.0**30),
    "tiny": Size("t5_tiny", 2, 128, 2.0**20),
}


def architectures(layers: int) -> dict[str, dict[str, Any]]:
    """The rows of the table; P parameters and M FLOPs are those of the decoder alone."""
    encoder_decoder = {"architecture": "encoder_decoder", "num_layers": layers}
    return {
        "encoder_decoder": encoder_decoder,  # 2P, M
        "shared": {**encoder_decoder, "shared_stacks": True},  # P, M
        "half_the_layers": {**encoder_decoder, "num_layers": layers // 2},  # P, M/2
        "decoder": {"architecture": "decoder", "num_layers": layers},  # P, M
        "prefix_decoder": {"architecture": "prefix_decoder", "num_layers": layers},  # P, M
    }


def lengths(architecture: str, objective: str, tokens: int) -> dict[str, int]:
    """Rows that read about so many raw tokens; 15 % of noise makes up to 5/16 of them targets."""
    noise = tokens * 5 // 16
    if architecture != "encoder_decoder":
        return {"sequence_length": tokens + noise if objective == "denoising" else tokens}
    if objective == "denoising":
        return {"inputs": tokens, "targets": noise}
    return {"inputs": tokens // 2, "targets": tokens // 2}


def get_config(size: str = "base"):
    """The table at SIZES[size]."""
    if size not in SIZES:
        raise UserError(BAD_CONFIG, f"raffel_table2:{size}: no such size; {nearest(size, SIZES)}")
    recipe, layers, tokens, budget = SIZES[size]
    config = default(CompareConfig)
    config.title = f"Raffel et al. (2020), table 2, {size}"
    config.base = t5x_lite.get_config(recipe)
    config.base.data.lengths.update(sequence_length=0, inputs=0, targets=0)
    cells = {}
    for name, model in architectures(layers).items():
        for objective in ("denoising", "lm"):
            # A decoder reads no inputs: its language modelling is of the whole text.
            lm = "causal_lm" if name == "decoder" else "prefix_lm"
            cells[f"{name}-{objective}"] = {
                "objective": "iid_denoising" if objective == "denoising" else lm,
                "model": model,
                "data": {"lengths": lengths(model["architecture"], objective, tokens)},
            }
    config.cells = cells
    config.baseline = "encoder_decoder-denoising"
    config.budget = budget
    if size == "tiny":  # AdamW would have learned little more than the words' frequencies
        config.base.optimizer.update(name="muon", learning_rate=5e-3)
    # All cells the same way, as in the paper, §3.1.2, though an epoch has to do
    config.finetune = (
        "data.epochs=1",
        "optimizer.name=adafactor",
        "optimizer.schedule=constant",
        "optimizer.learning_rate=5e-3" if size == "tiny" else "optimizer.learning_rate=1e-3",
        "optimizer.weight_decay=0",
    )
    return config
