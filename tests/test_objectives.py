"""Properties of every objective over random windows, densities and lengths."""

import os
from collections import Counter
from math import comb

import numpy as np
import pytest
from conftest import ROOT, run, run_apart
from hypothesis import given, settings
from hypothesis import strategies as st

from t5x_lite.data import objectives
from t5x_lite.data.draws import Draws
from t5x_lite.data.objectives import Pairs, choices, mixture, parse
from t5x_lite.data.objectives.table import table
from t5x_lite.data.tokenizer import Tokenizer
from t5x_lite.errors import Refusal

TOKENIZER = Tokenizer()
VOCABULARY = TOKENIZER.vocabulary
SPECIAL = {name: VOCABULARY[name] for name in VOCABULARY.specials}
lengths = st.integers(2, 250)
seeds = st.integers(0, 2**31 - 1)
densities = st.floats(0.01, 0.9)
SPECS = [
    *objectives.OBJECTIVES,
    "prefix_lm(score_prefix=True)",
    "prefix_lm(split=0.3, mode='S')",
    "fill_in_the_middle(fim_rate=1, spm_rate=1)",
    "fill_in_the_middle(fim_rate=0)",
    "span_corruption(random_roll=True)",
    "span_corruption(noise_density=0.5, mean_span_length=8, mode='X')",
    "iid_denoising(noise_density=0.4)",
    "masked_lm(noise_density=0.3)",
    "masked_lm(choice='word')",
    "masked_lm(choice='span')",
    "masked_lm(choice='salient')",
    "masked_lm(second='order')",
    "text_infilling(permute_sentences=True)",
]
WHOLE = ("mass_style", "bert_style", "deshuffling", "text_infilling", "sentence_permutation")
UP_TO = ("masked_lm(choice='word')", "masked_lm(choice='salient')")  # hide at most so many


def window(n, seed=0) -> np.ndarray:
    """n different ordinary ids (up to 256)."""
    return ((np.arange(n) * 7 + seed) % 256).astype(np.uint16)


def parts(spec, tokens, seed, rows=1) -> list[Pairs]:
    """What an objective makes of the same window in so many rows: one Pairs, or two where it makes two pairs a row."""
    made = parse(spec)(np.tile(tokens, (rows, 1)), Draws(seed, 0, np.arange(rows)), VOCABULARY)
    return [made] if isinstance(made, Pairs) else list(made)


def pairs_of(spec, tokens, seed) -> list:
    return [pair for part in parts(spec, tokens, seed) for pair in part.each()]


def between(ids: list, *names) -> list[list]:
    """The stretches of ids that special tokens part."""
    cuts = [ids.index(SPECIAL[name]) for name in names]
    return [ids[a + 1 : b] for a, b in zip(cuts, [*cuts[1:], len(ids)], strict=True)]


def restored(spec, pair) -> list[int]:
    """Put what was hidden back into what remained."""
    inputs, targets = pair.inputs.tolist(), pair.targets.tolist()
    name = spec.partition("(")[0]
    if name == "masked_lm":
        for place, target in zip(pair.scored.tolist(), targets, strict=True):
            inputs[place] = target
        return [i for i in inputs if VOCABULARY.is_ordinary(np.array(i))]
    if name in WHOLE:
        assert targets.pop() == VOCABULARY.eos
        return targets
    if name == "fill_in_the_middle" and inputs:
        middle = targets[:-1]
        if inputs[1] == SPECIAL["<fim_suffix>"]:
            _, suffix, prefix = between(inputs, "<fim_prefix>", "<fim_suffix>", "<fim_middle>")
        else:
            prefix, suffix, nothing = between(inputs, "<fim_prefix>", "<fim_suffix>", "<fim_middle>")
            assert not nothing
        assert targets[-1] == VOCABULARY.eos
        return prefix + middle + suffix
    if name == "drop_tokens":  # all are different, so that the order of one restores that of both
        assert inputs.pop() == targets.pop() == VOCABULARY.eos
        return sorted(inputs + targets, key=window(250, 0).tolist().index)
    first = VOCABULARY.size - VOCABULARY.sentinels
    spans, ids = {}, None
    for i in targets:
        if i >= first:
            assert i not in spans, "a sentinel twice"
            ids = spans[i] = []
        elif i != VOCABULARY.eos:
            (ids if ids is not None else spans.setdefault("end", [])).append(i)
    text = []
    for i in inputs:
        if i not in (VOCABULARY.eos, SPECIAL["[S]"], SPECIAL["[X]"]):
            text += spans.pop(i) if i >= first else [i]
    text += spans.pop("end", [])
    assert not spans, "a sentinel that the inputs lack"
    return text


