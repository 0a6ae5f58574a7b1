"""Compare answers in words with all right answers, as SQuAD's released evaluation does (versions
1.1 and 2.0).
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from t5x_lite.config import Task
from t5x_lite.data.tasks.kinds.kind import Example, Label

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """Make the text lower case and remove punctuation, articles and extra whitespace, as in SQuAD's
    released evaluation.

    >>> normalise_answer("The  U.S. Army!")
    'us army'
    """
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(task: Task, examples: Sequence[Example], predictions: Sequence[Label]) -> float:
    """Return the fraction of predictions that equal one of the right texts, both normalised (SQuAD,
    closed-book questions).
    """
    return _over_answers(examples, predictions, lambda a, b: float(a == b))


def token_f1(task: Task, examples: Sequence[Example], predictions: Sequence[Label]) -> float:
    """Return the mean word F1 of predictions against the best of the right texts, both normalised
    (SQuAD).
    """
    return _over_answers(examples, predictions, _word_f1)


def _word_f1(predicted: str, answer: str) -> float:
    predicted_words, answer_words = predicted.split(), answer.split()
    if not predicted_words or not answer_words:  # no answer (SQuAD 2)
        return float(predicted_words == answer_words)
    common = sum((Counter(predicted_words) & Counter(answer_words)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted_words), common / len(answer_words)
    return 2 * precision * recall / (precision + recall)


def _over_answers(
    examples: Sequence[Example],
    predictions: Sequence[Label],
    compare: Callable[[str, str], float],
) -> float:
    """Compare each prediction with every right text, and return the mean of the best scores."""
    scores = []
    for example, predicted in zip(examples, predictions, strict=True):
        label: Any = example.label
        # Ignore right answers that consist of articles and punctuation, unless all of them do.
        answers = [answer for answer in map(normalise_answer, label) if answer] or [""]
        text = normalise_answer(text_of(predicted))
        scores.append(max(compare(text, answer) for answer in answers))
    return float(np.mean(scores))


def text_of(prediction: Label) -> str:
    """Return the text of a prediction; empty if there is none."""
    return str(prediction[0]) if isinstance(prediction, tuple) else ""
