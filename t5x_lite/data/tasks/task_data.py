"""Rows of a task, which a run learns instead of an objective."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from t5x_lite.config import Architecture, Lengths, Task
from t5x_lite.data.rows.batches import Batches
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.data.rows.packing import PackedExamples
from t5x_lite.data.tasks.examples import Examples, load_split
from t5x_lite.data.tasks.formats import with_prompt
from t5x_lite.data.tasks.kinds.kind import Format, Formatted
from t5x_lite.data.tasks.kinds.table import find_format, kind_of
from t5x_lite.data.tasks.metrics import check_metrics
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_CONFIG, BAD_DATA, UserError, nearest

_SHORTEST = 8  # minimum number of positions for a text


@dataclass(frozen=True)
class TaskPlan:
    """The rows of a run on a task: the counterpart of rows.row_plan.RowPlan."""

    task: Task
    format: Format
    shape: RowShape
    examples_per_row: int  # maximum; 0: as many as fit
    prompt_length: int = 0  # number of embeddings in the soft prompt before each text

    # The same properties as RowPlan's.
    packed = True
    aligned = False
    masked = False
    has_sentence_pairs = False
    scores_whole_text = False
    bounds_whole_text = False
    continues_text = True
    uses_sentinels = False
    mode_of_sentinels = ""
    inputs_end_in_eos = True
    loss = "heads"

    def __str__(self) -> str:
        return self.task.name


def plan_task(
    task: Task,
    architecture: Architecture,
    lengths: Lengths,
    examples_per_row: int = 0,
    prompt_length: int = 0,
) -> TaskPlan:
    """Plan the rows of a task. This needs no data and no tokenizer.

    Raises:
        UserError: for a task that the architecture cannot learn, a metric that does not apply, or
            rows that are too short.
    """
    way, kind = find_format(task, architecture), kind_of(task)
    length = lengths.sequence_length
    check_metrics(task)
    # A head that compares several readings of an example needs all of them in one row.
    row_length = length
    of_head: dict[str, Any] = {}
    if way.head != "lm":
        row_length = length * kind.most_readings(task)
        of_head = {"segment": length, **kind.slots(row_length)}
    if architecture == "encoder":
        shape = RowShape(encoder=row_length, **of_head)
    elif architecture == "encoder_decoder":
        shape = RowShape(encoder=lengths.inputs, decoder=lengths.targets)
    else:
        prefix = architecture == "prefix_decoder"
        shape = RowShape(decoder=row_length, bidirectional_prefix=prefix, **of_head)
    # A soft prompt takes positions away from the text.
    room = (shape.segment or shape.encoder or shape.decoder) - prompt_length
    if room < _SHORTEST:
        reason = f"have {room} positions for a text, expected at least {_SHORTEST}"
        raise UserError(BAD_CONFIG, f"data.lengths: rows of task {task.name} {reason}; raise them")
    return TaskPlan(task, way, shape, examples_per_row, prompt_length)


@dataclass(frozen=True)
class TaskSplit:
    """Examples of a split, as an architecture reads them."""

    examples: Examples
    formatted: Formatted
    rows: PackedExamples

    def batches(self, batch_size: int) -> Batches:
        """Return the rows in batches."""
        return Batches((self.rows,), np.zeros(1, np.int64), batch_size)

    @property
    def manifest(self) -> dict[str, Any]:
        """Facts about this split that a run records."""
        return {
            "split": self.examples.split,
            "examples": len(self.examples),
            "fingerprint": self.examples.fingerprint,
            "truncated": self.formatted.truncated,
            "skipped_lines": self.examples.skipped,
        }

    def __str__(self) -> str:
        counts = f"{len(self.examples):,} examples in {self.rows.rows(1):,} rows"
        if self.formatted.truncated:
            counts += f", {self.formatted.truncated:,} of them truncated"
        if self.examples.skipped:
            counts += f", {self.examples.skipped:,} bad lines skipped"
        return f"{self.examples.split}: {counts}"


@dataclass(frozen=True)
class TaskData:
    """Examples of a task, as a run reads them: a RunData, like batches.TextData."""

    plan: TaskPlan
    tokenizer: Tokenizer
    batch_size: int
    seed: int

    @cached_property
    def train(self) -> TaskSplit:
        """Training examples, in a new order in each epoch."""
        return self.split("train")

    @cached_property
    def validation(self) -> TaskSplit:
        """Examples for choosing checkpoints and settings."""
        return self.split("validation")

    def split(self, name: str, limit: int = 0) -> TaskSplit:
        """Load the examples of a split: "train", "validation" or "test".

        Args:
            limit: load only this many examples, the first ones; 0: all.

        Raises:
            UserError: if the split is missing or empty, or if a training or validation example has
                no label.
        """
        plan, task = self.plan, self.plan.task
        examples = load_split(task, name, limit)
        if not examples.has_labels and name != "test":
            columns = [str(column) for column in examples.examples[0].record]
            reason = f"an example of {examples.split} has no label in the field {task.label!r}"
            hint = nearest(task.label, columns)
            if task.label in columns:
                hint = kind_of(task).if_no_label
            raise UserError(BAD_DATA, f"task {task.name}: {reason}; {hint}")
        if plan.format.head == "lm":
            self._check_answers_can_be_told_apart()
        shape, prompt = plan.shape, plan.prompt_length
        # The text gets the positions that the soft prompt leaves.
        text_shape = replace(
            shape,
            encoder=max(shape.encoder - prompt, 0),
            decoder=shape.decoder if shape.encoder else shape.decoder - prompt,
            segment=max(shape.segment - prompt, 0),
            prompt=prompt,
        )
        formatted = plan.format.function(
            kind_of(task), task, examples.examples, self.tokenizer, text_shape
        )
        if prompt:
            formatted = with_prompt(formatted, prompt)
        rows = PackedExamples(
            formatted.pairs,
            self.tokenizer.vocabulary,
            plan.shape,
            self.seed,
            endless=name == "train",
            examples_per_row=plan.examples_per_row,
        )
        return TaskSplit(examples, formatted, rows)

    def _check_answers_can_be_told_apart(self) -> None:
        """Reject answers that the vocabulary has no tokens for, or that it writes alike."""
        task, tokenizer = self.plan.task, self.tokenizer
        written: dict[str, str] = {}
        for answer in kind_of(task).closed_answers(task):
            form = tokenizer.as_written(answer)
            reason = ""
            if not tokenizer.vocabulary.is_ordinary(tokenizer.encode(answer)).all():
                reason = f"has no tokens for {answer!r}"
            elif form in written:
                reason = f"writes {written[form]!r} and {answer!r} alike, {form!r}"
            if reason:
                fix = "name other words in task.label_words, or take another tokenizer"
                raise UserError(BAD_CONFIG, f"task {task.name}: the vocabulary {reason}; {fix}")
            written[form] = answer

    @property
    def manifest(self) -> dict[str, Any]:
        """Facts that the run directory keeps in corpus.json."""
        return {
            "task": self.plan.task.name,
            "tokenizer": self.tokenizer.fingerprint,
            "train": self.train.manifest,
            "validation": self.validation.manifest,
        }

    def batches(self, split: str) -> Batches:
        """Return the batches of "train" or "validation"."""
        of_split = self.train if split == "train" else self.validation
        return of_split.batches(self.batch_size)