def enough_sentinels(spec, n) -> int:
    return n if parse(spec).bound(n).sentinels <= VOCABULARY.sentinels else 60


@given(st.sampled_from(SPECS), lengths, seeds)
def test_what_was_hidden_and_what_remains_give_back_the_original(spec, n, seed):
    tokens = window(enough_sentinels(spec, n))
    before = tokens.copy()
    pairs = pairs_of(spec, tokens, seed)
    made = [i for pair in pairs for i in restored(spec, pair)]
    if "second" in spec:  # A and B may have changed places
        start = tokens.tolist().index(made[0])
        made = made[-start:] + made[:-start] if start else made
    assert made == tokens.tolist()
    assert (tokens == before).all(), "the input was changed"
    for pair in pairs:
        for ids in (pair.inputs, pair.targets):
            assert ids.dtype == np.int32
            assert not len(ids) or 0 <= ids.min() <= ids.max() < VOCABULARY.size


@given(st.sampled_from(SPECS), lengths, seeds)
@settings(max_examples=60)
def test_a_row_is_the_same_bytes_alone_and_in_company(spec, n, seed):
    tokens = np.stack([window(enough_sentinels(spec, n), i) for i in range(5)])
    together = parse(spec)(tokens, Draws(seed, 3, np.arange(5)), VOCABULARY)
    for row in (0, 3):
        alone = parse(spec)(tokens[row : row + 1], Draws(seed, 3, [row]), VOCABULARY)
        for one, all_rows in zip(*((x if isinstance(x, tuple) else (x,)) for x in (alone, together)), strict=True):
            for field, other in zip(one.each()[0], all_rows.each()[row], strict=True):
                assert (field is None) == (other is None)
                assert field is None or np.asarray(field).tobytes() == np.asarray(other).tobytes()


@given(st.sampled_from(SPECS), lengths, seeds)
def test_the_bound_is_never_exceeded(spec, n, seed):
    bound = parse(spec).bound(n)
    for pair in pairs_of(spec, window(n, seed), seed):
        assert len(pair.inputs) <= bound.inputs
        assert len(pair.targets) <= bound.targets
        if pair.scored is None:
            assert len(pair.inputs) + len(pair.targets) <= bound.both


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec not in UP_TO])
@pytest.mark.parametrize("n", [2, 5, 12])
def test_the_bound_is_attained(spec, n):
    bound = parse(spec).bound(n)
    seen = parts(spec, window(n), 0, rows=3000)[0]
    inputs, targets = seen.inputs.lengths, seen.targets.lengths
    assert inputs.max() == bound.inputs
    assert targets.max() == bound.targets
    if seen.scored is None:
        assert (inputs + targets).max() == bound.both
        assert max((t >= VOCABULARY.sentinel(255)).sum() for t in seen.targets.arrays()) == bound.sentinels


@given(lengths, seeds)
def test_mirrored_prefix_lm_fills_both_sides_exactly(half, seed):
    tokens = window(2 * half, seed)
    first, second = pairs_of("prefix_lm(mirrored=True)", tokens, seed)
    assert len(first.inputs) + len(second.inputs) == half == len(first.targets) + len(second.targets)
    assert restored("prefix_lm", first) + restored("prefix_lm", second) == tokens.tolist()


