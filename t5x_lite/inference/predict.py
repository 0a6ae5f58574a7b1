"""Predict the labels of a task with a model that was trained on it.

Shapes: B rows, S segments with a label, T positions, C classes.
"""

from collections.abc import Sequence
from functools import cache, partial

import jax
import numpy as np
from jaxtyping import Array

from t5x_lite.config import ModelDimensions
from t5x_lite.data.tasks.examples import Examples
from t5x_lite.data.tasks.kinds.kind import Example, Formatted, Label
from t5x_lite.data.tasks.kinds.table import kind_of
from t5x_lite.data.tasks.metrics import judge
from t5x_lite.data.tasks.task_data import TaskPlan, TaskSplit
from t5x_lite.errors import USAGE, UserError
from t5x_lite.inference.buckets import bucket_length
from t5x_lite.inference.generate import forget_weights, generate_ids
from t5x_lite.model import transformer
from t5x_lite.model.heads import HEADS, Params, Row
from t5x_lite.parallel.placement import to_host
from t5x_lite.training.loaded_model import LoadedModel

_ROWS_PER_BATCH = 32


def predict(loaded: LoadedModel, split: TaskSplit) -> list[Label]:
    """Predict the label of each example of a split, in order.

    A prediction is None if the generated text is not a label, or if two choices tie.

    Raises:
        UserError: if the model was not trained on a task.
    """
    plan = loaded.rows
    if not isinstance(plan, TaskPlan):
        raise UserError(USAGE, "predict: this model was not trained on a task; use finetune")
    if plan.format.head == "lm":
        return _predict_in_words(loaded, split)
    outputs = _outputs(loaded, plan, split)
    examples = split.examples.examples
    return kind_of(plan.task).predict(plan.task, examples, split.formatted, outputs)


def judge_split(loaded: LoadedModel, split: TaskSplit) -> dict[str, float]:
    """Compute the metrics of a task over the examples of a split."""
    return judge(split.examples.task, split.examples.examples, predict(loaded, split))


# Tasks answered by a head.


def _outputs(loaded: LoadedModel, plan: TaskPlan, split: TaskSplit) -> list[np.ndarray]:
    """Return the head's output for each pair: [C], or [n, C] if the head reads n positions."""
    rows = split.rows
    total = rows.rows(1)
    batches = split.batches(min(_ROWS_PER_BATCH, total))
    size = batches.batch_size
    pairs = split.formatted.pairs
    of_pair: list[np.ndarray] = [np.zeros(0)] * len(pairs)
    lengths = {"position": pairs.inputs.lengths, "scored": pairs.targets.lengths}
    per = HEADS[plan.format.head].outputs_per
    for first in range(0, total, size):
        indices = range(first, first + size)
        row = batches.rows(indices)
        with loaded.within():
            outputs = _head_outputs(loaded.model, plan.format.head, loaded.params, row)
            outputs = to_host(outputs).astype(np.float32)
        # A row holds several pairs, in the order of its segments.
        for place, index in enumerate(indices):
            if index >= total:
                break
            start = 0
            for slot, pair in enumerate(rows.pairs_of_row(index)):
                if per == "label":
                    of_pair[pair] = outputs[place, slot]
                else:
                    length = lengths[per][pair]
                    of_pair[pair] = outputs[place, start : start + length]
                    start += length
    return of_pair


@partial(jax.jit, static_argnums=(0, 1))
def _head_outputs(config: ModelDimensions, name: str, params: Params, row: Row) -> Array:
    """Return the head's output for a batch of rows: [B, S, C], [B, T, C] or [B, K, C]."""
    head = HEADS[name]
    hidden = head.read(transformer.apply(config, params, row), row)
    assert head.outputs is not None
    return head.outputs(config, params, hidden, row)


# Tasks answered in words.


def _predict_in_words(loaded: LoadedModel, split: TaskSplit) -> list[Label]:
    """Generate the answers and parse each as a label."""
    texts = generate_answers(loaded, split.formatted)
    task = split.examples.task
    kind, as_written = kind_of(task), cache(loaded.tokenizer.as_written)
    return [
        kind.label_of(task, text.strip(), example, as_written)
        for text, example in zip(texts, split.examples.examples, strict=True)
    ]


def generate_answers(loaded: LoadedModel, formatted: Formatted) -> list[str]:
    """Greedily generate a text after the inputs of each pair."""
    inputs, room = formatted.pairs.inputs.arrays(), formatted.answer_room
    # Batches hold inputs of similar length. All batches, including the last, have the same number
    # of rows, so that each length is compiled once.
    order = sorted(range(len(inputs)), key=lambda number: bucket_length(len(inputs[number])))
    texts = [""] * len(inputs)
    for start in range(0, len(order), _ROWS_PER_BATCH):
        numbers = order[start : start + _ROWS_PER_BATCH]
        filled = numbers + numbers[:1] * (_ROWS_PER_BATCH - len(numbers))
        generated = generate_ids(loaded, [inputs[number] for number in filled], room)
        for number, ids in zip(numbers, generated, strict=False):
            texts[number] = loaded.tokenizer.decode(ids)
    forget_weights()  # free the memory, because training may continue
    return texts


# Predictions as data.


def as_records(examples: Examples, predictions: Sequence[Label]) -> list[dict]:
    """Return one record per example: its id, text, prediction and label (None if it has none)."""
    task = examples.task
    kind = kind_of(task)

    def text_of(example: Example) -> str:
        if not example.text and not example.choices:
            return kind.prompt(task, example)
        return " | ".join(filter(None, (example.text, example.text_pair, *example.choices)))

    return [
        {
            "id": example.id,
            "text": text_of(example),
            "prediction": kind.readable(task, prediction, example),
            "label": kind.readable(task, example.label, example),
        }
        for example, prediction in zip(examples.examples, predictions, strict=True)
    ]
