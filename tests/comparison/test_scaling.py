"""Scaling laws: what is known of a law is found again in its points."""

import dataclasses
import math

import numpy as np
import pytest

from t5x_lite.comparison.scaling import (
    Fit,
    Point,
    ScalingLaw,
    compute_multiplier,
    fit,
    fit_power_law,
)

# Hoffmann et al. (2022), eq. 10.
CHINCHILLA = ScalingLaw(E=1.69, A=406.4, alpha=0.34, B=410.7, beta=0.28)
COEFFICIENTS = ("E", "A", "alpha", "B", "beta")


def points_of(law: ScalingLaw, noise: float = 0.0, seed: int = 0) -> list[Point]:
    """60 models: ten sizes, six budgets."""
    random = np.random.default_rng(seed)
    return [
        Point(n, d, law.loss(n, d) * math.exp(noise * random.standard_normal()))
        for n in np.geomspace(5e7, 1e10, 10)
        for d in np.geomspace(1e9, 3e11, 6)
    ]


@pytest.mark.parametrize(
    "law",
    [
        CHINCHILLA,
        ScalingLaw(E=1.8172, A=482.01, alpha=0.3478, B=2085.43, beta=0.3658),  # Besiroglu (2024)
        ScalingLaw(E=0.2, A=20.0, alpha=0.1, B=1e4, beta=0.6),
        ScalingLaw(E=3.0, A=1e5, alpha=0.8, B=30.0, beta=0.15),
    ],
)
def test_the_coefficients_of_exact_points_are_found(law):
    found = fit(points_of(law), resamples=2).law
    for name in COEFFICIENTS:
        assert getattr(found, name) == pytest.approx(getattr(law, name), rel=1e-3), name


def test_one_wild_point_hardly_matters():
    points = points_of(CHINCHILLA)
    points[17] = points[17]._replace(loss=3 * points[17].loss)
    found = fit(points, resamples=2).law
    for name in COEFFICIENTS:
        assert getattr(found, name) == pytest.approx(getattr(CHINCHILLA, name), rel=0.05), name


@pytest.mark.slow
def test_intervals_hold_the_truth():
    """With noise of 1 %, in at least 34 of 40 sets, of whatever follows from the law."""
    compute = 10 * 6 * 1e10 * 3e11  # ten times the largest
    quantities = {name: (lambda law, name=name: getattr(law, name)) for name in COEFFICIENTS}
    quantities["loss at ten times the compute"] = lambda law: law.best_loss(compute)
    quantities["best size"] = lambda law: law.optimum(compute)[0]
    held = dict.fromkeys(quantities, 0)
    errors = []
    for seed in range(40):
        found = fit(points_of(CHINCHILLA, 0.01, seed), resamples=100)
        for name, quantity in quantities.items():
            low, high = found.interval(quantity)
            held[name] += low <= quantity(CHINCHILLA) <= high
        errors.append(found.law.best_loss(compute) / CHINCHILLA.best_loss(compute) - 1)
    assert min(held.values()) >= 34, held
    assert np.sqrt(np.mean(np.square(errors))) < 0.01


def test_the_best_size_is_the_best():
    for compute in (1e17, 1e21, 1e25):
        size, tokens = CHINCHILLA.optimum(compute)
        assert 6 * size * tokens == pytest.approx(compute)
        for factor in (0.9, 1.1):
            other = CHINCHILLA.loss(size * factor, tokens / factor)
            assert other > CHINCHILLA.best_loss(compute)


def test_compute_for_a_loss():
    loss = CHINCHILLA.best_loss(1e21)
    size, _ = CHINCHILLA.optimum(1e21)
    assert CHINCHILLA.flops_for(loss) == pytest.approx(1e21)
    assert CHINCHILLA.flops_of_size(size, loss) == pytest.approx(1e21)
    assert CHINCHILLA.flops_of_size(size / 3, loss) > 1e21
    assert CHINCHILLA.flops_for(1.69) == math.inf
    assert CHINCHILLA.flops_of_size(1e6, loss) == math.inf

    # One that learns from a third of the tokens needs a third of them.
    frugal = dataclasses.replace(CHINCHILLA, B=CHINCHILLA.B / 3**CHINCHILLA.beta)
    assert frugal.loss(1e9, 1e10) == pytest.approx(CHINCHILLA.loss(1e9, 3e10))
    assert compute_multiplier(CHINCHILLA, frugal, loss) == pytest.approx(3)


def test_a_power_law_of_what_does_not_fall():
    assert fit_power_law([1e6, 1e7, 1e8], [3.0, 3.0, 3.0]).exponent == pytest.approx(0, abs=1e-6)


def test_power_laws():
    sizes = np.geomspace(1e5, 1e9, 9)
    law = fit_power_law(sizes, [(8.8e13 / n) ** 0.076 for n in sizes])  # Kaplan et al. (2020), §1.2
    assert law.exponent == pytest.approx(0.076)
    assert law.scale == pytest.approx(8.8e13)
    assert law.loss(1e6) == pytest.approx((8.8e13 / 1e6) ** 0.076)


def test_what_no_point_tells_has_no_bound():
    """Where the loss of a resampled law never gets there, the compute for it is unbounded."""
    far = dataclasses.replace(CHINCHILLA, E=2.5)
    both = Fit(CHINCHILLA, (CHINCHILLA, far), freedom=55)
    assert both.interval(lambda law: law.flops_for(2.2)) == (0.0, math.inf)
