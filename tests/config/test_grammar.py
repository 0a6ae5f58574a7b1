"""Short specifications inside settings, and which code they may name."""

import sys

import pytest

from t5x_lite.config.grammar import (
    has_scheme,
    import_code,
    names_files,
    parse_call,
    parse_sources,
    permitted_code,
    user_code,
)
from t5x_lite.errors import BAD_CONFIG, UserError


def refusal(function, *args) -> str:
    with pytest.raises(UserError) as caught:
        function(*args)
    assert caught.value.code == BAD_CONFIG
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("causal_lm", ("causal_lm", {})),
        (" causal_lm() ", ("causal_lm", {})),
        ("mine.sub.f(a=1, b='x', c=[1, {'d': None}])", None),
        ("f(split=-0.5)", ("f", {"split": -0.5})),
    ],
)
def test_calls_are_read(text, call):
    expected = call or ("mine.sub.f", {"a": 1, "b": "x", "c": [1, {"d": None}]})
    assert parse_call(text, "objective") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f(",
        "f(1)",
        "f(**{'a': 1})",
        "f(a=1, a=2)",
        "f(a=b)",
        "f(a=open('x'))",
        "f(a={[]: 1})",
        "f(a=1)(b=2)",
        "f()[0]",
        "f\0",
        "(f for f in g)",
        "lambda: 1",
        "f; g",
        "f(a=" + "(" * 500 + ")" * 500 + ")",
        "x" * 1000 + "(",
    ],
)
def test_what_is_no_call_is_refused_shortly(text):
    message = refusal(parse_call, text, "objective")
    assert message.startswith("objective=")
    assert "expected a name or name(option=value, …), each option once" in message
    assert len(message) < 400


def test_a_call_runs_nothing(tmp_path):
    mark = tmp_path / "mark"
    refusal(parse_call, f"f(a=__import__('pathlib').Path({str(mark)!r}).touch())", "objective")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("", []),
        ("a.txt", [(0.0, "a.txt")]),
        ("a.txt + b.txt", [(0.0, "a.txt"), (0.0, "b.txt")]),
        ("3 * a.txt + b.txt", [(3.0, "a.txt"), (1.0, "b.txt")]),
        ("0.5 * my text*.txt", [(0.5, "my text*.txt")]),
        ("a+b.txt", [(0.0, "a+b.txt")]),
    ],
)
def test_sums_of_sources_are_read(text, sources):
    assert parse_sources(text, "data.source") == sources


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
        with user_code(permitted):
            message = refusal(import_code, "effects.f", "objective=effects.f")
        assert message == refusal(import_code, "effects.f", "objective=effects.f")
        assert message.startswith("objective=effects.f: the file that names it is data")
        assert "if you trust effects, add --allow-code=effects, or in Python" in message
        assert "effects" not in sys.modules
        assert not mark.exists()
    with user_code({"effects"}):
        assert import_code("effects.f", "objective")() == 5
    assert mark.exists()
    assert "if you trust effects" in refusal(import_code, "effects.f", "objective=effects.f")


def test_what_is_permitted_adds_up():
    assert permitted_code() == ()
    with user_code(["a"]), user_code(["b"]):
        assert set(permitted_code() or ()) == {"a", "b"}
        with user_code(None), user_code(["c"]):
            assert permitted_code() is None
    assert permitted_code() == ()


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
    with user_code(None):
        message = refusal(import_code, name, f"objective={name}")
    assert message.startswith(f"objective={name}: expected module.function of your own (")
