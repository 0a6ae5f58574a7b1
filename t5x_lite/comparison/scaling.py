"""Scaling laws: fit how the loss falls with the number of parameters N and training tokens D.

    Kaplan et al. (2020), §4          L(N) = (Nc / N)^αN,  L(D) = (Dc / D)^αD
    Hoffmann et al. (2022), §3.3      L(N, D) = E + A / N^α + B / D^β

Both fits minimise a Huber loss of differences in log L. For L(N, D) this is done as in Hoffmann et
al., with L-BFGS from many starts, and then refined. Compute is 6 N D, or k N^q D with k and q
fitted to the models at hand.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from scipy import stats
from scipy.optimize import least_squares, minimize

# Smallest error at which the Huber loss turns from squares to absolute values (Hoffmann et al.,
# 2022, §D.2)
HUBER = 1e-3
# The same error in standard deviations of normal noise, for 95 % of the efficiency of least squares
_EFFICIENT = 1.345
_RESAMPLES = 200
# Starting points: E as a share of the mean loss, and the exponents
_SHARES, _EXPONENTS = (0.1, 0.4, 0.7, 0.9), (0.1, 0.3, 0.6, 1.0)
_CLOSE = 1e-12  # tolerance of the least-squares fits
_STEEPNESS = (0.01, 3.0)  # range of the exponents
_DEPTH = 12.0  # how far a term's logarithm may lie below the mean log loss
_UNKNOWNS = 5  # unknowns of L(N, D)


class Point(NamedTuple):
    """The size, the tokens and the loss of one trained model."""

    parameters: float
    tokens: float
    loss: float  # in nats; or another score that falls like a loss, such as bits per byte


@dataclass(frozen=True)
class PowerLaw:
    """L(x) = (scale / x)^exponent, where x is the parameters, the tokens or the compute."""

    scale: float
    exponent: float

    def loss(self, x: float) -> float:
        """Return the loss that the law predicts for x."""
        return (self.scale / x) ** self.exponent


@dataclass(frozen=True)
class ScalingLaw:
    """L(N, D) = E + A / N^alpha + B / D^beta.

    >>> chinchilla = ScalingLaw(E=1.69, A=406.4, alpha=0.34, B=410.7, beta=0.28)
    >>> round(chinchilla.loss(70e9, 1.4e12), 3)
    1.937
    >>> parameters, tokens = chinchilla.optimum(5.76e23)
    >>> f"{parameters:.1e} {tokens:.1e}"
    '3.2e+10 3.0e+12'
    """

    E: float
    A: float
    alpha: float
    B: float
    beta: float
    k: float = 6.0  # compute is k · N^q · D
    q: float = 1.0

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the predicted loss."""
        return self.E + self.A / parameters**self.alpha + self.B / tokens**self.beta

    def optimum(self, flops: float) -> tuple[float, float]:
        """Return the parameters and tokens with the lowest loss for this compute (eq. 4)."""
        beta = self.q * self.beta
        ratio = self.alpha * self.A / (beta * self.B)
        parameters = (ratio * (flops / self.k) ** self.beta) ** (1 / (self.alpha + beta))
        return parameters, self.tokens_for(flops, parameters)

    def best_size(self, tokens: float) -> float:
        """Return the parameters of the model that is best for the compute that it takes to train it
        on so many tokens.

        >>> law = ScalingLaw(E=1.69, A=406.4, alpha=0.34, B=410.7, beta=0.28)
        >>> parameters, tokens = law.optimum(1e21)
        >>> round(law.best_size(tokens) / parameters, 6)
        1.0
        """
        ratio = self.alpha * self.A / (self.q * self.beta * self.B)
        return _exp((math.log(ratio) + self.beta * math.log(tokens)) / self.alpha)

    def tokens_for(self, flops: float, parameters: float) -> float:
        """Return the tokens on which this compute trains a model of this size."""
        return flops / (self.k * parameters**self.q)

    def best_loss(self, flops: float) -> float:
        """Return the lowest loss that this compute can reach."""
        return self.loss(*self.optimum(flops))

    def flops_for(self, loss: float) -> float:
        """Return the least compute that reaches a loss; infinite if none does.

        >>> law = ScalingLaw(E=1.69, A=406.4, alpha=0.34, B=410.7, beta=0.28)
        >>> round(law.flops_for(law.best_loss(1e20)) / 1e20, 6)
        1.0
        """
        return _exp(self.log_flops_for(loss))

    def log_flops_for(self, loss: float) -> float:
        """Return the logarithm of flops_for, which does not overflow even if flops_for does."""
        if loss <= self.E:
            return math.inf
        both = self.alpha * self.beta / (self.alpha + self.q * self.beta)
        # best_loss − E is a power of compute.
        return math.log((self.best_loss(1.0) - self.E) / (loss - self.E)) / both

    def flops_of_size(self, parameters: float, loss: float) -> float:
        """Return the compute with which a model of this size reaches a loss; infinite if never."""
        left = loss - self.E - self.A / parameters**self.alpha
        if left <= 0:
            return math.inf
        tokens = (self.B / left) ** (1 / self.beta)
        return self.k * parameters**self.q * tokens


