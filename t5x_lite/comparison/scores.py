"""The scores of a comparison: their names in report.json, headings, and order.

A task's score is named after the task and its metric, such as "rte: accuracy". All other scores are
in SCORES.
"""

from collections.abc import Iterable
from typing import NamedTuple

from t5x_lite.training.whole_text import BOUND, EXACT


class Score(NamedTuple):
    """A score that does not belong to a task.

    Attributes:
        heading: heading of its column.
        is_lower_better: False if higher values are better.
        asked: for bits of spans, the beginning of a sentence about the score.
    """

    heading: str
    is_lower_better: bool = True
    asked: str = ""


def span_score(context: str) -> str:
    """Return the name of the score of spans in a context, "left" or "both"."""
    return f"span_bits_{context}"


ADAPTED = "adapted_bits"
# In the order of the report
SCORES = {
    ADAPTED: Score(
        "bits per byte, adapted",
        # {tokens}: the number of tokens of the adaptation.
        asked="After reading {tokens} tokens as prefix language models, given the text before a "
        "gap",
    ),
    span_score("left"): Score(
        "span bits per byte, text before", asked="Given only the text before a gap"
    ),
    span_score("both"): Score(
        "span bits per byte, text on both sides", asked="Given the text on both sides of a gap"
    ),
    EXACT: Score("bits per byte, whole text"),
    # The upper bound of diffusion models, shown beside the exact figure of other models
    BOUND: Score("bits per byte, whole text, at most"),
    # On each objective's own targets, which cannot be compared between objectives
    "loss": Score("validation loss"),
    "accuracy": Score("accuracy", is_lower_better=False),
}
OF_SPANS = tuple(name for name, score in SCORES.items() if score.asked)
FROM_SCRATCH = ", from scratch"  # suffix of the scores of models with fresh parameters


def name_of_task_score(task: str, metric: str) -> str:
    """Return the name of a task's score.

    >>> name_of_task_score("rte", "exact_match")
    'rte: exact match'
    """
    return f"{task}: {metric.replace('_', ' ')}"


def is_of_task(name: str) -> bool:
    """Return True if the score is a metric of a task."""
    return name not in SCORES


def heading_of(name: str) -> str:
    """Return the heading of a score's column."""
    return name if is_of_task(name) else SCORES[name].heading


def is_lower_better(name: str) -> bool:
    """Return True if a lower value of the score is better."""
    return not is_of_task(name) and SCORES[name].is_lower_better


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names of scores in the order of the report, without repeats, tasks first.

    >>> in_order(["loss", "span_bits_left", "rte: accuracy", "loss"])
    ['rte: accuracy', 'span_bits_left', 'loss']
    """
    places = {name: place for place, name in enumerate(SCORES)}
    return sorted(dict.fromkeys(names), key=lambda name: places.get(name, -1))
