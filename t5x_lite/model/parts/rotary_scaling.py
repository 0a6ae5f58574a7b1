"""Scaling of rotary angles, so that a model can read longer texts than in pretraining.

Each kind slows down the rotation, so that the angles of a long text stay within the range that the
model has seen. To add one, derive a class from NoScaling, and add its name to SCALINGS.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from t5x_lite.config.named import find_named
from t5x_lite.config.ranges import Positive, Range


@dataclass(frozen=True)
class NoScaling:
    """The kind "none": angles are not scaled."""

    def angles(self, angles: np.ndarray, base: float) -> np.ndarray:
        """Scale the angle by which each pair turns per position: [width / 2] → [width / 2]."""
        return angles

    @property
    def magnitude(self) -> float:
        """Factor by which the rotated queries and keys are multiplied."""
        return 1.0

    def contradictions(self, base: float) -> Iterator[str]:
        """Yield one message per invalid option: `option=value, expected …`."""
        yield from ()


@dataclass(frozen=True)
class Linear(NoScaling):
    """Position interpolation (Chen et al., 2023): all pairs turn `factor` times slower.

    >>> Linear(factor=4.0).angles(np.array([1.0, 0.01]), 1e4)
    array([0.25  , 0.0025])
    """

    factor: Annotated[float, Range(1.0)] = 2.0

    def angles(self, angles: np.ndarray, base: float) -> np.ndarray:
        """Divide all angles by the factor."""
        return angles / self.factor


@dataclass(frozen=True)
class LLaMA3(NoScaling):
    """LLaMA 3.1's scaling (Grattafiori et al., 2024; released code). Pairs that turn often within
    `length` positions keep their speed, pairs that turn rarely become `factor` times slower, and
    the transition between the two is smooth.

    Attributes:
        low, high: number of turns within `length` positions: pairs with at most `low` turns are
            slowed down fully, pairs with at least `high` turns keep their speed.
        length: number of positions in pretraining.

    >>> LLaMA3(factor=8.0).angles(np.array([1.0, 1e-5]), 5e5)
    array([1.00e+00, 1.25e-06])
    """

    factor: Annotated[float, Range(1.0)] = 8.0
    low: Annotated[float, Range(0.0)] = 1.0
    high: Annotated[float, Range(0.0)] = 4.0
    length: Positive = 8192

    def angles(self, angles: np.ndarray, base: float) -> np.ndarray:
        """Divide the angles that turn rarely by the factor."""
        turns = self.length * angles / (2 * np.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return angles * (kept + (1 - kept) / self.factor)

    def contradictions(self, base: float) -> Iterator[str]:
        """Yield a message if the transition is empty or reversed."""
        if self.low >= self.high:
            yield f"low={self.low}, expected less than high={self.high}"


@dataclass(frozen=True)
class YaRN(NoScaling):
    """YaRN (Peng et al., 2024, §3): like LLaMA3, but the transition is linear in the index of the
    pair, and logits are also scaled.

    Attributes:
        fast, slow: number of turns within `length` positions: pairs with at least `fast` turns keep
            their speed, pairs with at most `slow` turns are slowed down fully.
        length: number of positions in pretraining.
        attention: factor of queries and keys; 0: 0.1 ln(factor) + 1 (eq. 22).
        whole: the transition begins and ends at whole indices of pairs, as in the released code.
    """

    factor: Annotated[float, Range(1.0)] = 4.0
    fast: Annotated[float, Range(1e-6)] = 32.0
    slow: Annotated[float, Range(1e-6)] = 1.0
    length: Positive = 8192
    attention: Annotated[float, Range(0.0)] = 0.0
    whole: bool = True

    def angles(self, angles: np.ndarray, base: float) -> np.ndarray:
        """Divide the angles that turn rarely by the factor."""
        width = 2 * len(angles)

        def index(turns: float) -> float:
            """Return the index, possibly a fraction, of the pair that makes this many turns."""
            return width * math.log(self.length / (turns * 2 * math.pi)) / (2 * math.log(base))

        first, last = index(self.fast), index(self.slow)
        if self.whole:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        length = max(last - first, 0.001)  # as released, if the transition is a single pair
        slowed = np.clip((np.arange(len(angles)) - first) / length, 0, 1)
        return angles * (1 - slowed + slowed / self.factor)

    def contradictions(self, base: float) -> Iterator[str]:
        """Yield a message if the transition is empty or reversed, or if all pairs turn alike."""
        if self.slow >= self.fast:
            yield f"slow={self.slow}, expected less than fast={self.fast}"
        if base <= 1:
            yield f"yarn with base={base}, expected a base above 1"

    @property
    def magnitude(self) -> float:
        """The `attention` option, or the paper's factor if that is 0."""
        return self.attention or 0.1 * math.log(self.factor) + 1


SCALINGS: dict[str, Any] = {
    "none": NoScaling,
    "linear": Linear,
    "llama3": LLaMA3,
    "yarn": YaRN,
}


def find_scaling(text: str) -> NoScaling:
    """Make the scaling that rotary(scaling=…) names."""
    return find_named(text, SCALINGS, "scaling", "scaling")()