@given(lengths, seeds, densities, st.floats(1, 10), st.booleans())
@settings(max_examples=200)
def test_span_masks_have_the_stated_counts(n, seed, density, mean, roll):
    mask = choices.random_spans(n, Draws(seed, 0, [5, 6]), density, mean, roll)
    assert mask.shape == (2, n)
    assert (mask.sum(1) == min(max(round(n * density), 1), n - 1)).all()
    wrapped = (mask & ~np.roll(mask, 1, axis=1)).sum(1)
    assert (wrapped == choices.span_count(n, density, mean)).all()
    if not roll:
        assert not mask[:, 0].any()
        assert mask[:, -1].all()


def test_the_lengths_of_the_paper():
    def shape(spec, n):
        (pair,) = pairs_of(spec, window(n), 0)
        return len(pair.inputs), len(pair.targets)

    assert shape("span_corruption", 568) == (512, 114)
    assert shape("span_corruption(noise_density=0.2, mean_span_length=2)", 70) == (64, 22)
    assert shape("span_corruption(noise_density=0.2, mean_span_length=1)", 63) == (64, 27)


def differ(one: np.ndarray, other, rows: int) -> float:
    """The share of positions whose frequencies [n] differ by more than 3 σ; other: another sample's, or a number."""
    exact = np.isscalar(other)
    p = np.full(len(one), other) if exact else (one + other) / 2
    sigma = np.sqrt(p * (1 - p) / rows * (1 if exact else 2))
    return float((np.abs(one - other) > 3 * np.maximum(sigma, 1e-9)).mean())


def test_mean_span_length_and_uniform_positions():
    """10⁵ spans of 568 tokens: mean 85/28, and with a roll every position is masked equally often, within 3 σ."""
    rows = 3600
    masks = choices.random_spans(568, Draws(0, 0, np.arange(rows)), 0.15, 3.0, random_roll=True)
    starts = masks & ~np.roll(masks, 1, axis=1)
    assert starts.sum() >= 100_000
    assert masks.sum() / starts.sum() == pytest.approx(85 / 28)
    assert differ(masks.mean(0), 85 / 568, rows) < 0.01


def test_span_positions_against_another_sampler():
    """Without a roll, T5's own way: flags of "a segment begins here", shuffled, for noise and for gaps."""
    rows, n, noise, spans = 3600, 568, 85, 28
    generator = np.random.default_rng(1)

    def segments(total):
        begins = generator.permuted(np.tile(np.arange(total - 1) < spans - 1, (rows, 1)), axis=1)
        number = np.cumsum(np.pad(begins, [(0, 0), (1, 0)]), axis=1)
        return np.stack([np.bincount(row, minlength=spans) for row in number])

    both = np.stack([segments(n - noise), segments(noise)], 2).reshape(rows, -1)
    theirs = np.stack([np.repeat(np.arange(2 * spans) % 2, row) for row in both])
    ours = choices.random_spans(n, Draws(2, 0, np.arange(rows)), 0.15, 3.0)
    assert differ(ours.mean(0), theirs.mean(0), rows) < 0.01
    begins = [(m[:, 1:] > m[:, :-1]).mean(0) for m in (ours.astype(int), theirs)]
    assert differ(*begins, rows) < 0.01


def test_span_lengths_follow_the_closed_form():
    """Lengths of a random composition: P(length = l) = C(N−l−1, S−2) / C(N−1, S−1)."""
    noise, spans, rows = 12, 4, 25_000
    made = choices.composition(noise, spans, Draws(0, 0, np.arange(rows)))
    assert (made.sum(1) == noise).all()
    for length, count in Counter(made.reshape(-1).tolist()).items():
        p = comb(noise - length - 1, spans - 2) / comb(noise - 1, spans - 1)
        # lengths of one composition are dependent: the variance of a mean over 4 is at most that of one
        assert abs(count / made.size - p) < 3 * np.sqrt(p * (1 - p) / rows)


