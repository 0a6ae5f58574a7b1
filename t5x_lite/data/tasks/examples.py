"""Examples: the records of a task's splits, checked, with their fields as named by the task."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from t5x_lite.config import Task
from t5x_lite.data.tasks.preprocess import PREPARE
from t5x_lite.data.tasks.records import BadLines, Record, has_splits, lookup, read_split
from t5x_lite.errors import BAD_DATA, UserError, nearest

Label = int | float | str | tuple[str, ...] | None


@dataclass(frozen=True)
class Example:
    """One example of a task.

    Attributes:
        id: names the example in predictions.
        label: depends on the kind of task. classify, choose: a number from 0. regress: a number.
            generate, extract, complete: the texts that count as right. prefer: 0, the better
            sentence. None: no label, as in a test split.
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


@dataclass(frozen=True)
class Examples:
    """The examples of one split."""

    task: Task
    split: str  # name of the split in the source
    examples: tuple[Example, ...]
    skipped: int = 0  # bad lines that were skipped

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def has_labels(self) -> bool:
        """True if every example has a label, so that predictions can be judged."""
        return all(example.label is not None for example in self.examples)

    @property
    def fingerprint(self) -> str:
        """Hash of the examples. Two runs with the same hash read the same examples."""
        digest = hashlib.sha256()
        for example in self.examples:
            parts = [example.id, example.label, example.choices, example.group, example.record]
            digest.update(json.dumps(parts, default=str).encode())
        return digest.hexdigest()[:16]


def readable(task: Task, label: Label, example: Example) -> Any:
    """Return a label in readable form: its name, a number, an answer or a text."""
    if label is None or isinstance(label, float):
        return label
    if isinstance(label, tuple):
        return label[0] if len(label) == 1 else list(label)
    if task.kind == "classify":
        return str(task.labels[int(label)])
    return example.choices[int(label)]


def load_split(task: Task, split: str, limit: int = 0) -> Examples:
    """Load the examples of a split: "train", "validation" or "test".

    If the source has no validation split, a fraction of the training examples is held out, by a
    hash of each example.

    Args:
        limit: load only this many examples, the first ones; 0: all.

    Raises:
        UserError: for a split that is missing or empty, a missing field, or a label that the task
            does not have.
    """
    has_all = has_splits(task.source)
    is_divided = split != "test" and bool(task.train) and not (has_all and task.validation)
    name = task.train if is_divided else getattr(task, split)
    if not name or (split == "test" and not has_all):
        raise UserError(
            BAD_DATA, f"task {task.name}: has no {split} split; set task.{split} to its name"
        )

    bad_lines = BadLines(task.bad_lines)
    labels = _LabelReader(task)
    examples = []
    for number, record in enumerate(_records(task, name, bad_lines)):
        if is_divided and _is_held_out(record, task.validation_fraction) != (split == "validation"):
            continue
        examples.append(_example(task, record, number, name, labels))
        if limit and len(examples) == limit:
            break
    if not examples:
        raise UserError(
            BAD_DATA, f"task {task.name}: its {split} split, {name}, is empty; give some examples"
        )
    return Examples(task, name, tuple(examples), bad_lines.skipped)


def _records(task: Task, split: str, bad_lines: BadLines) -> Iterator[Record]:
    """Yield the records of a split, as changed by task.prepare."""
    records = read_split(task, split, bad_lines)
    if not task.prepare:
        yield from records
        return
    if task.prepare not in PREPARE:
        hint = nearest(task.prepare, PREPARE)
        raise UserError(BAD_DATA, f"task.prepare={task.prepare}: no such function; {hint}")
    prepare = PREPARE[task.prepare]
    for number, record in enumerate(records):
        try:
            yield from prepare(record)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            reason = f"{task.prepare} cannot read it ({type(error).__name__}: {error})"
            raise UserError(BAD_DATA, f"task {task.name}, example {number}: {reason}") from error


def _is_held_out(record: Record, share: float) -> bool:
    """Return True for a fraction `share` of all records, chosen by their hash."""
    content = json.dumps(record, sort_keys=True, default=str).encode()
    number = int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
    return number < share * 2**64