def compute_multiplier(law: ScalingLaw, other: ScalingLaw, loss: float) -> float:
    """Return how many times the compute of `other` a law needs for the same loss.

    Both use the best model size for their compute.

    >>> law = ScalingLaw(E=1.69, A=406.4, alpha=0.34, B=410.7, beta=0.28)
    >>> compute_multiplier(law, law, 2.5)
    1.0
    """
    return _exp(law.log_flops_for(loss) - other.log_flops_for(loss))


def _exp(x: float) -> float:
    """Return e^x, or infinity where it overflows."""
    return math.exp(x) if x < 700 else x * math.inf


# Fits.


def fit_power_law(xs: Sequence[float], losses: Sequence[float]) -> PowerLaw:
    """Fit L(x) = (scale / x)^exponent, a straight line in logarithms.

    >>> law = fit_power_law([1e6, 1e7, 1e8], [(1e13 / x) ** 0.1 for x in (1e6, 1e7, 1e8)])
    >>> round(law.exponent, 6), f"{law.scale:.4e}"
    (0.1, '1.0000e+13')
    """
    log_x, log_loss = np.log(xs), np.log(losses)
    centre = log_x.mean()
    height, exponent = least_squares(
        lambda line: line[0] - line[1] * (log_x - centre) - log_loss,
        [log_loss.mean(), 0.1],
        loss="huber",
        f_scale=HUBER,
        ftol=_CLOSE,
        xtol=_CLOSE,
        gtol=_CLOSE,
    ).x
    # Losses that do not fall have no finite scale.
    scale = _exp(centre + height / exponent) if exponent else math.inf
    return PowerLaw(scale, float(exponent))


Law = TypeVar("Law")


@dataclass(frozen=True)
class Fit(Generic[Law]):
    """A fitted law, and laws fitted after changing the signs of residuals at random, which show how
    certain it is.
    """

    law: Law
    resampled: tuple[Law, ...]
    freedom: int  # degrees of freedom: points beyond the unknowns, at least 1

    def interval(
        self, quantity: Callable[[Law], float], level: float = 0.95
    ) -> tuple[float, float]:
        """Return the interval of a positive quantity that follows from the law."""
        resampled = [quantity(law) for law in self.resampled]
        return interval(quantity(self.law), resampled, self.freedom, level)


