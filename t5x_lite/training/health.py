"""Detect the steps at which a run diverges, from the losses and gradient norms before them.

A step is unhealthy if its loss or its gradient norm is not finite, or lies more than ten robust
standard deviations above the median of the last 128 healthy steps. None of 35,267 recorded steps of
704 runs that converged was unhealthy (benchmarks/healthy_steps.py). The figures are saved in each
checkpoint, so that a resumed run decides as if it had never been stopped.
"""

import math
from typing import Any

WINDOW = 128
MOST_SKIPPED = 10  # updates in a row that may be skipped; more than that is not a spike
_ENOUGH = 8  # healthy steps that are needed to estimate a deviation
_EARLY = 10.0  # with fewer, a loss may be this many times the largest so far
_FURTHEST = 10.0  # limit of healthy figures, in robust standard deviations above the median
_TO_SIGMA = 1.4826  # median absolute deviation → standard deviation of a normal distribution
# Lower bounds on the standard deviations, which are 0 if most figures are equal. For the loss: a
# share of the median, and nats. For the norm: the standard deviation of its logarithm.
_LEAST_SHARE, _LEAST_NATS, _LEAST_LOG = 0.02, 0.05, 0.5


class Health:
    """The figures of the last healthy steps.

    Args:
        saved: what `to_json` returned for a checkpoint; empty at the start of a run.

    Attributes:
        is_healthy: False if the last step was unhealthy.
        skipped: number of steps whose update was skipped.
        skipped_in_a_row: number of steps skipped since the last step that was not.
    """

    def __init__(self, saved: dict[str, Any] | None = None):
        saved = saved or {}
        self._figures: list[list[float]] = saved.get("figures", [])  # step, loss, log of the norm
        self.skipped: int = saved.get("skipped", 0)
        self.skipped_in_a_row: int = saved.get("skipped_in_a_row", 0)
        self.is_healthy: bool = saved.get("is_healthy", True)

    def limits(self, step: int) -> tuple[float, float]:
        """Return the largest loss and gradient norm with which a step is healthy. They depend only
        on steps up to `step - 2`, whose figures are known when the step is dispatched.

        >>> health = Health()
        >>> for step in range(1, 20):
        ...     _ = health.record(step, loss=2.0 + step % 2 / 10, norm=1.0)
        >>> loss, norm = health.limits(20)
        >>> round(loss, 2), round(norm)
        (2.79, 148)
        """
        end = len(self._figures)
        while end and self._figures[end - 1][0] > step - 2:
            end -= 1
        known = self._figures[max(end - WINDOW, 0) : end]
        if not known:
            return math.inf, math.inf
        losses, norms = [one[1] for one in known], [one[2] for one in known]
        if len(known) < _ENOUGH:
            return _EARLY * max(map(abs, losses)), math.inf
        median = _median(losses)
        least = max(_LEAST_SHARE * abs(median), _LEAST_NATS)
        loss = median + _FURTHEST * max(_deviation(losses, median), least)
        median = _median(norms)
        log_norm = median + _FURTHEST * max(_deviation(norms, median), _LEAST_LOG)
        return loss, math.exp(min(log_norm, 700.0))

    def record(self, step: int, loss: float, norm: float) -> bool:
        """Record the figures of a step; return True if it is healthy."""
        self.skipped_in_a_row = 0
        loss_limit, norm_limit = self.limits(step)
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        self.is_healthy = is_finite and bool(loss <= loss_limit and norm <= norm_limit)
        if self.is_healthy:
            self._figures.append([step, float(loss), math.log(max(norm, 1e-30))])
            del self._figures[: -WINDOW - 1]  # limits() leaves out the last one
        return self.is_healthy

    def skip(self) -> None:
        """Count a step whose update was skipped."""
        self.skipped += 1
        self.skipped_in_a_row += 1

    def to_json(self) -> dict[str, Any]:
        """Return everything that a resumed run needs to know."""
        return {
            "figures": list(self._figures),
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "is_healthy": self.is_healthy,
        }


def _median(values: list[float]) -> float:
    """Return the median. For some hundred values this is faster than numpy."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _deviation(values: list[float], median: float) -> float:
    """Return a standard deviation that outliers hardly change."""
    return _TO_SIGMA * _median([abs(value - median) for value in values])
