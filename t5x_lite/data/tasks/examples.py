"""Examples of a task: the records of its splits, checked, with the fields that the task names."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from t5x_lite.config import Task
from t5x_lite.config.named import find_named
from t5x_lite.data.tasks.kinds.kind import Example, Kind
from t5x_lite.data.tasks.kinds.table import kind_of
from t5x_lite.data.tasks.preprocess import PREPARE
from t5x_lite.data.tasks.records import bad_lines_of, has_splits, lookup, read_split
from t5x_lite.data.text.records import BadLines, Record
from t5x_lite.errors import BAD_DATA, UserError


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

    bad_lines = bad_lines_of(task)
    kind = kind_of(task)
    examples: list[Example] = []
    # If questions may have no answer, an empty answer is a label. Answers then count as hidden only
    # in a test split, and only if all of them are empty.
    are_hidden = split == "test" or not task.no_answer
    for number, record in enumerate(_records(task, name, bad_lines)):
        if is_divided and _is_held_out(record, task.validation_fraction) != (split == "validation"):
            continue
        # A record may hold several examples, which stay in the same split.
        where = f"task {task.name}, example {number} of {name}"
        for part, one in enumerate(kind.records(task, record, where)):
            example = _example(task, kind, one, number, where)
            if one is not record:
                example = replace(example, id=f"{example.id}/{part}")
            examples.append(example)
            # Labels are hidden only if all labels of the split are placeholders. Until one is not,
            # keep reading, even beyond the limit.
            are_hidden = are_hidden and kind.is_placeholder(example.label)
        if limit and len(examples) >= limit and not are_hidden:
            break
    if not examples:
        raise UserError(
            BAD_DATA, f"task {task.name}: its {split} split, {name}, is empty; give some examples"
        )
    if are_hidden:
        examples = [replace(example, label=None) for example in examples]
    return Examples(task, name, tuple(examples[: limit or None]), bad_lines.skipped)


def _records(task: Task, split: str, bad_lines: BadLines) -> Iterator[Record]:
    """Yield the records of a split, as changed by task.prepare."""
    records = read_split(task, split, bad_lines)
    if not task.prepare:
        yield from records
        return
    prepare = find_named(task.prepare, PREPARE, "task.prepare", "function")
    for number, record in enumerate(records):
        try:
            yield from prepare(record)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            reason = f"{task.prepare} cannot read it ({type(error).__name__}: {error})"
            raise UserError(BAD_DATA, f"task {task.name}, example {number}: {reason}") from error


def as_text(record: Record) -> str:
    """Return a record as text. Equal records give equal texts, even if they contain NaN."""
    return json.dumps(record, sort_keys=True, default=str)


def _is_held_out(record: Record, share: float) -> bool:
    """Return True for a fraction `share` of all records, chosen by their hash."""
    number = int.from_bytes(hashlib.sha256(as_text(record).encode()).digest()[:8], "big")
    return number < share * 2**64


def _example(task: Task, kind: Kind, record: Record, number: int, where: str) -> Example:
    """Make an example from a record, with the fields that the task names."""

    def text_of(field: str) -> str:
        return kind.read_text(lookup(record, field, where))

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
    example = Example(
        # GLUE's own files have no id column, so the number of the record is the default.
        id=record.get(task.id, number),
        text=text_of(task.text) if task.text and not is_in_prompt else "",
        text_pair=text_of(task.text_pair) if task.text_pair else "",
        label=kind.read_label(task, record, choices, where),
        choices=choices,
        group=lookup(record, task.group, where) if task.group else None,
        record=record,
    )
    kind.check_example(example, where)
    return example


def with_labels_of(task: Task) -> Task:
    """Return the task with its labels. If it names none, they are the label names that occur in its
    training examples, sorted.
    """
    kind = kind_of(task)
    if task.labels or not kind.names_labels:
        return task
    counts: Counter[str] = Counter()
    split = task.train or task.validation
    records = _records(task, split, bad_lines_of(task))
    for number, record in enumerate(records):
        value = lookup(record, task.label, f"task {task.name}, example {number}")
        counts.update(kind.label_names(value))
    if {"-1", "0"} <= counts.keys():
        reason = f"the column {task.label} holds -1, which may be a label or hide one"
        fix = "name the labels in task.labels, and set task.first_label=-1 if it is one"
        raise UserError(BAD_DATA, f"task {task.name}: {reason}; {fix}")
    if not 2 <= len(counts) <= 1000:
        reason = f"the column {task.label} holds {len(counts)} different labels"
        raise UserError(BAD_DATA, f"task {task.name}: {reason}; name them in task.labels")
    return replace(task, labels=tuple(sorted(counts)))
