"""Every objective is what it declares: pure, restorable, and within its bound, which it attains."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import (
    SPECIAL,
    SPECS,
    VOCABULARY,
    apply,
    apply_to_one,
    repeated,
    seeds,
    window,
    window_lengths,
    window_with_sentinels,
)

from t5x_lite.data.objectives.declaration import Bound, Traits, objective
from t5x_lite.data.objectives.mixture import Objective, parse_objective
from t5x_lite.data.objectives.pairs import Pair, Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rng import Purpose, RowRng, philox_key
from t5x_lite.errors import UserError

PREDICTS_WHOLE_TEXT = (
    "mass_style",
    "bert_style",
    "deshuffling",
    "text_infilling",
    "sentence_permutation",
)
MASKS_AT_MOST = ("masked_lm(choice='word')", "masked_lm(choice='salient')")


# What was hidden and what remains give back the original.


def between(ids: list[int], *marks: str) -> list[list[int]]:
    """The stretches of ids after each mark."""
    cuts = [ids.index(SPECIAL[mark]) for mark in marks]
    return [ids[a + 1 : b] for a, b in zip(cuts, [*cuts[1:], len(ids)], strict=True)]


def restore(spec: str, pair: Pair) -> list[int]:
    """Put what was hidden back into what remained."""
    name = spec.partition("(")[0]
    inputs, targets = pair.inputs.tolist(), pair.targets.tolist()
    if name in ("masked_lm", "masked_diffusion"):
        return restore_masked(inputs, targets, pair.scored)
    if name in PREDICTS_WHOLE_TEXT:
        assert targets.pop() == VOCABULARY.eos
        return targets
    if name == "fill_in_the_middle" and inputs:
        return restore_middle(inputs, targets)
    if name == "drop_tokens":  # all ids differ, so that the order of one restores that of both
        assert inputs.pop() == targets.pop() == VOCABULARY.eos
        return sorted(inputs + targets, key=window(250).tolist().index)
    return restore_spans(inputs, targets)


def restore_masked(inputs, targets, scored) -> list[int]:
    for position, target in zip(scored.tolist(), targets, strict=True):
        inputs[position] = target
    return [i for i in inputs if VOCABULARY.is_ordinary(np.array(i))]


def restore_middle(inputs, targets) -> list[int]:
    *middle, end = targets
    assert end == VOCABULARY.eos
    if inputs[1] == SPECIAL["<fim_suffix>"]:
        _, suffix, prefix = between(inputs, "<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    else:
        prefix, suffix, rest = between(inputs, "<fim_prefix>", "<fim_suffix>", "<fim_middle>")
        assert not rest
    return prefix + middle + suffix


def restore_spans(inputs, targets) -> list[int]:
    first_sentinel = VOCABULARY.size - VOCABULARY.sentinels
    spans: dict[int | str, list[int]] = {}
    span: list[int] | None = None
    for i in targets:
        if i >= first_sentinel:
            assert i not in spans, "a sentinel twice"
            span = spans[i] = []
        elif i != VOCABULARY.eos:
            (span if span is not None else spans.setdefault("end", [])).append(i)
    text = []
    for i in inputs:
        if i not in (VOCABULARY.eos, SPECIAL["[S]"], SPECIAL["[X]"]):
            text += spans.pop(i) if i >= first_sentinel else [i]
    text += spans.pop("end", [])
    assert not spans, "a sentinel that the inputs lack"
    return text


@given(st.sampled_from(SPECS), window_lengths, seeds)
def test_what_was_hidden_and_what_remains_give_back_the_original(spec, n, seed):
    tokens = window_with_sentinels(spec, n)
    before = tokens.copy()
    pairs = apply_to_one(spec, tokens, seed)
    restored = [i for pair in pairs for i in restore(spec, pair)]
    if "second" in spec:  # A and B may have changed places
        start = tokens.tolist().index(restored[0])
        if start:
            restored = restored[-start:] + restored[:-start]
    assert restored == tokens.tolist()
    assert (tokens == before).all(), "the input was changed"
    for pair in pairs:
        for ids in (pair.inputs, pair.targets):
            assert ids.dtype == np.int32
            assert not len(ids) or 0 <= ids.min() <= ids.max() < VOCABULARY.size


@given(window_lengths, seeds)
def test_mirrored_prefix_lm_fills_both_sides_exactly(half, seed):
    tokens = window(2 * half, seed)
    first, second = apply_to_one("prefix_lm(mirrored=True)", tokens, seed)
    assert len(first.inputs) + len(second.inputs) == half
    assert len(first.targets) + len(second.targets) == half
    assert restore("prefix_lm", first) + restore("prefix_lm", second) == tokens.tolist()


# Purity.


@given(st.sampled_from(SPECS), window_lengths, seeds)
@settings(max_examples=60)
def test_a_row_is_the_same_bytes_alone_and_in_company(spec, n, seed):
    n = len(window_with_sentinels(spec, n))
    tokens = np.stack([window(n, row) for row in range(5)])
    key = philox_key(seed, Purpose.TRAINING_ROWS, stream=3)
    together = parse_objective(spec)(tokens, RowRng(key, np.arange(5)), VOCABULARY)
    for row in (0, 3):
        alone = parse_objective(spec)(tokens[row : row + 1], RowRng(key, [row]), VOCABULARY)
        for one, all_rows in zip(alone, together, strict=True):
            expected = vars(all_rows.each()[row])
            for name, value in vars(one.each()[0]).items():
                assert type(value) is type(expected[name])
                assert np.asarray(value).tobytes() == np.asarray(expected[name]).tobytes()


# Bounds.


@given(st.sampled_from(SPECS), window_lengths, seeds)
def test_the_bound_is_never_exceeded(spec, n, seed):
    bound = parse_objective(spec).bound(n)
    for pair in apply_to_one(spec, window(n, seed), seed):
        assert len(pair.inputs) <= bound.inputs
        assert len(pair.targets) <= bound.targets
        if pair.scored is None:
            assert len(pair.inputs) + len(pair.targets) <= bound.both


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec not in MASKS_AT_MOST])
@pytest.mark.parametrize("n", [2, 5, 12])
def test_the_bound_is_attained(spec, n):
    bound = parse_objective(spec).bound(n)
    pairs = apply(spec, repeated(window(n), 3000))[0]
    inputs, targets = pairs.inputs.lengths, pairs.targets.lengths
    assert inputs.max() == bound.inputs
    assert targets.max() == bound.targets
    if pairs.scored is None:
        last_sentinel = VOCABULARY.sentinel(255)
        sentinels = [(row >= last_sentinel).sum() for row in pairs.targets.arrays()]
        assert (inputs + targets).max() == bound.both
        assert max(sentinels) == bound.sentinels


@given(st.sampled_from(SPECS), st.integers(2, 5000))
def test_bounds_grow_with_the_window(spec, n):
    """What finding the largest window that fits by bisection rests on."""
    bound = parse_objective(spec).bound
    assert all(a <= b for a, b in zip(bound(n), bound(n + 1), strict=True))


# Traits.


@pytest.mark.parametrize("spec", [*SPECS, "prefix_lm(mirrored=True)", "masked_lm(second='next')"])
def test_traits_say_what_the_pairs_are(spec):
    traits = parse_objective(spec).traits
    tokens = repeated(window(12), 300)
    if traits.windows_per_row == 2:
        tokens = np.stack([tokens, tokens + 1], 1)
    made = apply(spec, tokens)
    assert len(made) == traits.pairs_per_window
    for pairs in made:
        assert (pairs.scored is not None) == traits.aligned
        assert (pairs.labels is not None) == (pairs.types is not None) == traits.sentence_pairs
        if traits.has_inputs:
            assert pairs.inputs.lengths.min() > 0
        if traits.scores_inputs:
            assert np.any(pairs.score_inputs)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if "salient" not in spec])
def test_the_shortest_window_can_be_learned_from(spec):
    shortest = parse_objective(spec).traits.min_tokens
    assert apply(spec, repeated(window(shortest), 50))[0].targets.lengths.max() > 0


@objective(bound=lambda n, **options: Bound(0, n, n))
def with_options_of_any_name(
    tokens, rng, vocabulary, *, static=0, split=0, second="", mirrored=0, mode="", score_prefix=0
):
    return Pairs(Ragged.empty(len(tokens)), Ragged.from_array(tokens))


@pytest.mark.parametrize(
    "options",
    [
        {"static": True},
        {"split": 0.5},
        {"second": "next"},
        {"mirrored": True},
        {"mode": "S"},
        {"score_prefix": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_any_name_mean_nothing_by_themselves(options):
    mine = Objective("mine", options, with_options_of_any_name)
    assert mine.traits == Traits()
    assert mine.for_architecture("encoder_decoder") == mine


def test_traits_may_depend_on_the_options():
    def traits(*, both_ways=False) -> Traits:
        return Traits(has_inputs=not both_ways)

    @objective(bound=lambda n, **options: Bound(n, n, n), traits=traits)
    def mine(tokens, rng, vocabulary, *, both_ways=False): ...

    assert Objective("mine", {}, mine).traits.has_inputs
    assert not Objective("mine", {"both_ways": True}, mine).traits.has_inputs


def test_an_objective_adapts_its_options_to_an_architecture():
    prefix_lm = parse_objective("prefix_lm")
    assert prefix_lm.for_architecture("encoder_decoder").options == {"mirrored": True}
    assert prefix_lm.for_architecture("prefix_decoder").options == {}
    fixed = parse_objective("prefix_lm(split=0.5)")
    assert fixed.for_architecture("encoder_decoder") == fixed
    diffusion = parse_objective("masked_diffusion")
    shifted = parse_objective("masked_diffusion(shifted=True)")
    for architecture in "decoder", "prefix_decoder":
        assert diffusion.for_architecture(architecture) == shifted
        assert shifted.for_architecture(architecture) == shifted
    assert diffusion.for_architecture("encoder").options == {"shifted": False}


@pytest.mark.parametrize(("architecture", "shifted"), [("encoder", True), ("decoder", False)])
def test_an_option_that_an_architecture_cannot_have_is_refused(architecture, shifted):
    given = parse_objective(f"masked_diffusion(shifted={shifted})")
    with pytest.raises(UserError, match=f"{architecture} needs shifted={not shifted}; leave"):
        given.for_architecture(architecture)
