"""Masked language modelling: which tokens are chosen, what they become, and sentence pairs."""

import math
from collections import Counter

import numpy as np
import pytest
from objective_cases import (
    SPECIAL,
    TOKENIZER,
    VOCABULARY,
    apply,
    apply_to_one,
    repeated,
    row_rng,
    text_rows,
    window,
)

from t5x_lite.config import Data, Lengths, Model, RunConfig
from t5x_lite.data.objectives.masked import CHOICES
from t5x_lite.data.objectives.mixture import dry_run, parse_objective
from t5x_lite.data.rng import RowRng
from t5x_lite.data.rows.layouts import RowShape, lay_out
from t5x_lite.data.rows.row_plan import plan_rows
from t5x_lite.errors import UserError
from t5x_lite.model.check import plan_objective_checked


@pytest.mark.parametrize("choice", CHOICES)
def test_special_ids_are_never_chosen_or_drawn(choice):
    tokens = text_rows("Anna saw 3 cats. " * 12, 300).astype(np.int32)
    tokens[:, ::11] = VOCABULARY.eos
    tokens[:, 5] = SPECIAL["[MASK]"]
    (pairs,) = apply(f"masked_lm(choice={choice!r}, noise_density=0.3)", tokens)
    most = round(VOCABULARY.is_ordinary(tokens[0]).sum() * 0.3)
    for pair in pairs.each():
        assert VOCABULARY.is_ordinary(pair.targets).all()
        assert len(set(pair.scored.tolist())) == len(pair.scored) <= most
        assert len(pair.scored) == most or choice in ("word", "salient")
        shown = pair.inputs[pair.scored]
        assert VOCABULARY.is_ordinary(shown[shown != SPECIAL["[MASK]"]]).all()


def test_bert_chooses_exactly_and_80_10_10():
    tokens = window(200, 3)
    tokens[::10] = VOCABULARY.eos
    becomes = Counter()
    (pairs,) = apply("masked_lm", repeated(tokens, 500))
    for pair in pairs.each():
        assert len(pair.scored) == round(180 * 0.15)
        shown = pair.inputs[pair.scored]
        becomes["mask"] += int((shown == SPECIAL["[MASK]"]).sum())
        becomes["same"] += int((shown == pair.targets).sum())
    total = 500 * 27
    for what, share in (("mask", 0.8), ("same", 0.1 + 0.1 / 256)):
        assert abs(becomes[what] / total - share) < 3 * np.sqrt(share * (1 - share) / total)


@pytest.mark.parametrize("choice", ["span", "short_span"])
def test_a_span_is_replaced_as_a_whole(choice):
    """80/10/10 is of spans, not of tokens (Joshi et al., 2020, §3.1). Those of "span" that touch
    are one; those of "short_span" draw each for itself.
    """
    rows = 2000
    tokens = repeated(text_rows("The old grey cat sat on the mat. " * 5, 1)[0], rows)
    becomes = Counter()
    (pairs,) = apply(f"masked_lm(choice={choice!r})", tokens)
    spans = spans_of(choice, tokens, round(0.15 * tokens.shape[1]))
    for pair, span in zip(pairs.each(), spans, strict=True):
        shown = pair.inputs[pair.scored]
        assert (np.flatnonzero(span >= 0) + 1 == pair.scored).all()
        cuts = np.flatnonzero(np.diff(span[span >= 0])) + 1
        for seen, true in zip(np.split(shown, cuts), np.split(pair.targets, cuts), strict=True):
            if (seen == SPECIAL["[MASK]"]).any():
                assert (seen == SPECIAL["[MASK]"]).all()
                becomes["mask"] += len(true) > 1
            elif len(true) > 1:
                becomes["same" if (seen == true).all() else "random"] += 1
    total = sum(becomes.values())
    # Single tokens are left out: a random one may be the one that was there.
    assert abs(becomes["mask"] / total - 0.8) < 0.02
    assert abs(becomes["same"] / becomes["random"] - 1) < 0.15


def spans_of(choice, tokens, count):
    """The spans that the objective chooses, from the random numbers that it has."""
    counts = np.full(len(tokens), count)
    return CHOICES[choice](tokens, counts, row_rng(0, len(tokens)), VOCABULARY)


