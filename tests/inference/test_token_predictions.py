"""Token by token: the probabilities are those of `score`, and the tokens make the text."""

import numpy as np
import pytest
from inference.untrained import full_logits, untrained

from t5x_lite.errors import UserError
from t5x_lite.inference.generate import stream_written
from t5x_lite.inference.score import score
from t5x_lite.inference.token_predictions import _pieces_of_text, predict_ids, predict_tokens

MODELS = [
    ("causal_lm", "decoder", ""),
    ("causal_lm", "decoder", "the cat"),
    ("prefix_lm", "prefix_decoder", "the cat"),
    ("span_corruption", "encoder_decoder", ""),
    ("span_corruption", "encoder_decoder", "the cat"),
    ("span_corruption", "encoder_decoder", "the cat___ sees"),
    ("masked_lm", "encoder", ""),
    ("masked_next_token", "decoder", ""),
]


@pytest.mark.parametrize(("objective", "architecture", "context"), MODELS)
def test_probabilities_of_tokens_are_the_score_of_the_text(make, objective, architecture, context):
    loaded = untrained(make, objective, architecture, **{"model.positions": "relative"})
    text = " sees a dog"
    found = predict_tokens(loaded, text, context, top=3)
    assert "".join(token.text for token in found) == text
    (whole,) = score(loaded, [text], context)
    total = sum(np.log(token.probability) for token in found)
    assert total == pytest.approx(whole.nats, abs=1e-3)
    for token in found:
        probabilities = [probability for _, probability in token.likeliest]
        assert len(probabilities) == 3
        assert probabilities == sorted(probabilities, reverse=True)
        assert probabilities[0] >= token.probability * (1 - 1e-6)


@pytest.mark.parametrize(("objective", "architecture", "context"), MODELS)
def test_all_tokens_together_have_probability_one(make, objective, architecture, context):
    loaded = untrained(make, objective, architecture, **{"model.positions": "relative"})
    everything = loaded.tokenizer.vocabulary.size
    for token in predict_tokens(loaded, "cat", context, top=everything):
        assert sum(probability for _, probability in token.likeliest) == pytest.approx(1, abs=1e-4)
        assert dict(token.likeliest)[token.text] == pytest.approx(token.probability, abs=1e-6)


def test_a_mask_is_no_answer_of_a_diffusion_model_and_the_context_is_read(make):
    loaded = untrained(make, "masked_diffusion", "encoder")
    everything = loaded.tokenizer.vocabulary.size
    alone, after = (predict_tokens(loaded, "cat", context, everything) for context in ("", "the "))
    assert all(dict(token.likeliest).get("[MASK]", 0) == 0 for token in alone)
    assert [token.text for token in after] == list("cat")
    assert alone[0].probability != pytest.approx(after[0].probability, rel=1e-3)


def test_a_text_longer_than_the_table_of_positions_is_predicted_in_pieces(make):
    loaded = untrained(make, "causal_lm", "decoder", **{"model.positions": "learned"})
    text = "a much longer text of more than forty bytes in all"
    found = predict_tokens(loaded, text)
    (whole,) = score(loaded, [text])
    assert sum(np.log(one.probability) for one in found) == pytest.approx(whole.nats, abs=1e-3)
    assert predict_tokens(loaded, "") == []


@pytest.mark.parametrize("objective", ["causal_lm", "masked_next_token"])
def test_a_text_is_read_as_a_whole_if_positions_allow(make, objective):
    """What is written at any length has the probability that it had when it was written; a model
    with masks refuses a text that it has not learned to read.
    """
    loaded = untrained(make, objective, "decoder", **{"model.positions": "rotary"})
    if loaded.rows.masked:
        with pytest.raises(UserError, match="the text has 81 tokens, the model reads 40"):
            predict_tokens(loaded, "a" * 80)
        return
    *_, (read, ids, text) = stream_written(loaded, "the cat", max_new_tokens=80)
    assert len(ids) == 80
    found = predict_ids(loaded, ids, read, top=1)
    assert "".join(token.text for token in found) == text
    tokens = np.concatenate([loaded.after_start(read), ids])[None, :-1]
    logits = full_logits(loaded, "decoder", tokens)[0, len(read) :]
    expected = np.exp(logits - np.logaddexp.reduce(logits, -1, keepdims=True))
    chosen = [token.probability for token in found]
    np.testing.assert_allclose(chosen, expected[np.arange(80), ids], atol=1e-5)
    # Greedy: always the likeliest
    np.testing.assert_allclose(chosen, [token.likeliest[0][1] for token in found], rtol=1e-4)


@pytest.mark.parametrize("top", [0, -1, 2.5, "3", True])
def test_top_is_a_number(make, top):
    with pytest.raises(UserError, match=r"top: got .*, expected a whole number, at least 1"):
        predict_tokens(untrained(make, "causal_lm", "decoder"), "a", top=top)


def test_what_needs_a_context_says_so(make):
    loaded = untrained(make, "prefix_lm", "prefix_decoder", **{"model.positions": "relative"})
    with pytest.raises(UserError, match="given another one; name that with --context"):
        predict_tokens(loaded, "a")
    bert = untrained(make, "masked_lm", "encoder")
    with pytest.raises(UserError, match="comes before the text, token by token; write it without"):
        predict_tokens(bert, "a", context="the ___ sat")
    assert score(bert, ["a\ud800"])[0].bits_per_byte > 0


def test_the_bytes_of_a_character_are_one_piece_at_its_last(make):
    tokenizer = untrained(make, "causal_lm", "decoder").tokenizer
    text = "né 猫\ufffd!"
    pieces = _pieces_of_text(tokenizer, np.zeros(0, np.int32), tokenizer.encode(text))
    assert "".join(pieces) == text
    assert pieces[:4] == ["n", "", "é", " "]