def interval(
    value: float, resampled: Sequence[float], freedom: int, level: float = 0.95
) -> tuple[float, float]:
    """Return an interval from Student's t and the spread of the resampled values, in logarithms.

    Quantiles of the resampled values would be too narrow. benchmarks/scaling_intervals.py measures
    by simulation how often these intervals contain the true value.

    Returns:
        The low and high end; (0, inf) if a resampled value is zero, negative or not finite.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(resampled)
    if not np.isfinite(logs).all():
        return 0.0, math.inf
    reach = float(stats.t.ppf((1 + level) / 2, freedom) * logs.std(ddof=1))
    return value * math.exp(-reach), value * math.exp(reach)


def fit(
    points: Sequence[Point],
    k: float = 6.0,
    q: float = 1.0,
    resamples: int = _RESAMPLES,
    seed: int = 0,
) -> Fit[ScalingLaw]:
    """Fit L(N, D) to points that differ in both N and D; compute is k · N^q · D.

    Resampling draws the signs of residuals, not points, so that every size and every budget stays
    in the fit.

    >>> truth = ScalingLaw(E=1.7, A=400.0, alpha=0.34, B=400.0, beta=0.28)
    >>> sizes = [(n, d) for n in (1e6, 1e7, 1e8) for d in (1e8, 1e9, 1e10)]
    >>> found = fit([Point(n, d, truth.loss(n, d)) for n, d in sizes], resamples=3)
    >>> [round(value, 3) for value in (found.law.E, found.law.alpha, found.law.beta)]
    [1.7, 0.34, 0.28]
    >>> low, high = found.interval(lambda law: law.alpha)
    >>> high - low < 1e-6
    True
    """
    log_N, log_D, log_loss = np.log(np.array(points, float)).T
    terms = _Terms(log_N - log_N.mean(), log_D - log_D.mean(), float(log_loss.mean()))
    unknown = terms.nearest(_from_many_starts(terms, log_loss), log_loss, HUBER)
    freedom = max(len(points) - _UNKNOWNS, 1)
    threshold = huber_threshold(log_loss - terms.log_loss(unknown), freedom)
    unknown = terms.nearest(unknown, log_loss, threshold)

    # Wild bootstrap (Wu, 1986): give each point's residual a random sign, add it to the prediction,
    # and fit the law again. Points keep their own residuals, because those of small and short runs
    # are larger than others. The fit comes too close to points with a high leverage, so residuals
    # are divided by 1 − leverage (HC3: MacKinnon and White, 1985).
    predicted = terms.log_loss(unknown)
    residuals = (log_loss - predicted) / (1 - _leverages(terms.jacobian(unknown)))
    random = np.random.default_rng(seed)

    def law(unknown: np.ndarray) -> ScalingLaw:
        log_E, height_N, log_alpha, height_D, log_beta = map(float, unknown)
        alpha, beta = math.exp(log_alpha), math.exp(log_beta)
        return ScalingLaw(
            E=math.exp(log_E),
            A=math.exp(height_N + alpha * log_N.mean()),
            alpha=alpha,
            B=math.exp(height_D + beta * log_D.mean()),
            beta=beta,
            k=k,
            q=q,
        )

    signs = (random.choice([-1.0, 1.0], len(points)) for _ in range(resamples))
    drawn = (predicted + sign * residuals for sign in signs)
    resampled = tuple(law(terms.nearest(unknown, losses, threshold)) for losses in drawn)
    return Fit(law(unknown), resampled, freedom)


def huber_threshold(residuals: np.ndarray, freedom: int) -> float:
    """Return the error from which on a fit should count absolute values instead of squares, given
    the residuals of a first fit with HUBER.
    """
    # A fit leaves residuals that are smaller than the noise, so they are scaled up.
    errors = np.abs(residuals) * math.sqrt(len(residuals) / freedom)
    # 1.4826 times the median absolute residual is a robust standard deviation.
    return max(HUBER, _EFFICIENT * 1.4826 * float(np.median(errors)))


def _leverages(jacobian: np.ndarray) -> np.ndarray:
    """Return how far each point determines its own prediction: [points], at most 0.99."""
    inverse = np.linalg.pinv(jacobian.T @ jacobian)
    leverages = np.einsum("pi,ij,pj->p", jacobian, inverse, jacobian)
    return np.clip(leverages, 0, 0.99)


def errors_left_out(points: Sequence[Point], groups: Sequence[float]) -> dict[float, float]:
    """Return the error on each group of points, such as one budget, of a law fitted to all others.

    The error is the root mean square of log predicted loss − log loss.

    >>> truth = ScalingLaw(E=1.7, A=400.0, alpha=0.34, B=400.0, beta=0.28)
    >>> sizes = [(n, d) for n in (1e6, 1e7, 1e8) for d in (1e8, 1e9, 1e10, 1e11)]
    >>> points = [Point(n, d, truth.loss(n, d)) for n, d in sizes]
    >>> errors = errors_left_out(points, [d for _, d in sizes])
    >>> len(errors), max(errors.values()) < 1e-3
    (4, True)
    """
    errors = {}
    for group in sorted(set(groups)):
        others = [point for point, of in zip(points, groups, strict=True) if of != group]
        left_out = [point for point, of in zip(points, groups, strict=True) if of == group]
        # The other points must still determine both exponents.
        kinds = (
            len({point.parameters for point in others}),
            len({point.tokens for point in others}),
        )
        if len(others) <= _UNKNOWNS or min(kinds) < 3:
            continue
        law = fit(others, resamples=0).law
        found = [math.log(law.loss(*point[:2]) / point.loss) for point in left_out]
        errors[group] = math.sqrt(sum(error**2 for error in found) / len(found))
    return errors


@dataclass(frozen=True)
class _Terms:
    """log L as a function of five unknowns, and its derivatives.

    The unknowns are log E and, for each of the two power laws, its height at the centre of the
    points and the logarithm of its exponent. At the centre, height and exponent hardly depend on
    each other.
    """

    log_N: np.ndarray  # [points], minus their mean
    log_D: np.ndarray  # [points], minus their mean
    centre: float  # mean of log L

    def log_loss(self, unknown: np.ndarray) -> np.ndarray:
        """Return log L of each point: [points]."""
        return np.logaddexp.reduce(self._terms(unknown), axis=0)

    def jacobian(self, unknown: np.ndarray) -> np.ndarray:
        """Return the derivatives of log_loss by the unknowns: [points, 5]."""
        terms = self._terms(unknown)
        share_E, share_N, share_D = np.exp(terms - np.logaddexp.reduce(terms, axis=0))
        alpha, beta = np.exp(unknown[[2, 4]])
        of_alpha, of_beta = -share_N * alpha * self.log_N, -share_D * beta * self.log_D
        slopes = [share_E, share_N, of_alpha, share_D, of_beta]
        return np.stack(slopes, axis=1)

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds of the unknowns.

        Without them, a term that the points do not determine could diverge.
        """
        low, high = self.centre - _DEPTH, self.centre + 1
        flat, steep = np.log(_STEEPNESS)
        return np.array([low, low, flat, low, flat]), np.array([high, high, steep, high, steep])

    def nearest(self, start: np.ndarray, log_loss: np.ndarray, threshold: float) -> np.ndarray:
        """Return the minimum of the Huber loss that is nearest to a start.

        Args:
            threshold: error at which the loss turns from squares to absolute values.
        """
        return least_squares(
            lambda unknown: self.log_loss(unknown) - log_loss,
            start,
            jac=self.jacobian,
            bounds=self.bounds,
            loss="huber",
            f_scale=threshold,
            ftol=_CLOSE,
            xtol=_CLOSE,
            gtol=_CLOSE,
        ).x

    def _terms(self, unknown: np.ndarray) -> np.ndarray:
        """Return the logarithms of the three terms of L: [3, points]."""
        log_E, height_N, log_alpha, height_D, log_beta = unknown
        alpha, beta = np.exp(log_alpha), np.exp(log_beta)
        flat = np.full_like(self.log_N, log_E)
        return np.stack([flat, height_N - alpha * self.log_N, height_D - beta * self.log_D])


def _from_many_starts(terms: _Terms, log_loss: np.ndarray) -> np.ndarray:
    """Return the unknowns with the least Huber loss among the minima that L-BFGS reaches."""

    def objective(unknown: np.ndarray) -> tuple[float, np.ndarray]:
        error = terms.log_loss(unknown) - log_loss
        small = np.abs(error) <= HUBER
        value = np.where(small, error**2 / (2 * HUBER), np.abs(error) - HUBER / 2)
        slope = np.where(small, error / HUBER, np.sign(error))
        return float(value.sum()), slope @ terms.jacobian(unknown)

    mean = math.log(np.exp(log_loss).mean())
    bounds = list(zip(*terms.bounds, strict=True))
    found = []
    # E starts as a share of the mean loss; the other two terms divide the rest equally.
    for share, alpha, beta in itertools.product(_SHARES, _EXPONENTS, _EXPONENTS):
        rest = mean + math.log((1 - share) / 2)
        start = [mean + math.log(share), rest, math.log(alpha), rest, math.log(beta)]
        found.append(minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds))
    return min(found, key=lambda result: result.fun).x
