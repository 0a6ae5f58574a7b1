"""Bits per byte of the whole validation text, for models that predict all of it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_lite.config import RunConfig
from t5x_lite.data.rows.row_plan import RowPlan
from t5x_lite.data.tasks.task_data import TaskPlan

# Metric names: of the exact figure, and of the upper bound that diffusion models have
EXACT, BOUND = "bits_per_byte", "bits_per_byte_bound"


def whole_text_bits(
    evaluated: Mapping[str, float], rows: RowPlan | TaskPlan, manifest: Mapping[str, Any]
) -> dict[str, float]:
    """Return the bits per byte of the validation text, exact or as an upper bound: the bits of all
    tokens, EOS included, per byte of text. Empty for a model that does not predict the whole text.

    Args:
        evaluated: the model's validation metrics.
        manifest: the manifest of the text.
    """
    if not (rows.scores_whole_text or rows.bounds_whole_text):
        return {}
    bits = evaluated["loss"] * evaluated["loss_tokens"] / math.log(2)
    name = EXACT if rows.scores_whole_text else BOUND
    return {name: bits / manifest["validation"]["bytes"]}


def validation_text(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """Return a key for the tokens of the validation text that a manifest describes."""
    return manifest["validation"]["sha256"], manifest["tokenizer"]


def whole_evaluations(records: Sequence[dict[str, Any]], config: RunConfig) -> list[dict[str, Any]]:
    """Return the evaluations that read the whole validation text: all of them or, if
    training.eval_steps limits the others, only the one after the last step.
    """
    evaluated = [record for record in records if record["split"] == "validation"]
    if not config.training.eval_steps:
        return evaluated
    return [record for record in evaluated if record["step"] == config.training.steps]
