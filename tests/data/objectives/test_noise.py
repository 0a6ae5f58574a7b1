"""Noise masks: the stated counts, and the stated distributions, against closed forms and other
samplers.
"""

from collections import Counter
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import (
    VOCABULARY,
    row_rng,
    seeds,
    share_that_differs,
    text_rows,
    window_lengths,
)

from t5x_lite.data.objectives import noise
from t5x_lite.data.rng import Purpose, RowRng, philox_key

WORDS = "the old grey cat sat on the mat and saw a bird that sang all day long in the tree."
GEOMETRIC = 0.2 * 0.8 ** np.arange(10)
GEOMETRIC /= GEOMETRIC.sum()


@given(window_lengths, seeds, st.floats(0.01, 0.9), st.floats(1, 10), st.booleans())
@settings(max_examples=200)
def test_span_masks_have_the_stated_counts(n, seed, density, mean, roll):
    rng = RowRng(philox_key(seed, Purpose.TRAINING_ROWS), [5, 6])
    mask = noise.random_spans(n, rng, density, mean, roll)
    assert mask.shape == (2, n)
    assert (mask.sum(1) == min(max(round(n * density), 1), n - 1)).all()
    spans_around_the_end = (mask & ~np.roll(mask, 1, axis=1)).sum(1)
    assert (spans_around_the_end == noise.span_count(n, density, mean)).all()
    if not roll:
        assert not mask[:, 0].any()
        assert mask[:, -1].all()


def test_mean_span_length_and_uniform_positions():
    """10⁵ spans of 568 tokens: mean 85/28, and with a roll every position is masked equally often,
    within 3 σ.
    """
    rows = 3600
    masks = noise.random_spans(568, row_rng(0, rows), 0.15, 3.0, random_roll=True)
    starts = masks & ~np.roll(masks, 1, axis=1)
    assert starts.sum() >= 100_000
    assert masks.sum() / starts.sum() == pytest.approx(85 / 28)
    assert share_that_differs(masks.mean(0), 85 / 568, rows) < 0.01


def test_span_positions_against_another_sampler():
    """Without a roll, T5's own way: flags of "a segment begins here", shuffled, for noise and for
    gaps.
    """
    rows, n, noise_tokens, spans = 3600, 568, 85, 28
    generator = np.random.default_rng(1)

    def segments(total):
        flags = np.tile(np.arange(total - 1) < spans - 1, (rows, 1))
        begins = generator.permuted(flags, axis=1)
        number = np.cumsum(np.pad(begins, [(0, 0), (1, 0)]), axis=1)
        return np.stack([np.bincount(row, minlength=spans) for row in number])

    lengths = np.stack([segments(n - noise_tokens), segments(noise_tokens)], 2).reshape(rows, -1)
    theirs = np.stack([np.repeat(np.arange(2 * spans) % 2, row) for row in lengths])
    ours = noise.random_spans(n, row_rng(2, rows), 0.15, 3.0)
    assert share_that_differs(ours.mean(0), theirs.mean(0), rows) < 0.01
    our_starts, their_starts = (
        (masks[:, 1:] > masks[:, :-1]).mean(0) for masks in (ours.astype(int), theirs)
    )
    assert share_that_differs(our_starts, their_starts, rows) < 0.01


def test_span_lengths_follow_the_closed_form():
    """Lengths of a random composition: P(length = l) = C(N−l−1, S−2) / C(N−1, S−1)."""
    total, parts, rows = 12, 4, 25_000
    lengths = noise.random_composition(total, parts, row_rng(0, rows))
    assert (lengths.sum(1) == total).all()
    for length, count in Counter(lengths.reshape(-1).tolist()).items():
        p = comb(total - length - 1, parts - 2) / comb(total - 1, parts - 1)
        # Lengths of one composition are dependent: the variance of a mean over 4 is at most that
        # of one.
        assert abs(count / lengths.size - p) < 3 * np.sqrt(p * (1 - p) / rows)


def test_spanbert_lengths():
    """Geometric(0.2) renormalised on 1 … 10: mean 3.80 (SpanBERT, §3.1)."""
    drawn = noise.geometric_lengths(row_rng(0, 1000).uniform(100))
    assert round(float(GEOMETRIC @ np.arange(1, 11)), 2) == 3.80
    frequencies = np.bincount(drawn.reshape(-1), minlength=11)[1:] / 100_000
    sigma = np.sqrt(GEOMETRIC * (1 - GEOMETRIC) / 100_000)
    assert (np.abs(frequencies - GEOMETRIC) < 3 * sigma).all()


