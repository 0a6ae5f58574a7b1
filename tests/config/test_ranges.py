"""Types that say what values they admit."""

from typing import Annotated, Any, Literal

import pytest

from t5x_lite.config.ranges import (
    NonNegative,
    Positive,
    ProperShare,
    Range,
    Share,
    check_value,
    parse_literal,
)
from t5x_lite.errors import BAD_CONFIG, UserError

Norm = Literal["layer_norm", "rms_norm"]


def admitted(value, kind):
    """The checked value with its type, so that 1, 1.0 and True differ."""
    checked = check_value(value, kind, "key")
    return type(checked), checked


@pytest.mark.parametrize(
    ("value", "kind", "checked"),
    [
        (3, int, 3),
        (3, float, 3.0),
        (True, bool, True),
        ("a", str, "a"),
        ([1, "a"], tuple, (1, "a")),
        ((1, 2), tuple, (1, 2)),
        ({"a": 1}, dict, {"a": 1}),
        (1, Positive, 1),
        (0, NonNegative, 0),
        (0, Share, 0.0),
        (1, Share, 1.0),
        (0.5, ProperShare, 0.5),
        ("rms_norm", Norm, "rms_norm"),
        (2, Literal[1, 2], 2),
        ("all", Literal[0, "all"], "all"),
        (None, int | None, None),
        (2, float | None, 2.0),
        (True, bool | None, True),
        ("all", int | Literal["all"], "all"),
        ([1], list[int], [1]),
        (None, Any, None),
    ],
)
def test_what_a_type_admits(value, kind, checked):
    assert admitted(value, kind) == (type(checked), checked)


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ("3", int, "got '3', expected a whole number"),
        (3.0, int, "got 3.0, expected a whole number"),
        (True, int, "got True, expected a whole number"),
        (None, int, "got None, expected a whole number"),
        ("x", float, "got 'x', expected a number"),
        (True, float, "got True, expected a number"),
        (float("nan"), float, "got nan, expected a number"),
        (float("inf"), float, "got inf, expected a number"),
        (float("-inf"), float, "got -inf, expected a number"),
        (10**400, float, "got inf, expected a number"),
        (1, bool, "got 1, expected True or False"),
        (b"a", str, "got b'a', expected text"),
        (5, tuple, "got 5, expected a list"),
        (5, dict, "got 5, expected names"),
        (0, Positive, "got 0, expected at least 1"),
        (-1, NonNegative, "got -1, expected at least 0"),
        (1.5, Share, "got 1.5, expected between 0 and 1"),
        (float("nan"), Share, "got nan, expected a number"),
        (0, ProperShare, "got 0.0, expected between 0 and 1, neither included"),
        (1, ProperShare, "got 1.0, expected between 0 and 1, neither included"),
        ("layr_norm", Norm, "got 'layr_norm'; did you mean layer_norm?"),
        (5, Norm, "got 5; expected one of layer_norm, rms_norm"),
        (None, Norm, "got None; expected one of layer_norm, rms_norm"),
        ([], Norm, "got []; expected one of layer_norm, rms_norm"),
        (True, Literal[1, 2], "got True; expected one of 1, 2"),
        (False, Literal[0, "all"], "got False; expected one of (0, 'all')"),
        ("x", Literal["", "next"], "got 'x'; expected one of ('', 'next')"),
        ("x", int | None, "got 'x', expected a whole number or None"),
        (True, int | None, "got True, expected a whole number or None"),
        (2.0, Share | None, "got 2.0, expected a number between 0 and 1 or None"),
        (0, int | Literal["all"], None),
        (5, list[int], "got 5, expected list"),
    ],
)
def test_what_a_type_refuses(value, kind, words):
    if words is None:
        assert check_value(value, kind, "key") == value
        return
    with pytest.raises(UserError) as caught:
        check_value(value, kind, "key")
    assert str(caught.value) == f"key: {words}"
    assert caught.value.code == BAD_CONFIG


@pytest.mark.parametrize(
    ("allowed", "inside", "outside", "words"),
    [
        (Range(1), (1, 2, 10**30), (0, 0.999), "at least 1"),
        (Range(0, 1), (0, 0.5, 1), (-0.1, 1.1), "between 0 and 1"),
        (Range(0, 1, open=True), (0.1, 0.9), (0, 1), "between 0 and 1, neither included"),
        (Range(0, open=True), (1e-9,), (0, -1), "above 0"),
        (Range(high=9), (9, -100), (10,), "at most 9"),
        (Range(high=9, open=True), (8.9,), (9,), "below 9"),
    ],
)
def test_a_range_holds_its_numbers_and_says_so(allowed, inside, outside, words):
    assert all(value in allowed for value in inside)
    assert not any(value in allowed for value in outside)
    assert float("nan") not in allowed
    assert str(allowed) == words


def test_metadata_other_than_ranges_says_nothing():
    kind = Annotated[int, "in tokens", Range(1)]
    assert check_value(2, kind, "key") == 2
    with pytest.raises(UserError, match="at least 1"):
        check_value(0, kind, "key")


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("true", True), ("False", False), ("[1, 2]", [1, 2]), ("1e999", float("inf"))],
)
def test_text_is_read_as_a_literal(text, value):
    assert parse_literal(text) == value


@pytest.mark.parametrize("text", ["many", "{[]: 1}", "1 +", "__import__('os')", "(" * 300, ""])
def test_text_that_is_no_literal_is_refused(text):
    with pytest.raises(ValueError, match=r"is no literal|malformed"):
        parse_literal(text)
