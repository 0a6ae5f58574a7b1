"""Spans of texts: longer than a row, not where a record says, or not there at all."""

import json

import numpy as np
import pytest

from t5x_lite.config import Lengths, Task
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.data.tasks.examples import load_split
from t5x_lite.data.tasks.kinds.kind import Example
from t5x_lite.data.tasks.kinds.table import KINDS, find_format
from t5x_lite.data.tasks.task_data import TaskData, plan_task
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import UserError

TOKENIZER = Tokenizer()
KIND = KINDS["extract"]
TEXT = "Anna a rencontré Zoé. " * 9 + "Bob left in 1876."


def task_of(directory, records, **more) -> Task:
    path = directory / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    fields = {"text": "question", "text_pair": "text", "label": "answers", "train": ""}
    return Task(name="a", kind="extract", source=str(path), **fields, **more)


def split_of(task, length=64):
    plan = plan_task(task, "encoder", Lengths(sequence_length=length))
    return TaskData(plan, TOKENIZER, 4, 0).split("validation")


def test_a_text_longer_than_a_row_is_read_in_windows_of_any_rows(tmp_path):
    records = [{"question": f"{n}?", "text": TEXT, "answers": ["1876"]} for n in range(5)]
    split = split_of(task_of(tmp_path, records))
    windows = len(split.formatted.pairs)
    assert windows >= 5 * len(TEXT) // 64
    assert split.formatted.truncated == 0
    # Each window once; each example has its answer in some of them, at its place.
    total = split.rows.rows(1)
    pairs = np.concatenate([split.rows.pairs_of_row(row) for row in range(total)])
    assert sorted(pairs) == list(range(windows))
    rows = split.batches(total).rows(range(total))
    found = set()
    for row, tokens in enumerate(rows["encoder_tokens"]):
        for slot, pair in enumerate(split.rows.pairs_of_row(row)):
            first, last = rows["label_values"][row, slot].astype(int)
            start = rows["label_positions"][row, slot]
            if last > 0:
                assert TOKENIZER.decode(tokens[start + first : start + last + 1]).strip() == "1876"
                found.add(split.formatted.example_of_pair[pair])
    assert found == set(range(5))


@pytest.mark.parametrize(
    ("answer", "start", "message"),
    [
        ("Zoé", TEXT.encode().index("Zoé".encode()), "it counts bytes, expected characters"),
        ("Anna", 7, "answer_start is 7, where the text has 'renc', not 'Anna'"),
        ("Anna", -1, "answer_start is -1"),
        ("Anna", 10**6, "where the text has '', not 'Anna'"),
    ],
)
def test_an_answer_that_is_not_at_its_place_is_refused(answer, start, message, tmp_path):
    record = {"question": "?", "text": TEXT, "answers": [answer], "answer_start": [start]}
    with pytest.raises(UserError, match=message):
        split_of(task_of(tmp_path, [record], answer_start="answer_start"))
    record["answer_start"] = [TEXT.index(answer)]
    assert split_of(task_of(tmp_path, [record], answer_start="answer_start"))


@pytest.mark.parametrize("start", [[], None, "[11]", "x", True])
def test_a_place_that_is_no_number_is_refused(start, tmp_path):
    record = {"question": "?", "text": TEXT, "answers": ["Anna"], "answer_start": start}
    with pytest.raises(UserError, match="expected the place of each answer, a number"):
        split_of(task_of(tmp_path, [record], answer_start="answer_start"))


def test_a_question_without_an_answer_needs_a_task_that_may_have_some(tmp_path):
    records = [{"question": "who?", "text": TEXT, "answers": []}]
    with pytest.raises(UserError, match="questions may have no answer, set task"):
        split_of(task_of(tmp_path, records))
    split = split_of(task_of(tmp_path, records, no_answer=True))
    assert split.examples.examples[0].label == ("",)
    assert not split.formatted.pairs.segment_labels.values.any()  # [CLS] in each window


@pytest.mark.parametrize("no_answer", [False, True])
def test_empty_answers_of_a_whole_test_split_are_hidden(tmp_path, no_answer):
    for split, answers in (("train", ["Anna"]), ("validation", ["Anna"]), ("test", [])):
        record = {"question": "who?", "text": TEXT, "answers": answers or [""]}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(record) + "\n")
    task = Task(
        name="a",
        kind="extract",
        source=f"{tmp_path}/{{split}}.jsonl",
        text="question",
        text_pair="text",
        label="answers",
        test="test",
        no_answer=no_answer,
    )
    assert not load_split(task, "test").has_labels
    assert load_split(task, "validation").has_labels


@pytest.mark.parametrize("threshold", [-3.0, 0.0, 3.0])
def test_no_answer_is_predicted_by_the_lowest_score_at_cls(threshold):
    """As in BERT's released code for SQuAD 2: over all windows, against the best span of any."""
    task = Task(name="a", kind="extract", source="a", no_answer=True, null_threshold=threshold)
    example = Example(0, "?", TEXT[:150], ("Anna",), (), None, {})
    way = find_format(task, "encoder")
    formatted = way.function(KIND, task, [example], TOKENIZER, RowShape(encoder=64, labels=8))
    rng = np.random.default_rng(0)
    answers = set()
    for _ in range(50):
        outputs = [rng.normal(size=(len(pair.inputs), 2)) for pair in formatted.pairs.each()]
        shift = rng.normal(scale=6)
        for logits in outputs:
            logits[0] += shift
        null = min(logits[0, 0] + logits[0, 1] for logits in outputs)
        # Without the choice of no answer, the best span.
        best = -np.inf
        for words, logits in zip(formatted.words_of_pair, outputs, strict=True):
            inside = np.flatnonzero(words.word_of_id >= 0)
            for start in inside:
                for end in inside:
                    if start <= end < start + 30:
                        best = max(best, logits[start, 0] + logits[end, 1])
        ((text,),) = KIND.predict(task, [example], formatted, outputs)
        assert (text == "") == (null - best > threshold)
        answers.add(text == "")
        plain = Task(name="a", kind="extract", source="a")
        ((text,),) = KIND.predict(plain, [example], formatted, outputs)
        assert text
    assert answers == {True, False}
