"""Table 2 of Raffel et al. (2020): five architectures, each trained on denoising (the paper's
i.i.d. denoising of 15 % of the tokens) and on language modelling, all with the same amount of text.

`raffel_table2` has the paper's size: 12 layers and 2³⁵ raw tokens. `:small` and `:tiny` have the
same structure for one GPU and for a laptop: they halve the layers where the paper does, and keep
the proportions of the lengths. Only tiny was trained: docs/compared.md has its table. `:small` with
three seeds takes at least 10 hours of one H100 ($70), or 5.3 of a v5e-8 ($51): see
docs/how-to/plan.md.

python -m t5x_lite compare --config=compare/raffel_table2:tiny --workdir=DIR --jobs=2
"""

from typing import Any, NamedTuple

import t5x_lite
from t5x_lite.config import CompareConfig, default, variant


class Size(NamedTuple):
    """The recipe, the layers per stack, and the raw tokens of a row and of a run."""

    recipe: str
    layers: int
    tokens: int  # raw tokens of a row
    budget: float  # raw tokens of a run


SIZES = {
    "base": Size("t5_base", 12, 512, 2.0**35),
    "small": Size("published:t5_small", 6, 512, 2.0**30),
    "tiny": Size("t5_tiny", 2, 128, 2.0**20),
}


def architectures(layers: int) -> dict[str, dict[str, Any]]:
    """Return the model settings of the table's rows.

    Comments give parameters and FLOPs relative to the decoder-only model, which has P and M.
    """
    encoder_decoder = {"architecture": "encoder_decoder", "num_layers": layers}
    return {
        "encoder_decoder": encoder_decoder,  # 2P, M
        "shared": {**encoder_decoder, "shared_stacks": True},  # P, M
        "half_the_layers": {**encoder_decoder, "num_layers": layers // 2},  # P, M/2
        "decoder": {"architecture": "decoder", "num_layers": layers},  # P, M
        "prefix_decoder": {"architecture": "prefix_decoder", "num_layers": layers},  # P, M
    }


def lengths(architecture: str, objective: str, tokens: int) -> dict[str, int]:
    """Return the lengths of rows that read about this many raw tokens.

    With 15 % noise, the targets are up to 5/16 of the raw tokens.
    """
    noise = tokens * 5 // 16
    if architecture != "encoder_decoder":
        return {"sequence_length": tokens + noise if objective == "denoising" else tokens}
    if objective == "denoising":
        return {"inputs": tokens, "targets": noise}
    return {"inputs": tokens // 2, "targets": tokens // 2}


def get_config(size: str = "base"):
    """Return the comparison at SIZES[size]."""
    recipe, layers, tokens, budget = variant(SIZES, size)
    config = default(CompareConfig)
    config.seeds = 3
    config.title = f"Raffel et al. (2020), table 2, {size}"
    config.papers = ("raffel2020",)
    config.base = t5x_lite.get_config(recipe)
    config.base.data.lengths.update(sequence_length=0, inputs=0, targets=0)
    cells = {}
    for name, model in architectures(layers).items():
        for objective in ("denoising", "lm"):
            # A decoder-only model has no inputs, so it models the whole text.
            lm = "causal_lm" if name == "decoder" else "prefix_lm"
            cells[f"{name}-{objective}"] = {
                "objective": "iid_denoising" if objective == "denoising" else lm,
                "model": model,
                "data": {"lengths": lengths(model["architecture"], objective, tokens)},
            }
    config.cells = cells
    config.baseline = "encoder_decoder-denoising"
    config.budget = budget
    config.adapt_tokens = int(budget / 8)
    if size == "small":  # as planned, the largest cell takes 24 GiB of one GPU
        config.base.training.microbatches = 4
    if size == "tiny":  # AdamW would learn little more than word frequencies
        config.base.optimizer.update(name="muon", learning_rate=5e-3)
    # Fine-tune all cells in the same way, as in the paper (§3.1.2), but for only one epoch.
    config.finetune = (
        "data.epochs=1",
        "optimizer.name=adafactor",
        "optimizer.schedule=constant",
        "optimizer.learning_rate=5e-3" if size == "tiny" else "optimizer.learning_rate=1e-3",
        "optimizer.weight_decay=0",
        "task.in_words=True",  # also for decoders, which otherwise get a classification head
    )
    return config
