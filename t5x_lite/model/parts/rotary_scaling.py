"""Scaling of rotary angles, with which a model reads longer texts than it was pretrained on.

Each kind slows down the angles of rotary positions, so that those of a long text stay within what
the model has seen. To add one: a class derived from NoScaling, and its name in SCALINGS.
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
    """The kind "none": angles as they are."""

    def angles(self, angles: np.ndarray, base: float) -> np.ndarray:
        """Scale by how much each pair's angle grows a position: [width / 2] → [width / 2]."""
        return angles

    @property
    def magnitude(self) -> float:
        """Factor of the rotated queries and keys."""
        return 1.0

    def contradictions(self, base: float) -> Iterator[str]:
        """Yield what is wrong with its options, as `option=value, expected …`."""
        yield from ()


@dataclass(frozen=True)
class Linear(NoScaling):
    """Position interpolation (Chen et al., 2023): all angles grow `factor` times slower.

    >>> Linear(factor=4.0).angles(np.array([1.0, 0.01]), 1e4)
    array([0.25  , 0.0025])
    """

    factor: Annotated[float, Range(1.0)] = 2.0

    def angles(self, angles: np.ndarray, base: float) -> np.ndarray:
        """Divide all angles by the factor."""
        return angles / self.factor


@dataclass(frozen=True)
class LLaMA3(NoScaling):
    """LLaMA 3.1's scaling (Grattafiori et al., 2024; released code): angles that turn often within
    `length` positions stay, those that turn rarely grow `factor` times slower, with a smooth
    passage between the two.

    Attributes:
        low, high: turns within `length` positions, up to which angles are slowed down wholly, and
            from which they stay.
        length: positions of pretraining.

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
        """Yield that the passage is empty or runs backward."""
        if self.low >= self.high:
            yield f"low={self.low}, expected less than high={self.high}"


@dataclass(frozen=True)
class YaRN(NoScaling):
    """YaRN (Peng et al., 2024, §3): as in LLaMA3, with a passage that is linear in the index of the
    pair; logits are also scaled.

    Attributes:
        fast, slow: turns within `length` positions, from which angles stay, and up to which they
            are slowed down wholly.
        length: positions of pretraining.
        attention: factor of queries and keys; 0: 0.1 ln(factor) + 1 (eq. 22).
        whole: the passage begins and ends at whole indices of pairs, as in the released code.
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
            """Return the index of the pair that turns so often."""
            return width * math.log(self.length / (turns * 2 * math.pi)) / (2 * math.log(base))

        first, last = index(self.fast), index(self.slow)
        if self.whole:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        length = max(last - first, 0.001)  # as released, where the passage is a single pair
        slowed = np.clip((np.arange(len(angles)) - first) / length, 0, 1)
        return angles * (1 - slowed + slowed / self.factor)

    def contradictions(self, base: float) -> Iterator[str]:
        """Yield that the passage is empty or runs backward, or that all pairs turn alike."""
        if self.slow >= self.fast:
            yield f"slow={self.slow}, expected less than fast={self.fast}"
        if base <= 1:
            yield f"yarn with base={base}, expected a base above 1"

    @property
    def magnitude(self) -> float:
        """The factor that is stated, or that of the paper."""
        return self.attention or 0.1 * math.log(self.factor) + 1


SCALINGS: dict[str, Any] = {
    "none": NoScaling,
    "linear": Linear,
    "llama3": LLaMA3,
    "yarn": YaRN,
}


def find_scaling(text: str) -> NoScaling:
    """Make the scaling that an option of rotary positions names."""
    return find_named(text, SCALINGS, "scaling", "scaling")()
