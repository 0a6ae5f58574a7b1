"""The grammar of text inside settings: calls, sums with rates, and lists.

    span_corruption(noise_density=0.2)      a call: a name with options
    sst2(my/file.tsv, text=sentence)        an argument before the options
    3 * (causal_lm + prefix_lm) + ul2       a sum with rates
    1e-3, prefix_lm(split=0.5, mode='S')    a list

Separators inside brackets or quotes do not count. Nothing is evaluated: names and values stay text,
and the type of the option decides whether its value is read as a literal (see `read_value`).
"""

import os
import re
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from t5x_lite.config.ranges import parse_literal
from t5x_lite.errors import BAD_CONFIG, UserError

_OPENING, _CLOSING = "([{", ")]}"


class Call(NamedTuple):
    """A name with arguments and options, all of them strings."""

    name: str
    arguments: list[str]
    options: dict[str, str]


def split(text: str, separator: str = ",") -> list[str]:
    """Split a text at a pattern, except inside brackets and quotes.

    >>> split("f(a=1, b=g(2)), h('x,y'), '('")
    ['f(a=1, b=g(2))', "h('x,y')", "'('"]

    Raises:
        ValueError: if a bracket or a quote is not closed or not opened.
    """
    pattern = re.compile(separator)
    parts: list[str] = []
    open_brackets: list[str] = []
    quote = ""
    start = place = 0
    while place < len(text):
        letter = text[place]
        if quote:
            if letter == quote:
                quote = ""
        elif letter in "'\"" and not text[place - 1 : place].isalnum():  # not an apostrophe
            quote = letter
        elif letter in _OPENING:
            open_brackets.append(_CLOSING[_OPENING.index(letter)])
        elif letter in _CLOSING:
            if not open_brackets or open_brackets.pop() != letter:
                raise ValueError(f"{letter!r} has no partner")
        elif not open_brackets and (found := pattern.match(text, place)) and found[0]:
            parts.append(text[start:place])
            start = place = found.end()
            continue
        place += 1
    if quote or open_brackets:
        raise ValueError(f"{quote or open_brackets[-1]!r} is missing")
    return [part.strip() for part in (*parts, text[start:])]


def parse_list(text: str, key: str) -> list[str]:
    """Split a list such as `a, f(b, c), d`.

    Raises:
        UserError: if a bracket or a quote is not closed or not opened.
    """
    try:
        return split(text)
    except ValueError as error:
        raise UserError(BAD_CONFIG, f"{key}={quoted(text)}: {error}") from error


def parse_call(text: str, key: str) -> Call:
    """Parse `name` or `name(argument, option=value, …)`.

    >>> parse_call("classify(my/file.tsv, text=sentence, label=1)", "--task")
    Call(name='classify', arguments=['my/file.tsv'], options={'text': 'sentence', 'label': '1'})
    """
    try:
        return _parse_call(text.strip())
    except ValueError as error:
        expected = "expected name or name(option=value, …), each option once"
        raise UserError(BAD_CONFIG, f"{key}={quoted(text)}: {expected} ({error})") from error


def _parse_call(text: str) -> Call:
    name, bracket, inside = text.partition("(")
    if not name.strip() or set(name) & set("\0\n'\"[]{})"):
        raise ValueError("no name")
    if not bracket:
        return Call(name, [], {})
    if not inside.endswith(")"):
        raise ValueError("')' is missing")
    arguments: list[str] = []
    options: dict[str, str] = {}
    inside = inside.removesuffix(")").strip().removesuffix(",")
    for part in split(inside) if inside else ():
        option, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not option.isidentifier():
            if options or not part:
                raise ValueError(f"{part!r} has no name")
            arguments.append(part)
        elif option in options:
            raise ValueError(f"{option} is given twice")
        else:
            options[option] = value
    return Call(name.strip(), arguments, options)


def parse_sum(text: str, key: str, spaced: bool = False) -> list[tuple[float | None, str]]:
    """Parse `a + 3 * b + 2 * (c + d)` into its terms with their rates; None for a term without one.

    As in algebra, a rate before brackets applies to each term inside.

    >>> parse_sum("3 * causal_lm + 2 * (ul2 + prefix_lm(split=0.5))", "objective")
    [(3.0, 'causal_lm'), (2.0, 'ul2'), (2.0, 'prefix_lm(split=0.5)')]
    >>> parse_sum("c++/*.txt + web.jsonl", "data.source", spaced=True)
    [(None, 'c++/*.txt'), (None, 'web.jsonl')]

    Args:
        spaced: True if + and * count only between spaces, because they may be part of a path.
    """
    blank = r"\s+" if spaced else r"\s*"
    terms: list[tuple[float | None, str]] = []
    try:
        for part in split(text, rf"{blank}\+{blank}"):
            factor, *others = split(part, rf"{blank}\*{blank}")
            rate = None
            for other in others:  # 2 * 3 * a
                rate = (rate or 1.0) * _rate(factor, key)
                factor = other
            inner = _in_brackets(factor)
            if inner is not None:
                of_terms = parse_sum(inner, key, spaced)
                if rate is not None:
                    of_terms = [(rate * (other or 1.0), name) for other, name in of_terms]
                terms += of_terms
            elif not factor:
                raise ValueError("a term is missing")
            else:
                terms.append((rate, factor))
        if not terms:
            raise ValueError("a term is missing")
    except ValueError as error:
        expected = "expected a sum such as 3 * a + b"
        raise UserError(BAD_CONFIG, f"{key}={quoted(text)}: {expected} ({error})") from error
    return terms


