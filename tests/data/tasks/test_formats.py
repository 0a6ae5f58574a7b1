"""What each family reads of an example, in words; what is too long; rows with several examples."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.config import Lengths, Model, Task
from t5x_lite.data.rows.batches import ledger
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.data.tasks import formats
from t5x_lite.data.tasks.examples import load_split, with_labels_of
from t5x_lite.data.tasks.formats import truncate
from t5x_lite.data.tasks.kinds.kind import Example
from t5x_lite.data.tasks.kinds.table import find_format, kind_of
from t5x_lite.data.tasks.task_data import TaskData, plan_task
from t5x_lite.data.tokenizers.tokenizer import Tokenizer, make
from t5x_lite.errors import UserError
from t5x_lite.model.check import check_settings
from t5x_lite.resolve import resolve_model

TOKENIZER = Tokenizer()
PAIR = Example(7, "is it?", "it is", 1, (), None, {"question": "is it?", "passage": "it is"})
TASK = Task(
    name="boolq", source="x", text="question", text_pair="passage", labels=("False", "True")
)
CHOICE = Example(0, "it rained so", "", 1, ("I ran", "I stayed"), None, {"text": "it rained so"})
CHOOSE = Task(name="copa", kind="choose", source="x", choices=("a", "b"))


def written(task, example, architecture, shape):
    """Inputs, targets and types of the pairs of one example, in words."""
    formatted = find_format(task, architecture).function(
        kind_of(task), task, [example], TOKENIZER, shape
    )
    pairs = []
    for pair in formatted.pairs.each():
        types = None if pair.types is None else "".join(map(str, pair.types.tolist()))
        pairs.append((TOKENIZER.decode(pair.inputs), TOKENIZER.decode(pair.targets), types))
    return pairs, formatted


def test_bert():
    shape = RowShape(encoder=32, labels=2)
    pairs, formatted = written(TASK, PAIR, "encoder", shape)
    assert pairs == [("[CLS]is it?[SEP]it is[SEP]", "", "0" * 8 + "1" * 6)]
    labels = formatted.pairs.segment_labels
    assert labels.values.tolist() == [[1]]
    assert labels.positions.tolist() == [0]


def test_gpt():
    pairs, formatted = written(TASK, PAIR, "decoder", RowShape(decoder=32, labels=2))
    assert pairs == [("", "is it?[SEP]it is[CLS]</s>", None)]
    # The head reads the position that has read the extract token; what stands after it, EOS, is
    # not learned.
    assert formatted.pairs.segment_labels.positions.tolist() == [13]
    assert formatted.pairs.each()[0].weights.tolist() == [1.0] * 13 + [0.0]


@pytest.mark.parametrize("architecture", ["encoder_decoder", "prefix_decoder"])
def test_t5(architecture):
    shape = RowShape(encoder=60, decoder=20)
    if architecture == "prefix_decoder":
        shape = RowShape(decoder=80, bidirectional_prefix=True)
    pairs, _ = written(TASK, PAIR, architecture, shape)
    assert pairs == [("boolq question: is it? passage: it is</s>", "True</s>", None)]


def test_answers_to_choose_from():
    pairs, formatted = written(CHOOSE, CHOICE, "encoder", RowShape(encoder=60, labels=4))
    assert [pair[0] for pair in pairs] == [
        "[CLS]it rained so[SEP]I ran[SEP]",
        "[CLS]it rained so[SEP]I stayed[SEP]",
    ]
    assert formatted.pairs.segment_labels.values.tolist() == [[0], [1]]
    assert formatted.pairs.segment_labels.groups.tolist() == [0, 0]
    pairs, _ = written(CHOOSE, CHOICE, "encoder_decoder", RowShape(encoder=80, decoder=20))
    inputs = "copa choice1: I ran choice2: I stayed text: it rained so</s>"
    assert pairs == [(inputs, "choice2</s>", None)]


def test_the_answers_to_a_long_question_still_share_a_row():
    long = replace(CHOICE, text="it rained " * 20)
    pairs, formatted = written(CHOOSE, long, "encoder", RowShape(encoder=60, labels=4))
    assert formatted.truncated == 1
    assert formatted.pairs.inputs.lengths.tolist() == [30, 30]
    assert [pair[0][-14:] for pair in pairs] == [
        "ined [SEP]I ran[SEP]"[-14:],
        "[SEP]I stayed[SEP]"[-14:],
    ]


def test_answers_have_the_same_room_whatever_the_split_holds():
    shape = RowShape(encoder=60, decoder=40)
    for examples in ([PAIR], [replace(PAIR, label=None)]):
        formatted = find_format(TASK, "encoder_decoder").function(
            kind_of(TASK), TASK, examples, TOKENIZER, shape
        )
        assert formatted.answer_room == len("False") + 1
    free = Task(name="xsum", kind="generate", source="x")
    assert formats.answer_room(kind_of(free), free, TOKENIZER, shape) == 40


def test_a_span_of_a_text_that_is_read_in_windows():
    text = "one two three four five six seven eight nine ten eleven twelve"
    example = Example(0, "which?", text, ("nine ten",), (), None, {})
    task = Task(name="squad", kind="extract", source="x", text_pair="context")
    shape = RowShape(encoder=40, labels=1)
    formatted = find_format(task, "encoder").function(
        kind_of(task), task, [example], TOKENIZER, shape
    )
    seen = set()
    spans = formatted.pairs.segment_labels.values
    for pair, span, words in zip(
        formatted.pairs.each(), spans, formatted.words_of_pair, strict=True
    ):
        assert len(pair.inputs) <= 40
        seen |= set(words.word_of_id[words.word_of_id >= 0].tolist())
        if span.tolist() != [0, 0]:
            assert TOKENIZER.decode(pair.inputs[span[0] : span[1] + 1]) == " nine ten"
            assert words.text_of(*span) == "nine ten"
    assert seen == set(range(12))  # every word is in some window
    assert (spans.any(1)).sum() >= 1


def one_by_one(lengths, room):
    """BERT's released rule: one token at a time off the longer, the second where they are alike."""
    first, second = lengths
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