def test_spanbert_lengths():
    """Geometric(0.2) renormalised on 1 … 10: mean 3.80 (SpanBERT, §3.1)."""
    drawn = choices.span_lengths(Draws(0, 0, np.arange(1000)), 100)
    p = 0.2 * 0.8 ** np.arange(10)
    p /= p.sum()
    assert round(float(p @ np.arange(1, 11)), 2) == 3.80
    counts = np.bincount(drawn.reshape(-1), minlength=11)[1:]
    assert (np.abs(counts / 100_000 - p) < 3 * np.sqrt(p * (1 - p) / 100_000)).all()


def text_rows(text: str, rows: int) -> np.ndarray:
    return np.tile(TOKENIZER.encode(text), (rows, 1))


WORDS = "the old grey cat sat on the mat and saw a bird that sang all day long in the tree."


def test_spanbert_positions_against_another_sampler():
    rows, count = 4000, 20
    tokens = text_rows(WORDS, rows)
    ours = choices.spans_of_words(tokens, np.full(rows, count), Draws(0, 0, np.arange(rows)), VOCABULARY)
    assert (ours.sum(1) == count).all()
    ends = np.flatnonzero(np.array([c in " ." for c in WORDS[1:]])) + 1  # a word holds the blank before it
    starts, ends = np.append(0, ends), np.append(ends, len(WORDS))
    generator, theirs = np.random.default_rng(0), np.zeros((rows, len(WORDS)))
    p = 0.2 * 0.8 ** np.arange(10)
    for row in theirs:
        while row.sum() < count:
            anchor = generator.integers(len(WORDS))
            length = generator.choice(10, p=p / p.sum()) + 1
            if row[anchor]:
                continue
            word = np.searchsorted(ends, anchor, side="right")
            for at in range(starts[word], ends[min(word + length, len(ends)) - 1]):
                if row.sum() < count:
                    row[at] = 1
    assert differ(ours.mean(0), theirs.mean(0), rows) < 0.03


def test_whole_words_are_whole_and_equally_likely():
    rows, count = 4000, 12
    tokens = text_rows(WORDS, rows)
    mask = choices.whole_words(tokens, np.full(rows, count), Draws(0, 0, np.arange(rows)), VOCABULARY)
    word = choices.words(tokens[:1], VOCABULARY)[0]
    assert [WORDS[np.flatnonzero(word == w)[0] :][: (word == w).sum()] for w in (0, 1, 20)] == ["the", " old", "."]
    for number in range(word[-1] + 1):
        of_word = mask[:, word == number]
        assert (of_word.all(1) == of_word.any(1)).all()
    assert mask.sum(1).max() == count
    assert mask.sum(1).min() > count - 4  # the shortest words fill nearly all
    same = [mask[:, np.flatnonzero(word == w)[0]].mean() for w in (2, 9, 13)]  # " grey", " saw", " sang": not far apart
    assert max(same) - min(same) < 0.1


def test_salient_spans_are_names_numbers_and_dates():
    text = "On 3 May 1815 he met Anna Lee near Paris. The cat slept. It was 5.5 miles off."
    tokens = text_rows(text, 300)
    mask = choices.salient_spans(tokens, np.full(300, 40), Draws(0, 0, np.arange(300)), VOCABULARY)
    shown = "".join("_" if hidden else c for c, hidden in zip(text, mask[0], strict=True))
    assert shown == "On___________ he met_________ near______. The cat slept. It was____ miles off."
    some = choices.salient_spans(tokens, np.full(300, 11), Draws(0, 0, np.arange(300)), VOCABULARY)
    assert some.sum(1).max() <= 11
    assert {"".join(np.array(list(text))[row]) for row in some} == {" 3 May 1815", " Anna Lee", " Paris 5.5"}
    none = choices.salient_spans(text_rows("a b c", 1), np.array([2]), Draws(0, 0, [0]), VOCABULARY)
    assert not none.any()


