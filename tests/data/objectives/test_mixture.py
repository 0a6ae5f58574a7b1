"""The setting `objective`, read: what it may say, and objectives of the user's own."""

import os
import sys

import pytest
from conftest import ROOT, refusal, run, run_apart
from objective_cases import VOCABULARY

from t5x_lite.config.permission import allow
from t5x_lite.data.objectives import OBJECTIVES
from t5x_lite.data.objectives.mixture import (
    check_vocabulary,
    dry_run,
    parse_mixture,
    parse_objective,
)

# Mixtures.


def test_one_objective_is_a_mixture_of_one():
    assert parse_mixture("causal_lm") == [(1.0, parse_objective("causal_lm"))]


def test_rates_are_shares_and_count_for_each_term_in_a_bracket():
    def read(spec):
        return [(rate, str(objective)) for rate, objective in parse_mixture(spec)]

    assert read("2 * prefix_lm(split=0.5) + span_corruption + causal_lm") == [
        (0.5, "prefix_lm(split=0.5)"),
        (0.25, "span_corruption"),
        (0.25, "causal_lm"),
    ]
    assert read("2 * (causal_lm + 0.5 * prefix_lm) + span_corruption") == [
        (0.5, "causal_lm"),
        (0.25, "prefix_lm"),
        (0.25, "span_corruption"),
    ]


def test_ul2_is_the_mean_of_seven_denoisers():
    ul2 = parse_mixture("ul2")
    assert [objective.options["mode"] for _, objective in ul2] == [*"RRSXXXX"]
    assert {rate for rate, _ in ul2} == {1 / 7}
    rates = [rate for rate, _ in parse_mixture("3 * ul2 + causal_lm")]
    assert rates == pytest.approx([3 / 28] * 7 + [1 / 4])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_is_written_as_it_is_read(name):
    assert str(parse_objective(name)) == name
    assert parse_objective(str(parse_objective(name))) == parse_objective(name)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("span_coruption", "did you mean span_corruption?"),
        ("span_corruption(density=0.2)", "did you mean noise_density?"),
        ("span_corruption(mean_span=3)", "did you mean mean_span_length?"),
        ("span_corruption(noise_density=2)", "got 2.0, expected between 0 and 1"),
        ("span_corruption(noise_density=1.5)", "between 0 and 1, neither included"),
        ("span_corruption(noise_density=1)", "between 0 and 1, neither included"),
        ("span_corruption(noise_density='a')", "expected a number"),
        ("span_corruption(noise_density=1e999)", "expected a number"),
        (f"span_corruption(noise_density={10**400})", "expected a number"),
        ("span_corruption(mean_span_length=0.5)", "expected between 1 and 500"),
        ("span_corruption(random_roll=1)", "expected True or False"),
        ("span_corruption(mode='Q')", "expected one of ('', 'R', 'S', 'X')"),
        ("prefix_lm(score_prefix=1)", "True or False"),
        ("masked_lm(choice='words')", "did you mean word?"),
        ("masked_lm(choice=1)", "no such choice; expected one of token"),
        ("causal_lm(x=1)", "it has none"),
        ("causal_lm(", "expected a sum such as 3 * a + b"),
        ("causal_lm(x={[]: 1})", "causal_lm has no option x"),
        ("{[]: 1} * causal_lm", "got the rate '{[]: 1}'"),
        ("prefix_lm(**{'score_prefix': True})", "expected options by name"),
        ("prefix_lm(score_prefix=True, score_prefix=False)", "each option once"),
        ("0 * causal_lm + prefix_lm", "got the rate 0"),
        ("1e308 * causal_lm + 1e308 * prefix_lm", "got the rate 1e308"),
        (f"{10**400} * causal_lm + prefix_lm", "got the rate 1000"),
        ("causal_lm + ", "a term is missing"),
        ("causal_lm + 3", "objective=3: no such objective"),
        ("no_such_module.objective", "No module named"),
        ("math.sqrt", "has no bound"),
    ],
)
@pytest.mark.usefixtures("own_code")
def test_what_an_objective_cannot_mean_is_refused(spec, words):
    assert words in refusal(parse_mixture, spec)


def test_options_that_contradict_each_other_are_refused_with_the_bound():
    objective = parse_objective("masked_lm(mask_rate=0.9, random_rate=0.2)")
    assert "is more than 1" in refusal(objective.bound, 10)


def test_too_few_sentinels_are_refused_with_the_number_needed():
    message = refusal(check_vocabulary, parse_objective("iid_denoising"), 2600, VOCABULARY)
    assert "can need 390 sentinels, the tokenizer has 256; shorten data.lengths" in message


# The user's own.

HEAD = """
from typing import Annotated, Literal, TypeVar

import numpy as np

from t5x_lite.data.objectives.declaration import Bound, Traits, objective
from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.config.ranges import Positive, Range, Share
"""

