"""Tasks asked of models that were not trained on them: the scores are those of `score`, and a tie
is wrong.
"""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from inference.untrained import untrained

from t5x_lite.config import Lengths, Task
from t5x_lite.data.tasks.examples import load_split
from t5x_lite.data.tasks.task_data import plan_task
from t5x_lite.errors import UserError
from t5x_lite.inference.generate import generate_ids
from t5x_lite.inference.score import score, score_targets, target_log_probabilities
from t5x_lite.inference.zero_shot import Asking, _solved, ask, score_answers

CELLS = {
    "encoder": "masked_lm",
    "decoder": "causal_lm",
    "prefix_decoder": "prefix_lm",
    "encoder_decoder": "span_corruption",
}
WORDS = ("cat", "dog", "bird")


def model_of(make, architecture):
    return untrained(make, CELLS[architecture], architecture)


@pytest.fixture
def write(tmp_path):
    """A function that writes records as a source."""

    def write_records(records, name="validation"):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return f"{tmp_path}/{{split}}.jsonl"

    return write_records


def classify(write, count=6) -> Task:
    records = [{"text": f"the {WORDS[i % 3]} {i}", "label": WORDS[i % 2]} for i in range(count)]
    write(records, "train")
    return Task(name="a", source=write(records), labels=WORDS, question="{text}?")


def test_a_decoder_takes_the_answer_with_the_highest_score(make, write):
    loaded, task = model_of(make, "decoder"), classify(write)
    result = ask(loaded, task)
    assert result.method == "log-probability given the prompt"
    for normalised, key in (("accuracy", "nats"), ("accuracy_per_token", "mean")):
        right = []
        for example in result.examples.examples:
            scores = score(loaded, [f" {word}" for word in WORDS], f"{example.text}?")
            values = [s.nats / (s.tokens if key == "mean" else 1) for s in scores]
            right.append(int(np.argmax(values)) == example.label)
        assert result.metrics[normalised] == np.mean(right)


def test_an_encoder_fills_a_blank(make, write):
    loaded, task = model_of(make, "encoder"), classify(write)
    result = ask(loaded, task)
    for example, predicted in zip(result.examples.examples, result.predictions, strict=True):
        scores = score(loaded, [f" {word}" for word in WORDS], f"{example.text}? ___")
        assert predicted == int(np.argmax([one.nats for one in scores]))


def test_span_corruption_fills_a_sentinel(make, write):
    loaded, task = model_of(make, "encoder_decoder"), classify(write)
    vocabulary, encode = loaded.tokenizer.vocabulary, loaded.tokenizer.encode
    result = ask(loaded, task)
    assert "in place of a sentinel" in result.method
    example = result.examples.examples[0]
    inputs = [*encode(f"{example.text}?"), vocabulary.sentinel(0), vocabulary.eos]
    sums = []
    for word in WORDS:
        target = [vocabulary.sentinel(0), *encode(f" {word}"), vocabulary.eos]
        (nats,) = target_log_probabilities(loaded, [np.array(inputs)], [np.array(target)])
        sums.append(nats[1:].sum())
    assert result.predictions[0] == int(np.argmax(sums))


PAIRS = [
    {"good": f"the {WORDS[i % 3]} sees it", "bad": f"the {WORDS[i % 3]} see it", "UID": f"u{i % 2}"}
    for i in range(6)
]


def prefer(write, pairs=PAIRS) -> Task:
    source = write([{**pair, "pair": [pair["good"], pair["bad"]]} for pair in pairs])
    return Task(
        name="blimp",
        kind="prefer",
        source=source,
        text="",
        choices=("pair",),
        group="UID",
        metrics=("grouped_accuracy", "accuracy"),
    )


