import json
from itertools import pairwise, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import run

import t5x_lite
from t5x_lite.data.layouts import Shape, lay_out
from t5x_lite.data.objectives import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.errors import Refusal
from t5x_lite.inference import few_shot, fill, generate, score, writing
from t5x_lite.model.heads import head_weights, logits
from t5x_lite.model.transformer import Transformer, initialise
from t5x_lite.training import rundir


def untrained(make, objective, architecture, **more):
    from flax import linen as nn

    config, corpus = make(objective, architecture, **{"model.init_stddev": 0.5, "model.embedding_stddev": 1.0}, **more)
    config = rundir.resolve(config, corpus.tokenizer.vocabulary)
    params = jax.jit(lambda: nn.meta.unbox(initialise(config.model, jax.random.key(3)))["params"])()
    return rundir.Trained(config, corpus.tokenizer, params, 0)


def full(trained, stack, tokens, params=None):
    """Logits at every position of rows of these tokens, nothing kept from one to the next."""
    tokens, config, params = np.array(tokens), trained.config.model, params or trained.params
    row = {"tokens": tokens, "segments": tokens * 0 + 1, "positions": np.arange(tokens.shape[1]) + tokens * 0}
    row = {f"{stack}_{key}": value for key, value in row.items()}

    def compute(params):
        return logits(config, head_weights(params), Transformer(config).apply({"params": params}, row))

    return jax.jit(compute)(params)


@pytest.mark.parametrize(
    ("objective", "architecture"),
    [("causal_lm", "decoder"), ("prefix_lm", "prefix_decoder"), ("span_corruption", "encoder_decoder")],
)
def test_greedy_is_the_argmax_of_each_prefix_and_batches_change_nothing(make, objective, architecture):
    shared = architecture == "encoder_decoder"
    trained = untrained(make, objective, architecture, **{"model.positions": "relative", "model.shared_stacks": shared})
    model, vocabulary = trained.config.model, trained.tokenizer.vocabulary
    prompts = [trained.tokenizer.encode(text) for text in ("the cat sees", "the dog and the bird")]
    together = generate.generate(trained, prompts, max_new=3)
    for prompt, made in zip(prompts, together, strict=True):
        assert (generate.generate(trained, [prompt], max_new=3)[0] == made).all()
        targets = np.append(made, 0).astype(np.int32)  # all at once: what is written is the likeliest at its place
        both = len(prompt) + len(targets)
        shape = Shape(0, both, 0, architecture == "prefix_decoder")
        if architecture == "encoder_decoder":
            shape = Shape(len(prompt), len(targets), 0)
        row = lay_out(Pairs(Ragged.of([prompt]), Ragged.of([targets])), shape, vocabulary)
        hidden = jax.jit(Transformer(model).apply)({"params": trained.params}, row)
        out = logits(model, head_weights(trained.params), hidden)[0, -len(targets) :, : vocabulary.size]
        likeliest = out.argmax(-1).tolist()
        assert likeliest[: len(made)] == made.tolist()
        assert len(made) == 3 or likeliest[len(made)] == vocabulary.eos


def test_a_run_of_float64_is_read_back_in_float32(make, tmp_path):
    with jax.enable_x64(True):
        trained = untrained(make, "causal_lm", "decoder", **{"model.dtype": "float64"})
        rundir.create(tmp_path / "run", trained.config, trained.tokenizer, trained.params)
    model = t5x_lite.load(tmp_path / "run")
    assert {leaf.dtype for leaf in jax.tree.leaves(trained.params)} == {np.dtype("float64")}
    for mine, theirs in zip(jax.tree.leaves(model.params), jax.tree.leaves(trained.params), strict=True):
        assert mine.dtype == np.float32
        np.testing.assert_array_equal(mine, np.asarray(theirs, np.float32))
    assert model.score(["the cat"])


