"""Choose: which of several answers?"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from t5x_lite.config import Task
from t5x_lite.data.tasks.formats import IN_WORDS, bert, gpt
from t5x_lite.data.tasks.kinds.kind import (
    AsWritten,
    Example,
    Format,
    Formatted,
    Kind,
    Label,
    is_withheld,
    number_of_label,
)
from t5x_lite.errors import BAD_DATA, UserError

_MOST_ANSWERS = 32  # minimum number of label slots, for the answers to one question


class Choose(Kind):
    """The label is the index of the right answer, from 0."""

    meaning = "which of several answers"
    predicts = "choice"
    asked_by = "options"
    needs_choices = True
    completes = True
    formats = {
        "encoder": Format(bert, "choice"),
        "decoder": Format(gpt, "choice"),
        **IN_WORDS,
    }

    def parse_label(self, task: Task, value: Any, choices: Sequence[str], where: str) -> Label:
        """Return the index of the right answer, given its label name (a letter), its number or its
        text.
        """
        # Some answers are numbers. So a text that is not a label name is first looked up among the
        # answers.
        is_name = str(value) in [str(name) for name in task.labels]
        if isinstance(value, str) and value in choices and not is_name:
            return list(choices).index(value)
        number = number_of_label(task, value, len(choices))
        if number is None and not is_withheld(value):
            expected = f"expected the number or the text of one of its {len(choices)} answers"
            raise UserError(BAD_DATA, f"{where}: got the answer {value!r}, {expected}")
        return number

    def readable(self, task: Task, label: Label, example: Example) -> Any:
        """Return the text of an answer."""
        return example.choices[label] if isinstance(label, int) else None

    def slots(self, length: int) -> dict[str, Any]:
        """Reserve enough slots for all answers to at least one question."""
        return {"labels": max(super().slots(length)["labels"], _MOST_ANSWERS)}

    def model_settings(self, task: Task) -> dict[str, int]:
        """Ask for one output per reading: the score of an answer."""
        return {"num_classes": 1}

    def most_readings(self, task: Task) -> int:
        """Return the number of answers to a question: they are compared within one row."""
        return len(task.choices) if len(task.choices) > 1 else task.most_choices

    def readings(self, task: Task, example: Example) -> list[tuple[str, str, Any]]:
        """Return one reading per answer, labelled 1 if the answer is right, else 0."""
        context = f"{example.text} {example.text_pair}".strip()
        return [
            (context, choice, float(number == example.label))
            for number, choice in enumerate(example.choices)
        ]

    def predict(
        self,
        task: Task,
        examples: Sequence[Example],
        formatted: Formatted,
        outputs: Sequence[np.ndarray],
    ) -> list[Label]:
        """Return the best answer to each question; None for a tie, which counts as wrong."""
        predictions: list[Label] = []
        pairs = zip(formatted.example_of_pair.tolist(), outputs, strict=True)
        for _, group in groupby(pairs, key=lambda pair: pair[0]):
            predictions.append(likeliest([float(score[0]) for _, score in group]))
        return predictions

    def answer(self, task: Task, example: Example) -> str:
        """Return the right answer as T5 writes it: choice1, choice2, …"""
        return f"choice{example.label + 1}" if isinstance(example.label, int) else ""

    def closed_answers(self, task: Task) -> Sequence[str]:
        """Return the first two answers; the others differ from them only in the number."""
        return ("choice1", "choice2")

    def longest_answers(self, task: Task) -> Sequence[str]:
        """Return the answer with the highest number that is expected."""
        return ("choice99",)

    def label_of(self, task: Task, text: str, example: Example, as_written: AsWritten) -> Label:
        """Return the index of the answer that a text names."""
        numbers = range(1, len(example.choices) + 1)
        names = [as_written(f"choice{number}") for number in numbers]
        return names.index(text) if text in names else None

    def options(self, task: Task, example: Example) -> Sequence[Any]:
        """Return the answers to choose between."""
        return example.choices

    def chance(self, task: Task, examples: Sequence[Example]) -> float | None:
        """Return one over the number of answers, as a mean over the examples."""
        return float(np.mean([1 / len(example.choices) for example in examples]))


def likeliest(scores: Sequence[float]) -> int | None:
    """Return the index of the highest score; None if two scores share it.

    >>> likeliest([0.1, 0.7, 0.2]), likeliest([0.5, 0.5])
    (1, None)
    """
    best = max(scores)
    return None if list(scores).count(best) > 1 else list(scores).index(best)
