"""Metrics on predictions whose score is known."""

from dataclasses import replace

import numpy as np
import pytest

from t5x_lite.config import Task
from t5x_lite.data.tasks.baselines import BAG_OF_WORDS, MEAN, MOST_FREQUENT, counted_answers
from t5x_lite.data.tasks.kinds.kind import Example
from t5x_lite.data.tasks.metrics import (
    METRICS,
    by_group,
    clusters_of,
    find_metric,
    judge,
    unit_scores,
)
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


# A metric as a mean over examples.


def drawn_examples(metric: str, count: int, random) -> tuple[Task, list[Example], list]:
    """Examples and predictions that the metric judges, a third of them wrong."""
    judges = METRICS[metric].judges[0]
    wrong = random.uniform(size=count) < 0.35
    if judges in ("class", "choice"):
        labels = random.integers(2, size=count).tolist()
        predictions = [
            1 - label if bad else label for label, bad in zip(labels, wrong, strict=True)
        ]
    elif judges == "number":
        labels = random.normal(size=count).tolist()
        predictions = (np.array(labels) + random.normal(size=count)).tolist()
    else:
        words = ["the cat sat on a mat", "dogs run fast in the park", "we eat bread", "no"]
        labels = [(words[index],) for index in random.integers(4, size=count)]
        predictions = [
            "the cat runs in a park" if bad else of[0]
            for of, bad in zip(labels, wrong, strict=True)
        ]
    kind = {"number": "regress", "text": "generate"}.get(judges, "classify")
    names = ("a", "b") if kind == "classify" else ()
    task = Task(name="t", kind=kind, source="x.tsv", labels=names, metrics=(metric,))
    is_grouped = metric.startswith("grouped")
    examples = [
        Example(number, f"text {number}", "", label, (), number // 4 if is_grouped else None, {})
        for number, label in enumerate(labels)
    ]
    return task, examples, predictions


@pytest.mark.parametrize("name", METRICS)
def test_the_mean_of_the_units_is_the_metric(name):
    task, examples, predictions = drawn_examples(name, 120, np.random.default_rng(0))
    expected = judge(task, examples, predictions)[name]
    units = unit_scores(task, examples, predictions)
    assert np.mean(units.amounts) == pytest.approx(expected)
    assert units.bounds == METRICS[name].bounds
    assert METRICS[name].bounds[0] <= expected <= METRICS[name].bounds[1]
    groups = 30 if name.startswith("grouped") else 50
    assert len(units.amounts) == (120 if METRICS[name].is_mean else groups)


@pytest.mark.parametrize("name", ["accuracy", "pearson", "grouped_exact_match"])
def test_the_spread_of_the_units_is_that_of_the_metric(name):
    """Over samples of examples, also where the metric is no mean over them."""
    random = np.random.default_rng(0)
    values, errors = [], []
    for _ in range(80):
        task, examples, predictions = drawn_examples(name, 120, random)
        values.append(judge(task, examples, predictions)[name])
        amounts = unit_scores(task, examples, predictions).amounts
        errors.append(np.std(amounts, ddof=1) / np.sqrt(len(amounts)))
    # The error of a standard deviation of 80 values is 8 %.
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.25)


@pytest.mark.parametrize(
    ("texts", "pairs", "groups", "expected"),
    [
        (["one", "two", "one", "", ""], [""] * 5, None, [0, 1, 0, 2, 3]),
        # Questions about a passage, whichever of the two fields it is.
        (["q1", "q2", "q3"], ["long passage", "long passage", "another one"], None, [0, 0, 1]),
        (["long passage", "long passage", "another one"], ["q1", "q2", "q3"], None, [0, 0, 1]),
        # What all have in common tells nothing about them.
        (["the same question"] * 3, ["a", "b", "a"], None, [0, 1, 2]),
        (["a", "b", "c"], [""] * 3, [7, 8, 7], [0, 1, 0]),
    ],
)
def test_examples_of_one_passage_or_group_are_one_cluster(texts, pairs, groups, expected):
    groups = groups or [None] * len(texts)
    examples = [
        Example(number, text, pair, 0, (), group, {})
        for number, (text, pair, group) in enumerate(zip(texts, pairs, groups, strict=True))
    ]
    assert clusters_of(examples) == expected


# What counting reaches.


def test_counting_answers_with_the_most_frequent_label_and_with_words():
    task = Task(name="t", kind="classify", source="x.tsv", labels=("a", "b"))

    def example(number, text, label, pair=""):
        return Example(number, text, pair, label, (), None, {})

    train = [
        example(n, f"{'good' if n % 3 else 'bad'} film {n}", int(n % 3 > 0)) for n in range(30)
    ]
    asked = [example(0, "a bad day", 0), example(1, "a good one", 1)]
    counted = counted_answers(task, train, asked)
    assert counted == {MOST_FREQUENT: [1, 1], BAG_OF_WORDS: [0, 1]}
    # Words of the second text are others than those of the first.
    train = [example(n, "film", int(n % 3 > 0), "good" if n % 3 else "bad") for n in range(30)]
    asked = [example(0, "good", 0, "bad"), example(1, "bad", 1, "good")]
    assert counted_answers(task, train, asked)[BAG_OF_WORDS] == [0, 1]


def test_counting_of_numbers_texts_and_labels_of_words():
    def examples(labels):
        return [Example(n, f"w{n}", "", label, (), None, {}) for n, label in enumerate(labels)]

    regress = Task(name="t", kind="regress", source="x.tsv")
    counted = counted_answers(regress, examples([1.0, 2.0, 6.0]), examples([0.0]))
    assert counted[MEAN] == [3.0]
    assert len(counted[BAG_OF_WORDS]) == 1
    generate = Task(name="t", kind="generate", source="x.tsv")
    asked = examples([("yes",), ("no",)])
    counted = counted_answers(generate, examples([("yes", "yeah"), ("no",), ("yes",)]), asked)
    assert judge(generate, asked, counted[MOST_FREQUENT])["exact_match"] == 0.5
    label = Task(name="t", kind="label", source="x.tsv", labels=("O", "B"))
    counted = counted_answers(label, examples([(0, 0, 1), (1, 0)]), examples([(1, 1)]))
    assert counted == {MOST_FREQUENT: [(0, 0)]}