def _in_brackets(text: str) -> str | None:
    """Return the text inside brackets, if the whole text is in brackets, else None."""
    if not (text.startswith("(") and text.endswith(")")):
        return None
    inside = text[1:-1]
    try:
        split(inside)
    except ValueError:  # for example (a) / (b)
        return None
    return inside


def _rate(text: str, key: str) -> float:
    try:
        rate = float(text)
    except ValueError as error:
        raise UserError(
            BAD_CONFIG, f"{key}: got the rate {text[:50]!r}, expected a number, as in 3 * a + b"
        ) from error
    if not 1e-9 <= rate <= 1e9:
        expected = "expected a number above 0, between 1e-9 and 1e9"
        raise UserError(BAD_CONFIG, f"{key}: got the rate {text[:50]}, {expected}")
    return rate


def parse_sources(text: str, key: str) -> list[tuple[float, str]]:
    """Parse a sum of sources into rates and names. If no source has a rate, all rates are 0.
    Otherwise a missing rate is 1.

    >>> parse_sources("3 * books/*.txt + web.jsonl", "data.source")
    [(3.0, 'books/*.txt'), (1.0, 'web.jsonl')]
    >>> parse_sources("books/*.txt + web.jsonl", "data.source")
    [(0.0, 'books/*.txt'), (0.0, 'web.jsonl')]
    """
    if not text.strip():
        return []
    if not re.search(r"\s[+*]\s", text):  # a single source
        return [(0.0, text)]
    terms = parse_sum(text, key, spaced=True)
    missing = 1.0 if any(rate for rate, _ in terms) else 0.0
    return [(missing if rate is None else rate, source) for rate, source in terms]


def read_value(text: str, kind: Any = Any) -> Any:
    """Read a value of a given type. If the type is text, return the text itself, without quotes.
    Otherwise parse a literal, or return the text if it is not a literal.

    >>> read_value("8192", int), read_value("8192", str), read_value("'a, b'", str)
    (8192, '8192', 'a, b')
    """
    if wants_text(kind) and text[:1] not in ("'", '"'):
        return text
    try:
        return parse_literal(text)
    except ValueError:
        return text


def wants_text(kind: Any) -> bool:
    """True for types of text: str, and Literals of strings.

    >>> from typing import Annotated, Literal
    >>> wants_text(Annotated[str, "a role"]), wants_text(Literal["a", "b"]), wants_text(int | str)
    (True, True, False)
    """
    if get_origin(kind) in (Annotated, Literal):
        kind = get_args(kind)[0]
        return wants_text(kind) or isinstance(kind, str)
    if get_origin(kind) in (Union, UnionType):
        return wants_text(get_args(kind)[0]) and NoneType not in get_args(kind)
    return kind is str


def quoted(text: str) -> str:
    """Quote a text for an error message, shortened."""
    return repr(text if len(text) < 200 else text[:200] + "…")


def names_files(tokenizer: str) -> bool:
    """True if `data.tokenizer` names files rather than a kind of tokenizer.

    >>> names_files("vocab.txt"), names_files("sentencepiece(vocab_size=8192)")
    (True, False)
    """
    return "/" in tokenizer or tokenizer.endswith((".model", ".json", ".txt", ".bpe"))


def has_scheme(source: str) -> bool:
    """True for a source with a scheme: tfds:…, hf:…, python:…, gs://…"""
    return re.match(r"[A-Za-z0-9][\w+.-]*:", source) is not None


def is_generated(source: str) -> bool:
    """True for a source that opens nothing: its text comes from a function or from this package.

    >>> is_generated("world:facts"), is_generated("python_docs"), is_generated("a.txt")
    (True, True, False)
    """
    if source in ("", "python_docs"):
        return True
    scheme, colon, _ = source.partition(":")
    return bool(colon) and scheme in ("python", "world", "offline")


def absolute(source: str) -> str:
    """Return a source with the path in it, if there is one, made absolute.

    >>> absolute("hf:c4"), absolute("tfds:c4/en:3.1.0?data_dir=/data/../tfds&split=train")
    ('hf:c4', 'tfds:c4/en:3.1.0?data_dir=/tfds&split=train')
    """
    if source.startswith("tfds:"):
        return re.sub(r"(?<=[?&]data_dir=)[^&:]+(?=&|$)", lambda path: absolute(path[0]), source)
    if source.startswith("hf:"):
        name, mark, query = source.removeprefix("hf:").partition("?")
        if os.path.isdir(os.path.expanduser(name)):
            name = absolute(name)
        return f"hf:{name}{mark}{query}"
    if source in ("", "python_docs") or has_scheme(source):
        return source
    return os.path.abspath(os.path.expanduser(source))
