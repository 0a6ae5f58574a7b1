"""Bits per byte of the whole validation text, for models that predict all of it."""

import math

from t5x_lite.comparison.scores import BOUND
from t5x_lite.data.rows.row_plan import RowPlan
from t5x_lite.data.store.corpus import Corpus
from t5x_lite.data.tasks.task_data import TaskPlan


def whole_text_bits(
    evaluated: dict[str, float], rows: RowPlan | TaskPlan, corpus: Corpus
) -> dict[str, float]:
    """Return the bits per byte of the validation text by score, for a model that predicts all of
    it: exactly, or at most. Empty for another.

    Args:
        evaluated: the model's validation metrics.
    """
    if not (rows.scores_whole_text or rows.bounds_whole_text):
        return {}
    name = "bits_per_byte" if rows.scores_whole_text else BOUND
    return {name: bits_per_byte(evaluated, corpus)}


def bits_per_byte(evaluated: dict, corpus: Corpus) -> float:
    """Return the bits per byte of a causal model: bits of all tokens, with EOS, per byte of text.

    Args:
        evaluated: the model's validation metrics.
    """
    bits = evaluated["loss"] * evaluated["loss_tokens"] / math.log(2)
    return bits / corpus.manifest["validation"]["bytes"]
