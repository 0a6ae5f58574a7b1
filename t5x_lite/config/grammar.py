"""Short specifications inside settings: `name(option=value, …)`, sums of sources, and functions of
the user's own.
"""

import ast
import importlib
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from t5x_lite.errors import BAD_CONFIG, UserError, user_errors

# Which modules a setting may name functions of: any where None, for settings that the user has just
# written (a config file, the command line, Python). A config.json is data: nothing in it is run
# unless the user allows the module.
AllowedCode = Collection[str] | None
NO_CODE: AllowedCode = ()

# What may be imported now: see allow_code.
_allowed_now: ContextVar[AllowedCode] = ContextVar("allowed_now", default=NO_CODE)


@contextmanager
def allow_code(modules: AllowedCode) -> Iterator[None]:
    """Let settings name functions and classes of these modules, within; None: of any."""
    token = _allowed_now.set(modules)
    try:
        yield
    finally:
        _allowed_now.reset(token)


def import_allowed(name: str, where: str) -> Any:
    """Import what a setting names as `module.name`, if allow_code lets it: see import_function."""
    return import_function(name, where, _allowed_now.get())


def parse_call(text: str, key: str) -> tuple[str, dict]:
    """Read `name` or `name(option=value, …)`; a name may be dotted, values are literals.

    >>> parse_call("span_corruption(noise_density=0.2)", "objective")
    ('span_corruption', {'noise_density': 0.2})
    """
    try:
        return _parse_call(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError) as error:
        shown = text if len(text) < 200 else text[:200] + "…"
        expected = "expected a name or name(option=value, …), each option once"
        raise UserError(BAD_CONFIG, f"{key}={shown!r}: {expected}") from error


def _parse_call(node: ast.expr) -> tuple[str, dict]:
    called = node.func if isinstance(node, ast.Call) else node
    name = ast.unparse(called)
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"{name} is no name")
    if not isinstance(node, ast.Call):
        return name, {}
    if node.args:
        raise ValueError("options are given by name")
    options = {}
    for option in node.keywords:
        if option.arg is None or option.arg in options:
            raise ValueError("**options, or a name given twice")
        options[option.arg] = ast.literal_eval(option.value)
    return name, options


def parse_task(text: str, key: str) -> tuple[str, str, dict[str, str]]:
    """Read `name` or `name(source, option=value, …)`: what is between the commas is taken as it
    stands, or from between quotes.

    >>> parse_task("classify(my/file.tsv, text=sentence, prompt='a, b')", "--task")
    ('classify', 'my/file.tsv', {'text': 'sentence', 'prompt': 'a, b'})
    """
    expected = "expected a name, or name(source, option=value, …), each option once"
    name, bracket, inside = text.strip().partition("(")
    if bracket and not inside.endswith(")"):
        raise UserError(BAD_CONFIG, f"{key}={text}: {expected}")
    words = shlex.shlex(inside[:-1], posix=True, punctuation_chars=False)
    words.whitespace, words.whitespace_split, words.commenters = ",", True, ""
    source, options = "", {}
    try:
        for number, word in enumerate(words):
            option, equals, value = word.partition("=")
            if number == 0 and not option.strip().isidentifier():
                source = word.strip()
            elif equals and option.strip() not in options:
                options[option.strip()] = value.strip()
            elif number == 0:
                source = word.strip()
            else:
                raise ValueError(word)
    except ValueError as error:
        raise UserError(BAD_CONFIG, f"{key}={text}: {expected}") from error
    return name.strip(), source, options


def parse_numbers(text: str, key: str, parameters: dict[str, float]) -> dict[str, float]:
    """Read `name` or `name(number, option=number)` for a function of those parameters.

    >>> parse_numbers("lora(4, alpha=8)", "adapt", {"rank": 8, "alpha": 16})
    {'rank': 4, 'alpha': 8}
    """
    names = list(parameters)
    expected = f"expected numbers for {', '.join(names) or 'nothing'}, each once"
    inside = text.partition("(")[2].rstrip(")")
    given: dict[str, float] = {}
    for place, word in enumerate(filter(None, inside.split(","))):
        name, equals, value = word.partition("=")
        if not equals:
            name, value = names[place] if place < len(names) else "", word
        name = name.strip()
        number = value.strip().replace(".", "", 1)
        if name not in parameters or name in given or not number.isdecimal():
            raise UserError(BAD_CONFIG, f"{key}={text}: {expected}")
        given[name] = float(value) if "." in value else int(value)
    return parameters | given


def import_function(name: str, where: str, allowed: AllowedCode = None) -> Callable:
    """The function that a setting names as `module.function`.

    Args:
        where: names the setting in errors.
        allowed: the modules that may be imported; None: any.

    Raises:
        UserError: for a module that is not allowed, and for whatever importing it raises.
    """
    module, _, function = name.rpartition(".")
    if allowed is not None and module not in allowed:
        reason = "the file that names it is data, which imports no module"
        raise UserError(
            BAD_CONFIG, f"{where}: {reason}; if you trust {module}, add --allow-code={module}"
        )
    if "" not in sys.path:
        sys.path.append("")  # like `python -m`: the directory that the command is given in
    with user_errors(BAD_CONFIG, f"{where}: expected module.function of your own"):
        return getattr(importlib.import_module(module), function)


def names_files(tokenizer: str) -> bool:
    """Whether `data.tokenizer` names files rather than a kind of tokenizer.

    >>> names_files("vocab.txt"), names_files("sentencepiece(vocab_size=8192)")
    (True, False)
    """
    return "/" in tokenizer or tokenizer.endswith((".model", ".json", ".txt", ".bpe"))


def parse_sources(text: str, key: str) -> list[tuple[float, str]]:
    """The sources of a sum, with their rates; 0 where none of them has one.

    >>> parse_sources("3 * books/*.txt + web.jsonl", "data.source")
    [(3.0, 'books/*.txt'), (1.0, 'web.jsonl')]
    >>> parse_sources("books/*.txt + web.jsonl", "data.source")
    [(0.0, 'books/*.txt'), (0.0, 'web.jsonl')]
    """
    sources = []
    for term in text.split(" + ") if text else ():
        rate, star, source = term.partition(" * ")
        if star:
            sources.append((_parse_rate(rate, key), source.strip()))
        else:
            sources.append((0.0, term.strip()))
    if any(rate for rate, _ in sources):  # one without a rate counts once, as in a sum
        sources = [(rate or 1.0, source) for rate, source in sources]
    return sources


def _parse_rate(text: str, key: str) -> float:
    try:
        rate = float(text)
    except ValueError as error:
        raise UserError(
            BAD_CONFIG, f"{key}: got the rate {text!r}, expected a number, as in 3 * a + b"
        ) from error
    if not 1e-9 <= rate <= 1e9:
        raise UserError(
            BAD_CONFIG,
            f"{key}: got the rate {text}, expected a number above 0, between 1e-9 and 1e9",
        )
    return rate


def has_scheme(source: str) -> bool:
    """Whether a source names a place other than a path: tfds:…, hf:…, python:…, gs://…"""
    return re.match(r"[a-z0-9]+:", source) is not None
