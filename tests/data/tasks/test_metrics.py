"""Metrics on predictions whose score is known."""

from dataclasses import replace

import pytest

from t5x_lite.config import Task
from t5x_lite.data.tasks.kinds.kind import Example
from t5x_lite.data.tasks.metrics import METRICS, by_group, find_metric, judge
from t5x_lite.errors import UserError


def of(labels, groups=None):
    groups = groups or [None] * len(labels)
    pairs = zip(labels, groups, strict=True)
    return [Example(i, "", "", label, (), group, {}) for i, (label, group) in enumerate(pairs)]


LABELS = [0, 1, 1, 0, 1]
PREDICTED = [0, 1, 0, 1, None]  # None: wrote something that is no label
CASES = [
    ("accuracy", LABELS, PREDICTED, 0.4),
    ("f1", LABELS, PREDICTED, 2 * 0.5 * (1 / 3) / (0.5 + 1 / 3)),
    ("matthews", [0, 0, 1, 1], [0, 0, 1, 1], 1.0),
    ("matthews", [0, 0, 1, 1], [0, 1, 0, 1], 0.0),
    ("macro_f1", [0, 0, 1, 1], [0, 0, 0, 1], (0.8 + 2 / 3) / 2),
    ("pearson", [1.0, 2.0, 3.0], [2.0, 4.0, 6.0], 1.0),
    ("pearson", [1.0, 2.0, 3.0], [5.0, 5.0, 5.0], 0.0),
    ("spearman", [1.0, 2.0, 9.0], [0.1, 0.2, 0.3], 1.0),
    ("exact_match", [("the Cat!", "dog"), ("x",)], [("cat",), ("y",)], 0.5),
    ("token_f1", [("a red cat",)], [("red dog",)], 0.5),
    ("token_f1", [("cat",)], [None], 0.0),
    ("rouge1", [("one two three",)], [("one two four",)], 2 / 3),
    ("bleu", [("one two three four five",)], [("one two three four five",)], 100.0),
    # All references count, however many an example has.
    ("rouge1", [("x", "one two four")], [("one two four",)], 1.0),
    ("rougeLsum", [("x y.", "One two. Four.")], [("One two. Four.",)], 1.0),
    ("bleu", [("a", "b c d e f"), ("g h i j k",)], [("b c d e f",), ("g h i j k",)], 100.0),
    # SQuAD 2: no answer is right where none is expected, and only there.
    ("exact_match", [("",), ("",), ("x",)], [("",), ("y",), ("",)], 1 / 3),
    # Articles alone are no answer, unless there is no other (the released evaluation).
    ("exact_match", [("the", "1876"), ("The",)], [("",), ("",)], 0.5),
    ("token_f1", [("",), ("",), ("a x",)], [("",), ("y",), ("x z",)], (1 + 0 + 2 / 3) / 3),
]
SQUAD2 = [("",), ("",), ("red cat", "cat")], [("",), ("y",), ("a red dog",)]


@pytest.mark.parametrize(("name", "labels", "predicted", "score"), CASES)
def test_known_scores(name, labels, predicted, score):
    task = Task(labels=("no", "yes"))
    assert METRICS[name].score(task, of(labels), predicted) == pytest.approx(score)


def test_questions_with_and_without_an_answer_are_judged_apart():
    task = Task(kind="extract", no_answer=True)
    labels, predicted = SQUAD2
    scores = {}
    for name in ("no_answer_accuracy", "has_answer_exact_match", "has_answer_token_f1"):
        scores[name] = find_metric(task, name).score(task, of(labels), predicted)
    assert scores == {
        "no_answer_accuracy": 0.5,
        "has_answer_exact_match": 0.0,
        "has_answer_token_f1": 0.5,
    }
    # What is over no question is left out, as with --limit.
    judged = replace(task, metrics=("exact_match", "no_answer_accuracy"))
    assert judge(judged, of([("x",)]), [("x",)]) == {"exact_match": 1.0}
    with pytest.raises(UserError, match="no_answer_accuracy concerns none of these 1 examples"):
        judge(replace(task, metrics=("no_answer_accuracy",)), of([("x",)]), [("x",)])


def test_what_is_no_number_counts_as_minus_one():
    labels, metric = of([1.0, 2.0, 0.0]), METRICS["pearson"].score
    assert metric(Task(), labels, [None, 2.0, 0.0]) == metric(Task(), labels, [-1.0, 2.0, 0.0])


def test_groups():
    examples = of([1, 1, 1, 1], ["a", "a", "b", "b"])
    predicted = [1, 1, 1, 0]
    task = Task(group="UID", metrics=("accuracy", "grouped_exact_match", "grouped_accuracy"))
    assert judge(task, examples, predicted) == {
        "accuracy": 0.75,
        "grouped_exact_match": 0.5,
        "grouped_accuracy": 0.75,
    }
    assert by_group(task, examples, predicted) == {"a": 1.0, "b": 0.5}


def test_the_mean_over_groups_is_no_mean_over_examples():
    examples = of([1, 1, 1], ["a", "a", "b"])
    assert METRICS["grouped_accuracy"].score(Task(), examples, [1, 1, 0]) == 0.5


def test_a_metric_that_does_not_exist():
    with pytest.raises(UserError, match=r"task.metrics: got 'acuracy'; did you mean accuracy\?"):
        judge(Task(metrics=("acuracy",)), of([1]), [1])
