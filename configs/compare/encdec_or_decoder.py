"""Which learns more from the same compute, an encoder-decoder with prefix language modelling or a
decoder with causal language modelling, and how does it change with size (a small version of Zhang
et al., 2025, "Encoder-Decoder or Decoder-Only? Revisiting Encoder-Decoder Large Language Model")?
Both have rotary positions, tied embeddings and the same total number of layers. The paper says that
decoders do, and that both scale alike.

`:tiny` has the blocks of gpt_tiny, and docs/compared.md has its table. `:small` is for one GPU, and
was not trained here.

python -m t5x_lite compare --config=compare/encdec_or_decoder --workdir=DIR --jobs=2
"""

from typing import NamedTuple

import t5x_lite
from t5x_lite.config import CompareConfig, default, variant


class Ladder(NamedTuple):
    """Sizes as (total number of layers, width), and budgets in FLOPs."""

    recipe: str
    sizes: tuple[tuple[int, int], ...]
    budgets: tuple[float, ...]
    head_dim: int


LADDERS = {
    "tiny": Ladder(
        recipe="gpt_tiny",
        sizes=((2, 64), (4, 96), (6, 128)),
        budgets=(1.5e12, 3e12, 6e12),
        head_dim=32,
    ),
    "small": Ladder(
        recipe="gpt2_small",
        sizes=((8, 512), (12, 768), (16, 1024)),
        budgets=(1e17, 3e17, 1e18),
        head_dim=64,
    ),
}


def get_config(size: str = "tiny"):
    """Return the comparison of the sizes and budgets in LADDERS[size]."""
    ladder = variant(LADDERS, size)
    config = default(CompareConfig)
    config.seeds = 3
    config.title = f"Encoder-decoder or decoder, {size}"
    config.papers = ("zhang2025b",)
    config.base = t5x_lite.get_config(ladder.recipe, **{"model.positions": "rotary"})
    if size == "tiny":
        config.base.data.tokenizer = "sentencepiece(vocab_size=2048)"
        config.base.optimizer.update(name="muon", learning_rate=1e-2)
    rate = config.base.optimizer.learning_rate
    config.tune = {"optimizer": {"learning_rate": (rate / 2, rate, 2 * rate)}}
    config.tune_budget = 0.25
    half = config.base.data.lengths.sequence_length // 2
    prefix = {
        "objective": "prefix_lm",
        "data": {"lengths": {"sequence_length": 0, "inputs": half, "targets": half}},
    }
    cells = {}
    for layers, width in ladder.sizes:
        shape = {"d_model": width, "num_heads": width // ladder.head_dim}
        stacks = {"architecture": "encoder_decoder", "num_layers": layers // 2}
        cells[f"decoder-{layers}x{width}"] = {"model": shape | {"num_layers": layers}}
        cells[f"encdec-{layers}x{width}"] = prefix | {"model": shape | stacks}
    config.cells = cells
    config.match, config.budgets = "flops", ladder.budgets
    config.update(evaluations=1, other_objectives=False)
    return config