@pytest.mark.parametrize(
    ("name", "returned", "words"),
    [
        ("none", "None", "returned object; expected a mask, bool"),
        (
            "special",
            f"tokens == {VOCABULARY.eos}",
            "chose a special id; choose where vocabulary.is_ordinary",
        ),
        ("floats", "np.zeros(tokens.shape)", "returned float64; expected a mask, bool"),
        ("row", "tokens[0] > 7", r"returned shape \(40,\) for tokens of shape \(3, 40\)"),
        ("all", "tokens >= 0", "chose 40 tokens of a row, expected at most 6"),
        ("integers", "tokens % 2", "chose 40 tokens of a row, .*; return bool for a mask"),
        ("fails", "1 / 0", r"objective masked_lm: failed on 3 windows .*ZeroDivisionError"),
    ],
)
def test_a_choice_of_ones_own_is_held_to_its_contract(
    write_module, own_code, name, returned, words
):
    code = (
        f"import numpy as np\ndef {name}(tokens, count, rng, vocabulary):\n    return {returned}\n"
    )
    write_module("chooses", code)
    tokens = repeated(window(40), 3)
    tokens[:, 8] = VOCABULARY.eos if name == "special" else tokens[:, 8]
    with pytest.raises(UserError, match=words):
        apply(f"masked_lm(choice='chooses.{name}')", tokens)


def test_a_choice_of_ones_own_depends_on_its_row_alone(write_module, own_code):
    code = "import numpy as np\ndef first(tokens, count, rng, vocabulary):\n"
    code += "    return (tokens >= 0) & (np.arange(9) == 0) & (len(tokens) > 1)\n"
    write_module("chooses", code)
    with pytest.raises(UserError, match="of a row change when it is made again, alone"):
        dry_run(parse_objective("masked_lm(choice='chooses.first')"), 9, VOCABULARY)


def test_a_choice_of_ones_own_may_return_spans(write_module, own_code):
    code = "import numpy as np\ndef first(tokens, count, rng, vocabulary):\n"
    code += "    place = np.arange(tokens.shape[1])\n"
    code += "    return np.where(place < count[:, None], 70 - place // 3, -1)\n"
    write_module("chooses", code)
    (pairs,) = apply("masked_lm(choice='chooses.first', random_rate=0)", repeated(window(40), 300))
    shown = np.array([pair.inputs[1:7] == SPECIAL["[MASK]"] for pair in pairs.each()])
    assert (shown[:, :3] == shown[:, :1]).all()
    assert (shown[:, 3:] == shown[:, 3:4]).all()
    assert 0.5 < (shown[:, 0] == shown[:, 3]).mean() < 0.8


@pytest.mark.parametrize("choice", CHOICES)
def test_a_window_without_ordinary_tokens_is_not_scored(choice):
    (pair,) = apply_to_one(f"masked_lm(choice={choice!r})", np.full(9, VOCABULARY.eos))
    assert len(pair.targets) == 0


@pytest.mark.parametrize("first", [0.03, 0.07, 0.3])
def test_a_rate_that_rises_ends_at_its_bound(first):
    """0.03 + (0.3 - 0.03) is more than 0.3, and 15 tokens have four or five masked."""
    objective = parse_objective(f"masked_lm(noise_density=linear({first}, 0.3))")
    rng = RowRng(0, np.arange(4), progress=1.0)
    (pairs,) = objective(repeated(window(15), 4), rng, VOCABULARY)
    assert (pairs.targets.lengths == objective.bound(15).targets).all()


@pytest.mark.parametrize("second", ["next", "order"])
def test_sentence_pairs_have_types_and_labels(second):
    """On text without sentences: cut anywhere."""
    rows = 2000
    own, other = text_rows("abcdefghijklmnopqrstuvwxyzabcd", 1)[0], text_rows("z" * 30, 1)[0]
    tokens = repeated(own, rows)
    if second == "next":
        tokens = np.stack([tokens, repeated(other, rows)], 1)
    (pairs,) = apply(f"masked_lm(second={second!r})", tokens)
    assert abs(pairs.labels.mean() - 0.5) < 3 * 0.5 / np.sqrt(rows)
    lengths_of_a = set()
    for pair, label in zip(pairs.each(), pairs.labels, strict=True):
        a, b = a_and_b(pair)
        lengths_of_a.add(len(a))
        if label:
            assert a + b == own.tolist()
        elif second == "order":
            assert b + a == own.tolist()
        else:
            assert a == own[: len(a)].tolist()
            assert b == other[len(a) :].tolist()
    assert lengths_of_a == set(range(1, 30))


def a_and_b(pair) -> tuple[list[int], list[int]]:
    """The two texts of a pair, as they were."""
    inputs = pair.inputs.copy()
    inputs[pair.scored] = pair.targets
    inputs = inputs.tolist()
    assert inputs[0] == SPECIAL["[CLS]"]
    assert inputs[-1] == SPECIAL["[SEP]"]
    sep = inputs.index(SPECIAL["[SEP]"])
    assert pair.types.tolist() == [0] * (sep + 1) + [1] * (len(inputs) - sep - 1)
    return inputs[1:sep], inputs[sep + 1 : -1]


