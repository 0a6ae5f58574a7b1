"""What a model will be shown: the first rows of a config as a person would read them, and the ledger."""

import numpy as np

from t5x_lite.config import RunConfig
from t5x_lite.data import batches
from t5x_lite.data.corpus import Corpus
from t5x_lite.data.objectives import Pair
from t5x_lite.data.tokenizer import Tokenizer


def hidden(pair: Pair, tokenizer: Tokenizer) -> str:
    """What is hidden: the targets at their places, or nothing but the future."""
    if pair.scored is None:
        return tokenizer.decode(pair.targets)
    shown = (f"{tokenizer.decode([t])!r}@{p}" for t, p in zip(pair.targets, pair.scored, strict=True))
    return " ".join(shown)


def show(config: RunConfig, corpus: Corpus, examples: int = 3) -> str:
    """The first rows of training: text, what is hidden, inputs and targets decoded with sentinels, and weights."""
    made, tokenizer = batches.make(config, corpus, "train"), corpus.tokenizer
    lines = []
    for index in range(examples):
        lines += [f"── row {index} ──", f"text     {tokenizer.decode(made.window_at(index))!r}"]
        for segment, pair in enumerate(made.pairs_at(index), 1):
            lines.append(f"segment {segment}: {len(pair.inputs)} inputs, {len(pair.targets)} targets")
            lines.append(f"inputs   {tokenizer.decode(pair.inputs)!r}")
            lines.append(f"{'targets' if pair.scored is None else 'hidden '}  {hidden(pair, tokenizer)}")
            weights = np.append(np.full(len(pair.inputs), float(pair.score_inputs)), pair.weights)
            lines.append(f"weights  {_runs(pair.weights if pair.scored is not None else weights)}")
    return "\n".join(lines)


def _runs(weights: np.ndarray) -> str:
    """[1, 1, 0] → "2 × 1, 1 × 0"."""
    cuts = np.flatnonzero(np.diff(weights)) + 1
    return ", ".join(f"{len(run)} × {run[0]:g}" for run in np.split(weights, cuts) if len(run)) or "none"


def ledger(config: RunConfig, corpus: Corpus, flops_per_row: float) -> str:
    """What the whole run will read and compute, and what one row of it is."""
    made = batches.make(config, corpus, "train")
    row = batches.ledger(made)
    rows = config.data.batch_size * config.training.steps
    lines = [f"{'ledger':<14}{'a row':>14}{'the run':>22}"]
    for key in ("raw_tokens", "model_tokens", "loss_tokens"):
        lines.append(f"{key.replace('_', ' '):<14}{row[key]:>14,.1f}{row[key] * rows:>22,.0f}")
    lines.append(f"{'FLOPs':<14}{flops_per_row:>14.3g}{flops_per_row * rows:>22.3g}")
    lines.append(f"{'padding':<14}{row['padding']:>14.2%}")
    if config.data.split_documents:
        lines.append(f"{'left out':<14}{row['left_out']:>14.2%}")
    lines.append(f"{'epochs':<14}{rows / made.epoch_rows:>36.2f}")
    return "\n".join(lines)
