"""Options of objectives that change during a run, such as
`masked_lm(noise_density=linear(0.3, 0.15))`.
"""

from contextlib import suppress
from typing import Annotated

import numpy as np

from t5x_lite.config.grammar import parse_call
from t5x_lite.config.ranges import Check, Range, check_value, parse_literal
from t5x_lite.data.rng import RowRng
from t5x_lite.errors import BAD_CONFIG, UserError

LINEAR = "linear"


class IsAnnealed(Check):
    """Admits a number in a range, or linear(first, last) with two numbers in it."""

    def __init__(self, allowed: Range):
        self.allowed = allowed

    def __str__(self) -> str:
        return str(self.allowed)

    def check(self, value: float | str, key: str) -> None:
        """Raise UserError for any other text, or for a number out of range."""
        if isinstance(value, str):
            for end in _ends(value, key):
                check_value(end, Annotated[float, self.allowed], key)
        else:
            self.allowed.check(value, key)


_PROPER_SHARE = Range(0, 1, open=True)
# A fraction of the tokens, or linear(first, last): from the first to the last during the run.
AnnealedShare = Annotated[float | str, IsAnnealed(_PROPER_SHARE)]


def _ends(text: str, key: str) -> tuple[float, float]:
    call = parse_call(text, key)
    with suppress(ValueError):
        first, last = (float(str(parse_literal(end))) for end in call.arguments)
        if call.name == LINEAR and not call.options:
            return first, last
    expected = f"expected a number, or {LINEAR}(first, last)"
    raise UserError(BAD_CONFIG, f"{key}: got {text}, {expected}")


def is_annealed(value: object) -> bool:
    """Return True for the value of an option that changes during a run."""
    return isinstance(value, str) and value.startswith(f"{LINEAR}(")


def annealed(value: float | str, rng: RowRng) -> float | np.ndarray:
    """Return the value of an option for the rows of `rng`: one number, or [rows] numbers.

    >>> annealed("linear(0.3, 0.1)", RowRng(0, [0, 1, 2], progress=np.array([0, 0.5, 1]))).tolist()
    [0.3, 0.2, 0.1]
    """
    if not isinstance(value, str):
        return value
    first, last = _ends(value, "")
    between = first * (1 - rng.progress) + last * rng.progress
    return np.clip(between, min(first, last), max(first, last))  # whatever the rounding


def largest(value: float | str) -> float:
    """Return the largest value of an option, for bounds.

    >>> largest(0.15), largest("linear(0.3, 0.15)")
    (0.15, 0.3)
    """
    return max(_ends(value, "")) if isinstance(value, str) else value