@pytest.mark.parametrize("choice", ["token", "word", "span", "salient"])
def test_special_ids_are_never_chosen_or_drawn(choice):
    rows = 300
    tokens = text_rows("Anna saw 3 cats. " * 12, rows).astype(np.int32)
    tokens[:, ::11] = VOCABULARY.eos
    tokens[:, 5] = SPECIAL["[MASK]"]
    pairs = parse(f"masked_lm(choice={choice!r}, noise_density=0.3)")(tokens, Draws(0, 0, np.arange(rows)), VOCABULARY)
    real = VOCABULARY.is_ordinary(tokens[0]).sum()
    for pair in pairs.each():
        assert VOCABULARY.is_ordinary(pair.targets).all()
        assert len(set(pair.scored.tolist())) == len(pair.scored) <= round(real * 0.3)
        assert len(pair.scored) == round(real * 0.3) or choice in ("word", "salient")
        shown = pair.inputs[pair.scored]
        assert VOCABULARY.is_ordinary(shown[shown != SPECIAL["[MASK]"]]).all()


def test_bert_chooses_exactly_and_80_10_10():
    tokens = window(200, 3)
    tokens[::10] = VOCABULARY.eos
    fates = Counter()
    (pairs,) = parts("masked_lm", tokens, 0, rows=500)
    for pair in pairs.each():
        assert len(pair.scored) == round(180 * 0.15)
        shown = pair.inputs[pair.scored]
        fates["mask"] += int((shown == SPECIAL["[MASK]"]).sum())
        fates["same"] += int((shown == pair.targets).sum())
    total = 500 * 27
    for fate, share in (("mask", 0.8), ("same", 0.1 + 0.1 / 256)):
        assert abs(fates[fate] / total - share) < 3 * np.sqrt(share * (1 - share) / total)


def test_sentence_pairs_have_types_and_labels():
    rows = 2000
    own, other = window(30), window(30, 100)
    tokens = np.tile(np.stack([own, other]), (rows, 1, 1))
    for second, read in (("next", tokens), ("order", tokens[:, 0])):
        objective = parse(f"masked_lm(second={second!r})")
        pairs = objective(read, Draws(0, 0, np.arange(rows)), VOCABULARY)
        assert abs(pairs.labels.mean() - 0.5) < 3 * 0.5 / np.sqrt(rows)
        cuts = Counter()
        for pair, label in zip(pairs.each(), pairs.labels, strict=True):
            inputs = pair.inputs.copy()
            inputs[pair.scored] = pair.targets
            inputs = inputs.tolist()
            assert inputs[0] == SPECIAL["[CLS]"]
            assert inputs[-1] == SPECIAL["[SEP]"]
            sep = inputs.index(SPECIAL["[SEP]"])
            assert pair.types.tolist() == [0] * (sep + 1) + [1] * (len(inputs) - sep - 1)
            a, b = inputs[1:sep], inputs[sep + 1 : -1]
            cuts[len(a)] += 1
            if label:
                assert a + b == own.tolist()
            elif second == "order":
                assert b + a == own.tolist()
            else:
                assert a == own[: len(a)].tolist()
                assert b == other[len(a) :].tolist()
        assert set(cuts) == set(range(1, 30))


def test_prefix_splits_are_uniform_or_fixed():
    (pairs,) = parts("prefix_lm", window(11), 0, rows=10_000)
    counts = np.bincount(pairs.inputs.lengths)
    assert set(np.flatnonzero(counts)) == set(range(1, 11))
    assert (np.abs(counts[1:] / 10_000 - 0.1) < 3.5 * np.sqrt(0.09 / 10_000)).all()
    (pairs,) = parts("prefix_lm(split=0.75)", window(12), 0, rows=3)
    assert pairs.inputs.lengths.tolist() == [9, 9, 9]