@given(st.integers(0, 60), st.integers(0, 60), st.integers(2, 50))
def test_two_texts_are_truncated_as_in_berts_code(first, second, room):
    shortened = truncate([np.arange(first), np.arange(second)], room)
    assert tuple(map(len, shortened)) == one_by_one((first, second), room)


def test_what_is_truncated_is_counted():
    long = Example(0, "a" * 50, "b" * 10, 0, (), None, {"question": "a" * 50, "passage": "b"})
    _, formatted = written(TASK, long, "encoder", RowShape(encoder=32, labels=1))
    assert formatted.truncated == 1
    assert formatted.pairs.inputs.lengths.tolist() == [32]
    for architecture, shape in (
        ("decoder", RowShape(decoder=32, labels=1)),
        ("encoder_decoder", RowShape(encoder=32, decoder=8)),
    ):
        _, formatted = written(TASK, long, architecture, shape)
        assert formatted.truncated == 1


@given(st.sampled_from([0.1 * i for i in range(51)]))
def test_numbers_are_written_to_the_nearest_fifth(number):
    task = Task(name="stsb", kind="regress", source="x")
    kind = kind_of(task)
    text = kind.answer(task, replace(PAIR, label=number))
    assert abs(float(text) - number) < 0.1001
    assert text in {f"{i / 5:.1f}" for i in range(26)}
    assert kind.label_of(task, text, PAIR, str) == float(text)
    assert kind.label_of(task, "3.x", PAIR, str) is None


def test_a_prediction_that_is_no_label_is_none():
    assert kind_of(TASK).label_of(TASK, "True", PAIR, str) == 1
    assert kind_of(TASK).label_of(TASK, "Truely", PAIR, str) is None
    assert kind_of(CHOOSE).label_of(CHOOSE, "choice2", CHOICE, str) == 1
    assert kind_of(CHOOSE).label_of(CHOOSE, "choice3", CHOICE, str) is None


def test_kinds_that_an_architecture_has_no_way_for():
    extract = Task(name="squad", kind="extract", source="x")
    with pytest.raises(UserError, match="squad: a decoder cannot learn to extract; it can classi"):
        find_format(extract, "decoder")
    generate = Task(name="xsum", kind="generate", source="x")
    with pytest.raises(UserError, match="xsum: an encoder cannot learn to generate; it can class"):
        find_format(generate, "encoder")


