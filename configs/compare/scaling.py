"""How does the loss fall with size, text and compute? A grid of sizes and budgets, for language
modelling on a decoder and masked language modelling on an encoder with the same blocks; a scaling
law is fitted to each objective.

The sizes span a factor of ten and the budgets a factor of eight. That is enough to see the best
size move, but not enough to trust an exponent. `:small` is a similar grid for one GPU and needs
more than the built-in text.

python -m t5x_lite compare --config=compare/scaling:tiny --workdir=DIR --jobs=2
"""

from typing import NamedTuple

from t5x_lite.config import CompareConfig, default, variant
from t5x_lite.config.files import grid


class Ladder(NamedTuple):
    """Sizes and budgets of a scaling experiment, with the settings that all cells share."""

    sizes: tuple[tuple[int, int], ...]  # (layers, width)
    budgets: tuple[float, ...]  # FLOPs
    batch_size: int
    length: int
    head_dim: int
    vocab_size: int


LADDERS = {
    "tiny": Ladder(
        sizes=((2, 48), (3, 64), (4, 80), (4, 112), (5, 144)),
        budgets=(4e11, 8e11, 1.6e12, 3.2e12),
        batch_size=4,
        length=128,
        head_dim=16,
        vocab_size=2048,
    ),
    "small": Ladder(
        sizes=((4, 256), (6, 320), (6, 448), (8, 512), (10, 640), (12, 768)),
        budgets=(1e16, 3e16, 1e17, 3e17),
        batch_size=64,
        length=512,
        head_dim=64,
        vocab_size=16384,
    ),
}
OBJECTIVES = {
    "gpt": {"objective": "causal_lm", "model": {"architecture": "decoder"}},
    "bert": {"objective": "masked_lm(noise_density=0.3)", "model": {"architecture": "encoder"}},
}


def get_config(size: str = "tiny"):
    """Return the comparison of the sizes and budgets in LADDERS[size]."""
    ladder = variant(LADDERS, size)
    config = default(CompareConfig)
    config.title = f"Scaling of language modelling and of masked language modelling, {size}"
    base = config.base
    base.data.batch_size = ladder.batch_size
    base.data.lengths.sequence_length = ladder.length
    base.data.tokenizer = f"sentencepiece(vocab_size={ladder.vocab_size})"
    base.model.update(positions="rotary", activation="gelu_tanh", scan=False)
    base.optimizer.update(
        name="muon", learning_rate=1e-2, beta2=0.99, weight_decay=0.1, final_lr_ratio=0.1
    )
    base.optimizer.warmup_steps = 100  # of 1,000 steps; both are stretched to the budget
    base.training.update(steps=1000, loss_chunk=32)
    sizes = {
        f"{layers}x{width}": {
            "model": {
                "num_layers": layers,
                "d_model": width,
                "num_heads": width // ladder.head_dim,
            }
        }
        for layers, width in ladder.sizes
    }
    # An encoder has two more positions, for [CLS] and [SEP]: all rows read the same amount of text.
    of_encoder = {"data": {"lengths": {"sequence_length": ladder.length + 2}}}
    objectives = {"gpt": OBJECTIVES["gpt"], "bert": {**OBJECTIVES["bert"], **of_encoder}}
    config.cells = grid(objectives, sizes)
    config.match, config.budgets = "flops", ladder.budgets
    config.update(evaluations=1, span_count=256, other_objectives=False)
    return config