def test_the_middle_is_cut_at_two_uniform_places():
    rows, n = 10_000, 20
    (pairs,) = parts("fill_in_the_middle", window(n), 1, rows=rows)
    cut = pairs.inputs.lengths > 0
    assert abs(cut.mean() - 0.5) < 3 * 0.5 / np.sqrt(rows)
    middles = pairs.targets.lengths[cut] - 1
    mean = n * (n + 2) / (3 * (n + 1))  # of the distance of two uniform numbers in 0 … n
    assert abs(middles.mean() - mean) < 3 * middles.std() / np.sqrt(cut.sum())
    turned = [pair.inputs[1] == SPECIAL["<fim_suffix>"] for pair in pairs.each() if len(pair.inputs)]
    empty_prefix = 1 - (n / (n + 1)) ** 2  # there PSM begins with the suffix mark too
    share = 0.5 + 0.5 * empty_prefix
    assert abs(np.mean(turned) - share) < 3 * np.sqrt(share * (1 - share) / cut.sum())


def test_infilling_hides_exactly_in_poisson_spans():
    rows, n = 2000, 200
    (pairs,) = parts("text_infilling", window(n), 0, rows=rows)
    masks = np.array([(pair.inputs == SPECIAL["[MASK]"]).sum() for pair in pairs.each()])
    assert (pairs.inputs.lengths == n - 60 + masks + 1).all()
    generator, theirs = np.random.default_rng(0), np.zeros(rows)
    for row in range(rows):
        hidden = 0
        while hidden < 60:
            hidden += generator.poisson(3)
            theirs[row] += 1
    assert abs(masks.mean() - theirs.mean()) < 3 * np.sqrt((masks.var() + theirs.var()) / rows)


def test_deshuffling_and_permuted_sentences_keep_everything():
    (pairs,) = parts("deshuffling", window(50), 0, rows=200)
    for pair in pairs.each():
        assert sorted(pair.inputs.tolist()) == sorted(pair.targets.tolist())
    text = "It is. So be it! Is it? Yes."
    sentences = ["It is.", " So be it!", " Is it?", " Yes."]
    made = parse("sentence_permutation")(text_rows(text, 500), Draws(0, 0, np.arange(500)), VOCABULARY)
    seen = Counter(TOKENIZER.decode(pair.inputs[:-1]) for pair in made.each())
    assert len(seen) == 24
    assert all(sorted(text.index(s) for s in sentences if s in key) == [0, 6, 16, 23] for key in seen)
    assert max(seen.values()) < 500 / 24 + 5 * np.sqrt(500 / 24)


def test_bert_style_draws_a_tenth_at_random():
    (pairs,) = parts("bert_style", window(200), 0, rows=500)
    masked = sum(int((pair.inputs == SPECIAL["[MASK]"]).sum()) for pair in pairs.each())
    assert abs(masked / (500 * 30) - 0.9) < 3 * np.sqrt(0.09 / (500 * 30))
    (pairs,) = parts("mass_style", window(200), 0, rows=5)
    assert all((pair.inputs == SPECIAL["[MASK]"]).sum() == 30 for pair in pairs.each())


def test_a_window_without_ordinary_tokens_is_not_scored():
    for choice in ("token", "word", "span", "salient"):
        (pair,) = pairs_of(f"masked_lm(choice={choice!r})", np.full(9, VOCABULARY.eos), 0)
        assert len(pair.targets) == 0


