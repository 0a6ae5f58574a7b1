"""Regress: which number?"""

import math
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
    is_missing,
)
from t5x_lite.errors import BAD_DATA, UserError


class Regress(Kind):
    """The label is a finite number."""

    meaning = "which number"
    predicts = "number"
    metrics = ("pearson", "spearman")
    shown = "largest errors"
    formats = {
        "encoder": Format(bert, "number"),
        "decoder": Format(gpt, "number"),
        **IN_WORDS,
    }

    def parse_label(self, task: Task, value: Any, choices: Sequence[str], where: str) -> Label:
        """Return the number in a value of the label column."""
        if is_missing(value):
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise UserError(BAD_DATA, f"{where}: got the label {value!r}, expected a number")
        return number

    def is_placeholder(self, label: Label) -> bool:
        """Return True for −1, which GLUE's test split has in place of the hidden numbers."""
        return label == -1.0

    def submitted(self, task: Task, label: Label, example: Example) -> Any:
        """Return the predicted number; 0 if there is none."""
        return 0 if label is None else label

    def model_settings(self, task: Task) -> dict[str, int]:
        """Ask for one output."""
        return {"num_classes": 1}

    def predict(
        self,
        task: Task,
        examples: Sequence[Example],
        formatted: Formatted,
        outputs: Sequence[np.ndarray],
    ) -> list[Label]:
        """Return the predicted number of each example."""
        return [float(value[0]) for value in outputs]

    def answer(self, task: Task, example: Example) -> str:
        """Round to the nearest step (0.2 in T5), so that there are few different texts to learn.

        >>> task = Task(name="stsb", kind="regress", source="stsb.tsv")
        >>> Regress().answer(task, Example(0, "", "", 3.75, (), None, {}))
        '3.8'
        """
        if example.label is None:
            return ""
        # Use float32 as T5 does: it decides how numbers halfway between two steps are rounded.
        label = np.float32(float(example.label))  # type: ignore[arg-type]
        steps = np.round(label * np.float32(round(1 / task.number_step, 9)))
        number = float(steps) * task.number_step + 0.0  # + 0.0 turns −0.0 into 0.0
        return f"{number:.{_decimals(task)}f}"

    def longest_answers(self, task: Task) -> Sequence[str]:
        """Return a number that is as long as any expected answer."""
        return ("-9999.9999",)

    def label_of(self, task: Task, text: str, example: Example, as_written: AsWritten) -> Label:
        """Return the number that a text stands for."""
        # A vocabulary may put spaces into a number: "3. 8".
        without_blanks = "".join(text.split())
        try:
            number = float(without_blanks if text == as_written(without_blanks) else text)
        except ValueError:
            return None
        return number if math.isfinite(number) else None


def _decimals(task: Task) -> int:
    """Return the number of decimal places that task.number_step needs."""
    shown = f"{task.number_step:.6f}".rstrip("0")
    return len(shown.partition(".")[2])
