"""Extract: which span of the text?"""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from t5x_lite.config import Task
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.data.tasks.answers import exact_match, token_f1
from t5x_lite.data.tasks.formats import IN_WORDS, PairsOfTask
from t5x_lite.data.tasks.kinds.kind import (
    Example,
    Format,
    Formatted,
    Judgement,
    Kind,
    Label,
    OfTexts,
)
from t5x_lite.data.tasks.records import lookup
from t5x_lite.data.tasks.words import Words, split_words
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_DATA, UserError

_LONGEST_SPAN = 30  # tokens in an answer (BERT's released code)


def bert_span(
    kind: Kind, task: Task, examples: Sequence[Example], tokenizer: Tokenizer, shape: RowShape
) -> Formatted:
    """Format examples as `[CLS] question [SEP] text [SEP]`, with the first and last position of the
    answer (Devlin et al., 2019, §4.2).

    A text that is too long is read in windows that overlap by half. If a window does not contain
    the answer, both positions are that of [CLS]. The question gets at most half of the row.
    """
    vocabulary = tokenizer.vocabulary
    cls, sep = vocabulary["[CLS]"], vocabulary["[SEP]"]
    rows = PairsOfTask()
    for number, example in enumerate(examples):
        question = tokenizer.encode(example.text)
        question_room = shape.encoder // 2 - 2
        cut_question = question[:question_room]
        words = split_words(example.text_pair, tokenizer)
        first_word, last_word = _answer_words(task, example, words)
        room = shape.encoder - 3 - len(cut_question)
        offset = len(cut_question) + 2  # [CLS] question [SEP]

        # Make a pair of each window of the text.
        start = 0
        while True:
            window = words.window(start, room)
            first, last = window.positions_of(first_word, last_word)
            is_inside = first >= 0 and last >= 0
            span = (offset + first, offset + last) if is_inside else (0, 0)
            ids = [[cls], cut_question, [sep], window.ids, [sep]]
            types = [np.zeros(offset), np.ones(len(window.ids) + 1)]
            rows.add(number, ids, types, np.array(span), len(cut_question) < len(question))
            rows.words.append(window.behind(offset))
            if start + room >= len(words.ids):
                break
            start += max(room // 2, 1)
    return rows.formatted(position_of=lambda length: 0, share_a_row=False)


def _answer_words(task: Task, example: Example, words: Words) -> tuple[int, int]:
    """Return the first and last word of the first right answer; −1, −1 if there is none.

    Raises:
        UserError: if the answer is not at the position that the record gives.
    """
    if example.label is None:
        return -1, -1
    assert isinstance(example.label, tuple)
    text, answer = example.text_pair, str(example.label[0])
    # Search for the answer, unless the record gives its position.
    start = text.find(answer)
    if task.answer_start and answer:
        where = f"task {task.name}, example {example.id}"
        starts = lookup(example.record, task.answer_start, where)
        first = str(starts[0] if isinstance(starts, list) and starts else starts)
        if not first.lstrip("-").isdecimal():
            reason = f"got {task.answer_start}={starts!r}, expected the place of each answer"
            raise UserError(BAD_DATA, f"{where}: {reason}, a number")
        start = int(first)
        found = text[start : start + len(answer)]
        if start < 0 or found != answer:
            reason = f"{task.answer_start} is {start}, where the text has {found!r}, not {answer!r}"
            if text.encode()[max(start, 0) :].startswith(answer.encode()):
                reason += "; it counts bytes, expected characters"
            fix = "leave task.answer_start out to search for the answers"
            raise UserError(BAD_DATA, f"{where}: {reason}; {fix}")
    if not answer or start < 0:
        return -1, -1
    return words.at(start), words.at(start + len(answer) - 1)


def _judged_where(
    task: Task,
    examples: Sequence[Example],
    predictions: Sequence[Label],
    has_answer: bool,
    metric: Judgement,
) -> float | None:
    """Return a metric over the questions that have an answer, or over those that have none
    (SQuAD 2.0's HasAns and NoAns); None if there are no such questions.
    """
    chosen = []
    for example, prediction in zip(examples, predictions, strict=True):
        answers: Any = example.label or ()
        if any(answers) == has_answer:
            chosen.append((example, prediction))
    return metric(task, *zip(*chosen, strict=True)) if chosen else None


class Extract(OfTexts):
    """The label holds the text of each span that counts as right, or one empty text if the question
    has no answer.
    """

    meaning = "which span of the text"
    if_no_label = f"{OfTexts.if_no_label}; if questions may have no answer, set task.no_answer=True"
    own_metrics = {
        "has_answer_exact_match": partial(_judged_where, has_answer=True, metric=exact_match),
        "has_answer_token_f1": partial(_judged_where, has_answer=True, metric=token_f1),
        "no_answer_accuracy": partial(_judged_where, has_answer=False, metric=exact_match),
    }
    formats = {
        "encoder": Format(bert_span, "span"),
        **IN_WORDS,
    }

    def parse_label(self, task: Task, value: Any, choices: Sequence[str], where: str) -> Label:
        """Return the texts that count as right, or one empty text if the question has no answer."""
        label = super().parse_label(task, value, choices, where)
        if label is None and task.no_answer and value is not None:
            return ("",)
        return label

    def model_settings(self, task: Task) -> dict[str, int]:
        """Ask for two outputs per position: for the first and the last position of a span."""
        return {"token_classes": 2}

    def predict(
        self,
        task: Task,
        examples: Sequence[Example],
        formatted: Formatted,
        outputs: Sequence[np.ndarray],
    ) -> list[Label]:
        """Return the text of the best span in any window of each example. The score of a span is
        the sum of the logits at its first and last position.

        With task.no_answer, a question may have no answer. The score of "no answer" is the sum of
        the logits at [CLS], in the window where it is lowest. "No answer" is predicted if its score
        exceeds the best span's by more than task.null_threshold (Devlin et al., 2019, §4.3).
        """
        best = [(-np.inf, "")] * len(examples)
        null = np.full(len(examples), np.inf)
        numbers = formatted.example_of_pair.tolist()
        for number, words, logits in zip(numbers, formatted.words_of_pair, outputs, strict=True):
            best[number] = max(best[number], _best_span(words, logits), key=itemgetter(0))
            null[number] = min(null[number], logits[0].sum())
        predictions: list[Label] = []
        for (score, text), null_score in zip(best, null, strict=True):
            is_null = task.no_answer and null_score - score > task.null_threshold
            predictions.append(("" if is_null else text,))
        return predictions


def _best_span(words: Words, logits: np.ndarray) -> tuple[float, str]:
    """Return the score and the text of the best span in one window."""
    # Only tokens of the text belong to a word; the question and special tokens do not.
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
