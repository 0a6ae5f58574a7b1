from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import slow
from inference.untrained import full_logits, logits_of, untrained

from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rows.layouts import RowShape, lay_out
from t5x_lite.inference import decode_loop
from t5x_lite.inference.decode_loop import Prompt, Sampling, StopTokens, sample
from t5x_lite.inference.generate import generate_ids, search_ids

OF_MIXERS = {
    "attention": {"model.positions": "relative"},
    "lstm": {"model.mixer": "lstm", "model.positions": "none"},
}


def target_logits(loaded, prompt, targets):
    """The logits at each of the targets after a prompt, all computed at once, of a row as data
    makes it.
    """
    architecture = loaded.model.architecture
    if architecture == "encoder_decoder":
        shape = RowShape(len(prompt), len(targets))
    else:
        both = len(prompt) + len(targets)
        shape = RowShape(decoder=both, bidirectional_prefix=architecture == "prefix_decoder")
    pairs = Pairs(Ragged.from_rows([prompt]), Ragged.from_rows([targets]))
    row = lay_out(pairs, shape, loaded.tokenizer.vocabulary)
    return np.asarray(logits_of(loaded.model)(loaded.params, row))[0, -len(targets) :]


@pytest.mark.parametrize(
    ("objective", "architecture", "mixer"),
    [
        ("causal_lm", "decoder", "attention"),
        slow("causal_lm", "decoder", "lstm"),
        slow("prefix_lm", "prefix_decoder", "attention"),
        ("span_corruption", "encoder_decoder", "attention"),
        slow("span_corruption", "encoder_decoder", "lstm"),
    ],
)
def test_greedy_is_the_argmax_of_each_prefix_and_batches_change_nothing(
    make, objective, architecture, mixer
):
    """Of whatever mixes positions: what it keeps is its own business."""
    shared = architecture == "encoder_decoder" and mixer == "attention"
    settings = {**OF_MIXERS[mixer], "model.shared_stacks": shared}
    loaded = untrained(make, objective, architecture, **settings)
    vocabulary = loaded.tokenizer.vocabulary
    texts = ("the cat sees", "the dog and the bird")
    prompts = [loaded.tokenizer.encode(text) for text in texts]
    together = generate_ids(loaded, prompts, max_new_tokens=3)
    for prompt, ids in zip(prompts, together, strict=True):
        assert (generate_ids(loaded, [prompt], max_new_tokens=3)[0] == ids).all()
        targets = np.append(ids, 0).astype(np.int32)
        likeliest = target_logits(loaded, prompt, targets)[:, : vocabulary.size].argmax(-1).tolist()
        assert likeliest[: len(ids)] == ids.tolist()
        assert len(ids) == 3 or likeliest[len(ids)] == vocabulary.eos


@pytest.mark.parametrize("mixer", OF_MIXERS)
def test_a_beam_scores_what_its_text_scores_whatever_the_mixer(make, mixer):
    """State that moves with the beams: each text's score is that of the text read at once."""
    loaded = untrained(make, "causal_lm", "decoder", **OF_MIXERS[mixer])
    vocabulary = loaded.tokenizer.vocabulary
    prompts = [loaded.tokenizer.encode(text) for text in ("the cat", "a dog sees")]
    found = search_ids(loaded, prompts, num_beams=3, max_new_tokens=5, length_penalty=1.0)
    for prompt, candidates in zip(prompts, found, strict=True):
        assert [score for _, score in candidates] == sorted(
            (score for _, score in candidates), reverse=True
        )
        for ids, score in candidates:
            text = ids if len(ids) == 5 else np.append(ids, vocabulary.eos)
            logits = target_logits(loaded, prompt, text.astype(np.int32))[:, : vocabulary.size]
            by_token = jax.nn.log_softmax(logits)[np.arange(len(text)), text]
            expected = float(by_token.sum()) / ((5 + len(text)) / 6)
            assert score == pytest.approx(expected, abs=1e-3)


