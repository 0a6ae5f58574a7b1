"""Scaling laws of text that is read several times (Muennighoff et al., 2023, "Scaling
Data-Constrained Language Models", §3.1).

    L(N, D, U) = E + A / N'^α + B / D'^β
    D' = U + U · R*_D · (1 − exp(−(D / U − 1) / R*_D))

D tokens are read of a text of U. Each time that the text is read again it is worth less: in the
limit, R*_D times the text. Parameters beyond the best number for U are worth less in the same way,
with R*_N: they give N'.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from t5x_lite.comparison.scaling import HUBER, Fit, ScalingLaw, huber_threshold

_RANGE = (1e-2, 1e4)  # of R*_D and R*_N


class RepeatedPoint(NamedTuple):
    """The size, the tokens and the loss of one trained model, and the size of its text."""

    parameters: float
    tokens: float  # that it has read, with repeats
    unique: float  # tokens of the text
    loss: float


@dataclass(frozen=True)
class RepeatsLaw:
    """L(N, D, U). For text that is read once it is `law`, except for models that are larger than
    the best one for the text: R*_N applies to these, too, as in the paper.

    Attributes:
        law: the law of text that is read once.
        tokens_decay: R*_D; the default is the paper's, for models of up to 9 billion parameters.
        parameters_decay: R*_N.

    >>> law = ScalingLaw(E=1.869, A=520.8, alpha=0.353, B=1487.7, beta=0.353)
    >>> of_text = RepeatsLaw(law)
    >>> [round(of_text.effective_tokens(epochs * 100.0, 100.0)) for epochs in (1, 4, 16, 1000)]
    [100, 373, 1058, 1639]
    """

    law: ScalingLaw
    tokens_decay: float = 15.387756
    parameters_decay: float = 5.309743

    def effective_tokens(self, tokens: float, unique: float) -> float:
        """Return D': the new tokens that are worth as much as the tokens read."""
        return _effective(tokens, min(tokens, unique), self.tokens_decay)

    def effective_parameters(self, parameters: float, unique: float) -> float:
        """Return N': parameters beyond the best number for so many unique tokens count less."""
        best = max(self.law.best_size(unique), 1.0)  # 0 for laws that hardly depend on the size
        return _effective(parameters, min(parameters, best), self.parameters_decay)

    def loss(self, parameters: float, tokens: float, unique: float) -> float:
        """Return the predicted loss."""
        unique = min(tokens, unique)
        return self.law.loss(
            self.effective_parameters(parameters, unique), self.effective_tokens(tokens, unique)
        )


def _effective(amount: float, base: float, decay: float) -> float:
    return base - base * decay * math.expm1(-(amount / base - 1) / decay)


def fit_repeats(
    once: Fit[ScalingLaw], points: Sequence[RepeatedPoint], seed: int = 0
) -> Fit[RepeatsLaw]:
    """Fit R*_D and R*_N to runs that read their text several times, as in the paper: given the law
    of runs that read theirs once.

    The intervals also cover the uncertainty of that law.

    Args:
        once: from scaling.fit.

    Raises:
        ValueError: if no point reads its text more than once.

    >>> truth = RepeatsLaw(ScalingLaw(E=1.7, A=400.0, alpha=0.34, B=400.0, beta=0.28), 8.0, 3.0)
    >>> once = Fit(truth.law, (truth.law,) * 3, freedom=9)
    >>> sizes = [(n, u * epochs, u) for n in (1e7, 1e9) for u in (1e8, 1e9) for epochs in (4, 32)]
    >>> found = fit_repeats(once, [RepeatedPoint(*size, truth.loss(*size)) for size in sizes])
    >>> round(found.law.tokens_decay, 3), round(found.law.parameters_decay, 3)
    (8.0, 3.0)
    """
    if not any(point.tokens > point.unique for point in points):
        raise ValueError("no point reads its text more than once")
    log_loss = np.log([point.loss for point in points])
    freedom = max(len(points) - 2, 1)
    best = _nearest(once.law, points, log_loss, HUBER)
    threshold = huber_threshold(log_loss - _log_losses(best, points), freedom)
    best = _nearest(once.law, points, log_loss, threshold)

    # Bootstrap: draw the residuals of all points, for each resampled law of text that is read once.
    # A point does not keep its own, as in scaling.fit, because few points determine each unknown.
    predicted = _log_losses(best, points)
    residuals = (log_loss - predicted) * math.sqrt(len(points) / freedom)
    random = np.random.default_rng(seed)
    drawn = (predicted + random.choice(residuals, len(points)) for _ in once.resampled)
    resampled = tuple(
        _nearest(law, points, losses, threshold)
        for law, losses in zip(once.resampled, drawn, strict=True)
    )
    return Fit(best, resampled, min(once.freedom, freedom))


def determined_decays(
    found: Fit[RepeatsLaw], points: Sequence[RepeatedPoint]
) -> dict[str, tuple[float, tuple[float, float]] | None]:
    """Return R*_D and R*_N, each with its interval; None for one that the points do not determine:
    if repeats hardly count, if they count as new, or if no model is larger than the best one for
    its text.

    Args:
        points: those that the law was fitted to.
    """
    law, low, high = found.law, 2 * _RANGE[0], _RANGE[1] / 2
    has_large = any(
        point.parameters > law.law.best_size(min(point.tokens, point.unique)) for point in points
    )
    known = {
        "tokens_decay": low < law.tokens_decay < high,
        "parameters_decay": has_large and low < law.parameters_decay < high,
    }
    return {
        name: (getattr(law, name), found.interval(attrgetter(name))) if is_known else None
        for name, is_known in known.items()
    }


def _nearest(
    law: ScalingLaw, points: Sequence[RepeatedPoint], log_loss: np.ndarray, threshold: float
) -> RepeatsLaw:
    """Return the law with the least Huber loss of log losses, from several starts.

    Args:
        threshold: error at which the loss turns from squares to absolute values.
    """

    def of(unknown: np.ndarray) -> RepeatsLaw:
        return RepeatsLaw(law, *map(float, np.exp(unknown)))

    found = [
        least_squares(
            lambda unknown: _log_losses(of(unknown), points) - log_loss,
            np.log([start, start]),
            bounds=np.log(_RANGE),
            loss="huber",
            f_scale=threshold,
        )
        for start in (1.0, 10.0, 100.0)
    ]
    return of(min(found, key=lambda one: one.cost).x)


def _log_losses(law: RepeatsLaw, points: Sequence[RepeatedPoint]) -> np.ndarray:
    return np.log([law.loss(*point[:3]) for point in points])