def test_mixtures_and_ul2():
    assert mixture("causal_lm") == [(1.0, parse("causal_lm"))]
    assert [(rate, str(o)) for rate, o in mixture("2 * prefix_lm(split=0.5) + span_corruption + causal_lm")] == [
        (0.5, "prefix_lm(split=0.5)"),
        (0.25, "span_corruption"),
        (0.25, "causal_lm"),
    ]
    ul2 = mixture("ul2")
    assert [o.options["mode"] for _, o in ul2] == [*"RRSXXXX"]
    assert {rate for rate, _ in ul2} == {1 / 7}
    assert [rate for rate, _ in mixture("3 * ul2 + causal_lm")] == pytest.approx([3 / 28] * 7 + [1 / 4])
    nested = mixture("2 * (causal_lm + 0.5 * prefix_lm) + span_corruption")
    assert [(rate, o.name) for rate, o in nested] == [
        (0.5, "causal_lm"),
        (0.25, "prefix_lm"),
        (0.25, "span_corruption"),
    ]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("span_coruption", "did you mean span_corruption?"),
        ("span_corruption(density=0.2)", "did you mean noise_density?"),
        ("span_corruption(noise_density=2)", "expected a share"),
        ("span_corruption(noise_density='a')", "expected a number"),
        ("span_corruption(random_roll=1)", "expected True or False"),
        ("span_corruption(mode='Q')", "expected one of '', 'R'"),
        ("masked_lm(choice='words')", "expected one of 'token'"),
        ("masked_lm(choice=1)", "expected a word"),
        ("masked_lm(mask_rate=0.9, random_rate=0.2)", "is more than 1"),
        ("0 * causal_lm + prefix_lm", "expected a name"),
        ("1e308 * causal_lm + 1e308 * prefix_lm", "expected a name"),
        (f"{10**400} * causal_lm + prefix_lm", "expected a name"),
        (" + ".join(["causal_lm"] * 5000), "expected a name"),
        ("causal_lm + 3", "expected a name"),
        ("no_such_module.objective", "No module named"),
        ("math.sqrt", "has no bound"),
    ],
)
def test_what_an_objective_cannot_mean_is_refused(spec, words):
    with pytest.raises(Refusal, match=words.replace("(", "\\(").replace("?", "\\?")):
        mixture(spec)


def test_an_objective_of_the_users_own(tmp_path, config_file, monkeypatch):
    (tmp_path / "mine.py").write_text(
        """
from t5x_lite.data.objectives.pairs import Bound, Pairs, states
from t5x_lite.data.ragged import Ragged

@states(lambda n, *, first=2: Bound(first, n - first, n))
def from_the_start(tokens, rng, vocabulary, *, first=2):
    return Pairs(Ragged.full(tokens[:, :first]), Ragged.full(tokens[:, first:]))

@states(lambda n: Bound(1, 1, 2))
def too_much(tokens, rng, vocabulary):
    return Pairs(Ragged.full(tokens), Ragged.full(tokens))

@states(lambda n, *, split=None: (0, n, n))
def other_ids(tokens, rng, vocabulary, *, split=None):
    return Pairs(Ragged.empty(len(tokens)), Ragged.full(tokens + vocabulary.size))

@states(lambda n: Bound(n, n, n))
def both_too_small(tokens, rng, vocabulary):
    return Pairs(Ragged.full(tokens), Ragged.full(tokens))

@states(lambda n: 1 / 0)
def no_bound(tokens, rng, vocabulary):
    pass

@states(lambda n: Bound(0, n, n))
def nothing(tokens, rng, vocabulary):
    pass
"""
    )
    more = {"data.lengths": {"row": 20}}
    here = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    path = config_file("mine.from_the_start(first=3)", "decoder", **more)
    out, _ = run_apart("inspect", f"--config={path}", "--examples=1", **here)
    assert "3 inputs, 17 targets" in out
    monkeypatch.syspath_prepend(tmp_path)
    for wrong, words in [
        ("too_much", "mend the bound"),
        ("other_ids(split=4)", "made ids from"),
        ("both_too_small", "mend the bound"),
        ("no_bound", "its bound failed on"),
        ("nothing", "failed on 20 tokens"),
    ]:
        _, err = run("inspect", f"--config={config_file(f'mine.{wrong}', 'decoder', **more)}", code=78)
        assert words in err


def test_the_readme_shows_what_the_code_makes():
    assert table() in (ROOT / "README.md").read_text()