def test_spanbert_positions_against_another_sampler():
    rows, count = 4000, 20
    tokens = text_rows(WORDS, rows)
    ours = noise.spans_of_words(tokens, np.full(rows, count), row_rng(1, rows), VOCABULARY)
    ours = ours >= 0
    assert (ours.sum(1) == count).all()

    # A word holds the blank before it.
    ends = np.flatnonzero(np.array([letter in " ." for letter in WORDS[1:]])) + 1
    starts, ends = np.append(0, ends), np.append(ends, len(WORDS))
    generator, theirs = np.random.default_rng(0), np.zeros((rows, len(WORDS)))
    for row in theirs:
        while row.sum() < count:
            anchor = generator.integers(len(WORDS))
            length = generator.choice(10, p=GEOMETRIC) + 1
            if row[anchor]:
                continue
            word = np.searchsorted(ends, anchor, side="right")
            for position in range(starts[word], ends[min(word + length, len(ends)) - 1]):
                if row.sum() < count:
                    row[position] = 1
    assert share_that_differs(ours.mean(0), theirs.mean(0), rows) < 0.03


def test_short_spans_against_another_sampler():
    """GPT-BERT's: cut the row into spans of 1 to 3 tokens, and mask those with the lowest of
    random numbers. Theirs masks the last span whole, up to two tokens more; here it is cut.
    """
    rows, n, count = 4000, 40, 12
    tokens = text_rows("x" * n, rows)
    spans = noise.short_spans(tokens, np.full(rows, count), row_rng(1, rows), VOCABULARY)
    assert ((spans >= 0).sum(1) == count).all()

    generator, theirs = np.random.default_rng(0), np.full((rows, n), -1)
    for row in theirs:
        span = np.repeat(np.arange(n), generator.integers(1, 4, n))[:n]
        order = np.argsort(generator.random(n)[span], kind="stable")
        row[order[:count]] = span[order[:count]]
    for of_ours, of_theirs in zip(descriptions(spans), descriptions(theirs), strict=True):
        assert share_that_differs(of_ours, of_theirs, rows) < 0.05


def descriptions(spans):
    """How often each token is masked, each length occurs, and a span touches the one before it."""
    yield (spans >= 0).mean(0)
    lengths = [np.bincount(np.bincount(row[row >= 0]), minlength=4)[1:] for row in spans]
    yield (np.array(lengths) > 2).mean(0)
    yield ((spans[:, 1:] != spans[:, :-1]) & (spans[:, 1:] >= 0) & (spans[:, :-1] >= 0)).mean(0)


def test_short_spans_leave_out_special_ids():
    tokens = text_rows("x" * 30, 50).astype(np.int32)
    tokens[:, ::4] = VOCABULARY.eos
    counts = np.arange(50) % 23
    spans = noise.short_spans(tokens, counts, row_rng(0, 50), VOCABULARY)
    assert ((spans >= 0).sum(1) == counts).all()
    assert not (spans[:, ::4] >= 0).any()
    for row in spans:
        numbers = row[row >= 0]
        assert (np.diff(numbers) >= 0).all()
        assert set(numbers) == set(range(numbers.max(initial=-1) + 1))
        assert np.bincount(numbers).max(initial=0) <= 3


def test_whole_words_are_whole_and_equally_likely():
    rows, count = 4000, 12
    tokens = text_rows(WORDS, rows)
    mask = noise.whole_words(tokens, np.full(rows, count), row_rng(0, rows), VOCABULARY)
    words = noise.word_ids(tokens[:1], VOCABULARY)[0]

    def text_of(number):
        return "".join(np.array(list(WORDS))[words == number])

    assert [text_of(number) for number in (0, 1, 20)] == ["the", " old", "."]
    for number in range(words[-1] + 1):
        masked = mask[:, words == number]
        assert (masked.all(1) == masked.any(1)).all()
    assert mask.sum(1).max() == count
    assert mask.sum(1).min() > count - 4  # the shortest words fill nearly all
    # " grey", " saw" and " sang" are of like length: not far apart.
    frequencies = [mask[:, words == number].mean() for number in (2, 9, 13)]
    assert max(frequencies) - min(frequencies) < 0.1


def test_salient_spans_are_names_numbers_and_dates():
    text = "On 3 May 1815 he met Anna Lee near Paris. The cat slept. It was 5.5 miles off."
    tokens = text_rows(text, 300)
    mask = noise.salient_spans(tokens, np.full(300, 40), row_rng(0, 300), VOCABULARY)
    shown = "".join("_" if hidden else c for c, hidden in zip(text, mask[0], strict=True))
    assert shown == "On___________ he met_________ near______. The cat slept. It was____ miles off."
    some = noise.salient_spans(tokens, np.full(300, 11), row_rng(0, 300), VOCABULARY)
    assert some.sum(1).max() <= 11
    masked = {"".join(np.array(list(text))[row]) for row in some}
    assert masked == {" 3 May 1815", " Anna Lee", " Paris 5.5"}
    none = noise.salient_spans(text_rows("a b c", 1), np.array([2]), row_rng(0, 1), VOCABULARY)
    assert not none.any()
