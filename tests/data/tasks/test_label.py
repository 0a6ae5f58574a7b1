"""Tasks that label each word."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from data.tokenizers.test_text_models import WRITE

from t5x_lite.config import Task
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.data.tasks.examples import load_split, with_labels_of
from t5x_lite.data.tasks.formats import with_prompt
from t5x_lite.data.tasks.kinds.kind import Example
from t5x_lite.data.tasks.kinds.label import entities, entity_f1, token_accuracy
from t5x_lite.data.tasks.kinds.table import find_format, kind_of
from t5x_lite.data.tasks.load import load_task
from t5x_lite.data.tokenizers.tokenizer import Tokenizer, make, train_sentencepiece
from t5x_lite.errors import UserError

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TASK = Task(name="ner", kind="label", source="x", labels=LABELS)
KIND = kind_of(TASK)
TOKENIZER = Tokenizer()


def example_of(words, label=None):
    return Example(0, words, "", label, (), None, {"text": words})


def formatted_of(words, label, room):
    way = find_format(TASK, "encoder")
    shape = RowShape(encoder=room, scored=room - 2)
    return way.function(KIND, TASK, [example_of(words, label)], TOKENIZER, shape)


@pytest.mark.parametrize("room", [6, 9, 10, 64])
def test_each_word_is_scored_once_at_its_first_piece(room):
    words, label = "Ada Lovelace saw London", (1, 2, 0, 3)
    formatted = formatted_of(words, label, room)
    found, read = [], ""
    for pair in formatted.pairs.each():
        assert len(pair.inputs) <= room
        inside = TOKENIZER.decode(pair.inputs[1:-1])
        for place, target in zip(pair.scored, pair.targets, strict=True):
            found.append(int(target))
            rest = TOKENIZER.decode(pair.inputs[place:-1]).lstrip()
            assert any(rest.startswith(word[:3]) for word in words.split())
        read += inside
    assert tuple(found) == label
    if room >= 11:  # no word is cut
        assert read == words
    assert formatted.truncated == (room < 11)


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece", *WRITE])
def test_the_pieces_of_words_are_those_of_the_text(kind, tmp_path):
    """A label is that of the right piece, whatever a vocabulary does with blanks."""
    if kind == "sentencepiece":
        tokenizer = train_sentencepiece(
            ["Ada Lovelace saw London, and returned the cat."] * 50, 600
        )
    elif kind == "bytes":
        tokenizer = Tokenizer()
    else:
        tokenizer = make(str(WRITE[kind](tmp_path)), [], add_specials=True)
    words, label = "ada saw the cat return , twice", (1, 0, 0, 3, 0, 0, 4)
    way = find_format(TASK, "encoder")
    shape = RowShape(encoder=64, scored=62)
    formatted = way.function(KIND, TASK, [example_of(words, label)], tokenizer, shape)
    (pair,) = formatted.pairs.each()
    assert tuple(pair.targets) == label
    np.testing.assert_array_equal(pair.inputs[1:-1], tokenizer.encode(words))
    ends = [*pair.scored[1:], len(pair.inputs) - 1]
    for word, start, end in zip(words.split(), pair.scored, ends, strict=True):
        assert tokenizer.decode(pair.inputs[start:end]).strip() == word


def test_what_the_head_puts_out_is_read_over_all_windows():
    words, label = "Ada Lovelace saw London", (1, 2, 0, 3)
    formatted = formatted_of(words, None, 12)
    assert len(formatted.pairs) > 1
    assert not formatted.pairs.weights.values.any()
    outputs, place = [], 0
    for length in formatted.pairs.targets.lengths:
        outputs.append(np.eye(5)[list(label[place : place + length])])
        place += length
    assert KIND.predict(TASK, [example_of(words)], formatted, outputs) == [label]


def test_a_soft_prompt_moves_what_is_scored():
    before = formatted_of("Ada saw London", (1, 0, 3), 32)
    after = with_prompt(before, 4)
    ids = before.pairs.inputs.values[before.pairs.scored.values]
    assert (after.pairs.inputs.values[after.pairs.scored.values] == ids).all()


def test_answers_in_words():
    example = example_of("Ada saw London", (1, 0, 3))
    assert KIND.answer(TASK, example) == "B-PER O B-LOC"
    assert KIND.label_of(TASK, "B-PER O  B-LOC", example, str) == (1, 0, 3)
    assert KIND.label_of(TASK, "B-PER O", example, str) is None
    assert KIND.label_of(TASK, "B-PER O X", example, str) is None
    assert KIND.readable(TASK, (1, 0, 3), example) == "B-PER O B-LOC"


@pytest.mark.parametrize("as_list", [True, False])
def test_words_and_labels_are_read_from_columns(tmp_path, as_list):
    rows = [(["Ada", "saw", "New York"], ["B-PER", "O", "B-LOC"]), (["So", "what"], ["O", "O"])]
    lines = []
    for words, labels in rows:
        if not as_list:
            words, labels = words[:2], labels[:2]
        columns = (words, labels) if as_list else ("  ".join(words), " ".join(labels))
        lines.append(json.dumps(dict(zip(("tokens", "tags"), columns, strict=True))))
    path = tmp_path / "ner.jsonl"
    path.write_text("\n".join(lines))
    task = load_task(f"label({path}, text=tokens, label=tags, train=)")
    task = with_labels_of(replace(task, train="", validation="validation"))
    found = load_split(task, "validation").examples
    names = [KIND.readable(task, example.label, example) for example in found]
    if as_list:
        assert found[0].text == "Ada saw New\N{NO-BREAK SPACE}York"
        assert names == ["B-PER O B-LOC", "O O"]
    else:
        assert found[0].text == "Ada saw"
        assert names == ["B-PER O", "O O"]


@pytest.mark.parametrize(
    ("words", "label", "reason"),
    [
        ("Ada saw", "O", "has 2 words and 1 labels; give one label per word"),
        ("", "O", "has 0 words and 1 labels"),
        ("Ada", "X", "got the label 'X', expected one of O, B-PER"),
    ],
)
def test_words_and_labels_that_do_not_fit(tmp_path, words, label, reason):
    path = tmp_path / "ner.jsonl"
    path.write_text(json.dumps({"text": words, "label": label}))
    task = replace(TASK, source=str(path), train="")
    with pytest.raises(UserError, match=reason):
        load_split(task, "validation")


def test_a_decoder_does_not_label_words():
    with pytest.raises(UserError, match="ner: a decoder cannot learn to label; it can classify"):
        find_format(TASK, "decoder")


# What seqeval 1.2.2 finds: f1_score(right, found) over both, and classification by hand.
SEQEVAL = [
    (["B-PER", "I-PER", "O"], {("PER", 0, 2)}),
    (["I-PER", "I-PER", "O", "B-LOC"], {("PER", 0, 2), ("LOC", 3, 4)}),
    (["B-PER", "B-PER"], {("PER", 0, 1), ("PER", 1, 2)}),
    (["B-PER", "I-LOC"], {("PER", 0, 1), ("LOC", 1, 2)}),
    (["NOUN", "NOUN", "O"], {("NOUN", 0, 1), ("NOUN", 1, 2)}),
    ([], set()),
]


@pytest.mark.parametrize(("tags", "found"), SEQEVAL)
def test_entities(tags, found):
    assert entities(tags) == found


def test_metrics():
    rng = random.Random(0)
    examples, right, wrong = [], [], []
    for _ in range(20):
        label = tuple(rng.randrange(5) for _ in range(8))
        examples.append(example_of("w " * 7 + "w", label))
        right.append(label)
        wrong.append(None)
    assert entity_f1(TASK, examples, right) == token_accuracy(TASK, examples, right) == 1.0
    assert entity_f1(TASK, examples, wrong) == 0.0
    ones = [example_of("a b c", (1, 2, 0)), example_of("d", (3,))]
    # One of two entities is found whole, and one that is none.
    assert entity_f1(TASK, ones, [(1, 0, 0), (3,)]) == pytest.approx(0.5)
    assert token_accuracy(TASK, ones, [(1, 0, 0), (3,)]) == pytest.approx(0.75)
