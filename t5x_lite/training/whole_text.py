"""Bits per byte of the whole validation text, for models that predict all of it."""

import math
from collections.abc import Mapping
from typing import Any

from t5x_lite.data.rows.row_plan import RowPlan
from t5x_lite.data.tasks.task_data import TaskPlan

# Metric names: of the exact figure, and of the upper bound that diffusion models have
EXACT, BOUND = "bits_per_byte", "bits_per_byte_bound"
# Set in the metrics of an evaluation that training.eval_steps limits: how many batches it read
BATCHES = "batches"


def whole_text_bits(
    evaluated: Mapping[str, float], rows: RowPlan | TaskPlan, manifest: Mapping[str, Any]
) -> dict[str, float]:
    """Return the bits per byte of the validation text, exact or as an upper bound: the bits of all
    tokens, EOS included, per byte of text. Empty for a model that does not predict the whole text,
    and for an evaluation that did not read all of it.

    Args:
        evaluated: the model's validation metrics.
        manifest: the manifest of the text.
    """
    if not (rows.scores_whole_text or rows.bounds_whole_text) or BATCHES in evaluated:
        return {}
    bits = evaluated["loss"] * evaluated["loss_tokens"] / math.log(2)
    name = EXACT if rows.scores_whole_text else BOUND
    return {name: bits / manifest["validation"]["bytes"]}


def validation_text(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """Return a key for the tokens of the validation text that a manifest describes."""
    return manifest["validation"]["sha256"], manifest["tokenizer"]
