"""Predict the labels of a task with a model that was trained on it.

Shapes: B rows, S segments with a label, T positions, C classes.
"""

from collections.abc import Sequence
from functools import partial
from itertools import groupby

import jax
import numpy as np
from jaxtyping import Array

from t5x_lite.config import ModelDimensions
from t5x_lite.data.tasks.examples import Example, Examples, Label, readable
from t5x_lite.data.tasks.formats import Formatted, label_of, prompt_of
from t5x_lite.data.tasks.metrics import judge
from t5x_lite.data.tasks.task_data import TaskPlan, TaskSplit
from t5x_lite.data.tasks.words import Words
from t5x_lite.errors import USAGE, UserError
from t5x_lite.inference.generate import bucket_length, forget_weights, generate_ids
from t5x_lite.model import transformer
from t5x_lite.model.heads import HEADS, Params, Row
from t5x_lite.parallel.placement import to_host
from t5x_lite.training.run_directory import LoadedModel

_ROWS_PER_BATCH = 32
_LONGEST_SPAN = 30  # tokens in an answer (BERT's released code)


def predict(loaded: LoadedModel, split: TaskSplit) -> list[Label]:
    """Predict the label of each example of a split, in order.

    A prediction is None if the generated text is no label, or if two choices tie.

    Raises:
        UserError: if the model was not trained on a task.
    """
    plan = loaded.rows
    if not isinstance(plan, TaskPlan):
        raise UserError(USAGE, "predict: this model has learned no task; use finetune")
    if plan.format.head == "lm":
        return _predict_in_words(loaded, split)
    return _DECODERS[plan.format.head](split, _outputs(loaded, plan, split))


def judge_split(loaded: LoadedModel, split: TaskSplit) -> dict[str, float]:
    """Compute the metrics of a task over the examples of a split."""
    return judge(split.examples.task, split.examples.examples, predict(loaded, split))


# Tasks that a head answers.


def _outputs(loaded: LoadedModel, plan: TaskPlan, split: TaskSplit) -> list[np.ndarray]:
    """Return the head's output for each pair: [C], or [T, 2] for spans."""
    rows = split.rows
    total = rows.rows(1)
    batches = split.batches(min(_ROWS_PER_BATCH, total))
    size = batches.batch_size
    of_pair: list[np.ndarray] = [np.zeros(0)] * len(split.formatted.pairs)
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
                if plan.format.head == "span":
                    length = split.formatted.pairs.inputs.lengths[pair]
                    of_pair[pair] = outputs[place, start : start + length]
                    start += length
                else:
                    of_pair[pair] = outputs[place, slot]
    return of_pair


@partial(jax.jit, static_argnums=(0, 1))
def _head_outputs(config: ModelDimensions, name: str, params: Params, row: Row) -> Array:
    """Return the head's output for a batch of rows: [B, S, C], or [B, T, 2] for spans."""
    head = HEADS[name]
    hidden = head.read(transformer.apply(config, params, row), row)
    assert head.outputs is not None
    return head.outputs(config, params, hidden, row)


def _classes(split: TaskSplit, outputs: list[np.ndarray]) -> list[Label]:
    """Return the likeliest class of each example."""
    return [int(logits.argmax()) for logits in outputs]


def _numbers(split: TaskSplit, outputs: list[np.ndarray]) -> list[Label]:
    """Return the predicted number of each example."""
    return [float(value[0]) for value in outputs]


def _choices(split: TaskSplit, outputs: list[np.ndarray]) -> list[Label]:
    """Return the best answer to each question; None for a tie, which then counts as wrong."""
    predictions = []
    pairs = zip(split.formatted.example_of_pair.tolist(), outputs, strict=True)
    for _, group in groupby(pairs, key=lambda pair: pair[0]):
        predictions.append(likeliest([float(score[0]) for _, score in group]))
    return predictions


def likeliest(scores: Sequence[float]) -> int | None:
    """Return the index of the highest score; None if two scores share it.

    >>> likeliest([0.1, 0.7, 0.2]), likeliest([0.5, 0.5])
    (1, None)
    """
    best = max(scores)
    return None if list(scores).count(best) > 1 else list(scores).index(best)


def _spans(split: TaskSplit, outputs: list[np.ndarray]) -> list[Label]:
    """Return the text of the best span of each example, over all of its windows.

    A span's score is the sum of the logits at its first and its last position.
    """
    best: dict[int, tuple[float, str]] = {}
    formatted = split.formatted
    triples = zip(formatted.example_of_pair.tolist(), formatted.words_of_pair, outputs, strict=True)
    for example, words, logits in triples:
        score, text = _best_span(words, logits)
        if example not in best or score > best[example][0]:
            best[example] = score, text
    return [(best[number][1],) for number in range(len(split.examples))]


def _best_span(words: Words, logits: np.ndarray) -> tuple[float, str]:
    """Return the score and the text of the best span in one window."""
    # The question and the special tokens belong to no word of the text.
    real = np.flatnonzero(words.word_of_id >= 0)
    if not len(real):
        return -np.inf, ""
    first, last = int(real[0]), int(real[-1]) + 1
    starts, ends = logits[first:last, 0], logits[first:last, 1]
    # Score all pairs of a start and an end, up to the longest span.
    scores = starts[:, None] + ends[None, :]
    length = np.arange(len(ends))[None, :] - np.arange(len(starts))[:, None]
    scores = np.where((length >= 0) & (length < _LONGEST_SPAN), scores, -np.inf)
    start, end = np.unravel_index(int(scores.argmax()), scores.shape)
    return float(scores[start, end]), words.text_of(first + int(start), first + int(end))


_DECODERS = {"class": _classes, "number": _numbers, "choice": _choices, "span": _spans}


# Tasks that are answered in words.


def _predict_in_words(loaded: LoadedModel, split: TaskSplit) -> list[Label]:
    """Generate the answers, and read each as a label."""
    texts = generate_answers(loaded, split.formatted)
    task = split.examples.task
    return [
        label_of(task, text, example)
        for text, example in zip(texts, split.examples.examples, strict=True)
    ]


def generate_answers(loaded: LoadedModel, formatted: Formatted) -> list[str]:
    """Return the text that the model generates greedily after the inputs of each pair."""
    inputs, room = formatted.pairs.inputs.arrays(), formatted.answer_room
    # Batches hold inputs of similar length. All have the same number of rows, the last one too, so
    # that each length is compiled once.
    order = sorted(range(len(inputs)), key=lambda number: bucket_length(len(inputs[number])))
    texts = [""] * len(inputs)
    for start in range(0, len(order), _ROWS_PER_BATCH):
        numbers = order[start : start + _ROWS_PER_BATCH]
        filled = numbers + numbers[:1] * (_ROWS_PER_BATCH - len(numbers))
        generated = generate_ids(loaded, [inputs[number] for number in filled], room)
        for number, ids in zip(numbers, generated, strict=False):
            texts[number] = loaded.tokenizer.decode(ids)
    forget_weights()  # free the memory, since training may go on
    return texts


# Predictions as data.


def as_records(examples: Examples, predictions: Sequence[Label]) -> list[dict]:
    """Return a record of each example: its id, text, prediction and label (None if it has none)."""
    task = examples.task

    def text_of(example: Example) -> str:
        if not example.text and not example.choices:
            return prompt_of(task, example)
        return " | ".join(filter(None, (example.text, example.text_pair, *example.choices)))

    return [
        {
            "id": example.id,
            "text": text_of(example),
            "prediction": readable(task, prediction, example),
            "label": readable(task, example.label, example),
        }
        for example, prediction in zip(examples.examples, predictions, strict=True)
    ]