def test_the_better_sentence_is_the_likelier_one(make, write):
    task = prefer(write)
    for architecture in ("encoder", "decoder"):
        loaded = model_of(make, architecture)
        result = ask(loaded, task)
        right = []
        for pair in PAIRS:
            good, bad = score(loaded, [pair["good"], pair["bad"]])
            right.append(good.nats > bad.nats)
        assert result.metrics["accuracy"] == np.mean(right)
        assert result.groups == {"u0": np.mean(right[::2]), "u1": np.mean(right[1::2])}
    masked = untrained(make, "masked_next_token", "decoder")
    sums = [one.nats for pair in PAIRS for one in score(masked, [pair["good"], pair["bad"]])]
    right = np.greater(sums[::2], sums[1::2])
    result = ask(masked, task)
    assert result.metrics["accuracy"] == np.mean(right)
    assert result.method == "pseudo-log-likelihood of the sentence"
    both = replace(masked, rows=make("causal_lm + masked_next_token", "decoder")[0].rows)
    metrics = ask(both, task).metrics
    assert metrics["accuracy_masked"] == np.mean(right)
    causal = replace(masked, rows=make("causal_lm", "decoder")[0].rows)
    assert metrics["grouped_accuracy"] == ask(causal, task).metrics["grouped_accuracy"]
    assert "given the rest" in ask(model_of(make, "encoder_decoder"), task).method
    assert "first difference on" in ask(model_of(make, "prefix_decoder"), task).method


@pytest.mark.parametrize("architecture", CELLS)
def test_a_model_to_which_both_are_alike_gets_nothing(make, write, architecture):
    loaded = model_of(make, architecture)
    alike = replace(loaded, params=jax.tree.map(lambda leaf: leaf * 0, loaded.params))
    task = prefer(write, [{"good": "a cat", "bad": "a dog", "UID": "u"}] * 3)
    assert ask(alike, task).metrics["accuracy"] == 0
    choices = [{"text": "x", "options": ["ab", "cd"], "label": 0}] * 3
    task = Task(name="a", kind="choose", source=write(choices), choices=("options",))
    assert ask(alike, task).metrics["accuracy"] == 0


def test_completing_is_writing_each_token_as_the_likeliest(make, write):
    loaded = model_of(make, "decoder")
    prompt = loaded.tokenizer.encode("the cat")
    (written,) = generate_ids(loaded, [prompt], max_new_tokens=4)
    other = written.copy()
    other[2] += 1
    same, different = score_targets(loaded, [prompt] * 2, [written, other])
    assert same.is_likeliest.all()
    assert different.is_likeliest.tolist()[:3] == [True, True, False]

    source = write([{"text": "the cat", "word": " xyz"}])
    task = Task(name="lambada", kind="complete", source=source, label="word", question="{text}")
    result = ask(loaded, task)
    (scored,) = score(loaded, [" xyz"], "the cat")
    assert result.metrics["accuracy"] == 0
    assert result.metrics["nats_per_answer"] == pytest.approx(-scored.nats, rel=1e-5)


def test_shots_and_the_other_direction(make, write):
    loaded, task = model_of(make, "decoder"), classify(write)
    direct = ask(loaded, task)
    shots = ask(loaded, task, Asking(shots=1, seed=1))
    again = ask(loaded, task, Asking(shots=1, seed=1))
    assert shots.predictions == again.predictions
    channel = ask(loaded, task, Asking(direction="channel"))
    assert channel.method.endswith("of the question given the answer")
    for kind, asking, words in (
        ("complete", Asking(shots=1), "are asked without solved examples"),
        ("generate", Asking(direction="channel"), "have no options to condition on"),
    ):
        other = replace(task, kind=kind, metrics=())
        with pytest.raises(UserError, match=words):
            ask(loaded, other, asking)
    example = channel.examples.examples[0]
    scores = [score(loaded, [f"{example.text}?"], word)[0].nats for word in WORDS]
    assert channel.predictions[0] == int(np.argmax(scores))
    assert len(direct.predictions) == len(channel.predictions) == 6
    with pytest.raises(UserError, match="--shots=6: the task has 6 examples to draw from"):
        ask(loaded, task, Asking(shots=6))