WAYS = {
    "learned, several queries to a key": {"positions": "learned", "kv_heads": 1},
    "rotary, in parallel": {"positions": "rotary", "parallel": True, "tied": False},
    "alibi, one block": {"positions": "alibi", "shared_layers": "all"},
    "Shaw": {"positions": "shaw", "shaw_distance": 2, "embedding_size": 8},
    "Transformer-XL": {"positions": "transformer_xl", "norm_position": "post"},
    "Universal, ReZero": {"positions": "universal", "rezero": True},
    "bfloat16": {"positions": "relative", "dtype": "bfloat16"},
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_kept_is_what_would_be_computed_again(make, way):
    """Logits of tokens read in pieces of 5, 1 and 1, padding behind the first piece, against those of the whole row."""
    trained = untrained(make, "causal_lm", "decoder", **{f"model.{k}": v for k, v in WAYS[way].items()})
    config, params = trained.config.model, trained.params
    params = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(x.size), x.shape), params)
    tokens = np.random.default_rng(0).integers(0, 250, (2, 7))
    expected = full(trained, "decoder", tokens, params)
    weights = writing.prepare(config, params)
    prompt = writing.Prompt(jnp.asarray(np.pad(tokens[:, :5], [(0, 0), (0, 3)])), jnp.array([5, 5]))
    last, cache = jax.jit(writing._read_prompt, static_argnums=(0, 3))(config, weights, prompt, 12)
    close = {"atol": 0.15 if way == "bfloat16" else 1e-4, "rtol": 0}
    np.testing.assert_allclose(last, expected[:, 4], **close)
    read_next = jax.jit(writing._read_next, static_argnums=(0, 6))
    for count in (1, 2):
        ids = jnp.asarray(tokens[:, 4 + count])
        last, cache = read_next(config, weights, cache, ids, prompt.lengths, count, 4)
        np.testing.assert_allclose(last, expected[:, 4 + count], **close)


def test_prompts_reach_to_the_last_position(make):
    """Slots are powers of two, positions are 40: padding past them must not be read."""
    trained = untrained(make, "causal_lm", "decoder")
    prompts = [np.arange(65, 65 + n) for n in (36, 3)]
    for prompt, made in zip(prompts, generate.generate(trained, prompts, max_new=9), strict=True):
        assert len(made) == 4
        likeliest = full(trained, "decoder", [[trained.tokenizer.vocabulary.start, *prompt, *made[:-1]]])
        assert likeliest[0, len(prompt) :].argmax(-1).tolist() == made.tolist()


def test_one_program_for_prompts_and_texts_of_like_length(make):
    trained = untrained(make, "causal_lm", "decoder", **{"model.positions": "rotary"})
    writing.begin.clear_cache()
    writing.go_on.clear_cache()
    for length, new in ((1, 3), (7, 9), (15, 16), (4, 2)):
        generate.generate(trained, [np.full(length, 65)], max_new=new)
    assert (writing.begin._cache_size(), writing.go_on._cache_size()) == (1, 1)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_beam_search_finds_what_an_exhaustive_search_finds(make, penalty):
    """All texts of at most three of five ids, two prompts at once; a beam of 25 loses none of them."""
    trained = untrained(make, "causal_lm", "decoder", **{"model.vocab_size": 0})
    config, eos = trained.config.model, 2
    prompts = [np.array([70, 71]), np.array([72])]
    tokens = jnp.array([[1, 70, 71], [1, 72, 0]])
    prompt, weights = writing.Prompt(tokens, jnp.array([3, 2])), writing.prepare(config, trained.params)
    ids, scores = writing.beam_search(config, writing.Ends(eos, 5), 25, penalty, 4, weights, prompt, 3)
    for row, before in enumerate(prompts):
        every = list(product(range(5), repeat=3))
        logp = jax.nn.log_softmax(full(trained, "decoder", [[1, *before, *text] for text in every])[..., :5])
        found = {}
        for of_text, text in zip(np.asarray(logp), every, strict=True):
            text = text[: text.index(eos) + 1] if eos in text else text
            total = sum(of_text[len(before) + i, t] for i, t in enumerate(text))
            found[text] = total / ((5 + len(text)) / 6) ** penalty
        best = sorted(found, key=found.get, reverse=True)[:5]
        for k, text in enumerate(best):
            assert tuple(ids[row, k, : len(text)].tolist()) == text
            assert float(scores[row, k]) == pytest.approx(found[text], abs=1e-4)


def test_texts_grow_while_they_are_streamed_and_end_before_a_stop_string(make):
    trained = untrained(make, "causal_lm", "decoder", **{"model.positions": "rotary"})
    options = {"max_new": 24, "temperature": 1.0, "seed": 3}
    (whole,) = generate.continue_texts(trained, ["the cat"], **options)
    pieces = [text for (text,) in generate.stream(trained, ["the cat"], every=3, **options)]
    assert len(pieces) > 3
    assert pieces[-1] == whole
    assert all(b.startswith(a) for a, b in pairwise(pieces))
    stop = whole[10:13]
    (cut,) = generate.continue_texts(trained, ["the cat"], stop=(stop,), **options)
    assert cut == whole[: whole.index(stop)]
    pieces = [text for (text,) in generate.stream(trained, ["the cat"], every=1, stop=(stop,), **options)]
    assert pieces[-1] == cut
    assert all(cut.startswith(text) for text in pieces)


