import json
from itertools import pairwise

import jax
import numpy as np
import pytest
from conftest import run
from inference.untrained import untrained
from model.proofs import random_params

import t5x_lite
from t5x_lite.errors import UserError
from t5x_lite.inference.generate import continue_texts, encode_prompts, generate_ids, stream_texts
from t5x_lite.training import run_directory


def test_a_run_of_float64_is_read_back_in_float32(make, tmp_path):
    with jax.enable_x64(True):
        resolved, corpus = make(**{"model.dtype": "float64"})
        params = jax.device_put(random_params(resolved.model))
        run_directory.create(tmp_path / "run", resolved.config, corpus.tokenizer, params)
    model = t5x_lite.load(tmp_path / "run")
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float64")}
    for mine, theirs in zip(jax.tree.leaves(model.params), jax.tree.leaves(params), strict=True):
        assert mine.dtype == np.float32
        np.testing.assert_array_equal(mine, np.asarray(theirs, np.float32))
    assert model.score(["the cat"])


def test_texts_grow_while_they_are_streamed_and_end_before_a_stop_string(make):
    loaded = untrained(make, "causal_lm", "decoder", **{"model.positions": "rotary"})
    options = {"max_new_tokens": 24, "temperature": 1.0, "seed": 3}
    (whole,) = continue_texts(loaded, ["the cat"], **options)
    pieces = [text for (text,) in stream_texts(loaded, ["the cat"], every=3, **options)]
    assert len(pieces) > 3
    assert pieces[-1] == whole
    assert all(b.startswith(a) for a, b in pairwise(pieces))
    stop = whole[10:13]
    (cut,) = continue_texts(loaded, ["the cat"], stop=(stop,), **options)
    assert cut == whole[: whole.index(stop)]
    stopping = stream_texts(loaded, ["the cat"], every=1, stop=(stop,), **options)
    pieces = [text for (text,) in stopping]
    assert pieces[-1] == cut
    assert all(cut.startswith(text) for text in pieces)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens: got 0"),
        ({"max_new_tokens": 10**9}, "max_new_tokens: got 10"),
        ({"top_p": 7.0}, "top_p: got 7"),
        ({"top_k": 3}, "set a temperature"),
        ({"num_beams": 2, "temperature": 0.7}, "set one of them"),
        ({"num_beams": 10**5}, "ids of the tokenizer"),
        ({"stop": [""]}, "texts that are not empty"),
        ({"temprature": 1.0}, "did you mean temperature"),
    ],
    ids=str,
)
def test_options_that_mean_nothing_are_refused(make, options, message):
    decoder = untrained(make, "causal_lm", "decoder")
    with pytest.raises(UserError, match=message):
        continue_texts(decoder, ["a"], **options)


def test_special_tokens_in_a_prompt_are_text_unless_they_are_asked_for(make):
    loaded = untrained(make, "causal_lm", "decoder")
    vocabulary = loaded.tokenizer.vocabulary
    (plain,) = encode_prompts(loaded, ["a[MASK]<extra_id_12>"])
    assert plain.tolist() == list(b"a[MASK]<extra_id_12>")
    (read,) = encode_prompts(loaded, ["a[MASK]<extra_id_12>"], special_tokens=True)
    assert read.tolist() == [97, vocabulary["[MASK]"], vocabulary.sentinel(12)]
    (ids,) = generate_ids(loaded, [read], max_new_tokens=5)
    options = {"special_tokens": True, "max_new_tokens": 5}
    (text,) = continue_texts(loaded, ["a[MASK]<extra_id_12>"], **options)
    assert text == loaded.tokenizer.decode_after(read, ids)


def test_lists_of_texts_are_continued(make):
    decoder = untrained(make, "causal_lm", "decoder")
    assert continue_texts(decoder, []) == []
    with pytest.raises(UserError, match="expected a list"):
        continue_texts(decoder, "ab")


def test_what_cannot_be_continued(make):
    decoder, encoder = (
        untrained(make, "causal_lm", "decoder"),
        untrained(make, "masked_lm", "encoder"),
    )
    with pytest.raises(UserError, match="writes no text"):
        continue_texts(encoder, ["a"])
    with pytest.raises(UserError, match="shorten it"):
        continue_texts(decoder, ["a" * 50])


@pytest.mark.slow
def test_models_as_commands_and_in_python(tmp_path, config_file):
    workdir = tmp_path / "run"
    path = config_file("span_corruption", "encoder_decoder", **{"model.positions": "relative"})
    run("train", f"--config={path}", f"--workdir={workdir}")

    blank = "the cat likes___ bird and the dog sees it."
    out, _ = run("fill", f"--workdir={workdir}", blank)
    assert out.splitlines()[-1].startswith("  1. ")
    out, _ = run("fill", f"--workdir={workdir}", blank, "--json")
    model = t5x_lite.load(workdir)
    assert json.loads(out) == {"text": blank, "blanks": model.fill(blank)}

    sampled = ("--max-new-tokens=5", "--temperature=0.5", "--top-k=3")
    out, _ = run("generate", f"--workdir={workdir}", "the cat", *sampled)
    pieces = model.stream("the cat", max_new_tokens=5, temperature=0.5, top_k=3)
    assert out == "the cat" + "".join(pieces) + "\n"

    examples = tmp_path / "examples.jsonl"
    examples.write_text('{"input": "a", "target": "b"}\n\n{"input": "c", "target": "d"}\n')
    shots = ("--examples", examples, "--shots=1", "--template={input}: {target}\\n")
    beams = ("--json", "--max-new-tokens=3", "--num-beams=2")
    out, _ = run("generate", f"--workdir={workdir}", "e", *shots, *beams)
    assert json.loads(out).keys() == {"text", "continuation"}
    assert json.loads(out)["text"] == "e"

    out, _ = run("score", f"--workdir={workdir}", "--context=the cat", " sees", " hears")
    assert "likeliest: ' " in out
    out, _ = run("score", f"--workdir={workdir}", "--context=a", "b", "c", "--json")
    scores = [json.loads(line)["nats"] for line in out.splitlines()]
    assert scores == [one.nats for one in model.score(["b", "c"], "a")]

    _, err = run("generate", f"--workdir={tmp_path / 'nothing'}", "the cat", code=66)
    assert "expected that of a run" in err
    for options, code, message in (
        (["--examples", tmp_path / "none"], 66, "cannot be read"),
        (["--examples", examples, "--shots=3"], 2, "has 2 examples"),
        (["--examples", examples, "--template=x"], 2, "expected one with"),
        (["--num-beams=0"], 2, "at least 1"),
        (["--shots=1"], 2, "name their file with --examples"),
    ):
        assert message in run("generate", f"--workdir={workdir}", "a", *options, code=code)[1]
