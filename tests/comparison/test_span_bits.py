"""Span bits per byte against what they must be: closed forms, other ways to score the same, sums to
one."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest
from conftest import CELLS, MORE_CELLS

from t5x_lite.comparison.span_bits import (
    Span,
    counted_bits,
    draw_spans,
    num_bytes,
    scored_contexts,
    shortened,
    span_bits,
    validation_documents,
)
from t5x_lite.config import Lengths
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.inference.score import score_in_blanks, score_targets
from t5x_lite.model.transformer import initialise
from t5x_lite.training.loaded_model import LoadedModel


@pytest.fixture(scope="module")
def loaded(make):
    """A function that makes an untrained model of an objective on an architecture."""

    def build(objective, architecture, **settings):
        resolved, corpus = make(objective, architecture, **settings)
        params = initialise(resolved.model, 0)
        parts = (resolved.config, resolved.rows, resolved.model, corpus.tokenizer, params, 0)
        return LoadedModel(*parts), corpus

    return build


DOCUMENTS = [" ".join(f"word{number}" for number in range(size)) for size in (5, 30, 200)]


def test_spans_are_drawn_by_words_and_seed():
    spans = draw_spans(DOCUMENTS, count=500, context=12)
    assert spans == draw_spans(DOCUMENTS, count=500, context=12)
    assert spans != draw_spans(DOCUMENTS, count=500, context=12, seed=1)
    assert spans[:50] == draw_spans(DOCUMENTS, count=50, context=12)
    for span in spans:
        whole = "".join(span[:3])
        assert whole.strip() in DOCUMENTS[1] or whole.strip() in DOCUMENTS[2]
        assert len(span.left.split()) >= 4
        assert 1 <= len(span.text.split()) <= 10
        assert len(span.left.split()) + len(span.right.split()) == 12
    # SpanBERT's mean (Joshi et al., 2020, §3.1).
    lengths = [len(span.text.split()) for span in spans]
    assert np.mean(lengths) == pytest.approx(3.8, abs=0.3)
    # A document gives spans in proportion to its words.
    of_long = np.mean([int(span.text.split()[0][4:]) >= 30 for span in spans])
    assert 0.6 < of_long < 0.85
    assert {span.passage for span in spans} == {0, 1}
    assert draw_spans(["too short a text"], 5, 12) == []
    assert num_bytes([Span("a", "é", "")]).tolist() == [2]


def test_long_documents_are_several_passages():
    """And not more of them are read than spans are drawn."""
    novel = " ".join(f"word{number}" for number in range(2500))
    spans = draw_spans([novel], count=400, context=12)
    for span in spans:
        first = int(span.left.split()[0][4:])
        assert first // 1000 == span.passage
    shares = np.bincount([span.passage for span in spans]) / len(spans)
    assert shares == pytest.approx([0.4, 0.4, 0.2], abs=0.08)
    assert {span.passage for span in draw_spans([novel] * 9, count=4, context=12)} <= set(range(6))


def test_spans_that_do_not_fit_lose_the_farthest_words():
    tokenizer = Tokenizer()
    span = Span(" aa bb cc dd ee ff", " gg hh", " ii jj kk ll")
    (short,) = shortened([span], [(tokenizer, Lengths(sequence_length=24))])
    assert short == Span(" ee ff", " gg hh", " ii jj")
    (tiny,) = shortened([span], [(tokenizer, Lengths(sequence_length=19))])
    assert tiny.text == " gg"
    assert shortened([span], [(tokenizer, Lengths(sequence_length=8))]) == []
    rows = [(tokenizer, Lengths(inputs=20, targets=10)), (tokenizer, Lengths(sequence_length=64))]
    (of_both,) = shortened([span], rows)
    assert len(of_both.left + of_both.right) <= 16
    assert shortened([span], [(tokenizer, Lengths(sequence_length=64))]) == [span]


QUICK = {
    ("masked_lm", "encoder"),
    ("prefix_lm", "prefix_decoder"),
    ("prefix_lm", "encoder_decoder"),
    ("span_corruption", "decoder"),
    ("fill_in_the_middle", "decoder"),
    ("deshuffling", "encoder_decoder"),
    ("causal_lm + masked_next_token(choice='word')", "decoder"),
    ("ul2", "encoder_decoder"),
}


@pytest.mark.parametrize(
    ("objective", "architecture"),
    [pytest.param(*c, marks=() if c in QUICK else pytest.mark.slow) for c in CELLS + MORE_CELLS],
)
def test_every_family_answers_what_it_was_asked_in_training(loaded, objective, architecture):
    model, corpus = loaded(objective, architecture)
    contexts = scored_contexts(model)
    if objective in ("drop_tokens", "mass_style", "bert_style", "deshuffling") or (
        objective.startswith(("sentence_permutation", "text_infilling"))
    ):
        assert contexts == ()
        return
    both = architecture == "encoder" or model.rows.uses_sentinels
    reads_masks = objective in ("masked_next_token", "masked_diffusion")
    both = both or reads_masks or "middle" in objective or "masked_next" in objective
    left = both if architecture == "encoder" else not reads_masks
    left = left and objective != "fill_in_the_middle(fim_rate=1)"
    assert contexts == ("left",) * left + ("both",) * both
    spans = draw_spans(validation_documents(corpus), 4, 6)
    lengths = model.config.data.lengths
    spans = shortened(spans, [(model.tokenizer, lengths)])
    for context in contexts:
        bits = span_bits(model, spans, context).without_end
        assert bits.shape == (len(spans),)
        # An untrained model is near uniform over all ids that do not end a span.
        ends = 1 + model.tokenizer.vocabulary.sentinels
        tokens = np.array([len(model.tokenizer.encode(span.text)) for span in spans])
        assert bits / tokens == pytest.approx(math.log2(model.model.vocab_size - ends), rel=0.05)


@pytest.mark.parametrize(
    ("objective", "architecture"),
    [
        ("causal_lm", "decoder"),
        ("fill_in_the_middle", "decoder"),
        ("span_corruption", "encoder_decoder"),
        ("masked_lm", "encoder"),
    ],
)
def test_a_uniform_model_needs_log2_of_the_vocabulary_a_token(loaded, objective, architecture):
    model, corpus = loaded(objective, architecture)
    zeros = jax.tree.map(lambda value: value * 0, model.params)
    uniform = dataclasses.replace(model, params=zeros)
    spans = shortened(
        draw_spans(validation_documents(corpus), 4, 6),
        [(model.tokenizer, model.config.data.lengths)],
    )
    tokens = np.array([len(model.tokenizer.encode(span.text)) for span in spans])
    for context in scored_contexts(uniform):
        found = span_bits(uniform, spans, context)
        size, ends = model.model.vocab_size, 1 + model.tokenizer.vocabulary.sentinels
        assert found.without_end == pytest.approx(tokens * math.log2(size - ends), rel=1e-5)
        if model.rows.uses_sentinels or (context == "both" and architecture == "decoder"):
            assert found.beginning == pytest.approx(tokens * math.log2(size), rel=1e-5)
            expected = found.beginning - math.log2(ends / size)
            assert found.with_end == pytest.approx(expected, rel=1e-5)
        else:
            assert (found.beginning, found.with_end) == (None, None)


def test_spans_that_cover_a_text_cost_a_decoder_what_the_text_does(loaded):
    model, _ = loaded("causal_lm", "decoder")
    text = "the cat sees the dog and it."
    ids = model.tokenizer.encode(text)
    vocabulary = model.tokenizer.vocabulary
    ends = [vocabulary.eos, *map(vocabulary.sentinel, range(vocabulary.sentinels))]
    (whole,) = score_targets(model, [ids[:0]], [ids], ends)
    assert whole.goes_on_nats is not None
    cuts = [0, 4, 12, 13, len(text)]
    spans = [
        Span(text[:start], text[start:end], text[end:]) for start, end in itertools.pairwise(cuts)
    ]
    bits = span_bits(model, spans, "left").without_end
    assert bits.sum() * math.log(2) == pytest.approx(
        (whole.goes_on_nats - whole.nats).sum(), rel=1e-5
    )


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
@pytest.mark.parametrize("right", ["t sees", ""], ids=["text after", "no text after"])
def test_a_span_that_may_not_end_sums_to_one(loaded, architecture, right):
    """Over all tokens but EOS and the sentinels; each of those ends a span, wherever it lies."""
    model, _ = loaded("span_corruption", architecture)
    vocabulary, encode = model.tokenizer.vocabulary, model.tokenizer.encode
    ends = [vocabulary.eos, *map(vocabulary.sentinel, range(vocabulary.sentinels))]
    context = "both" if right else "left"
    (of_a,) = (span_bits(model, [Span("the c", "a", right)], context),)

    # Of the first token, from the plain probabilities of all of them.
    first, eos = vocabulary.sentinel(0), vocabulary.eos
    inputs = np.array([*encode("the c"), first, *encode(right), eos])
    every = range(model.model.vocab_size)
    rows = [np.array([first, token]) for token in every]
    nats = np.array([one.nats[1] for one in score_targets(model, [inputs] * len(rows), rows)])
    may_follow = [token for token in every if token not in ends]
    normalised = nats[may_follow] - np.logaddexp.reduce(nats[may_follow])
    bits = -normalised[may_follow.index(ord("a"))] / math.log(2)
    assert of_a.without_end == pytest.approx([bits], rel=1e-4)
    assert of_a.beginning == pytest.approx([-nats[ord("a")] / math.log(2)], rel=1e-4)

    # And the probability that the span is all of the answer.
    rows = [np.array([first, ord("a"), end]) for end in ends]
    nats = [one.nats[1:].sum() for one in score_targets(model, [inputs] * len(rows), rows)]
    total = np.logaddexp.reduce(np.array(nats))
    assert of_a.with_end == pytest.approx([-total / math.log(2)], rel=1e-4)


def test_the_chain_rule_over_masks_sums_to_one(loaded):
    """p(b | a, context) over all tokens b for two of a, and p(a | context) over all a."""
    model, _ = loaded("masked_lm", "encoder")
    before, after = model.tokenizer.encode("the c"), model.tokenizer.encode("t sees")
    first = np.arange(model.model.vocab_size)
    total = 0.0
    for a in (97, 101):  # p(b | a) sums to one for each a
        spans = [np.array([a, b], np.int32) for b in first]
        scores = score_in_blanks(model, [before] * len(spans), [after] * len(spans), spans)
        seconds = np.array([one.nats[1] for one in scores])
        total += np.exp(seconds).sum()
    assert total == pytest.approx(2, rel=1e-5)
    singles = [np.array([a], np.int32) for a in first]
    scores = score_in_blanks(model, [before] * len(first), [after] * len(first), singles)
    assert np.exp([one.nats[0] for one in scores]).sum() == pytest.approx(1, rel=1e-5)


def test_counting_gives_what_the_whole_text_costs(loaded):
    """The trigram model's bits of spans that cover a text add up to those of the text."""
    _, corpus = loaded("causal_lm", "decoder")
    text = "the cat sees the dog"
    spans = [Span(text[:start], text[start : start + 5], "") for start in range(0, len(text), 5)]
    of_parts = counted_bits(corpus, spans)
    (of_whole,) = (counted_bits(corpus, [Span("", text, "")])[name] for name in ["unigram"])
    assert of_parts["unigram"].sum() == pytest.approx(of_whole.sum())
    whole = counted_bits(corpus, [Span("", text, "")])["Kneser-Ney trigram"]
    assert of_parts["Kneser-Ney trigram"].sum() == pytest.approx(whole.sum())