WAYS = {
    "learned, several queries to a key": {"positions": "learned", "num_kv_heads": 1},
    "rotary, in parallel": {
        "positions": "rotary",
        "parallel_residual": True,
        "tie_embeddings": False,
    },
    "alibi, one block": {"positions": "alibi", "shared_layers": "all"},
    "Shaw": {"positions": "shaw(distance=2)", "embedding_size": 8},
    "Transformer-XL": {"positions": "transformer_xl", "norm_position": "post"},
    "Universal, ReZero": {"positions": "universal", "rezero": True},
    "bfloat16": {"positions": "relative", "dtype": "bfloat16"},
    "local layers, every norm": {
        "positions": "rotary(base=500.0, fraction=0.5)",
        "layer_pattern": ("global", "local"),
        "local_rules": ("window(size=2)",),
        "local_positions": "rotary",
        "qk_norm": "head",
        "norm_position": "both",
        "attention_softcap": 2.0,
    },
    "local layers, one of two with experts": {
        "positions": "rotary",
        "layer_pattern": ("local", "global", "global"),
        "local_rules": ("window(size=2)",),
        "local_positions": "none",
        "num_layers": 4,
        "feed_forward": "experts(num=2, top_k=1, every=2, capacity=2.0)",
    },
    "local layers of one block": {
        "positions": "rotary",
        "layer_pattern": ("global", "local"),
        "local_rules": ("window(size=2)",),
        "shared_layers": "all",
        "first_norm": False,
    },
    "biases of each layer": {"positions": "relative(per_layer=True)", "qk_norm": "all"},
    "LSTM": {"mixer": "lstm", "positions": "none", "feed_forward": "none"},
    "LSTM, normalised by RMSNorm": {"mixer": "lstm", "positions": "learned", "norm": "rms_norm"},
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_kept_is_what_would_be_computed_again(make, way):
    """Logits of tokens read in pieces of 5, 1 and 1, padding after the first piece, against those
    of the whole row.
    """
    settings = {f"model.{key}": value for key, value in WAYS[way].items()}
    loaded = untrained(make, "causal_lm", "decoder", **settings)
    config = loaded.model
    tokens = np.random.default_rng(0).integers(0, 250, (2, 7))
    expected = full_logits(loaded, "decoder", tokens)
    weights = decode_loop.prepare_weights(config, loaded.params)
    padded = jnp.asarray(np.pad(tokens[:, :5], [(0, 0), (0, 3)]))
    prompt = Prompt(padded, jnp.array([5, 5]))
    read_prompt = jax.jit(decode_loop._read_prompt, static_argnums=(0, 3))
    read_next = jax.jit(decode_loop._read_next, static_argnums=(0, 6))
    last, state = read_prompt(config, weights, prompt, 12)
    close = {"atol": 0.15 if way == "bfloat16" else 1e-4, "rtol": 0}
    np.testing.assert_allclose(last, expected[:, 4], **close)
    for count in (1, 2):
        ids = jnp.asarray(tokens[:, 4 + count])
        last, state = read_next(config, weights, state, ids, prompt.lengths, count, 4)
        np.testing.assert_allclose(last, expected[:, 4 + count], **close)


def test_prompts_reach_to_the_last_position(make):
    """Slots are powers of two, positions are 40: padding past them must not be read. A prompt that
    leaves room for four tokens does not shorten the text after another one.
    """
    loaded = untrained(make, "causal_lm", "decoder")
    start = loaded.tokenizer.vocabulary.start
    prompts = [np.arange(65, 65 + n) for n in (36, 3)]
    written = generate_ids(loaded, prompts, max_new_tokens=9)
    for prompt, ids, room in zip(prompts, written, (4, 9), strict=True):
        assert len(ids) == room
        logits = full_logits(loaded, "decoder", [[start, *prompt, *ids[:-1]]])
        assert logits[0, len(prompt) :].argmax(-1).tolist() == ids.tolist()


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
@pytest.mark.parametrize("beams", [slow(1), 3])
def test_a_text_does_not_depend_on_the_other_prompts(make, architecture, beams):
    """Of one batch, long prompts and short ones, with learned positions that end at 40."""
    loaded = untrained(make, "prefix_lm", architecture)

    def write(prompts):
        if beams == 1:
            return [ids.tolist() for ids in generate_ids(loaded, prompts, max_new_tokens=20)]
        found = search_ids(loaded, prompts, beams, max_new_tokens=20)
        return [[(ids.tolist(), round(score, 4)) for ids, score in beam] for beam in found]

    longest = loaded.model.max_length - 2
    prompts = [np.arange(n) % 99 for n in (longest, 5, longest - 5, 1)]
    together = write(prompts)
    alone = [write([prompt])[0] for prompt in prompts]
    assert together == alone
    if architecture == "decoder" and beams == 1:
        assert [len(ids) for ids in together] == [2, 20, 7, 20]


def test_one_program_for_prompts_and_texts_of_like_length(make):
    loaded = untrained(make, "causal_lm", "decoder", **{"model.positions": "rotary"})
    decode_loop.prefill.clear_cache()
    decode_loop.decode.clear_cache()
    for length, new in ((1, 3), (7, 9), (15, 16), (4, 2)):
        generate_ids(loaded, [np.full(length, 65)], max_new_tokens=new)
    assert (decode_loop.prefill._cache_size(), decode_loop.decode._cache_size()) == (1, 1)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_beam_search_finds_what_an_exhaustive_search_finds(make, penalty):
    """All texts of at most three of five ids, two prompts at once; a beam of 25 loses none of
    them.
    """
    loaded = untrained(make, "causal_lm", "decoder")
    config, eos = loaded.model, 2
    prompts = [np.array([70, 71]), np.array([72])]
    tokens = jnp.array([[1, 70, 71], [1, 72, 0]])
    prompt = Prompt(tokens, jnp.array([3, 2]))
    weights = decode_loop.prepare_weights(config, loaded.params)
    ids, scores = decode_loop.beam_search(
        config, StopTokens((eos,), 5), 25, penalty, 4, weights, prompt, 3
    )
    every = list(product(range(5), repeat=3))
    for row, before in enumerate(prompts):
        texts = [[1, *before, *text] for text in every]
        log_probabilities = jax.nn.log_softmax(full_logits(loaded, "decoder", texts)[..., :5])
        expected = {}
        for of_text, text in zip(np.asarray(log_probabilities), every, strict=True):
            text = text[: text.index(eos) + 1] if eos in text else text
            total = sum(of_text[len(before) + i, t] for i, t in enumerate(text))
            expected[text] = total / ((5 + len(text)) / 6) ** penalty
        best = sorted(expected, key=expected.__getitem__, reverse=True)[:5]
        for k, text in enumerate(best):
            assert tuple(ids[row, k, : len(text)].tolist()) == text
            assert float(scores[row, k]) == pytest.approx(expected[text], abs=1e-4)


def test_sampling_keeps_what_it_says():
    scores = jnp.log(jnp.array([[0.5, 0.3, 0.15, 0.05]]))

    def shares(**options):
        sampling = Sampling(**{"temperature": 1.0, **options})
        keys = jax.random.split(jax.random.key(0), 2000)
        ids = jax.vmap(lambda key: sample(scores, key, sampling)[0])(keys)
        return np.bincount(ids, minlength=4) / 2000

    assert np.abs(shares() - [0.5, 0.3, 0.15, 0.05]).max() < 3 * 0.5 / np.sqrt(2000)
    assert (shares(top_k=2)[2:] == 0).all()
    assert (shares(top_p=0.6)[2:] == 0).all()
    assert shares(top_p=0.6)[1] > 0.3
    assert shares(top_p=0.01)[0] == 1
    assert shares(temperature=0.01)[0] == 1
