"""A kind of task defines what its labels are, and how each model family learns and predicts them.
To add one, derive a class from Kind in a file of its own, and add it to table.KINDS.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from t5x_lite.config import Task
from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.tasks.records import lookup
from t5x_lite.data.tasks.words import Words
from t5x_lite.data.text.records import Record
from t5x_lite.errors import BAD_CONFIG, BAD_DATA, UserError

Label = int | float | str | tuple[str, ...] | tuple[int, ...] | None
# (task, examples, predictions) → a number; higher is better. A prediction is None if a model that
# answers in text wrote something that is not a label. The result is None if the metric applies to
# none of the examples.
Judgement = Callable[[Task, Sequence["Example"], Sequence[Label]], float | None]

AsWritten = Callable[[str], str]  # a text → the text as the vocabulary writes it

_POSITIONS_PER_LABEL = 8  # positions of a row per label slot: few examples are shorter


@dataclass(frozen=True)
class Example:
    """One example of a task.

    Attributes:
        id: name of the example in predictions.
        label: the label, in the form that the kind of task uses; None: no label, as in a test
            split.
        choices: the answers (choose), or the better and the worse sentence (prefer).
        group: examples of one group are scored together.
        record: all columns, for prompts.
    """

    id: Any
    text: str
    text_pair: str
    label: Label
    choices: tuple[str, ...]
    group: Any
    record: Record


class Formatted(NamedTuple):
    """Examples of a split as pairs."""

    pairs: Pairs
    example_of_pair: np.ndarray  # index of the example that each pair belongs to
    words_of_pair: tuple[Words, ...]  # words of each pair, if labels are spans; otherwise empty
    truncated: int  # number of examples that were cut
    # Largest number of tokens in a written answer, EOS included; 0 if answers are not written
    answer_room: int = 0


class Format(NamedTuple):
    """How an architecture reads a kind of task.

    Attributes:
        function: (kind, task, examples, tokenizer, shape of a row) → the examples as pairs.
        head: name of the head that predicts, in model.heads.HEADS.
        ends_prompt: True if EOS follows a prompt, even if the answer is on the same stack.
    """

    function: Callable[..., Formatted]
    head: str
    ends_prompt: bool = True


class Kind:
    """Base class of all kinds of tasks, with their defaults.

    Attributes:
        meaning: the question that a task of this kind asks.
        formats: architecture → how it reads the task; other architectures cannot learn it.
        if_no_label: advice in the error about a training example without a label.
        predicts: what a prediction is; each metric lists which of these it judges.
        metrics: names of the metrics that judge it by default; task.metrics overrides them.
        own_metrics: metrics of this kind only, by name, each between 0 and 1.
        asked_by: how to evaluate a model that was not trained on the task. "options": by the
            likelihood of each option. "text": by generating an answer. "tokens": by whether each
            token of the answer is the likeliest. "sentences": by which of two sentences is
            likelier. "": it cannot be evaluated.
        is_learned: False if models are only evaluated on it.
        names_labels: True if labels have names, which `label_names` finds.
        needs_choices: True if task.choices has to name columns.
        completes: True if an answer continues the text.
        replies: True if examples are conversations.
        shown: which predictions a report shows.
    """

    meaning: ClassVar[str]
    if_no_label: ClassVar[str] = "only a test split may lack labels"
    predicts: ClassVar[Literal["class", "choice", "number", "text", "labels"]]
    formats: ClassVar[Mapping[str, Format]] = {}
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    own_metrics: ClassVar[Mapping[str, Judgement]] = {}
    asked_by: ClassVar[Literal["options", "text", "tokens", "sentences", ""]] = ""
    is_learned: ClassVar[bool] = True
    names_labels: ClassVar[bool] = False
    needs_choices: ClassVar[bool] = False
    completes: ClassVar[bool] = False
    replies: ClassVar[bool] = False
    shown: ClassVar[Literal["right and wrong", "largest errors", "any"]] = "right and wrong"

    # Reading examples.

    def check(self, task: Task) -> Iterator[str]:
        """Yield a message for each setting of a task that contradicts its kind."""
        if self.needs_choices and not task.choices:
            yield f"task.choices: task {task.name} has none; name the fields that hold the answers"

    def records(self, task: Task, record: Record, where: str) -> Iterable[Record]:
        """Return one record for each example that a record of the data set holds."""
        return [record]

    def read_text(self, value: Any) -> str:
        """Return the text in a column."""
        return "" if value is None else str(value)

    def read_label(self, task: Task, record: Record, choices: Sequence[str], where: str) -> Label:
        """Return the label of an example; None if there is none.

        Raises:
            UserError: for a value that is not a label of the task.
        """
        if task.label not in record and not {".", "{"} & set(task.label):
            return None
        return self.parse_label(task, lookup(record, task.label, where), choices, where)

    def parse_label(self, task: Task, value: Any, choices: Sequence[str], where: str) -> Label:
        """Return the label for a value of the label column."""
        raise NotImplementedError

    def label_names(self, value: Any) -> Sequence[str]:
        """Return the names of the labels in a value of the label column. The value comes from a
        training example, so its label is not hidden.
        """
        return ()

    def is_placeholder(self, label: Label) -> bool:
        """Return True for a label that may be a placeholder for a hidden one. Labels count as
        hidden only if all labels of a split are placeholders.
        """
        return False

    def check_example(self, example: Example, where: str) -> None:
        """Raise UserError for an example whose fields contradict each other."""

    def readable(self, task: Task, label: Label, example: Example) -> Any:
        """Return a label in the form shown to people and written to files."""
        if isinstance(label, tuple):
            return label[0] if len(label) == 1 else list(label)
        return label

    def submitted(self, task: Task, label: Label, example: Example) -> Any:
        """Return a prediction in the form of the benchmark's submission file."""
        return self.readable(task, 0 if label is None else label, example)

    # Learning with a head.

    def slots(self, length: int) -> dict[str, Any]:
        """Return the fields of RowShape that reserve slots for labels, for rows of this length."""
        return {"labels": max(length // _POSITIONS_PER_LABEL, 1)}

    def model_settings(self, task: Task) -> dict[str, int]:
        """Return the model settings that define the head of the task."""
        return {}

    def most_readings(self, task: Task) -> int:
        """Return how many readings, each of the model's full length, a row must hold."""
        return 1

    def readings(self, task: Task, example: Example) -> list[tuple[str, str, Any]]:
        """Return (text, text_pair, value of the label) of each pair that an example becomes."""
        return [(example.text, example.text_pair, 0 if example.label is None else example.label)]

    def predict(
        self,
        task: Task,
        examples: Sequence[Example],
        formatted: Formatted,
        outputs: Sequence[np.ndarray],
    ) -> list[Label]:
        """Return a prediction for each example, from the head's output for each pair."""
        raise NotImplementedError

    # Learning in words.

    def prompt(self, task: Task, example: Example) -> str:
        """Return the text that a text-to-text model reads: task.prompt or, as in T5, the name of
        the task followed by each field with its name.

        >>> task = Task(name="rte", source="rte.csv", text="sentence1", text_pair="sentence2")
        >>> example = Example(0, "A", "B", 0, (), None, {"sentence1": "A", "sentence2": "B"})
        >>> Kind().prompt(task, example)
        'rte sentence1: A sentence2: B'
        """
        if task.prompt:
            return lookup(example.record, task.prompt, f"task {task.name}")
        parts = [task.name]
        for number, choice in enumerate(example.choices, 1):
            parts.append(f"choice{number}: {choice}")
        for field, text in ((task.text, example.text), (task.text_pair, example.text_pair)):
            if text:
                name = "text" if "{" in field else field.rpartition(".")[2]
                parts.append(f"{name}: {text}")
        return " ".join(parts)

    def answer(self, task: Task, example: Example) -> str:
        """Return the text that a text-to-text model learns to write: the first of those that are
        right.
        """
        return "" if example.label is None else str(self.readable(task, example.label, example))

    def closed_answers(self, task: Task) -> Sequence[str]:
        """Return all words that an answer may consist of; none if an answer may be any text."""
        return ()

    def longest_answers(self, task: Task) -> Sequence[str]:
        """Return texts, the longest of which is as long as any answer; none if an answer may have
        any length.
        """
        return ()

    def label_of(self, task: Task, text: str, example: Example, as_written: AsWritten) -> Label:
        """Return the label that a text stands for; None if there is no such label.

        Args:
            text: text that a model wrote, without surrounding whitespace.
            as_written: returns a text as the vocabulary writes it, the form that labels have in
                `text`.
        """
        raise NotImplementedError

    # Judging.

    def options(self, task: Task, example: Example) -> Sequence[Any]:
        """Return the texts that a model chooses between, for kinds asked by options."""
        return ()

    def chance(self, task: Task, examples: Sequence[Example]) -> float | None:
        """Return the accuracy of guessing; None if guessing makes no sense for the kind."""
        return None


class OfTexts(Kind):
    """A kind whose label is a tuple of the texts that count as right; the first is learned."""

    predicts = "text"
    metrics = ("exact_match", "token_f1")
    asked_by = "text"

    def parse_label(self, task: Task, value: Any, choices: Sequence[str], where: str) -> Label:
        """Return the texts that count as right."""
        if value is None:
            return None
        texts = value if isinstance(value, list) else [value]
        return tuple(map(str, texts)) or None

    def is_placeholder(self, label: Label) -> bool:
        """Return True for an empty text, which test splits have in place of hidden answers."""
        return label is None or label == ("",)

    def answer(self, task: Task, example: Example) -> str:
        """Return the first text that counts as right."""
        return str(example.label[0]) if isinstance(example.label, tuple) else ""

    def label_of(self, task: Task, text: str, example: Example, as_written: AsWritten) -> Label:
        """Return the right answer that the vocabulary writes like this text, or else the text
        itself.
        """
        answers = example.label if isinstance(example.label, tuple) else ()
        for answer in map(str, answers):
            if text == as_written(answer):
                return (answer,)
        return (text,)


def is_missing(value: Any) -> bool:
    """Return True if a record has no label. A −1 does not count as missing: many data sets use it
    for hidden labels, but only the kind of task knows whether it may be a label.
    """
    return value is None or str(value) == ""


def is_withheld(value: Any) -> bool:
    """Return True for what data sets have in place of a hidden label, if −1 is not a label."""
    return is_missing(value) or str(value) in ("-1", "-1.0")


def number_of_label(task: Task, value: Any, count: int) -> int | None:
    """Return the index of a label, from 0, given its name or its number, such as 1 or "1"; None if
    there is no such label.
    """
    names = [str(name) for name in task.labels]
    if str(value) in names:
        number = names.index(str(value))
    else:
        try:
            number = int(value) - task.first_label
        except (TypeError, ValueError, OverflowError):
            return None
        if float(value) != int(value):
            return None
    return number if 0 <= number < count else None


def number_of_class(task: Task, value: Any, where: str) -> int | None:
    """Return the index of a class, given its name or number; None if the label is withheld.

    Raises:
        UserError: for any other value.
    """
    number = number_of_label(task, value, len(task.labels))
    if number is None and not is_withheld(value):
        expected = f"expected one of {', '.join(map(str, task.labels))}"
        raise UserError(BAD_DATA, f"{where}: got the label {value!r}, {expected}")
    return number


def count_labels(task: Task) -> int:
    """Return the number of labels of a task.

    Raises:
        UserError: for fewer than two.
    """
    if len(task.labels) < 2:
        reason = f"task {task.name} has {len(task.labels)} labels, expected at least two"
        raise UserError(BAD_CONFIG, f"task.labels: {reason}; name them")
    return len(task.labels)


def words_of_labels(task: Task) -> tuple[str, ...]:
    """Return the text that is written for each label."""
    return tuple(map(str, task.label_words or task.labels))
