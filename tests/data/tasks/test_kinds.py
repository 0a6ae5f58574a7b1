"""What holds for every kind of task, for each architecture that learns it."""

from dataclasses import replace

import numpy as np
import pytest

from t5x_lite.config import Task
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.data.tasks.kinds.kind import Example, Kind
from t5x_lite.data.tasks.kinds.table import KINDS, find_format, kind_of, metrics_of
from t5x_lite.data.tasks.metrics import METRICS, check_metrics, find_metric
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import UserError

LEARNED = [(name, architecture) for name in KINDS for architecture in KINDS[name].formats]
SETTINGS = {"labels": ("O", "B-X"), "choices": ("a", "b"), "source": "x"}
VALUES = {"classify": "B-X", "regress": "1.6", "choose": 1, "label": "O B-X"}  # others: a text


def task_of(name: str) -> Task:
    return Task(name="t", kind=name, **SETTINGS)


def example_of(name: str) -> Example:
    record = {"text": "two words", "a": "one", "b": "two", "label": VALUES.get(name, "two")}
    kind = KINDS[name]
    label = kind.read_label(task_of(name), record, ("one", "two"), "here")
    return Example(0, "two words", "two words", label, ("one", "two"), None, record)


def test_each_kind_says_which_question_it_answers():
    for kind in KINDS.values():
        assert kind.meaning
        assert not kind.is_learned or kind.formats
        assert kind.is_learned or not kind.formats


@pytest.mark.parametrize("name", KINDS)
def test_metrics_of_a_kind_judge_it(name):
    task = task_of(name)
    own = KINDS[name].own_metrics
    for metric in metrics_of(task):
        assert metric in own or KINDS[name].predicts in METRICS[metric].judges
    example = example_of(name)
    for metric in set(metrics_of(task)) - {"pearson", "spearman"}:  # of two numbers at least
        assert find_metric(task, metric).score(task, [example], [example.label]) == 1.0
    check_metrics(task)


@pytest.mark.parametrize(("name", "architecture"), LEARNED)
def test_what_is_learned_is_read_back(name, architecture):
    """By a head: what it puts out for the label is predicted. In words: what is written is read."""
    kind, task, example = KINDS[name], task_of(name), example_of(name)
    way = kind.formats[architecture]
    if way.head == "lm":
        assert kind.label_of(task, kind.answer(task, example), example, str) == example.label
        return
    length = 64
    stack = "encoder" if architecture == "encoder" else "decoder"
    shape = RowShape(**{stack: length}, **kind.slots(length))
    formatted = way.function(kind, task, [example], Tokenizer(), shape)
    labels = formatted.pairs.segment_labels
    outputs = []
    for number, pair in enumerate(formatted.pairs.each()):
        values = pair.targets if labels is None else labels.values[number]
        if way.head == "class":
            outputs.append(np.eye(2)[int(values[0])])
        elif way.head == "token_class":
            outputs.append(np.eye(2)[values])
        elif way.head == "span":
            outputs.append(np.eye(length)[values.astype(int)].T[: len(pair.inputs)])
        else:
            outputs.append(np.asarray(values, float))
    assert kind.predict(task, [example], formatted, outputs) == [example.label]
    assert sum(kind.model_settings(task).values()) > 0


@pytest.mark.parametrize(("name", "architecture"), LEARNED)
def test_every_model_with_a_decoder_can_answer_in_words(name, architecture):
    task = replace(task_of(name), in_words=True)
    if architecture == "encoder":
        with pytest.raises(UserError, match=r"task\.in_words: an encoder writes no words"):
            find_format(task, architecture)
    else:
        assert find_format(task, architecture).head == "lm"


@pytest.mark.parametrize("name", KINDS)
def test_guessing_is_a_share(name):
    """Of two answers in each kind that has a choice of answers here."""
    chance = KINDS[name].chance(task_of(name), [example_of(name)])
    assert chance == (0.5 if KINDS[name].asked_by in ("options", "sentences") else None)


def test_a_kind_that_does_not_exist_is_refused():
    with pytest.raises(UserError, match=r"task\.kind: got 'clasify'; did you mean classify"):
        kind_of(Task(name="t", kind="clasify", source="x"))


def test_kinds_are_no_more_than_the_base_class_asks():
    for kind in KINDS.values():
        own = {name for name in vars(type(kind)) if not name.startswith("_")}
        assert own <= set(dir(Kind)) | {"meaning", "predicts"}