def _example(
    task: Task, record: Record, number: int, split: str, labels: "_LabelReader"
) -> Example:
    """Make an example from a record, with its fields as named by the task."""
    where = f"task {task.name}, example {number} of {split}"

    def text_of(field: str) -> str:
        value = lookup(record, field, where)
        return "" if value is None else str(value)

    # The prompt may name everything that is read. Then no column has to be called "text".
    is_in_prompt = task.text == "text" and "text" not in record and bool(task.prompt)
    choices: tuple[str, ...] = ()
    if task.choices:
        values = [lookup(record, field, where) for field in task.choices]
        if len(values) == 1 and isinstance(values[0], list):
            values = values[0]
        choices = tuple(str(value) for value in values)
        if len(choices) < 2:
            raise UserError(BAD_DATA, f"{where}: has {len(choices)} answers, expected at least two")
    return Example(
        # GLUE's own files have no column of ids, so the number of the example is its id.
        id=record.get(task.id, number),
        text=text_of(task.text) if task.text and not is_in_prompt else "",
        text_pair=text_of(task.text_pair) if task.text_pair else "",
        label=labels.read(record, choices, where),
        choices=choices,
        group=lookup(record, task.group, where) if task.group else None,
        record=record,
    )


class _LabelReader:
    """Reads the labels of a split."""

    def __init__(self, task: Task):
        self._task = task
        self._numbers = {name: number for number, name in enumerate(task.labels)}

    def read(self, record: Record, choices: tuple[str, ...], where: str) -> Label:
        """Return the label as in `Example.label`."""
        task = self._task
        if task.kind == "prefer":
            return 0  # the better sentence comes first
        if task.label not in record and not {".", "{"} & set(task.label):
            return None
        value = lookup(record, task.label, where)
        return _READERS[task.kind](self, value, choices, where)

    def of_class(self, value: Any, choices: tuple[str, ...], where: str) -> int | None:
        """Return the number of a class, from its name or number; None if the label is withheld."""
        if _is_withheld(value) and str(value) not in self._numbers:
            return None
        number = self._number(value, len(self._task.labels))
        if number is None and not _is_withheld(value):
            expected = f"expected one of {', '.join(map(str, self._task.labels))}"
            raise UserError(BAD_DATA, f"{where}: got the label {value!r}, {expected}")
        return number

    def of_choice(self, value: Any, choices: tuple[str, ...], where: str) -> int | None:
        """Return the number of the right answer, from a label name (a letter), its number, or its
        text; None if the label is withheld.
        """
        # Some answers are numbers. So a text is first looked up among the answers, unless it is a
        # label name.
        if isinstance(value, str) and value in choices and value not in self._numbers:
            return choices.index(value)
        number = self._number(value, len(choices))
        if number is None and not _is_withheld(value):
            expected = f"expected the number or the text of one of its {len(choices)} answers"
            raise UserError(BAD_DATA, f"{where}: got the answer {value!r}, {expected}")
        return number

    def _number(self, value: Any, count: int) -> int | None:
        """Return the number, from 0, that a label's name or number stands for, such as 1 or "1";
        None if there is no such label.
        """
        number = self._numbers.get(str(value))
        if number is None:
            try:
                number = int(value) - self._task.first_label
            except (TypeError, ValueError):
                return None
            if float(value) != int(value):
                return None
        return number if 0 <= number < count else None

    def of_number(self, value: Any, choices: tuple[str, ...], where: str) -> float | None:
        """Return a finite number; None if the label is withheld."""
        if _is_withheld(value):
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if not math.isfinite(number):
            raise UserError(BAD_DATA, f"{where}: got the label {value!r}, expected a number")
        return number

    def of_text(self, value: Any, choices: tuple[str, ...], where: str) -> tuple[str, ...] | None:
        """Return the texts that count as right; None if there are none."""
        if value is None:
            return None
        texts = value if isinstance(value, list) else [value]
        return tuple(map(str, texts)) or None


def _is_withheld(value: Any) -> bool:
    """Return True for the placeholders that data sets use for hidden labels."""
    return value is None or str(value) in ("", "-1", "-1.0")


_READERS = {
    "classify": _LabelReader.of_class,
    "regress": _LabelReader.of_number,
    "choose": _LabelReader.of_choice,
    "generate": _LabelReader.of_text,
    "extract": _LabelReader.of_text,
    "complete": _LabelReader.of_text,
}


def with_labels_of(task: Task) -> Task:
    """Return the task with labels. If a classification task names none, they are the labels that
    occur in its training examples, sorted.
    """
    if task.kind != "classify" or task.labels:
        return task
    counts: Counter[str] = Counter()
    split = task.train or task.validation
    records = _records(task, split, BadLines(task.bad_lines))
    for number, record in enumerate(records):
        value = lookup(record, task.label, f"task {task.name}, example {number}")
        if not _is_withheld(value):
            counts[str(value)] += 1
    if not 2 <= len(counts) <= 1000:
        reason = f"the column {task.label} holds {len(counts)} different labels"
        raise UserError(BAD_DATA, f"task {task.name}: {reason}; name them in task.labels")
    return replace(task, labels=tuple(sorted(counts)))
