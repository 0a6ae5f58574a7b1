"""Short specifications inside settings: `name(option=value, …)`, sums of sources, and functions of
the user's own.
"""

import ast
import importlib
import re
import shlex
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from t5x_lite.errors import BAD_CONFIG, UserError, user_errors

# Modules that settings may name code of; None: any.
Modules = Collection[str] | None

_permitted: ContextVar[Modules] = ContextVar("permitted")  # unset: none


@contextmanager
def user_code(modules: Modules) -> Iterator[None]:
    """Let settings name code of these modules, and of those that were permitted already.

    Settings that the user has written, in a config file, on the command line or in Python, may name
    any code. A config.json is data: it runs nothing that the user does not permit.
    """
    before = permitted_code()
    both = None if modules is None or before is None else {*before, *modules}
    token = _permitted.set(both)
    try:
        yield
    finally:
        _permitted.reset(token)


def permitted_code() -> Modules:
    """Return the modules that are permitted now: what another process has to be told."""
    return _permitted.get(())


def is_code_decided() -> bool:
    """Return True within user_code: somebody has said what may be imported."""
    return _permitted.get("unset") != "unset"


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


def named_code(*settings: str) -> set[str]:
    """Return the modules of all `module.name` in settings.

    >>> sorted(named_code("2 * mine.noise(rate=0.5) + causal_lm", "python:texts.read", "a/b.txt"))
    ['mine', 'texts']
    """
    names = re.findall(r"(?<![\w./-])([A-Za-z_][\w.]*)\.[A-Za-z_]\w*", " ".join(settings))
    return set(names)


def import_code(name: str, where: str) -> Any:
    """Import the function or class that a setting names as `module.name`.

    Args:
        where: names the setting in errors.

    Raises:
        UserError: for a module that user_code does not permit, and for whatever importing it
            raises.
    """
    module, _, function = name.rpartition(".")
    permitted = permitted_code()
    if permitted is not None and module not in permitted:
        reason = "the file that names it is data, which imports no module"
        fix = f"add --allow-code={module}, or in Python load it within user_code([{module!r}])"
        raise UserError(BAD_CONFIG, f"{where}: {reason}; if you trust {module}, {fix}")
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
