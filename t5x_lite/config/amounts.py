"""Amounts of training: 4000 steps, 10M-tokens or 10M-words of text."""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from t5x_lite.config.ranges import Check
from t5x_lite.errors import BAD_CONFIG, UserError

Unit = Literal["steps", "tokens", "words"]
_STEPS = re.compile(r"[0-9]{1,15}")
_TEXT = re.compile(
    r"(?P<number>[0-9]{1,15}(\.[0-9]{1,9})?)(?P<factor>[kMB]?)-(?P<unit>tokens|words)"
)
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9}


class Amount(NamedTuple):
    """An amount of training: steps, or tokens or words of text."""

    number: float
    unit: Unit

    def to_steps(self, in_a_step: Mapping[Unit, float]) -> int:
        """Return the number of steps that is nearest to this amount, at least 1.

        Args:
            in_a_step: number of steps (1), tokens and words per step.

        >>> Amount(10e6, "words").to_steps({"steps": 1, "words": 3e6})
        3
        """
        return max(round(self.number / in_a_step[self.unit]), 1)


def parse_amount(text: str) -> Amount | None:
    """Parse an amount; None if the text is not an amount.

    >>> parse_amount("4000")
    Amount(number=4000.0, unit='steps')
    >>> parse_amount("1.5B-tokens")
    Amount(number=1500000000.0, unit='tokens')
    >>> parse_amount("best") is None
    True
    """
    if _STEPS.fullmatch(text) and int(text):
        return Amount(float(text), "steps")
    read = _TEXT.fullmatch(text)
    if not read or not float(read["number"]):
        return None
    number = float(read["number"]) * _FACTORS[read["factor"]]
    return Amount(number, "tokens" if read["unit"] == "tokens" else "words")


class IsAmount(Check):
    """Metadata of a text type whose values parse_amount can read."""

    def check(self, value: str, key: str) -> None:
        """Raise UserError for a text that is no amount."""
        if parse_amount(value) is None:
            expected = "a number of steps, tokens or words, such as 4000, 10M-tokens or 10M-words"
            raise UserError(BAD_CONFIG, f"{key}: got {value}, expected {expected}")
