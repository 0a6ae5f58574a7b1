"""Conversations: only replies are learned, given exactly the turns before them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import refusal

from t5x_lite.config import Lengths, Task
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.data.tasks.examples import load_split
from t5x_lite.data.tasks.kinds.chat import Chat, Turn, render
from t5x_lite.data.tasks.kinds.table import find_format, kind_of
from t5x_lite.data.tasks.task_data import TaskData, plan_task
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_CONFIG, BAD_DATA

TOKENIZER = Tokenizer()
LENGTHS = {
    "decoder": Lengths(sequence_length=256),
    "prefix_decoder": Lengths(sequence_length=256),
    "encoder_decoder": Lengths(inputs=160, targets=32),
}


def turns(number: int) -> list[dict]:
    """Three questions with their answers."""
    said = []
    for place in range(3):
        said.append({"role": "user", "content": f"{number}, {place}?"})
        said.append({"role": "assistant", "content": f"{number * place}."})
    return said


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "talks.jsonl"
    talks = [{"messages": turns(number)} for number in range(60)]
    path.write_text("\n".join(map(json.dumps, talks)))
    return Task(name="talks", kind="chat", source=str(path), text="messages")


@pytest.mark.parametrize("architecture", LENGTHS)
@pytest.mark.parametrize("turn", [Task().turn, "<|{role}|>{content}<|end|>", "{role}: {content}\n"])
def test_what_is_scored_is_each_reply_after_the_turns_before_it(task, architecture, turn):
    task = replace(task, turn=turn)
    plan = plan_task(task, architecture, LENGTHS[architecture], examples_per_row=1)
    split = TaskData(plan, TOKENIZER, 8, seed=0).split("validation")
    batch = split.batches(len(split.examples)).batch_at(0)
    read, learned = set(), set()
    for row in range(len(split.examples)):
        weights = batch["decoder_weights"][row]
        scored = batch["decoder_targets"][row][weights > 0]
        learned.add(TOKENIZER.decode(scored))
        stack = "encoder" if architecture == "encoder_decoder" else "decoder"
        ids = batch[f"{stack}_tokens"][row][batch[f"{stack}_segments"][row] > 0]
        if stack == "decoder":  # the start token, the turns, and the reply, shifted by one
            ids = ids[1 : 1 + np.flatnonzero(weights)[0]]
        read.add(TOKENIZER.decode(ids))
    said = {int(str(one.id).split("/")[0]) for one in split.examples.examples}
    end = "</s>" if architecture == "encoder_decoder" else ""
    expected_read, expected_learned = set(), set()
    for number in said:
        each = [Turn(**turn) for turn in turns(number)]
        for place in (1, 3, 5):
            expected_read.add(render(task, each[:place]) + end)
            expected_learned.add(each[place].content + "</s>")
    assert read == expected_read
    assert learned == expected_learned
    # The text that is continued is the beginning of the text that is learned.
    assert render(task, each).startswith(render(task, each[:1]) + each[1].content)


def test_a_conversation_is_on_one_side_of_the_split(task):
    sides = []
    for split in ("train", "validation"):
        ids = [one.id for one in load_split(task, split).examples]
        assert len(set(ids)) == len(ids)
        of_talk = {str(id_).split("/")[0] for id_ in ids}
        assert len(ids) == 3 * len(of_talk)
        sides.append(of_talk)
    assert len(sides[0]) + len(sides[1]) == 60
    assert not sides[0] & sides[1]
    assert sides[1]


def test_long_conversations_lose_their_beginning(task):
    kind = kind_of(task)
    (example, *_) = load_split(task, "train").examples[2:]
    shape = RowShape(decoder=64)
    format = find_format(task, "decoder")
    formatted = format.function(kind, task, [example], TOKENIZER, shape)
    (pair,) = formatted.pairs.each()
    before = TOKENIZER.decode(pair.inputs)
    assert formatted.truncated == 1
    assert len(before) == 32
    assert example.text.endswith(before)


def test_sharegpt_is_read_as_well(task, tmp_path):
    talk = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes?"}]
    path = tmp_path / "other.jsonl"
    path.write_text(json.dumps({"conversations": talk, "key": "a"}) + "\n")
    task = replace(task, source=str(path), text="conversations", id="key", validation="")
    (one,) = load_split(replace(task, validation_fraction=0.0), "train").examples
    assert (one.id, one.text, one.label) == ("a/0", "user:\nHi\n\nassistant:\n", ("Yes?",))


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("hello", "got 'hello', expected a list of turns"),
        ([["user", "hi"]], "turn 0: expected a dict with texts as role and content"),
        ([{"content": "hi"}], "turn 0: expected a dict with texts as role and content"),
        ([{"role": "user", "content": [{"type": "image"}]}], "turn 0: expected a dict with texts"),
        (
            [{"role": "me", "content": "hi"}],
            "turn 0: got the role 'me', expected one of",
        ),
    ],
)
def test_what_is_no_conversation_is_one_sentence(task, tmp_path, messages, words):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"messages": messages}) + "\n")
    message = refusal(load_split, replace(task, source=str(path)), "train", code=BAD_DATA)
    assert message.startswith("task talks, example 0 of train: ")
    assert words in message


@pytest.mark.parametrize("turn", ["{content}", "{role}", "{content} {role}", "{role}{content}{x}"])
def test_a_turn_needs_its_role_and_its_content(task, turn):
    message = refusal(kind_of, replace(task, turn=turn), code=BAD_CONFIG)
    assert "expected a template with {role} before {content}, each once" in message


@pytest.mark.parametrize("name", ["prompt", "text_pair"])
def test_what_a_chat_does_not_read_is_refused(task, name):
    message = refusal(kind_of, replace(task, **{name: "x"}), code=BAD_CONFIG)
    assert message == f"task.{name}: got 'x', but a chat has its turns only; set task.turn"
    message = refusal(kind_of, replace(task, label="messages"), code=BAD_CONFIG)
    assert message.startswith("task.label: got 'messages', the column of the turns")


def test_roles_of_others_and_calls_of_tools(task, tmp_path):
    talk = [
        {"role": "Developer", "content": "Be short."},
        {"role": "user", "content": None, "value": "Hi"},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "42"},
        {"role": "bot", "content": "Yes"},
    ]
    path = tmp_path / "tools.jsonl"
    path.write_text(json.dumps({"messages": talk}) + "\n")
    task = replace(task, source=str(path), turn="{role}:{content};", validation="")
    (one,) = load_split(replace(task, validation_fraction=0.0), "train").examples
    assert one.text == "system:Be short.;user:Hi;assistant:;tool:42;assistant:"
    assert one.label == ("Yes",)


def test_an_encoder_cannot_reply(task):
    message = refusal(find_format, task, "encoder", code=BAD_CONFIG)
    assert "an encoder cannot learn to chat" in message
    assert "encoder" not in Chat.formats
