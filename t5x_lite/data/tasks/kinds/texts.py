"""Kinds of tasks whose answers are texts, which models write, complete or compare."""

from collections.abc import Sequence

from t5x_lite.config import Task
from t5x_lite.data.tasks.formats import IN_WORDS, text_to_text
from t5x_lite.data.tasks.kinds.kind import Example, Format, Kind, Label, OfTexts
from t5x_lite.data.text.records import Record


class Generate(OfTexts):
    """Any text: summaries, translations, answers to questions."""

    meaning = "which text"
    shown = "any"
    formats = {
        "decoder": Format(text_to_text, "lm"),
        **IN_WORDS,
    }


class Complete(OfTexts):
    """The label is the one right continuation of the text."""

    meaning = "how the text goes on, word for word (LAMBADA); evaluated only"
    predicts = "choice"  # right or not
    metrics = ("accuracy",)
    asked_by = "tokens"
    is_learned = False
    completes = True


class Prefer(Kind):
    """The choices are the better and the worse sentence, and the label is 0."""

    meaning = "which of two sentences is the better (BLiMP); evaluated only"
    predicts = "choice"
    asked_by = "sentences"
    is_learned = False
    needs_choices = True

    def read_label(self, task: Task, record: Record, choices: Sequence[str], where: str) -> Label:
        """Return 0, since the better sentence comes first."""
        return 0

    def readable(self, task: Task, label: Label, example: Example) -> str | None:
        """Return the text of a sentence."""
        return example.choices[label] if isinstance(label, int) else None

    def chance(self, task: Task, examples: Sequence[Example]) -> float | None:
        """Return one half: one of two sentences is right."""
        return 0.5