@pytest.mark.parametrize("architecture", ["encoder", "decoder", "prefix_decoder"])
@pytest.mark.parametrize("examples_per_row", [0, 1, 3])
def test_rows_hold_each_example_once_with_its_label(tmp_path, architecture, examples_per_row):
    lines = [f"{'x' * (3 + i % 9)} {i}\t{i % 3}" for i in range(100)]
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    task = Task(name="a", source=str(path), labels=("0", "1", "2"), validation_fraction=0.2)
    plan = plan_task(task, architecture, Lengths(sequence_length=64), examples_per_row)
    data = TaskData(plan, TOKENIZER, batch_size=4, seed=0)
    split = data.validation
    rows = data.batches("validation").rows(range(split.rows.rows(1)))
    stack = "encoder" if architecture == "encoder" else "decoder"
    most = rows[f"{stack}_segments"].max()
    assert most == 1 if examples_per_row == 1 else most > 1
    assert not examples_per_row or most <= examples_per_row

    seen = []
    for index in range(split.rows.rows(1)):
        for slot, pair in enumerate(split.rows.pairs_of_row(index)):
            seen.append(int(pair))
            if "label_values" not in rows:
                continue
            example = split.examples.examples[pair]
            assert rows["label_values"][index, slot, 0] == example.label
            position = rows["label_positions"][index, slot]
            assert rows[f"{stack}_segments"][index, position] == slot + 1
            token = rows[f"{stack}_tokens"][index, position]
            assert TOKENIZER.decode([token]) == "[CLS]"
    assert sorted(seen) == list(range(len(split.examples)))
    if "label_weights" in rows:
        assert rows["label_weights"].sum() == len(split.examples)
    assert ledger(data.batches("train")).padding < 0.9


