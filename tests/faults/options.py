"""Settings and options as nobody should write them: refused in one line, or meant as they are
written. One trial is one command.
"""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
from faults.hostile import call

from t5x_lite.commands.common import planned_config
from t5x_lite.commands.line import parse, parser
from t5x_lite.config import RunConfig
from t5x_lite.config.files import flatten
from t5x_lite.config.ranges import parse_literal
from t5x_lite.config.roles import PATH, SOURCES, setting_types, settings_with
from t5x_lite.config.schema import to_dict
from t5x_lite.errors import UserError

# What may stand for any value, on the command line.
_WORDS = """
0 1 2 3 7 8 16 -1 0.5 0.1 1e-3 1e9 -0.5 nan inf 2147483648 4611686018427387904 1e400 -0.0
True false None yes x none .. 🐈 \\ ' " ( a,b=( [] () {} [1,2] (1,) [[]] 1,2 a=b f(x=1) f( f()
experts() lora(4) lstm(cells=8) relative(per_layer=True) rotary(base=-1) window(size=0)
causal_lm masked_lm causal_lm@2 world:facts world:none
"""
VALUES = (
    *_WORDS.split(),
    *("", " ", "x" * 5000, "a\nb", "\x1b[2J", "{'a': 1}", "prefix_lm + ul2"),
)
# Options that wait for other processes, permit something, or name what the trial itself names.
LEFT_OUT = {"--help", "--distributed", "--allow-code", "--allow-path", "--workdir", "--config"}
LARGE = 64.0  # what has larger sizes is not trained here


def is_refusal(code: int, said: str) -> bool:
    """Whether a command was refused, which must take one line."""
    if code:
        *before, last = said.splitlines()
        assert last.startswith("t5x_lite: "), said[-300:]
        assert not any(line.startswith("t5x_lite: ") for line in before), said[-2000:]
        assert "usage: " not in said, said[-300:]
    return bool(code)


def words_of(kind: Any) -> list[str]:
    """Return the values that a type names."""
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    return [choice for part in get_args(kind) for choice in words_of(part)]


def random_settings(rng: np.random.Generator) -> dict[str, str]:
    """Return one to three settings; where a type names values, often one of those."""
    types = setting_types(RunConfig)
    made = {}
    for key in rng.choice(list(types), size=rng.integers(1, 4), replace=False):
        named = words_of(types[key])
        among = named if named and rng.random() < 0.6 else VALUES
        made[str(key)] = str(among[rng.integers(len(among))])
    return made


def is_meant(value: Any, text: str) -> bool:
    """Whether a setting's value is what the text says: as a literal, as a list, or as it is."""
    try:
        literal = parse_literal(text)
    except ValueError:
        literal = text
    value, literal = (tuple(one) if isinstance(one, list) else one for one in (value, literal))
    if isinstance(value, tuple):
        parts = tuple(part.strip() for part in re.split(",", text) if part.strip())
        in_brackets = literal if isinstance(literal, tuple) else (literal,)
        return value in (parts, in_brackets, (text.strip(),), (str(literal),))
    is_same_type = isinstance(value, bool) == isinstance(literal, bool)
    return bool(value in (text, str(literal)) or (value == literal and is_same_type))


def is_large(value: Any) -> bool:
    """Whether a value is a number that is too large to be tried here."""
    try:
        return abs(float(value)) > LARGE
    except (TypeError, ValueError):
        return False


def of_settings(config: Path, rng: np.random.Generator, place: Path) -> None:
    """A run with random settings; each tenth that is accepted and small is trained."""
    settings = random_settings(rng)
    words = [f"--config.{key}={value}" for key, value in settings.items()]
    command = ["train", f"--config={config}", f"--workdir={place}", *words]
    try:
        checked, _ = planned_config(parse(command))
    except UserError:
        assert is_refusal(*call(*command))
        return
    values = flatten(to_dict(checked))
    of_files = settings_with(RunConfig, PATH, SOURCES)  # which become absolute
    for key in settings.keys() - of_files:
        assert is_meant(values[key], settings[key]), (key, settings[key], values[key])
    is_small = not any(is_large(values[key]) for key in settings)
    if is_small and not settings.keys() & of_files and rng.random() < 0.1:
        is_refusal(*call(*command, "--config.training.steps=2"))


def of_options(given: Mapping[str, list[Any]], rng: np.random.Generator) -> None:
    """A command with none to two random options; with none, it does what it is for.

    Args:
        given: command → words that it is given besides.
    """
    commands = next(
        action.choices
        for action in parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    name = str(rng.choice(list(given)))
    known = [
        action
        for action in commands[name]._actions
        if action.option_strings and LEFT_OUT.isdisjoint(action.option_strings)
    ]
    words: list[Any] = []
    for index in rng.permutation(len(known))[: rng.integers(0, 3)]:
        option, action = known[index].option_strings[-1], known[index]
        if action.nargs == 0:
            words.append(option)
            continue
        among = list(action.choices) if action.choices and rng.random() < 0.5 else VALUES
        if option == "--seeds":  # so many runs would be meant
            among = [value for value in among if not is_large(value)]
        words.append(f"{option}={among[rng.integers(len(among))]}")
    refused = is_refusal(*call(name, *given[name], *words))
    assert words or not refused, name
