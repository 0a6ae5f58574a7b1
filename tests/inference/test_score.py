import jax
import numpy as np
import pytest
from inference.untrained import full_logits, logits_of, untrained

from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rows.layouts import RowShape, lay_out
from t5x_lite.errors import UserError
from t5x_lite.inference.fill import fill
from t5x_lite.inference.generate import encode_prompts
from t5x_lite.inference.score import (
    _scores_of,
    score,
    score_at_sentinels,
    score_targets,
    target_log_probabilities,
    way_to_score,
)
from t5x_lite.inference.token_predictions import predict_tokens


def test_scores_are_the_log_probabilities_of_the_rows(make):
    """A text in one piece and in two, alone and in company; given a context its score is a
    difference.
    """
    loaded = untrained(make, "causal_lm", "decoder")
    text, other = "the cat sees", "a much longer text of more than forty bytes in all"
    alone, both = score(loaded, [text])[0], score(loaded, [other, text])
    assert alone.nats == pytest.approx(both[1].nats, abs=1e-3)
    first, second = score(loaded, [other[:40], other[40:]])
    assert both[0].nats == pytest.approx(first.nats + second.nats, abs=1e-3)
    (given,) = score(loaded, [" sees"], context="the cat")
    (before,) = score(loaded, ["the cat"])
    assert given.nats == pytest.approx(alone.nats - before.nats, abs=1e-3)
    assert alone.bits_per_byte == pytest.approx(-alone.nats / np.log(2) / 12)
    assert alone.tokens == 12


@pytest.mark.parametrize(
    ("objective", "architecture"),
    [("prefix_lm", "prefix_decoder"), ("prefix_lm", "encoder_decoder")],
)
def test_choices_given_a_context_add_up_to_one(make, objective, architecture):
    loaded = untrained(make, objective, architecture, **{"model.positions": "relative"})
    ids = [np.array([i]) for i in range(loaded.tokenizer.vocabulary.size)]
    (before,) = encode_prompts(loaded, ["the cat"])
    each = target_log_probabilities(loaded, [before] * len(ids), ids)
    assert np.exp(np.concatenate(each)).sum() == pytest.approx(1, abs=1e-4)
    with pytest.raises(UserError, match="given another"):
        score(loaded, ["a"])


def test_an_encoder_scores_by_masks(make):
    loaded = untrained(make, "masked_lm", "encoder")
    (one,) = score(loaded, ["at"], context="the c___ sees")
    (p_a,) = fill(loaded, "the c___ sees", top=384)
    vocabulary = loaded.tokenizer.vocabulary

    def log_probability(row, at, token):
        framed = [[vocabulary["[CLS]"], *row, vocabulary["[SEP]"]]]
        logits = full_logits(loaded, "encoder", framed)
        return float(jax.nn.log_softmax(logits[0, at])[token])

    mask, a, t = vocabulary["[MASK]"], ord("a"), ord("t")
    before, after = list(b"the c"), list(b" sees")
    chain = log_probability([*before, mask, mask, *after], 6, a)
    chain += log_probability([*before, a, mask, *after], 7, t)
    assert one.nats == pytest.approx(chain, abs=1e-4)
    assert (one.kind, one.tokens, len(p_a)) == ("log_probability", 2, 384)
    (pseudo,) = score(loaded, ["at"])
    expected = log_probability([mask, t], 1, a) + log_probability([a, mask], 2, t)
    assert pseudo.nats == pytest.approx(expected, abs=1e-4)
    assert pseudo.kind == "pseudo_log_likelihood"


@pytest.mark.parametrize("objective", ["span_corruption", "ul2"])
def test_a_span_is_scored_in_the_place_of_its_sentinel(make, objective):
    loaded = untrained(make, objective, "encoder_decoder")
    vocabulary, encode = loaded.tokenizer.vocabulary, loaded.tokenizer.encode
    mode = [vocabulary["[R]"]] if objective == "ul2" else []
    first, second, eos = vocabulary.sentinel(0), vocabulary.sentinel(1), vocabulary.eos
    (found,) = score_at_sentinels(loaded, [encode("the c")], [encode("t")], [encode("a")])
    inputs = np.array([*mode, *encode("the c"), first, *encode("t"), eos])
    (expected,) = score_targets(loaded, [inputs], [np.array([first, *encode("a"), second])])
    np.testing.assert_array_equal(found.nats, expected.nats[1:])


SENTINELS = [
    ("span_corruption", "encoder_decoder"),
    ("ul2", "encoder_decoder"),
    ("iid_denoising", "prefix_decoder"),
    ("span_corruption", "decoder"),
]


@pytest.mark.parametrize(("objective", "architecture"), SENTINELS)
def test_a_model_with_sentinels_scores_in_their_place(make, objective, architecture):
    """Without a context each token in place of its own, else the text in the place of one, at the
    blank or after the context. The id that ends a span does not count.
    """
    loaded = untrained(make, objective, architecture)
    encode = loaded.tokenizer.encode
    a, t, nothing = encode("a"), encode("t"), encode("")

    def of_span(before, after, span):
        (found,) = score_at_sentinels(loaded, [before], [after], [span])
        assert len(found.nats) == len(span) + 1
        return found.nats[:-1].sum()

    (pseudo,) = score(loaded, ["at"])
    expected = of_span(nothing, t, a) + of_span(a, nothing, t)
    assert pseudo.nats == pytest.approx(expected, abs=1e-4)
    assert (pseudo.kind, pseudo.tokens) == ("pseudo_log_likelihood", 2)
    assert score(loaded, ["", "at"])[0].nats == 0
    contexts = [("the c___ sees", " sees"), ("the c", "")]
    for context, after in contexts[: 1 if loaded.rows.continues_text else 2]:
        (one,) = score(loaded, ["at"], context)
        expected = of_span(encode("the c"), encode(after), encode("at"))
        assert one.nats == pytest.approx(expected, abs=1e-4)
        assert (one.kind, one.tokens) == ("log_probability", 2)
    with pytest.raises(UserError, match="has 2 blanks, expected one"):
        score(loaded, ["at"], "___ c___")