def test_the_answers_to_a_question_share_a_row(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [
        f'{{"text": "q{i}", "options": ["a", "bb", "ccc"], "label": {i % 3}}}' for i in range(30)
    ]
    path.write_text("\n".join(lines))
    task = Task(
        name="a",
        kind="choose",
        source=str(path),
        choices=("options",),
        labels=("0", "1", "2"),
        train="",
    )
    plan = plan_task(task, "encoder", Lengths(sequence_length=64))
    split = TaskData(plan, TOKENIZER, 4, 0).split("validation")
    rows = split.batches(4).rows(range(split.rows.rows(1)))
    for values, groups, weights in zip(
        rows["label_values"][..., 0], rows["label_groups"], rows["label_weights"], strict=True
    ):
        for group in range(1, groups.max() + 1):
            chosen = (groups == group) & (weights > 0)
            assert chosen.sum() == 3
            assert values[chosen].sum() == 1


@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
@pytest.mark.parametrize("fields", [("a", "b", "c", "d"), ("list",)])
def test_each_answer_is_read_in_the_whole_length_of_the_model(architecture, fields, tmp_path):
    """A question of 40 letters and four answers of 10: whole in a model of 64 positions."""
    answers = {letter: letter * 10 for letter in "abcd"}
    record = {"text": "q" * 40, **answers, "list": list(answers.values()), "label": 2}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    source = str(tmp_path / "a.jsonl")
    task = Task(name="a", kind="choose", source=source, choices=fields, train="", most_choices=4)
    plan = plan_task(task, architecture, Lengths(sequence_length=64))
    split = TaskData(plan, TOKENIZER, 1, 0).split("validation")
    assert split.formatted.truncated == 0
    row = split.batches(1).rows(range(1))
    assert row[f"{architecture}_tokens"].shape == (1, 4 * 64)
    assert row[f"{architecture}_positions"].max() < 64
    text = TOKENIZER.decode(row[f"{architecture}_tokens"][0])
    assert text.count("q" * 40) == 4
    model = Model(architecture=architecture, positions="learned", d_model=16, num_heads=2)
    assert resolve_model(model, 524, plan.shape.longest_segment).max_length == 64
    check_settings(replace(model, max_length=64), plan.shape)  # its table is long enough


@pytest.mark.parametrize("answers", [2, 5, 6, 9])
@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
def test_each_answer_has_the_soft_prompt(architecture, answers, tmp_path):
    """Also where there are more answers than a row was made for: their readings are shorter."""
    record = {"text": "q" * 90, "list": ["a" * 30] * answers, "label": 1}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    source = str(tmp_path / "a.jsonl")
    task = Task(name="a", kind="choose", source=source, choices=("list",), train="")
    plan = plan_task(task, architecture, Lengths(sequence_length=64), prompt_length=10)
    split = TaskData(plan, TOKENIZER, 1, 0).split("validation")
    lengths = (
        split.formatted.pairs.inputs.lengths + split.formatted.pairs.targets.lengths
    ).tolist()
    assert len(lengths) == answers
    assert lengths == [min(5 * 64 // answers, 64)] * answers


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("Yes", "yes"), "writes 'Yes' and 'yes' alike, 'yes'"),
        (("yes", "☃"), "has no tokens for '☃'"),
    ],
)
def test_labels_that_the_vocabulary_cannot_tell_apart_are_refused(labels, message, tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "yes", "no", "a"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n\n")  # an empty line is a piece
    tokenizer = make(str(tmp_path / "vocab.txt"), [], add_specials=True)
    (tmp_path / "a.tsv").write_text("text\tlabel\na\t0\n")
    task = Task(name="a", source=str(tmp_path / "a.tsv"), labels=labels, train="")
    plan = plan_task(task, "encoder_decoder", Lengths(inputs=64, targets=32))
    with pytest.raises(UserError, match=message):
        TaskData(plan, tokenizer, 1, 0).split("validation")
    # In words of its own it can be learned; what is not known is never right by chance.
    plan = plan_task(
        replace(task, label_words=("yes", "no")), "encoder_decoder", Lengths(inputs=64, targets=32)
    )
    assert TaskData(plan, tokenizer, 1, 0).split("validation")
    example = Example(0, "a", "", ("☃",), (), None, {})
    kind = kind_of(Task(kind="generate"))
    written = kind.label_of(task, "[UNK]", example, tokenizer.as_written)
    assert written == ("[UNK]",)


def read_labels(tmp_path, values, **fields):
    lines = [json.dumps({"text": "a", "label": value}) for value in values]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    task = Task(name="a", source=str(tmp_path / "a.jsonl"), train="", **fields)
    return [example.label for example in load_split(with_labels_of(task), "validation").examples]


@pytest.mark.parametrize(
    ("fields", "values", "labels"),
    [
        # −1 is a label where the task has it, and a number like others.
        ({"labels": ("no", "?", "yes"), "first_label": -1}, [-1, 0, 1, "-1"], [0, 1, 2, 0]),
        ({"labels": ("-1", "1")}, [-1, 1, "-1"], [0, 1, 0]),
        ({}, [-1, 1, -1], [0, 1, 0]),
        ({"kind": "regress"}, [-1, 0.5, "-1.0"], [-1.0, 0.5, -1.0]),
        ({"kind": "label", "labels": ("-1", "1")}, ["-1", "1"], [(0,), (1,)]),
        # It is none where the task does not have it, or where a whole split has nothing else.
        ({"labels": ("no", "yes")}, [-1, 0, None, ""], [None, 0, None, None]),
        ({"kind": "regress"}, [-1, "-1.0", -1.0], [None] * 3),
        ({"kind": "regress"}, [None, 2.0, ""], [None, 2.0, None]),
        ({"labels": ("no", "yes")}, [float("inf"), 1], None),
        ({}, [-1, 0, 1], None),  # SNLI hides some labels of its training split so
    ],
)
def test_what_is_missing_is_not_what_is_minus_one(fields, values, labels, tmp_path):
    if labels is None:
        with pytest.raises(UserError, match=r"got the label inf|may be a label or hide one"):
            read_labels(tmp_path, values, **fields)
        return
    assert read_labels(tmp_path, values, **fields) == labels


def test_only_a_whole_split_of_minus_one_is_hidden(tmp_path):
    lines = [json.dumps({"text": "a", "label": value}) for value in (-1, -1, 2)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    task = Task(name="a", kind="regress", source=str(tmp_path / "a.jsonl"), train="")
    for limit in (1, 2, 3):
        examples = load_split(task, "validation", limit).examples
        assert [example.label for example in examples] == [-1.0, -1.0, 2.0][:limit]


def test_training_and_validation_examples_need_labels(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\tlable\n" + "".join(f"t{i}\t{i % 2}\n" for i in range(50)))
    task = Task(name="a", source=str(path), labels=("0", "1"))
    plan = plan_task(task, "encoder", Lengths(sequence_length=32))
    with pytest.raises(UserError, match=r"no label in the field 'label'; did you mean lable\?"):
        TaskData(plan, TOKENIZER, 4, 0).train  # noqa: B018
