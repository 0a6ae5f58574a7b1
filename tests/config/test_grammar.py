"""Short specifications inside settings, and which code they may name."""

import contextlib
import random
import sys
from typing import Annotated, Literal

import pytest
from conftest import refusal

from t5x_lite.config.grammar import (
    has_scheme,
    names_files,
    parse_call,
    parse_list,
    parse_sources,
    parse_sum,
    read_value,
)
from t5x_lite.config.named import find_named
from t5x_lite.config.permission import allow, import_code, permission
from t5x_lite.config.ranges import Positive, Range
from t5x_lite.errors import UserError


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("causal_lm", ("causal_lm", [], {})),
        (" causal_lm() ", ("causal_lm", [], {})),
        ("f(split=-0.5)", ("f", [], {"split": "-0.5"})),
        ("mine.f(a=1, b='x, y', c=[1, {'d': 2}])",
         ("mine.f", [], {"a": "1", "b": "'x, y'", "c": "[1, {'d': 2}]"})),
        ("lora(4, alpha=8)", ("lora", ["4"], {"alpha": "8"})),
        ("sst2(hf:x?a=b, text=it's)", ("sst2", ["hf:x?a=b"], {"text": "it's"})),
        ("my_tasks.py:mine", ("my_tasks.py:mine", [], {})),
    ],
)  # fmt: skip
def test_calls_are_read(text, call):
    assert parse_call(text, "objective") == call


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f(",
        "f(a=1, 2)",
        "f(**{'a': 1})x",
        "f(a=1, a=2)",
        "f(a={[})",
        "f(a='x)",
        "f(a=1)(b=2)",
        "f()[0]",
        "f\0",
        "(f for f in g)",
        "x" * 1000 + "(",
    ],
)
def test_what_is_no_call_is_refused_shortly(text):
    message = refusal(parse_call, text, "objective")
    assert message.startswith("objective=")
    assert "expected name or name(option=value, …), each option once" in message
    assert len(message) < 500


def test_a_call_runs_nothing(tmp_path):
    mark = tmp_path / "mark"
    text = f"f(rate=__import__('pathlib').Path({str(mark)!r}).touch())"
    refusal(find_named, text, {"f": scale}, "objective", "objective")
    assert not mark.exists()


LETTERS = "ab,+*='\"([{)]} .0"


def test_no_text_is_more_than_refused():
    rng = random.Random(0)
    for _ in range(3000):
        text = "".join(rng.choices(LETTERS, k=rng.randrange(12)))
        for parse in (parse_call, parse_sum, parse_list):
            with contextlib.suppress(UserError):
                parse(text, "key")


# Functions and classes that are named.


def scale(rate: Positive = 8, alpha: Annotated[float, Range(0.0)] = 16.0):
    return rate, alpha


def noise(tokens, *, mode: Literal["", "S"] = "", split: float | None = None, free=None):
    return mode, split, free


class Watch:
    def __init__(self, workdir, config, evaluations: Positive = 2, name: str = "a"):
        self.options = evaluations, name


TABLE = {"scale": scale, "noise": noise, "none": None, "watch": Watch}


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("scale", "scale", {}),
        ("scale(4)", "scale", {"rate": 4}),
        ("scale(4, alpha=8)", "scale", {"rate": 4, "alpha": 8.0}),
        ("noise(mode=S, split=None)", "noise", {"mode": "S", "split": None}),
        ("noise(mode='S', free=[1, 2])", "noise", {"mode": "S", "free": [1, 2]}),
        ("noise(free=word)", "noise", {"free": "word"}),
        ("scale(rate=4,)", "scale", {"rate": 4}),
        ("watch(evaluations=3, name=8192)", "watch", {"evaluations": 3, "name": "8192"}),
        ("none", "none", {}),
    ],
)
def test_names_with_options_are_found(text, name, options):
    named = find_named(text, TABLE, "key", "part")
    assert (named.name, named.options, named.target) == (name, options, TABLE[name])
    again = find_named(str(named), TABLE, "key", "part")
    assert again == named


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("scal", "key=scal: no such part; did you mean scale?"),
        ("scale(0)", "key=scale(0): rate: got 0, expected at least 1"),
        ("scale(x)", "key=scale(x): rate: got 'x', expected a whole number"),
        ("scale(1, 2, 3)", "key=scale(1, 2, 3): got 3; expected options by name"),
        ("scale(1, rate=2)", "rate is given twice"),
        ("noise(1)", "got 1; expected options by name"),
        ("noise(mod=1)", "noise has no option mod; did you mean mode?"),
        ("noise(mode=T)", "mode: got 'T'"),
        ("none(1)", "got 1; it has no options"),
        ("watch(evaluations=two)", "evaluations: got 'two', expected a whole number"),
        ("none(a=1)", "none has no option a; it has none"),
    ],
)
def test_names_and_options_that_are_none_are_refused(text, words):
    assert words in refusal(find_named, text, TABLE, "key", "part")


