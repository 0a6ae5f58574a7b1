"""Language modelling: where a text is cut."""

import numpy as np
from objective_cases import SPECIAL, apply, apply_to_one, repeated, window


def test_causal_lm_predicts_every_token():
    (pair,) = apply_to_one("causal_lm", window(7))
    assert len(pair.inputs) == 0
    assert pair.targets.tolist() == window(7).tolist()
    assert pair.weights.tolist() == [1.0] * 7


def test_prefix_splits_are_uniform_or_fixed():
    (pairs,) = apply("prefix_lm", repeated(window(11), 10_000))
    counts = np.bincount(pairs.inputs.lengths)
    assert set(np.flatnonzero(counts)) == set(range(1, 11))
    assert (np.abs(counts[1:] / 10_000 - 0.1) < 3.5 * np.sqrt(0.09 / 10_000)).all()
    (pairs,) = apply("prefix_lm(split=0.75)", repeated(window(12), 3))
    assert pairs.inputs.lengths.tolist() == [9, 9, 9]


def test_a_mode_token_comes_before_the_inputs():
    (pair,) = apply_to_one("prefix_lm(split=0.5, mode='S')", window(6))
    assert pair.inputs.tolist() == [SPECIAL["[S]"], *window(6)[:3].tolist()]
    assert pair.targets.tolist() == window(6)[3:].tolist()


def test_the_middle_is_cut_at_two_uniform_places():
    rows, n = 10_000, 20
    (pairs,) = apply("fill_in_the_middle", repeated(window(n), rows), seed=1)
    is_cut = pairs.inputs.lengths > 0
    assert abs(is_cut.mean() - 0.5) < 3 * 0.5 / np.sqrt(rows)

    # The middle is as long as two uniform numbers in 0 … n are apart.
    middles = pairs.targets.lengths[is_cut] - 1
    mean = n * (n + 2) / (3 * (n + 1))
    assert abs(middles.mean() - mean) < 3 * middles.std() / np.sqrt(is_cut.sum())

    # SPM begins with the suffix mark; PSM does too where the prefix is empty.
    suffix_mark = SPECIAL["<fim_suffix>"]
    begins = [pair.inputs[1] == suffix_mark for pair in pairs.each() if len(pair.inputs)]
    empty_prefix = 1 - (n / (n + 1)) ** 2
    share = 0.5 + 0.5 * empty_prefix
    assert abs(np.mean(begins) - share) < 3 * np.sqrt(share * (1 - share) / is_cut.sum())