@pytest.mark.parametrize(
    ("text", "cuts"),
    [
        # Of a window's first and last sentences the rest may be missing: they are left out …
        ("One. Two! Three? Four", {(" Two!", " Three?")}),
        ("One. Two! Three. Four. Five", {(" Two!", " Three. Four."), (" Two! Three.", " Four.")}),
        # … where enough are left to cut between.
        ("heading\nline\n  more", {("heading", "\nline")}),
        ("v. 1.5 is out. It", {("v.", " 1.5 is out.")}),
        ("One. Two", {("One.", " Two")}),
        ("no sentence", None),
        ("x|It is. So be it. No", {("It is.", " So be it.")}),
    ],
)
def test_texts_are_cut_where_sentences_and_lines_begin(text, cuts):
    """| is the end of a document."""
    rows = 300
    tokens = text_rows(text.replace("|", "\0"), rows).astype(np.int32)
    tokens[tokens == 0] = VOCABULARY.eos
    (pairs,) = apply("masked_lm(second='order')", tokens)
    seen = set()
    for pair, label in zip(pairs.each(), pairs.labels, strict=True):
        a, b = (TOKENIZER.decode(ids) for ids in a_and_b(pair))
        seen.add((a, b) if label else (b, a))
    if cuts is None:
        assert len(seen) == len(text) - 1
    else:
        assert seen == cuts


def test_masked_next_token_is_masked_lm_predicted_one_position_earlier():
    """The same tokens are hidden by the same draws; a decoder reads them shifted right, and sees
    all of them.
    """
    tokens = repeated(text_rows("The old grey cat sat on the mat. " * 5, 1)[0], 20)
    options = "noise_density=0.3, choice='word'"
    (bert,) = apply(f"masked_lm({options})", tokens)
    (pairs,) = apply(f"masked_next_token({options})", tokens)
    rows, n = tokens.shape
    row = lay_out(pairs, RowShape(decoder=n, looks_ahead=True), VOCABULARY)
    read = bert.inputs.values.reshape(rows, n + 2)[:, 1:-1]
    assert (row["decoder_tokens"][:, 1:] == read[:, :-1]).all()
    assert (row["decoder_tokens"][:, 0] == VOCABULARY.start).all()
    assert (row["decoder_targets"] == tokens).all()
    assert row["decoder_prefix"].all()
    scored = [(number, place - 1) for number, at in enumerate(bert.scored.arrays()) for place in at]
    assert list(zip(*np.nonzero(row["decoder_weights"]), strict=True)) == scored


def test_it_shares_a_decoder_with_language_modelling_whose_rows_look_back():
    plan = plan_rows("causal_lm + masked_next_token", "decoder", Lengths(sequence_length=8))
    assert plan.shape == RowShape(decoder=8, looks_ahead=0.5)
    (pairs,) = apply("causal_lm", window(8)[None])
    assert not lay_out(pairs, plan.shape, VOCABULARY)["decoder_prefix"].any()
    config = RunConfig(
        objective="masked_next_token",
        data=Data(lengths=Lengths(sequence_length=8)),
        model=Model(positions="relative"),
    )
    with pytest.raises(UserError, match="positions: got relative, which tell a decoder nothing"):
        plan_objective_checked(config)


def test_any_number_of_tokens_is_masked_and_weights_add_up():
    n, rows = 10, 20_000
    (pairs,) = apply("masked_diffusion", repeated(window(n), rows))
    counts = pairs.targets.lengths
    # Each number is as likely, in any rows that follow each other, and each set of a number.
    assert set(counts) == set(range(1, n + 1))
    np.testing.assert_allclose(np.bincount(counts)[1:], rows / n, atol=rows * 1e-3)
    np.testing.assert_allclose(np.bincount(counts[5000:5100])[1:], 10, atol=2)
    twos = [tuple(pair.scored) for pair in pairs.take(np.flatnonzero(counts == 2)).each()]
    sets, of_each = np.unique(twos, axis=0, return_counts=True)
    assert len(sets) == n * (n - 1) / 2
    expected = len(twos) / len(sets)
    assert ((of_each - expected) ** 2 / expected).sum() < 80  # χ² with 44 degrees: p < .001
    weights = pairs.weights
    np.testing.assert_allclose(weights.values, n / np.repeat(counts, counts), rtol=1e-6)
    np.testing.assert_allclose(np.bincount(weights.row_ids, weights.values), n, rtol=1e-6)


def every_mask(n: int) -> np.ndarray:
    """All sets of masked tokens but the empty one: bool [2ⁿ − 1, n]."""
    return np.arange(1, 2**n)[:, None] >> np.arange(n) & 1 == 1


