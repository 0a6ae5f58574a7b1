"""The law of repeated text against the released code of its paper, and laws that are known."""

import dataclasses
import itertools
import math
from operator import attrgetter

import numpy as np
import pytest

from t5x_lite.comparison.repeats import (
    RepeatedPoint,
    RepeatsLaw,
    determined_decays,
    fit_repeats,
)
from t5x_lite.comparison.scaling import Fit, ScalingLaw

# Of huggingface/datablations, README.md, "Parametric Fit"
RELEASED = ScalingLaw(
    E=math.exp(0.6254804),
    A=math.exp(6.255414),
    alpha=0.3526596,
    B=math.exp(7.3049974),
    beta=0.3526596,
)
TRUTH = RepeatsLaw(ScalingLaw(E=1.7, A=400.0, alpha=0.34, B=400.0, beta=0.28), 8.0, 3.0)


def test_losses_are_those_that_the_released_code_prints():
    """The two models of figure 1, right."""
    law = RepeatsLaw(RELEASED)
    assert law.loss(6.34e9, 242e9, 25e9) == pytest.approx(2.2256440889984477, rel=1e-12)
    assert law.loss(8.67e9, 178e9, 25e9) == pytest.approx(2.2269634075087867, rel=1e-12)


def test_without_repeats_it_is_the_law_of_text_read_once():
    """If the model is not larger than the best for the tokens that are read."""
    for share, tokens in itertools.product((0.1, 1.0), (1e6, 1e9)):
        size = share * RELEASED.best_size(tokens)
        expected = RELEASED.loss(size, tokens)
        assert RepeatsLaw(RELEASED).loss(size, tokens, 1e9) == pytest.approx(expected)
    endless = RepeatsLaw(RELEASED, 1e12, 1e12)
    assert endless.loss(1e9, 3e9, 1e8) == pytest.approx(RELEASED.loss(1e9, 3e9), rel=1e-6)


def test_repeats_are_worth_less_and_less():
    worth = [TRUTH.effective_tokens(epochs * 1e6, 1e6) / 1e6 for epochs in range(1, 40)]
    added = np.diff(worth)
    assert worth[0] == 1.0
    np.testing.assert_allclose(added[1:] / added[:-1], math.exp(-1 / 8.0))
    assert TRUTH.effective_tokens(1e9, 1e6) == 1e6 * (1 + 8.0)


@pytest.mark.parametrize("term", [1e-12, 1e12])
def test_laws_of_no_slope_have_finite_losses(term):
    """Their best size under- or overflows."""
    law = dataclasses.replace(TRUTH.law, A=term, alpha=0.01)
    assert law.best_size(1e6) in (0.0, math.inf)
    found = RepeatsLaw(law).loss(1e7, 1e8, 1e6)
    assert math.isfinite(found)
    assert found > law.E


def points_of(law, noise=0.0, seed=0):
    random = np.random.default_rng(seed)
    sizes = itertools.product((1e7, 1e8, 1e9), (1e8, 1e9), (2, 4, 8, 16, 64))
    return [
        RepeatedPoint(
            n, u * epochs, u, law.loss(n, u * epochs, u) * math.exp(noise * random.normal())
        )
        for n, u, epochs in sizes
    ]


@pytest.mark.parametrize("tokens", [0.5, 15.0, 500.0])
@pytest.mark.parametrize("parameters", [0.5, 5.0])
def test_laws_are_found_in_points(tokens, parameters):
    truth = RepeatsLaw(TRUTH.law, tokens, parameters)
    found = fit_repeats(Fit(truth.law, (), 9), points_of(truth)).law
    assert found.tokens_decay == pytest.approx(tokens, rel=1e-3)
    assert found.parameters_decay == pytest.approx(parameters, rel=1e-3)


@pytest.mark.slow
def test_intervals_cover_the_truth():
    """With noise of half a per cent, about 19 times in 20."""
    covered = 0
    for seed in range(20):
        once = Fit(TRUTH.law, (TRUTH.law,) * 24, freedom=20)
        found = fit_repeats(once, points_of(TRUTH, 0.005, seed), seed)
        low, high = found.interval(attrgetter("tokens_decay"))
        covered += low <= TRUTH.tokens_decay <= high
        assert high / low < 2
    assert covered >= 16


def test_intervals_cover_the_uncertainty_of_the_law_itself():
    others = [dataclasses.replace(TRUTH.law, B=b) for b in (320.0, 360.0, 440.0, 480.0)]
    widths = []
    for laws in ([TRUTH.law] * 4, others):
        found = fit_repeats(Fit(TRUTH.law, tuple(laws), 9), points_of(TRUTH, 0.001))
        low, high = found.interval(attrgetter("tokens_decay"))
        widths.append(high / low)
    assert widths[1] > 1.5 * widths[0]


def test_what_the_points_do_not_determine_has_no_value():
    """No small model shows R*_N; and text that is as good as new is worth any large R*_D."""
    once = Fit(TRUTH.law, (TRUTH.law,) * 4, freedom=9)
    points = points_of(TRUTH, 0.001)
    assert None not in determined_decays(fit_repeats(once, points), points).values()
    small = [point for point in points if point.parameters < TRUTH.law.best_size(point.unique)]
    decays = determined_decays(fit_repeats(once, small), small)
    assert decays["parameters_decay"] is None
    assert decays["tokens_decay"][0] == pytest.approx(TRUTH.tokens_decay, rel=0.1)
    as_new = points_of(dataclasses.replace(TRUTH, tokens_decay=1e9))
    assert determined_decays(fit_repeats(once, as_new), as_new)["tokens_decay"] is None


def test_text_that_nobody_reads_again_is_worth_nothing_more():
    with pytest.raises(ValueError, match="no point reads its text more than once"):
        fit_repeats(Fit(TRUTH.law, (), 9), [RepeatedPoint(1e6, 1e6, 1e7, 3.0)])
