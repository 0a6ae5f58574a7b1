"""Masked language modelling: which tokens are chosen, what they become, and sentence pairs."""

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
    text_rows,
    window,
)

from t5x_lite.config import Data, Lengths, Model, RunConfig
from t5x_lite.data.rows.layouts import RowShape, lay_out
from t5x_lite.data.rows.row_plan import plan_rows
from t5x_lite.errors import UserError
from t5x_lite.model.check import plan_objective_checked

CHOICES = ("token", "word", "span", "salient")


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


def test_a_span_is_replaced_as_a_whole():
    """80/10/10 is of spans, not of tokens (Joshi et al., 2020, §3.1); neighbours are one span."""
    rows = 2000
    tokens = repeated(text_rows("The old grey cat sat on the mat. " * 5, 1)[0], rows)
    becomes = Counter()
    (pairs,) = apply("masked_lm(choice='span')", tokens)
    for pair in pairs.each():
        shown = pair.inputs[pair.scored]
        cuts = np.flatnonzero(np.diff(pair.scored) > 1) + 1
        for seen, true in zip(np.split(shown, cuts), np.split(pair.targets, cuts), strict=True):
            if (seen == SPECIAL["[MASK]"]).any():
                assert (seen == SPECIAL["[MASK]"]).all()
                becomes["mask"] += 1
            elif len(true) > 1:
                assert (seen == true).all() or (seen == true).mean() < 0.8
                becomes["same" if (seen == true).all() else "random"] += 1
    total = sum(becomes.values())
    # Single tokens that stay or become random are left out, few as they are.
    assert abs(becomes["mask"] / total - 0.8) < 0.02
    assert abs(becomes["same"] / becomes["random"] - 1) < 0.15


@pytest.mark.parametrize("choice", CHOICES)
def test_a_window_without_ordinary_tokens_is_not_scored(choice):
    (pair,) = apply_to_one(f"masked_lm(choice={choice!r})", np.full(9, VOCABULARY.eos))
    assert len(pair.targets) == 0


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
    assert plan.shape == RowShape(decoder=8, looks_ahead=True)
    (pairs,) = apply("causal_lm", window(8)[None])
    assert not lay_out(pairs, plan.shape, VOCABULARY)["decoder_prefix"].any()
    config = RunConfig(
        objective="masked_next_token",
        data=Data(lengths=Lengths(sequence_length=8)),
        model=Model(positions="relative"),
    )
    with pytest.raises(UserError, match="positions: got relative, which tell a decoder nothing"):
        plan_objective_checked(config)