def test_scores_are_the_log_probabilities_of_the_rows(make):
    """A text in one piece and in two, alone and in company; given a context its score is a difference."""
    trained = untrained(make, "causal_lm", "decoder")
    text, other = "the cat sees", "a much longer text of more than forty bytes in all"
    alone, both = score.score(trained, [text])[0], score.score(trained, [other, text])
    assert alone.nats == pytest.approx(both[1].nats, abs=1e-3)
    first, second = score.score(trained, [other[:40], other[40:]])
    assert both[0].nats == pytest.approx(first.nats + second.nats, abs=1e-3)
    (given,) = score.score(trained, [" sees"], context="the cat")
    assert given.nats == pytest.approx(alone.nats - score.score(trained, ["the cat"])[0].nats, abs=1e-3)
    assert alone.bits_per_byte == pytest.approx(-alone.nats / np.log(2) / 12)
    assert alone.tokens == 12


@pytest.mark.parametrize(
    ("objective", "architecture"), [("prefix_lm", "prefix_decoder"), ("span_corruption", "encoder_decoder")]
)
def test_choices_given_a_context_add_up_to_one(make, objective, architecture):
    trained = untrained(make, objective, architecture, **{"model.positions": "relative"})
    ids = [np.array([i]) for i in range(trained.tokenizer.vocabulary.size)]
    (before,) = generate.encoded(trained, ["the cat"])
    each = score.target_log_probabilities(trained, [before] * len(ids), ids)
    assert np.exp(np.concatenate(each)).sum() == pytest.approx(1, abs=1e-4)
    with pytest.raises(Refusal, match="given another"):
        score.score(trained, ["a"])


def test_an_encoder_scores_by_masks(make):
    trained = untrained(make, "masked_lm", "encoder")
    (one,) = score.score(trained, ["at"], context="the c___ sees")
    (p_a,) = fill.fill(trained, "the c___ sees", top=384)
    vocabulary = trained.tokenizer.vocabulary

    def logp(row, at, asked):
        out = full(trained, "encoder", [[vocabulary["[CLS]"], *row, vocabulary["[SEP]"]]])
        return float(jax.nn.log_softmax(out[0, at])[asked])

    mask, a, t = vocabulary["[MASK]"], ord("a"), ord("t")
    before, behind = list(b"the c"), list(b" sees")
    chain = logp([*before, mask, mask, *behind], 6, a) + logp([*before, a, mask, *behind], 7, t)
    assert one.nats == pytest.approx(chain, abs=1e-4)
    assert (one.kind, one.tokens, len(p_a)) == ("log_probability", 2, 384)
    (pseudo,) = score.score(trained, ["at"])
    assert pseudo.nats == pytest.approx(logp([mask, t], 1, a) + logp([a, mask], 2, t), abs=1e-4)
    assert pseudo.kind == "pseudo_log_likelihood"


def test_sampling_keeps_what_it_says():
    scores = jnp.log(jnp.array([[0.5, 0.3, 0.15, 0.05]]))

    def drawn(**options):
        sampling = writing.Sampling(**{"temperature": 1.0, **options})
        keys = jax.random.split(jax.random.key(0), 2000)
        ids = jax.vmap(lambda key: writing.choose(scores, key, sampling)[0])(keys)
        return np.bincount(ids, minlength=4) / 2000

    assert np.abs(drawn() - [0.5, 0.3, 0.15, 0.05]).max() < 3 * 0.5 / np.sqrt(2000)
    assert (drawn(top_k=2)[2:] == 0).all()
    assert (drawn(top_p=0.6)[2:] == 0).all()
    assert drawn(top_p=0.6)[1] > 0.3
    assert drawn(top_p=0.01)[0] == 1
    assert drawn(temperature=0.01)[0] == 1


def test_filling_words_gives_probabilities_that_add_up(make):
    trained = untrained(make, "masked_lm", "encoder")
    first, second = fill.fill(trained, "the ___ sees ___", top=384)
    for words in (first, second):
        assert sum(p for _, p in words) == pytest.approx(1, abs=1e-4)
        assert [p for _, p in words] == sorted((p for _, p in words), reverse=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new": 0}, "max_new: got 0"),
        ({"max_new": 10**9}, "max_new: got 10"),
        ({"top_p": 7.0}, "top_p: got 7"),
        ({"top_k": 3}, "set a temperature"),
        ({"beams": 2, "temperature": 0.7}, "set one of them"),
        ({"beams": 10**5}, "ids of the tokenizer"),
        ({"stop": [""]}, "texts that are not empty"),
        ({"temprature": 1.0}, "did you mean temperature"),
    ],
    ids=str,
)
def test_options_that_mean_nothing_are_refused(make, options, message):
    decoder = untrained(make, "causal_lm", "decoder")
    with pytest.raises(Refusal, match=message):
        generate.continue_texts(decoder, ["a"], **options)