# Sums.


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("", []),
        ("a.txt", [(0.0, "a.txt")]),
        ("a.txt + b.txt", [(0.0, "a.txt"), (0.0, "b.txt")]),
        ("3 * a.txt + b.txt", [(3.0, "a.txt"), (1.0, "b.txt")]),
        ("0.5 * my text*.txt", [(0.5, "my text*.txt")]),
        ("a+b.txt", [(0.0, "a+b.txt")]),
        ("/data/smile :)/a.txt", [(0.0, "/data/smile :)/a.txt")]),
        ("(old)/texts/(new) + b", [(0.0, "(old)/texts/(new)"), (0.0, "b")]),
    ],
)
def test_sums_of_sources_are_read(text, sources):
    assert parse_sources(text, "data.source") == sources


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("2 * 3 * prefix_lm(split=0.5)", [(6.0, "prefix_lm(split=0.5)")]),
        ("2*3*(a + 2*b)", [(6.0, "a"), (12.0, "b")]),
        ("(a)", [(None, "a")]),
    ],
)
def test_sums_are_read(text, terms):
    assert parse_sum(text, "objective") == terms


@pytest.mark.parametrize("text", ["", "a + ()", "2 * ()", "a +", "2 *", "(a) (b"])
def test_sums_without_a_term_are_refused(text):
    assert "expected a sum such as 3 * a + b" in refusal(parse_sum, text, "objective")


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("('a', 'b')", tuple[str, ...], ("a", "b")),
        ("None", str | None, None),
        ("word", str | None, "word"),
        ("8192", str, "8192"),
        ("8192", int, 8192),
        ("single_span", bool | Literal["single_span"], "single_span"),
        ("true", bool | Literal["single_span"], True),
    ],
)
def test_values_are_read_by_their_type(text, kind, value):
    assert read_value(text, kind) == value


@pytest.mark.parametrize("rate", ["x", "0", "-1", "nan", "1e99"])
def test_a_rate_that_is_none_is_refused(rate):
    message = refusal(parse_sources, f"{rate} * a.txt + b.txt", "data.source")
    assert message.startswith("data.source: got the rate")


def test_a_tokenizer_names_files_and_a_source_a_scheme():
    assert all(map(names_files, ("vocab.txt", "dir/x", "a.model", "tokenizer.json", "vocab.bpe")))
    assert not any(map(names_files, ("bytes", "sentencepiece(vocab_size=8192)")))
    assert all(map(has_scheme, ("tfds:c4", "hf:c4", "python:a.b", "gs://bucket/a.txt")))
    assert not any(map(has_scheme, ("a.txt", "/a/b:c.txt", "./a:b")))


# Code of the user's own.


def test_code_is_imported_only_from_a_module_that_is_permitted(write_module):
    mark = write_module("effects", "def f(): return 5")
    for permitted in ((), {"effect", "f", "effects.f"}):
        with allow(permitted):
            message = refusal(import_code, "effects.f", "objective=effects.f")
        assert message == refusal(import_code, "effects.f", "objective=effects.f")
        assert message.startswith("objective=effects.f: the file that names it is data")
        assert "if you trust effects, add --allow-code=effects, or in Python" in message
        assert "effects" not in sys.modules
        assert not mark.exists()
    with allow({"effects"}):
        assert import_code("effects.f", "objective")() == 5
    assert mark.exists()
    assert "if you trust effects" in refusal(import_code, "effects.f", "objective=effects.f")


def test_what_is_permitted_adds_up():
    assert permission().modules == set()
    with allow(["a"]), allow(["b"]):
        assert permission().modules == {"a", "b"}
        with allow(None), allow(["c"]):
            assert permission().modules is None
    assert permission().modules == set()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "broken.g"),
        ("1 / 0", "broken.f"),
        ("import sys; sys.exit(3)", "broken.f"),
        ("x = (", "broken.f"),
        ("", "broken.sub.f"),
        ("", "f"),
    ],
)
def test_what_importing_raises_is_one_sentence(write_module, text, name):
    write_module("broken", text)
    with allow(None):
        message = refusal(import_code, name, f"objective={name}")
    assert message.startswith(f"objective={name}: expected module.function of your own (")
