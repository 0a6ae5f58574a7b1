"""The rows of a task: what a run learns instead of an objective."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from t5x_lite.config import Architecture, Lengths, Task
from t5x_lite.config.grammar import AllowedCode
from t5x_lite.data.rows.batches import Batches
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.data.rows.packing import PackedExamples
from t5x_lite.data.tasks.examples import Examples, load_split
from t5x_lite.data.tasks.formats import Format, Formatted, find_format, with_prompt
from t5x_lite.data.tasks.metrics import check_metrics
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_CONFIG, BAD_DATA, UserError, nearest

# A row has a slot for a label every so many positions: few examples are shorter.
_POSITIONS_PER_LABEL = 8
_SHORTEST = 8  # positions for a text
_MOST_ANSWERS = 32  # to a question


@dataclass(frozen=True)
class TaskPlan:
    """What the rows of a run on a task are: the counterpart of plan.RowPlan."""

    task: Task
    format: Format
    shape: RowShape
    examples_per_row: int  # at most; 0: as many as there is room for
    prompt_length: int = 0  # embeddings before each text that are no token's

    # As RowPlan has them.
    packed = True
    aligned = False
    masked = False
    has_sentence_pairs = False
    scores_whole_text = False
    uses_sentinels = False
    mode_of_sentinels = ""
    inputs_end_in_eos = True

    @property
    def modules(self) -> set[str]:
        """The module of a source of the user's own."""
        scheme, _, function = self.task.source.partition(":")
        return {function.rpartition(".")[0]} if scheme == "python" else set()

    def __str__(self) -> str:
        return self.task.name


def plan_task(
    task: Task,
    architecture: Architecture,
    lengths: Lengths,
    examples_per_row: int = 0,
    prompt_length: int = 0,
) -> TaskPlan:
    """Plan the rows of a task; needs no data and no tokenizer.

    Raises:
        UserError: for a task that the architecture has no way to learn.
    """
    way = find_format(task, architecture)
    length = lengths.sequence_length
    check_metrics(task)
    labels = max(length // _POSITIONS_PER_LABEL, 1) if way.head != "lm" else 0
    if way.head == "choice":
        labels = max(labels, _MOST_ANSWERS)
    if architecture == "encoder":
        shape = RowShape(encoder=length, labels=labels)
    elif architecture == "encoder_decoder":
        shape = RowShape(encoder=lengths.inputs, decoder=lengths.targets)
    else:
        prefix = architecture == "prefix_decoder"
        shape = RowShape(decoder=length, bidirectional_prefix=prefix, labels=labels)
    room = (shape.encoder or shape.decoder) - prompt_length
    if room < _SHORTEST:
        reason = f"have {room} positions for a text, expected at least {_SHORTEST}"
        raise UserError(BAD_CONFIG, f"data.lengths: rows of task {task.name} {reason}; raise them")
    return TaskPlan(task, way, shape, examples_per_row, prompt_length)


@dataclass(frozen=True)
class TaskSplit:
    """The examples of a split, as an architecture reads them."""

    examples: Examples
    formatted: Formatted
    rows: PackedExamples

    def batches(self, batch_size: int) -> Batches:
        """Its rows as batches."""
        return Batches((self.rows,), np.zeros(1, np.int64), batch_size)

    @property
    def manifest(self) -> dict[str, Any]:
        """What is recorded of it."""
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
    """The examples of a task, as a run reads them: a RunData like text under its objectives."""

    plan: TaskPlan
    tokenizer: Tokenizer
    batch_size: int
    seed: int
    allowed: AllowedCode = None

    @cached_property
    def train(self) -> TaskSplit:
        """The training examples, each epoch in another order."""
        return self.split("train")

    @cached_property
    def validation(self) -> TaskSplit:
        """The examples that checkpoints and settings are chosen by."""
        return self.split("validation")

    def split(self, name: str, limit: int = 0) -> TaskSplit:
        """The examples of a split: "train", "validation" or "test".

        Args:
            limit: the first so many alone; 0: all.

        Raises:
            UserError: where it is missing or empty; where training or validation examples have no
                labels.
        """
        plan, task = self.plan, self.plan.task
        examples = load_split(task, name, self.allowed, limit)
        if not examples.has_labels and name != "test":
            columns = [str(column) for column in examples.examples[0].record]
            reason = f"an example of {examples.split} has no label in the field {task.label!r}"
            hint = nearest(task.label, columns)
            if task.label in columns:
                hint = "only a test split may lack labels"
            raise UserError(BAD_DATA, f"task {task.name}: {reason}; {hint}")
        shape, prompt = plan.shape, plan.prompt_length
        text_shape = replace(
            shape,
            encoder=max(shape.encoder - prompt, 0),
            decoder=shape.decoder if shape.encoder else shape.decoder - prompt,
        )
        formatted = plan.format.function(task, examples.examples, self.tokenizer, text_shape)
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

    @property
    def manifest(self) -> dict[str, Any]:
        """What the run directory records: corpus.json."""
        return {
            "task": self.plan.task.name,
            "tokenizer": self.tokenizer.fingerprint,
            "train": self.train.manifest,
            "validation": self.validation.manifest,
        }

    def batches(self, split: str) -> Batches:
        """The batches of "train" or "validation"."""
        of_split = self.train if split == "train" else self.validation
        return of_split.batches(self.batch_size)