OWN = """
@objective(bound=lambda n, *, first=2: Bound(first, n - first, n))
def from_the_start(tokens, rng, vocabulary, *, first=2):
    return Pairs(Ragged.from_array(tokens[:, :first]), Ragged.from_array(tokens[:, first:]))

@objective(bound=lambda n: Bound(1, 1, 2))
def too_much(tokens, rng, vocabulary):
    return Pairs(Ragged.from_array(tokens), Ragged.from_array(tokens))

@objective(bound=lambda n, *, split=None: (0, n, n))
def other_ids(tokens, rng, vocabulary, *, split=None):
    targets = Ragged.from_array(tokens + vocabulary.size)
    return Pairs(Ragged.empty(len(tokens)), targets)

@objective(bound=lambda n: Bound(n, n, n))
def both_too_small(tokens, rng, vocabulary):
    return Pairs(Ragged.from_array(tokens), Ragged.from_array(tokens))

@objective(bound=lambda n: 1 / 0)
def no_bound(tokens, rng, vocabulary):
    pass

@objective(bound=lambda n: Bound(0, n, n), traits=lambda: 1 / 0)
def no_traits(tokens, rng, vocabulary):
    pass

@objective(bound=lambda n: Bound(0, n, n))
def nothing(tokens, rng, vocabulary):
    pass
"""


def test_an_objective_of_the_users_own(tmp_path, config_file, write_module):
    write_module("mine", HEAD + OWN)
    more = {"data.lengths": {"sequence_length": 20}}
    path = config_file("mine.from_the_start(first=3)", "decoder", **more)
    here = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    out, _ = run_apart("inspect", f"--config={path}", "--examples=1", **here)
    assert "3 inputs, 17 targets" in out


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("too_much", "fix the bound"),
        ("other_ids(split=4)", "its targets have ids from"),
        ("both_too_small", "fix the bound"),
        ("no_bound", "its bound failed on"),
        ("no_traits", "its traits failed"),
        ("nothing", "returned NoneType, expected Pairs"),
    ],
)
def test_what_is_wrong_with_ones_own_objective_is_said(config_file, write_module, spec, words):
    write_module("mine", HEAD + OWN)
    more = {"data.lengths": {"sequence_length": 20}}
    path = config_file(f"mine.{spec}", "decoder", **more)
    _, err = run("inspect", f"--config={path}", code=78)
    assert words in err


ANNOTATED = """
@objective(bound=lambda n, **options: Bound(0, n, n))
def annotated(
    tokens, rng, vocabulary, *,
    static: Positive = 1,
    split: Share = 0.5,
    second: Literal["left", "right"] = "left",
    step: Annotated[int, "in tokens", Range(0, open=True)] = 1,
    until: Annotated[int, Range(high=9)] | None = None,
    sizes: list[int] = (),
    free=None,
):
    return Pairs(Ragged.empty(len(tokens)), Ragged.from_array(tokens))

@objective(bound=lambda n, **options: Bound(0, n, n))
def unreadable(tokens, rng, vocabulary, *, x: "NoSuchType" = 1): ...

@objective(bound=lambda n, **options: Bound(0, n, n))
def unchecked(tokens, rng, vocabulary, *, x: TypeVar("T") = 1): ...
"""


@pytest.mark.parametrize("head", ["", "from __future__ import annotations\n"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("static=0", "got 0, expected at least 1"),
        ("static=True", "expected a whole number"),
        ("split=1.5", "got 1.5, expected between 0 and 1"),
        ("second='next'", "got 'next'; expected one of left, right"),
        ("step=0", "got 0, expected above 0"),
        ("until=10", "got 10, expected a whole number at most 9 or None"),
        ("sizes=5", "expected list"),
        ("secnd='left'", "did you mean second?"),
    ],
)
@pytest.mark.usefixtures("own_code")
def test_options_of_ones_own_have_the_ranges_of_their_annotations(
    write_module, head, options, words
):
    write_module("annotated", head + HEAD + ANNOTATED)
    given = "static=2, split=0, second='right', until=None, sizes=[1], free=[True]"
    mine = parse_objective(f"annotated.annotated({given})")
    assert mine.options["split"] == 0
    assert words in refusal(parse_objective, f"annotated.annotated({options})")


@pytest.mark.usefixtures("own_code")
def test_an_annotation_that_cannot_be_read_is_named(write_module):
    write_module("annotated", HEAD + ANNOTATED)
    assert "'NoSuchType' is not defined" in refusal(parse_objective, "annotated.unreadable(x=2)")
    assert "x: its annotation cannot be" in refusal(parse_objective, "annotated.unchecked(x=2)")


def test_an_objective_is_not_imported_from_a_module_that_is_not_allowed(write_module):
    mark = write_module("with_effect", HEAD + OWN)
    spec = "causal_lm + with_effect.from_the_start"
    for permitted in ((), {"with_effects", "from_the_start"}):
        with allow(permitted):
            message = refusal(parse_mixture, spec)
        assert "if you trust with_effect, add --allow-code=with_effect" in message
        assert "add --allow-code=with_effect" in message
        assert not mark.exists()
        assert "with_effect" not in sys.modules
    with allow({"with_effect"}):
        _, (_, mine) = parse_mixture(spec)
    assert mine.name == "with_effect.from_the_start"
    assert mark.exists()


def test_a_dry_run_reads_two_windows_where_the_objective_does():
    dry_run(parse_objective("masked_lm(second='next')"), 20, VOCABULARY)
    dry_run(parse_objective("prefix_lm(mirrored=True)"), 20, VOCABULARY)
