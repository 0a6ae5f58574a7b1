"""Extract: which span of the text?"""

from collections.abc import Sequence

import numpy as np

from t5x_lite.config import Task
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.data.tasks.formats import IN_WORDS, PairsOfTask
from t5x_lite.data.tasks.kinds.kind import Example, Format, Formatted, Kind, Label, OfTexts
from t5x_lite.data.tasks.records import lookup
from t5x_lite.data.tasks.words import Words, split_words
from t5x_lite.data.tokenizers.tokenizer import Tokenizer

_LONGEST_SPAN = 30  # tokens in an answer (BERT's released code)


def bert_span(
    kind: Kind, task: Task, examples: Sequence[Example], tokenizer: Tokenizer, shape: RowShape
) -> Formatted:
    """Format examples as `[CLS] question [SEP] text [SEP]`, with the first and last position of the
    answer (Devlin et al., 2019, §4.2).

    A text that is too long is read in windows that overlap by half. If a window does not contain
    the answer, both positions are the position of [CLS]. The question gets at most half of the row.
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
    return rows.formatted(position_of=lambda length: 0)


def _answer_words(task: Task, example: Example, words: Words) -> tuple[int, int]:
    """Return the first and last word of the first right answer; −1, −1 if there is none."""
    if example.label is None:
        return -1, -1
    assert isinstance(example.label, tuple)
    answer = str(example.label[0])
    start = example.text_pair.find(answer)
    if task.answer_start:
        starts = lookup(example.record, task.answer_start, f"task {task.name}")
        start = int(np.atleast_1d(starts)[0])
    if not answer or start < 0:
        return -1, -1
    return words.at(start), words.at(start + len(answer) - 1)


class Extract(OfTexts):
    """The label is the texts of the spans that count as right."""

    meaning = "which span of the text"
    formats = {
        "encoder": Format(bert_span, "span"),
        **IN_WORDS,
    }

    def model_settings(self, task: Task) -> dict[str, int]:
        """Ask for two outputs per position: for the first and the last position of a span."""
        return {"token_classes": 2}

    def predict(
        self, examples: Sequence[Example], formatted: Formatted, outputs: Sequence[np.ndarray]
    ) -> list[Label]:
        """Return the text of the best span in any window of each example. The score of a span is
        the sum of the logits at its first and last position.
        """
        best: dict[int, tuple[float, str]] = {}
        numbers = formatted.example_of_pair.tolist()
        for number, words, logits in zip(numbers, formatted.words_of_pair, outputs, strict=True):
            score, text = _best_span(words, logits)
            if number not in best or score > best[number][0]:
                best[number] = score, text
        return [(best[number][1],) for number in range(len(examples))]


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
