"""Corrupted texts: the lengths and shares that the papers state."""

from collections import Counter

import numpy as np
import pytest
from objective_cases import SPECIAL, TOKENIZER, apply, apply_to_one, repeated, text_rows, window


@pytest.mark.parametrize(
    ("spec", "raw_tokens", "lengths"),
    [
        ("span_corruption", 568, (512, 114)),
        ("span_corruption(noise_density=0.2, mean_span_length=2)", 70, (64, 22)),
        ("span_corruption(noise_density=0.2, mean_span_length=1)", 63, (64, 27)),
    ],
)
def test_the_lengths_of_the_paper(spec, raw_tokens, lengths):
    (pair,) = apply_to_one(spec, window(raw_tokens))
    assert (len(pair.inputs), len(pair.targets)) == lengths


def test_infilling_hides_exactly_in_poisson_spans():
    rows, n = 2000, 200
    (pairs,) = apply("text_infilling", repeated(window(n), rows))
    masks = np.array([(pair.inputs == SPECIAL["[MASK]"]).sum() for pair in pairs.each()])
    assert (pairs.inputs.lengths == n - 60 + masks + 1).all()
    generator, theirs = np.random.default_rng(0), np.zeros(rows)
    for row in range(rows):
        hidden = 0
        while hidden < 60:
            hidden += generator.poisson(3)
            theirs[row] += 1
    sigma = np.sqrt((masks.var() + theirs.var()) / rows)
    assert abs(masks.mean() - theirs.mean()) < 3 * sigma


def test_deshuffling_keeps_every_token():
    (pairs,) = apply("deshuffling", repeated(window(50), 200))
    for pair in pairs.each():
        assert sorted(pair.inputs.tolist()) == sorted(pair.targets.tolist())


def test_sentences_stay_whole_in_every_order_equally_often():
    text = "It is. So be it! Is it? Yes."
    sentences = ["It is.", " So be it!", " Is it?", " Yes."]
    (pairs,) = apply("sentence_permutation", text_rows(text, 500))
    orders = Counter(TOKENIZER.decode(pair.inputs[:-1]) for pair in pairs.each())
    assert len(orders) == 24
    for order in orders:
        starts = [text.index(sentence) for sentence in sentences if sentence in order]
        assert sorted(starts) == [0, 6, 16, 23]
    assert max(orders.values()) < 500 / 24 + 5 * np.sqrt(500 / 24)


def test_bert_style_draws_a_tenth_at_random_and_mass_style_none():
    (pairs,) = apply("bert_style", repeated(window(200), 500))
    masked = sum(int((pair.inputs == SPECIAL["[MASK]"]).sum()) for pair in pairs.each())
    assert abs(masked / (500 * 30) - 0.9) < 3 * np.sqrt(0.09 / (500 * 30))
    (pairs,) = apply("mass_style", repeated(window(200), 5))
    assert all((pair.inputs == SPECIAL["[MASK]"]).sum() == 30 for pair in pairs.each())
