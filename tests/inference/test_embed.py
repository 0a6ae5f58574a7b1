"""Texts as vectors: those of each text alone, whatever it is read with."""

from dataclasses import replace

import numpy as np
import pytest
from inference.untrained import untrained

from t5x_lite.errors import UserError
from t5x_lite.inference import embed as embedding
from t5x_lite.inference.embed import embed
from t5x_lite.inference.fill import fill
from t5x_lite.inference.generate import continue_texts
from t5x_lite.inference.score import score

CELLS = [
    ("masked_lm", "encoder", 2),  # [CLS] and [SEP]
    ("causal_lm", "decoder", 1),  # the start token
    ("prefix_lm", "prefix_decoder", 1),
    ("span_corruption", "encoder_decoder", 1),  # EOS
]
TEXTS = ["the cat sees", "a", "", *(f"the dog number {i}" for i in range(8))]


@pytest.mark.parametrize(("objective", "architecture", "added"), CELLS)
def test_each_text_has_the_vectors_that_it_has_alone(make, objective, architecture, added):
    loaded = untrained(make, objective, architecture)
    states = embed(loaded, TEXTS, "none")
    means = embed(loaded, TEXTS)
    for text, hidden, mean in zip(TEXTS, states, means, strict=True):
        assert hidden.shape == (len(text) + added, loaded.model.d_model)
        np.testing.assert_allclose(mean, hidden.mean(0), atol=1e-6)
        (alone,) = embed(loaded, [text], "none")
        np.testing.assert_allclose(hidden, alone, atol=1e-5)
    assert np.abs(means[0] - means[1]).max() > 0.1


def test_the_first_position_of_an_encoder(make):
    loaded = untrained(make, "masked_lm", "encoder")
    first, hidden = embed(loaded, TEXTS, "cls"), embed(loaded, TEXTS, "none")
    for vector, states in zip(first, hidden, strict=True):
        np.testing.assert_array_equal(vector, states[0])
    assert np.abs(first[0] - first[1]).max() > 0.1  # it sees the text


def test_a_decoder_sees_what_is_before(make):
    loaded = untrained(make, "causal_lm", "decoder")
    short, longer = embed(loaded, ["the cat", "the cat sees"], "none")
    np.testing.assert_allclose(short, longer[: len(short)], atol=1e-5)


def test_what_cannot_be_embedded(make):
    decoder = untrained(make, "causal_lm", "decoder")
    encoder = untrained(make, "masked_lm", "encoder")
    with pytest.raises(UserError, match="pooling=cls: the first position of a decoder does not"):
        embed(decoder, ["a"], "cls")
    with pytest.raises(UserError, match="pooling='max': expected mean, cls or none"):
        embed(encoder, ["a"], "max")
    with pytest.raises(UserError, match="a text has 52 tokens, the model reads 34; shorten it"):
        embed(encoder, ["a" * 50])


def test_one_array_of_vectors_and_one_of_hidden_states(make, tmp_path):
    loaded = untrained(make, "masked_lm", "encoder")
    path = tmp_path / "vectors.npy"
    embedding.save(path, embed(loaded, TEXTS))
    assert np.load(path).shape == (len(TEXTS), loaded.model.d_model)
    states = embed(loaded, ["abc", "a"], "none")
    embedding.save(path, states)
    saved = np.load(path)
    assert saved.shape == (2, 5, loaded.model.d_model)
    np.testing.assert_array_equal(saved[1, :3], states[1])
    assert not saved[1, 3:].any()
    with pytest.raises(UserError, match="cannot be written"):
        embedding.save(tmp_path / "nowhere" / "vectors.npy", states)


@pytest.mark.parametrize(("objective", "architecture", "added"), CELLS)
def test_a_model_without_a_head_embeds_and_predicts_nothing(make, objective, architecture, added):
    loaded = untrained(make, objective, architecture)
    headless = replace(loaded, model=replace(loaded.model, lm_head=False))
    np.testing.assert_array_equal(embed(headless, ["abc"])[0], embed(loaded, ["abc"])[0])
    for predict in (
        lambda: continue_texts(headless, ["a"]),
        lambda: fill(headless, "a ___"),
        lambda: score(headless, ["a"], "b"),
    ):
        with pytest.raises(UserError, match="has no head that predicts tokens; use embed"):
            predict()
