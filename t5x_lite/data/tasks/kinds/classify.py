"""Classify: which of the labels?"""

from collections.abc import Sequence
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
    count_labels,
    is_missing,
    number_of_class,
    words_of_labels,
)


class Classify(Kind):
    """The label is the number of a class, from 0."""

    meaning = "which of the labels"
    predicts = "class"
    asked_by = "options"
    names_labels = True
    formats = {
        "encoder": Format(bert, "class"),
        "decoder": Format(gpt, "class"),
        **IN_WORDS,
    }

    def parse_label(self, task: Task, value: Any, choices: Sequence[str], where: str) -> Label:
        """Return the index of a class, given its name or number."""
        return number_of_class(task, value, where)

    def label_names(self, value: Any) -> Sequence[str]:
        """Return the value as the only name."""
        return () if is_missing(value) else (str(value),)

    def readable(self, task: Task, label: Label, example: Example) -> Any:
        """Return the name of a class."""
        return None if label is None else str(task.labels[_number(label)])

    def submitted(self, task: Task, label: Label, example: Example) -> Any:
        """Return the name of a class, or its number if the benchmark wants numbers."""
        number = 0 if label is None else _number(label)
        return str(task.labels[number]) if task.submission_names else number + task.first_label

    def model_settings(self, task: Task) -> dict[str, int]:
        """Ask for one output per class."""
        return {"num_classes": count_labels(task)}

    def predict(
        self,
        task: Task,
        examples: Sequence[Example],
        formatted: Formatted,
        outputs: Sequence[np.ndarray],
    ) -> list[Label]:
        """Return the likeliest class of each example."""
        return [int(logits.argmax()) for logits in outputs]

    def answer(self, task: Task, example: Example) -> str:
        """Return the word of the class."""
        return "" if example.label is None else words_of_labels(task)[_number(example.label)]

    def closed_answers(self, task: Task) -> Sequence[str]:
        """Return the words of the classes."""
        return words_of_labels(task)

    def longest_answers(self, task: Task) -> Sequence[str]:
        """Return the words of the classes: an answer is one of them."""
        return self.closed_answers(task)

    def label_of(self, task: Task, text: str, example: Example, as_written: AsWritten) -> Label:
        """Return the index of the class that a text names."""
        words = [as_written(word) for word in words_of_labels(task)]
        return words.index(text) if text in words else None

    def options(self, task: Task, example: Example) -> Sequence[Any]:
        """Return the words that a model chooses between."""
        return task.answer_words or task.label_words or task.labels

    def chance(self, task: Task, examples: Sequence[Example]) -> float | None:
        """Return one over the number of classes."""
        return 1 / len(task.labels)


def _number(label: Label) -> int:
    assert isinstance(label, int)
    return label