def test_lists_of_texts_are_asked(make):
    decoder = untrained(make, "causal_lm", "decoder")
    assert generate.continue_texts(decoder, []) == []
    with pytest.raises(Refusal, match="expected a list"):
        generate.continue_texts(decoder, "ab")


def test_what_cannot_be_asked(make):
    decoder, encoder = untrained(make, "causal_lm", "decoder"), untrained(make, "masked_lm", "encoder")
    with pytest.raises(Refusal, match="knows no blanks"):
        fill.fill(decoder, "a ___")
    with pytest.raises(Refusal, match="has no blank"):
        fill.fill(encoder, "a blank")
    with pytest.raises(Refusal, match="writes no text"):
        generate.continue_texts(encoder, ["a"])
    with pytest.raises(Refusal, match="shorten it"):
        generate.continue_texts(decoder, ["a" * 50])
    with pytest.raises(Refusal, match="shorten it"):
        fill.fill(encoder, "___" + "a" * 50)


def test_spans_are_read_from_between_the_sentinels(make, monkeypatch):
    trained = untrained(make, "span_corruption", "encoder_decoder")
    encode, sentinel = trained.tokenizer.encode, trained.tokenizer.vocabulary.sentinel
    asked = []

    def answer(trained, inputs, max_new):
        asked.append(trained.tokenizer.decode(inputs[0]))
        return [np.concatenate([encode("?"), [sentinel(1)], encode(" c"), [sentinel(0)], encode("ab"), [sentinel(7)]])]

    monkeypatch.setattr(fill, "generate", answer)
    assert fill.fill(trained, "the ___ sees ___.") == ["ab", " c"]
    assert asked == ["the<extra_id_0> sees<extra_id_1>.</s>"]


def test_models_as_commands_and_in_python(tmp_path, config_file):
    path, workdir = (
        config_file("span_corruption", "encoder_decoder", **{"model.positions": "relative"}),
        tmp_path / "run",
    )
    run("train", f"--config={path}", f"--workdir={workdir}")
    blank = "the cat likes___ bird and the dog sees it."
    out, _ = run("fill", f"--workdir={workdir}", blank)
    assert out.splitlines()[-1].startswith("  1. ")
    out, _ = run("fill", f"--workdir={workdir}", blank, "--json")
    model = t5x_lite.load(workdir)
    assert json.loads(out) == {"text": blank, "blanks": model.fill(blank)}
    out, _ = run("generate", f"--workdir={workdir}", "the cat", "--max-new=5", "--temperature=0.5", "--top-k=3")
    assert out == "the cat" + "".join(model.stream("the cat", max_new=5, temperature=0.5, top_k=3)) + "\n"
    examples = tmp_path / "examples.jsonl"
    examples.write_text('{"input": "a", "target": "b"}\n\n{"input": "c", "target": "d"}\n')
    shots = [
        "--examples",
        examples,
        "--shots=1",
        "--template={input}: {target}\\n",
        "--json",
        "--max-new=3",
        "--beams=2",
    ]
    assert json.loads(run("generate", f"--workdir={workdir}", "e", *shots)[0])["text"] == "e"
    out, _ = run("score", f"--workdir={workdir}", "--context=the cat", " sees", " hears")
    assert "likeliest: ' " in out
    scores = [
        json.loads(line)
        for line in run("score", f"--workdir={workdir}", "--context=a", "b", "c", "--json")[0].splitlines()
    ]
    assert [one["nats"] for one in scores] == [one.nats for one in model.score(["b", "c"], "a")]
    _, err = run("generate", f"--workdir={tmp_path / 'nothing'}", "the cat", code=66)
    assert "expected the directory of a run" in err
    for options, code, message in (
        (["--examples", tmp_path / "none"], 66, "cannot be read"),
        (["--examples", examples, "--shots=3"], 2, "has 2 examples"),
        (["--examples", examples, "--template=x"], 2, "expected one with"),
        (["--beams=0"], 2, "from 1 on"),
        (["--shots=1"], 2, "name their file with --examples"),
    ):
        assert message in run("generate", f"--workdir={workdir}", "a", *options, code=code)[1]


def test_examples_are_what_they_are(tmp_path):
    (tmp_path / "x").write_text('{"input": "the {target}\u2028is", "target": "mer"}\n', "utf-8")
    (example,) = few_shot.read(tmp_path / "x")
    assert few_shot.prompt([example], "q", 1) == "the {target}\u2028is => mer\nq =>"
    with pytest.raises(Refusal, match="behind it"):
        few_shot.prompt([example], "q", 1, template="{target} <= {input}\n")


def test_examples_that_are_none(tmp_path):
    for text, message in (("[1]", "expected"), ("{", "no JSON"), ("", "no examples")):
        (tmp_path / "x").write_text(text)
        with pytest.raises(Refusal, match=message):
            few_shot.read(tmp_path / "x")
