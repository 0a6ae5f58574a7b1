"""Baselines that only count. Their scores on a task are a bar that a model should clear:

most frequent answer    the most frequent answer of the training examples
mean answer             their mean answer, if answers are numbers
bag of words            a linear model of which words a text has, without their order (scikit-learn)
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from t5x_lite.config import Task
from t5x_lite.data.tasks.kinds.kind import Example, Label
from t5x_lite.data.tasks.kinds.table import kind_of
from t5x_lite.errors import UserError, optional_import

MOST_FREQUENT, MEAN, BAG_OF_WORDS = "most frequent answer", "mean answer", "bag of words"

# Words; characters in scripts that are not split into words: Chinese, Japanese, Thai, Korean
_WORD = (
    r"(?u)[\u2e80-\u9fff\uac00-\ud7af\u0e00-\u0e7f]|[^\W\u2e80-\u9fff\uac00-\ud7af\u0e00-\u0e7f]+"
)


def counted_answers(
    task: Task, train: Sequence[Example], asked: Sequence[Example]
) -> dict[str, list[Label]]:
    """Return the predictions of each baseline, by its name.

    There is a bag of words only for classes and numbers, and only if scikit-learn is installed.

    Args:
        train: examples with labels.
        asked: examples to answer.
    """
    predicts = kind_of(task).predicts
    labels: list[Any] = [example.label for example in train]
    counted: dict[str, list[Label]] = {}
    if predicts == "number":
        counted[MEAN] = [sum(labels) / len(labels)] * len(asked)
    elif predicts == "labels":
        counted[MOST_FREQUENT] = _most_frequent_labels(labels, asked)
    else:
        if predicts == "text":  # an example may have several right texts; a prediction has one
            labels = [label[:1] for label in labels]
        (answer, _), *_ = Counter(labels).most_common(1)
        counted[MOST_FREQUENT] = [answer] * len(asked)
    if predicts in ("class", "number") and len(set(labels)) > 1:
        words = _bag_of_words(predicts == "number", train, labels, asked)
        if words is not None:
            counted[BAG_OF_WORDS] = words
    return counted


def _most_frequent_labels(labels: Sequence[Any], asked: Sequence[Example]) -> list[Label]:
    """Predict, for each word of each example, the label that is most frequent over all words."""
    (label, _), *_ = Counter(one for of_text in labels for one in of_text).most_common(1)
    return [
        (label,) * len(example.label) if isinstance(example.label, tuple) else ()
        for example in asked
    ]


def _bag_of_words(
    is_number: bool, train: Sequence[Example], labels: Sequence[Any], asked: Sequence[Example]
) -> list[Label] | None:
    """Return the predictions of a linear model of the words in the first and in the second text;
    None if scikit-learn is not installed or no text has a word.
    """
    try:
        text = optional_import("sklearn.feature_extraction.text", "report", "a bag of words")
        linear = optional_import("sklearn.linear_model", "report", "a bag of words")
        sparse = optional_import("scipy.sparse", "report", "a bag of words")
    except UserError:
        return None
    # A word of the second text is a different feature from the same word in the first.
    columns = []
    for field in ("text", "text_pair"):
        vectorizer = text.CountVectorizer(binary=True, token_pattern=_WORD)
        texts = [[getattr(example, field) for example in examples] for examples in (train, asked)]
        try:
            columns.append((vectorizer.fit_transform(texts[0]), vectorizer.transform(texts[1])))
        except ValueError:  # no text has a word
            continue
    if not columns:
        return None
    of_train, of_asked = (sparse.hstack(part).tocsr() for part in zip(*columns, strict=True))
    model = linear.Ridge() if is_number else linear.LogisticRegression(max_iter=1000)
    predicted = model.fit(of_train, labels).predict(of_asked)
    return [value.item() for value in predicted]
