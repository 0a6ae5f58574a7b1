"""Types that declare which values they allow, for settings and for options of objectives.

num_layers: Positive = 4
noise_density: Annotated[float, Range(0, 1, open=True)] = 0.15
norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
"""

import ast
import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from t5x_lite.errors import BAD_CONFIG, UserError, nearest


class Check(ABC):
    """Metadata of a type that says which of its values are allowed."""

    @abstractmethod
    def check(self, value: Any, key: str) -> None:
        """Raise UserError for a value that is not allowed."""


@dataclass(frozen=True)
class Range(Check):
    """The numbers from low to high. If `open`, low and high themselves are excluded."""

    low: float = -math.inf
    high: float = math.inf
    open: bool = False

    def __contains__(self, value: float) -> bool:
        if self.open:
            return self.low < value < self.high
        return self.low <= value <= self.high

    def check(self, value: float, key: str) -> None:
        """Raise UserError for a number outside the range."""
        if value not in self:
            raise UserError(BAD_CONFIG, f"{key}: got {value}, expected {self}")

    def __str__(self) -> str:
        """
        >>> str(Range(1)), str(Range(0, 1)), str(Range(0, 1, open=True))
        ('at least 1', 'between 0 and 1', 'between 0 and 1, neither included')
        >>> str(Range(high=1)), str(Range(0, open=True))
        ('at most 1', 'above 0')
        """
        if self.high == math.inf:
            return f"{'above' if self.open else 'at least'} {self.low}"
        if self.low == -math.inf:
            return f"{'below' if self.open else 'at most'} {self.high}"
        return f"between {self.low} and {self.high}" + (", neither included" if self.open else "")


Positive = Annotated[int, Range(1)]
NonNegative = Annotated[int, Range(0)]
Share = Annotated[float, Range(0, 1)]
ProperShare = Annotated[float, Range(0, 1, open=True)]

_NAMES = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list",
    dict: "names",
    NoneType: "None",
}


def parse_literal(text: str) -> object:
    """Parse text from a command line: a Python literal, true or false. Raises ValueError for
    anything else.
    """
    try:
        return ast.literal_eval({"true": "True", "false": "False"}.get(text.lower(), text))
    except (SyntaxError, TypeError, RecursionError) as error:
        raise ValueError(f"{text!r} is no literal") from error


def check_value(value: Any, kind: Any, key: str) -> Any:
    """Check a value, and return it as its type expects: if needed, whole numbers become floats, and
    lists become tuples.

    Args:
        kind: a type, possibly Annotated with a Range, or a Literal.
        key: names the setting in the UserError for a value of another type or out of range.

    >>> check_value(3, float, "optimizer.learning_rate")
    3.0
    >>> check_value(["query", 2], tuple[str, ...], "model.lora_targets")
    Traceback (most recent call last):
    t5x_lite.errors.UserError: model.lora_targets: got 2, expected text
    >>> check_value("layr_norm", Literal["layer_norm", "rms_norm"], "model.norm")
    Traceback (most recent call last):
    t5x_lite.errors.UserError: model.norm: got 'layr_norm'; did you mean layer_norm?
    """
    if kind is Any or (kind is type(value) and kind in (bool, int, str)):
        return value
    origin = get_origin(kind)
    if origin is Literal:
        choices = get_args(kind)
        if (type(value), value) not in [(type(choice), choice) for choice in choices]:
            named = (
                nearest(value, map(str, choices)) if all(choices) else f"expected one of {choices}"
            )
            raise UserError(BAD_CONFIG, f"{key}: got {value!r}; {named}")
        return value
    if origin is Annotated:
        base, *metadata = get_args(kind)
        value = check_value(value, base, key)
        for part in metadata:
            if isinstance(part, Check):
                part.check(value, key)
        return value
    if origin in (Union, UnionType):
        return _check_union(value, kind, key)
    members = get_args(kind)  # of tuple[str, ...]
    kind = origin or kind  # of list[int], list
    if kind is float and type(value) is int:
        # A whole number that is too large for a float becomes infinite, like 1e999.
        value = float(value) if abs(value) <= sys.float_info.max else math.inf
    if kind is tuple and isinstance(value, list):
        value = tuple(value)
    is_finite = not isinstance(value, float) or math.isfinite(value)
    # bool is a subclass of int, but True is not meant as a number.
    if (
        not isinstance(value, kind)
        or not is_finite
        or (isinstance(value, bool) and kind in (int, float))
    ):
        raise UserError(BAD_CONFIG, f"{key}: got {value!r}, expected {_describe(kind)}")
    if isinstance(value, tuple) and members and members[-1] is ...:
        return tuple(check_value(member, members[0], key) for member in value)
    return value


def list_type(kind: Any) -> Any:
    """Return the tuple or tuple[X, ...] in a type, which may have metadata; None if the type is not
    a list.

    >>> list_type(Annotated[tuple[str, ...], "a role"]), list_type(tuple | None), list_type(str)
    (tuple[str, ...], <class 'tuple'>, None)
    """
    among = (one for one in (kind, *get_args(kind)) if (get_origin(one) or one) is tuple)
    return next(among, None)


def _check_union(value: Any, kind: Any, key: str) -> Any:
    """Check a value, and return it as expected by the first type of a union that allows it."""
    for member in get_args(kind):
        try:
            return check_value(value, member, key)
        except UserError:
            continue
    expected = " or ".join(map(_describe, get_args(kind)))
    raise UserError(BAD_CONFIG, f"{key}: got {value!r}, expected {expected}")


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if get_origin(kind) is Annotated:
        base, *ranges = get_args(kind)
        return f"{_describe(base)} {' '.join(map(str, ranges))}"
    kind = get_origin(kind) or kind
    return _NAMES.get(kind, getattr(kind, "__name__", str(kind)))
