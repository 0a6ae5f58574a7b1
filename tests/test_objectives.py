"""Properties of every objective over random windows, densities and lengths."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5x_lite.data import objectives
from t5x_lite.data.objectives import Pair, parse
from t5x_lite.data.tokenizer import Tokenizer

VOCABULARY = Tokenizer().vocabulary
lengths = st.integers(2, 300)
seeds = st.integers(0, 2**32 - 1)
densities = st.floats(0.01, 0.9)
SPECS = [
    *objectives.OBJECTIVES,
    "prefix_lm(score_prefix=True)",
    "span_corruption(random_roll=True)",
    "span_corruption(noise_density=0.5, mean_span_length=8)",
    "iid_denoising(noise_density=0.4)",
    "masked_lm(noise_density=0.3)",
]


def window(n, seed):
    """n ordinary ids, no two alike next to each other in meaning: i mod 256, shifted."""
    return ((np.arange(n) * 7 + seed) % 256).astype(np.uint16)


def made(spec, tokens, seed) -> list[Pair]:
    pairs = parse(spec)(tokens, np.random.default_rng(seed), VOCABULARY)
    return [pairs] if isinstance(pairs, Pair) else list(pairs)


def restored(pair) -> list[int]:
    """Put what was hidden back into what remained."""
    if pair.scored is not None:
        inputs = pair.inputs.copy()
        inputs[pair.scored] = pair.targets
        return inputs[1:-1].tolist()
    first = VOCABULARY.size - VOCABULARY.sentinels
    spans, ids = {}, None
    for i in pair.targets.tolist():
        if i >= first:
            assert i not in spans, "a sentinel twice"
            ids = spans[i] = []
        elif i != VOCABULARY.eos:
            (ids if ids is not None else spans.setdefault("end", [])).append(i)
    text = []
    for i in pair.inputs.tolist():
        if i != VOCABULARY.eos:
            text += spans.pop(i) if i >= first else [i]
    text += spans.pop("end", [])
    assert not spans, "a sentinel that the inputs lack"
    return text


@given(st.sampled_from(SPECS), lengths, seeds)
def test_what_was_hidden_and_what_remains_give_back_the_original(spec, n, seed):
    if parse(spec).bound(n).sentinels > VOCABULARY.sentinels:
        n = 60
    tokens = window(n, seed)
    before = tokens.copy()
    pairs = made(spec, tokens, seed)
    assert [i for pair in pairs for i in restored(pair)] == tokens.tolist()
    assert (tokens == before).all(), "the input was changed"
    again = made(spec, tokens, seed)
    for pair, other in zip(pairs, again, strict=True):
        assert pair.inputs.tobytes() == other.inputs.tobytes()
        assert pair.targets.tobytes() == other.targets.tobytes()
        for ids in (pair.inputs, pair.targets):
            assert ids.dtype == np.int32
            assert not len(ids) or 0 <= ids.min() <= ids.max() < VOCABULARY.size


@given(st.sampled_from(SPECS), lengths, seeds)
def test_the_bound_is_never_exceeded(spec, n, seed):
    bound = parse(spec).bound(n)
    for pair in made(spec, window(n, seed), seed):
        assert len(pair.inputs) <= bound.inputs
        assert len(pair.targets) <= bound.targets
        if pair.scored is None:
            assert len(pair.inputs) + len(pair.targets) <= bound.both


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("n", [2, 5, 12])
def test_the_bound_is_attained(spec, n):
    bound = parse(spec).bound(n)
    seen = [made(spec, window(n, 0), seed)[0] for seed in range(2000)]
    assert max(len(pair.inputs) for pair in seen) == bound.inputs
    assert max(len(pair.targets) for pair in seen) == bound.targets
    if seen[0].scored is None:
        assert max(len(pair.inputs) + len(pair.targets) for pair in seen) == bound.both
        assert max(int((pair.targets >= VOCABULARY.sentinel(99)).sum()) for pair in seen) == bound.sentinels


@given(lengths, seeds)
def test_mirrored_prefix_lm_fills_both_sides_exactly(half, seed):
    first, second = made("prefix_lm(mirrored=True)", window(2 * half, seed), seed)
    assert len(first.inputs) + len(second.inputs) == half == len(first.targets) + len(second.targets)
    assert restored(first) + restored(second) == window(2 * half, seed).tolist()


@given(lengths, seeds, densities, st.floats(1, 10), st.booleans())
@settings(max_examples=200)
def test_span_masks_have_the_stated_counts(n, seed, density, mean, roll):
    mask = objectives.random_spans(n, np.random.default_rng(seed), density, mean, roll)
    assert len(mask) == n
    assert mask.sum() == min(max(round(n * density), 1), n - 1)
    wrapped = (mask & ~np.roll(mask, 1)).sum()
    assert wrapped == objectives.span_count(n, density, mean)
    if not roll:
        assert not mask[0]
        assert mask[-1]


def test_the_lengths_of_the_paper():
    def shape(spec, n):
        (pair,) = made(spec, window(n, 0), 0)
        return len(pair.inputs), len(pair.targets)

    assert shape("span_corruption", 568) == (512, 114)
    assert shape("span_corruption(noise_density=0.2, mean_span_length=2)", 70) == (64, 22)
    assert shape("span_corruption(noise_density=0.2, mean_span_length=1)", 63) == (64, 27)


def test_mean_span_length_and_uniform_positions():
    """10⁵ spans of 568 tokens: mean 85/28, and with a roll every position is masked equally often, within 3 σ."""
    rng = np.random.default_rng(0)
    rows = 3600
    masks = np.stack([objectives.random_spans(568, rng, 0.15, 3.0, random_roll=True) for _ in range(rows)])
    starts = masks & ~np.roll(masks, 1, axis=1)
    assert starts.sum() >= 100_000
    assert masks.sum() / starts.sum() == pytest.approx(85 / 28)
    share = 85 / 568
    sigma = np.sqrt(share * (1 - share) / rows)
    deviations = np.abs(masks.mean(0) - share) / sigma
    assert (deviations > 3).mean() < 0.01


def test_span_lengths_follow_the_closed_form():
    """Lengths of a random composition: P(length = l) = C(N−l−1, S−2) / C(N−1, S−1)."""
    from math import comb

    rng = np.random.default_rng(0)
    noise, spans = 12, 4
    lengths = np.concatenate([objectives._composition(noise, spans, rng) for _ in range(25_000)])
    for length, count in Counter(lengths.tolist()).items():
        p = comb(noise - length - 1, spans - 2) / comb(noise - 1, spans - 1)
        # lengths of one composition are dependent: the variance of a mean over 4 is at most that of one
        assert abs(count / len(lengths) - p) < 3 * np.sqrt(p * (1 - p) / 25_000)


def test_bert_chooses_exactly_and_never_special_ids():
    tokens = window(200, 3)
    tokens[::10] = VOCABULARY.eos
    fates = Counter()
    for seed in range(500):
        (pair,) = made("masked_lm", tokens, seed)
        assert len(pair.scored) == round(180 * 0.15)
        assert VOCABULARY.is_ordinary(pair.targets).all()
        assert len(set(pair.scored.tolist())) == len(pair.scored)
        shown = pair.inputs[pair.scored]
        fates["mask"] += int((shown == VOCABULARY.mask).sum())
        fates["same"] += int((shown == pair.targets).sum())
        assert VOCABULARY.is_ordinary(shown[shown != VOCABULARY.mask]).all()
    total = 500 * 27
    for fate, share in (("mask", 0.8), ("same", 0.1 + 0.1 / 256)):
        assert abs(fates[fate] / total - share) < 3 * np.sqrt(share * (1 - share) / total)


def test_prefix_splits_are_uniform():
    counts = Counter(len(made("prefix_lm", window(11, 0), seed)[0].inputs) for seed in range(10_000))
    assert set(counts) == set(range(1, 11))
    assert all(abs(count / 10_000 - 0.1) < 3.5 * np.sqrt(0.09 / 10_000) for count in counts.values())


def test_a_window_without_ordinary_tokens_is_not_scored():
    (pair,) = made("masked_lm", np.full(9, VOCABULARY.eos), 0)
    assert len(pair.targets) == 0