@pytest.mark.parametrize(("objective", "architecture"), SENTINELS)
def test_what_does_not_fit_a_row_with_its_sentinel_is_refused(make, objective, architecture):
    """It is not cut: a piece without its sentinel is nothing that the model has learned."""
    loaded = untrained(make, objective, architecture)
    room = loaded.model.max_length
    alone = room - 2 if loaded.model.is_encoder_decoder else room - 4 - (objective == "ul2")
    assert score(loaded, ["a" * alone], "___")[0].tokens == alone
    too_long = "a" * (alone + 1)
    for ask in (
        lambda text: score(loaded, [text], "___"),
        lambda text: predict_tokens(loaded, text, "___"),
    ):
        with pytest.raises(UserError, match=rf"takes {room + 1} positions .* have {room}; shorten"):
            ask(too_long)


WAYS = [
    ("causal_lm", "decoder", "left_to_right", "left_to_right", "left_to_right"),
    ("masked_lm", "encoder", "masks", "masks", "masks"),
    ("masked_next_token", "decoder", "masks", "masks", "masks"),
    ("span_corruption", "encoder_decoder", "sentinels", "sentinels", "sentinels"),
    ("span_corruption", "decoder", "sentinels", "sentinels", "sentinels"),
    ("ul2", "encoder_decoder", "sentinels", "left_to_right", "sentinels"),
    ("prefix_lm + span_corruption", "prefix_decoder", "sentinels", "left_to_right", "sentinels"),
    ("causal_lm + span_corruption", "decoder", "left_to_right", "left_to_right", "sentinels"),
    ("causal_lm + masked_next_token", "decoder", "left_to_right", "left_to_right", "masks"),
    ("span_corruption + masked_next_token", "decoder", "masks", "sentinels", "sentinels"),
]


@pytest.mark.parametrize(("objective", "architecture", "alone", "after", "in_blank"), WAYS)
def test_each_model_scores_as_it_has_learned(make, objective, architecture, alone, after, in_blank):
    loaded = untrained(make, objective, architecture, **{"model.positions": "relative"})
    for context, way in (("", alone), ("the", after), ("the ___ sees", in_blank)):
        assert way_to_score(loaded, context) == way
        if way == "masks" and context:
            continue  # predict_tokens masks each token alone
        (whole,) = score(loaded, [" cat"], context)
        assert (whole.kind == "log_probability") == bool(context or way == "left_to_right")
        tokens = predict_tokens(loaded, " cat", context)
        total = sum(np.log(token.probability) for token in tokens)
        assert total == pytest.approx(whole.nats, abs=1e-3)
    assert score(loaded, []) == []


def test_a_decoder_of_masks_scores_by_them(make):
    """Where its training rows have the weight of the masked token. A decoder reads all but the last
    token of a row, which therefore is EOS: the last token of the text is read as all others.
    """
    loaded = untrained(make, "masked_next_token", "decoder")
    vocabulary = loaded.tokenizer.vocabulary
    mask, a, t = vocabulary["[MASK]"], ord("a"), ord("t")

    def log_probability(read, text, at):
        read, text = [*read, vocabulary.eos], [*text, vocabulary.eos]
        weights = np.zeros((1, len(text)), np.float32)
        weights[0, at] = 1
        one, of_masks = Ragged.from_rows([text]), Ragged.from_rows([read])
        pairs = Pairs(Ragged.empty(1), one, Ragged.from_array(weights, np.float32), read=of_masks)
        row = lay_out(pairs, RowShape(decoder=20, looks_ahead=True), vocabulary)
        (place,) = np.flatnonzero(row["decoder_weights"][0])
        logits = logits_of(loaded.model)(loaded.params, row)
        assert row["decoder_targets"][0, place] == text[at]
        return float(jax.nn.log_softmax(logits[0, place])[text[at]])

    (pseudo,) = score(loaded, ["at"])
    expected = log_probability([mask, t], [a, t], 0) + log_probability([a, mask], [a, t], 1)
    assert pseudo.nats == pytest.approx(expected, abs=1e-4)
    assert pseudo.kind == "pseudo_log_likelihood"
    (filled,) = fill(loaded, "___t", top=384)
    probability = dict(filled)["a"]
    assert np.log(probability) == pytest.approx(log_probability([mask, t], [a, t], 0), abs=1e-4)
    (one,) = score(loaded, ["at"], context="c___ sees")
    c, after = ord("c"), list(b" sees")
    chain = log_probability([c, mask, mask, *after], [c, a, t, *after], 1)
    chain += log_probability([c, a, mask, *after], [c, a, t, *after], 2)
    assert one.nats == pytest.approx(chain, abs=1e-4)


@pytest.mark.parametrize("margin", [0, 40, 1000])
def test_an_end_may_be_next_to_certain_or_next_to_impossible(margin):
    """The log-probability of what is unlikely is not lost in that of what is likely."""
    logits = jax.numpy.array([0.0, -margin])
    likely = -np.log1p(np.exp(-margin))
    for end, expected in ((1, (likely, likely - margin)), (0, (likely - margin, likely))):
        *_, goes_on, ends = _scores_of(logits, np.array(0), np.array([end]))
        assert (float(goes_on), float(ends)) == pytest.approx(expected, rel=1e-6)