def of_every_mask(nll: np.ndarray, masks: np.ndarray) -> float:
    """The mean of the loss of masked_diffusion, over its masks, in nats of a whole text.

    Args:
        nll: [masks, n] of each token, given those that are not masked.
    """
    n = masks.shape[1]
    counts = masks.sum(1)
    (pairs,) = apply("masked_diffusion", repeated(window(n), 4096))
    drawn = pairs.targets.lengths[pairs.weights.row_ids]
    total = 0.0
    for mask, of_mask, count in zip(masks, nll, counts, strict=True):
        probability = 1 / n / math.comb(n, count)
        weight = pairs.weights.values[drawn == count][0]
        total += probability * weight * of_mask[mask].sum()
    return total


@pytest.mark.parametrize("n", [2, 3, 6])
def test_the_loss_is_that_of_mdlm(n):
    """∫ 1/t Σ_masked nll dt, each token masked with probability t ~ U(0, 1), for any model."""
    masks = every_mask(n)
    nll = np.random.default_rng(n).exponential(size=masks.shape)
    counts = masks.sum(1)
    # A polynomial in t, which this rule integrates exactly.
    nodes, weights = np.polynomial.legendre.leggauss(n)
    expected = 0.0
    for t, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        probability = t**counts * (1 - t) ** (n - counts)
        expected += weight * (probability / t * (nll * masks).sum(1)).sum()
    assert of_every_mask(nll, masks) == pytest.approx(expected, rel=1e-6)


def test_the_loss_bounds_the_likelihood():
    """Of a language of two letters and three places: exactly −log p with the true conditionals, and
    in the mean more with others.
    """
    rng = np.random.default_rng(0)
    texts = every_mask(3).astype(int)
    texts = np.concatenate([np.zeros((1, 3), int), texts])
    p = rng.dirichlet(np.ones(len(texts)))
    masks = every_mask(3)

    def loss(text: np.ndarray, model: np.ndarray) -> float:
        nll = np.zeros(masks.shape)
        for number, mask in enumerate(masks):
            agrees = (texts == text)[:, ~mask].all(1)
            for place in np.flatnonzero(mask):
                right = agrees & (texts[:, place] == text[place])
                nll[number, place] = -np.log(model[right].sum() / model[agrees].sum())
        return of_every_mask(nll, masks)

    for text, probability in zip(texts, p, strict=True):
        assert loss(text, p) == pytest.approx(-np.log(probability), rel=1e-6)
    other = rng.dirichlet(np.ones(len(texts)))
    entropy = -(p * np.log(p)).sum()
    assert p @ [loss(text, other) for text in texts] > entropy


def test_a_decoder_predicts_the_same_masks_one_position_earlier():
    tokens = repeated(window(12), 5)
    (of_encoder,) = apply("masked_diffusion", tokens)
    (of_decoder,) = apply("masked_diffusion(shifted=True)", tokens)
    row = lay_out(of_decoder, RowShape(decoder=12, looks_ahead=True), VOCABULARY)
    read = of_encoder.inputs.values.reshape(5, 14)[:, 1:-1]
    assert (row["decoder_tokens"][:, 1:] == read[:, :-1]).all()
    assert (row["decoder_targets"] == tokens).all()
    weights = np.zeros((5, 12), np.float32)
    weights[of_encoder.scored.row_ids, of_encoder.scored.values - 1] = of_encoder.weights.values
    np.testing.assert_array_equal(row["decoder_weights"], weights)


@pytest.mark.parametrize("choice", CHOICES)
def test_meap_reads_masks_from_left_to_right_and_predicts_all(choice):
    """The tokens that masked_lm chooses are read as [MASK]; beside an objective that looks ahead,
    the decoder still looks back only.
    """
    tokens = repeated(text_rows("The old grey cat sat on the mat. " * 5, 1)[0], 20)
    (bert,) = apply(f"masked_lm(choice={choice!r}, mask_rate=1, random_rate=0)", tokens)
    (pairs,) = apply(f"meap(choice={choice!r})", tokens)
    rows, n = tokens.shape
    plan = plan_rows("meap + masked_next_token", "decoder", Lengths(sequence_length=n))
    assert plan.shape.looks_ahead
    read = bert.inputs.values.reshape(rows, n + 2)[:, 1:-1]
    for shape in (RowShape(decoder=n), plan.shape):
        row = lay_out(pairs, shape, VOCABULARY)
        assert (row["decoder_tokens"][:, 1:] == read[:, :-1]).all()
        assert (row["decoder_targets"] == tokens).all()
        assert (row["decoder_weights"] == 1).all()
        assert not row.get("decoder_prefix", np.zeros(1)).any()