@pytest.mark.parametrize("layout", ["splits", "the training split", "one file"])
def test_no_prompt_holds_the_asked_example_and_its_answer(write, tmp_path, layout):
    task = classify(write)
    if layout == "one file":
        task = replace(task, source=f"{tmp_path}/validation.jsonl", train="")
    split = "train" if layout == "the training split" else "validation"
    asked = load_split(task, split)
    nan = json.dumps({"text": "the nan", "label": "cat", "x": float("nan")}) + "\n"
    for name in ("train", "validation"):  # a record that does not equal itself
        with open(tmp_path / f"{name}.jsonl", "a") as file:
            file.write(nan)
    asked = load_split(task, split)
    for shots in range(6):
        prompts = _solved(task, Asking(shots=shots, seed=shots), asked)
        for prompt, example in zip(prompts, asked.examples, strict=True):
            assert prompt.count("?") == shots
            assert f"{example.text}?" not in prompt


@pytest.mark.parametrize("objective", ["span_corruption", "ul2"])
@pytest.mark.parametrize("architecture", ["decoder", "prefix_decoder", "encoder_decoder"])
def test_a_long_prompt_leaves_room_for_the_sentinels(make, objective, architecture):
    """The answer and the id that ends it fill the row to its last position."""
    loaded = untrained(make, objective, architecture)
    (one,) = score_answers(loaded, ["the cat " * 50], ["sees"])
    assert len(one.nats) == len("sees") + 1
    if architecture != "encoder_decoder":
        mode = 1 if objective == "ul2" else 0
        kept = loaded.model.max_length - len("sees") - 4 - mode
        (expected,) = score_answers(loaded, [("the cat " * 50)[-kept:]], ["sees"])
        np.testing.assert_array_equal(one.nats, expected.nats)


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_a_question_that_is_too_long_loses_its_beginning_and_no_other_is_changed(
    make, write, architecture
):
    loaded = untrained(make, "prefix_lm", architecture)
    records = [{"text": "the cat", "label": "x"}, {"text": "the dog " * 30, "label": "y"}]
    task = Task(name="a", kind="generate", source=write(records), question="{text}:")
    together = ask(loaded, task).predictions
    task = replace(task, source=write(records[:1], "alone").format(split="alone"))
    assert ask(loaded, task).predictions[0] == together[0]


def learned_in_words(loaded):
    """The model as if it had learned a task."""
    task = Task(name="a", source="a.tsv", labels=("x", "y"))
    lengths = Lengths(inputs=32, targets=24)
    return replace(loaded, rows=plan_task(task, "encoder_decoder", lengths))


def test_answers_end_where_a_model_has_learned_to_end_them(make):
    loaded = model_of(make, "encoder_decoder")
    (scored,) = score_answers(learned_in_words(loaded), ["the cat"], ["sat"])
    encode, eos = loaded.tokenizer.encode, loaded.tokenizer.vocabulary.eos
    read, written = (np.append(encode(text), eos) for text in ("the cat", "sat"))
    (expected,) = score_targets(loaded, [read], [written])
    np.testing.assert_allclose(scored.nats, expected.nats, rtol=1e-5)
    assert len(scored.nats) == 4


def test_a_model_with_a_prompt_of_its_own_is_not_asked_without(make):
    loaded = learned_in_words(model_of(make, "encoder_decoder"))
    loaded = replace(loaded, model=replace(loaded.model, prompt_length=3))
    with pytest.raises(UserError, match="score: this model reads a prompt that it learned with a"):
        score(loaded, ["a cat"], "b")


def test_what_a_model_cannot_be_asked(make, write):
    loaded = model_of(make, "decoder")
    source = write([{"text": "a", "label": 1.5}])
    with pytest.raises(UserError, match="was not trained on it cannot regress; use finetune"):
        ask(loaded, Task(name="a", kind="regress", source=source))
    with pytest.raises(UserError, match=r"--split=test: .* is one file without splits"):
        ask(loaded, Task(name="a", source=source.replace("{split}", "validation")), Asking("test"))
    source = write([{"text": "a", "label": -1}])
    with pytest.raises(UserError, match="a's validation split has no labels to judge by"):
        ask(loaded, Task(name="a", labels=("x", "y"), source=source))
