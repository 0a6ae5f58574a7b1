"""Settings and options as nobody should write them: refused in one line, or meant as they are
written. One trial is one command.
"""

import argparse
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
from faults.hostile import call
from outside import SECRET

from t5x_lite.commands.common import planned_config
from t5x_lite.commands.line import parse, parser
from t5x_lite.config import RunConfig
from t5x_lite.config.files import flatten
from t5x_lite.config.ranges import parse_literal
from t5x_lite.config.roles import PATH, SOURCES, roles, type_hints
from t5x_lite.config.schema import to_dict
from t5x_lite.errors import UserError

# What may stand for any value, on the command line.
VALUES = (
    *("0", "1", "2", "3", "7", "8", "16", "-1", "0.5", "0.1", "1e-3", "1e9", "-0.5", "nan", "inf"),
    *("2147483648", "4611686018427387904", "1e400", "-0.0", "True", "false", "None", "yes"),
    *(
        "",
        " ",
        "x",
        "none",
        "x" * 5000,
        "a\nb",
        "\x1b[2J",
        "🐈",
        "(",
        "a,b=(",
        "..",
        "'",
        '"',
        "\\",
    ),
    *("[]", "()", "{}", "[1,2]", "(1,)", "{'a': 1}", "[[]]", "1,2", "a=b", "f(x=1)", "f(", "f()"),
    *(
        "relative(per_layer=True)",
        "rotary(base=-1)",
        "lstm(cells=8)",
        "window(size=0)",
        "experts()",
    ),
    *("causal_lm", "masked_lm", "prefix_lm + ul2", "causal_lm@2", "world:facts", "world:none"),
)
# Options that wait for other processes, or read and write where they say.
LEFT_OUT = {"--help", "--distributed", "--allow-code", "--allow-path", "--workdir", "--config"}
LARGE = 64.0  # sizes beyond are not trained here


def leaf_types(schema: type, before: str = "") -> dict[str, Any]:
    """Return the type of each setting by its dotted name."""
    found: dict[str, Any] = {}
    for name, kind in type_hints(schema).items():
        key = f"{before}{name}"
        found |= leaf_types(kind, f"{key}.") if hasattr(kind, "SECTION") else {key: kind}
    return found


def choices_of(kind: Any) -> list[str]:
    """Return the values that a type names."""
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    return [choice for part in get_args(kind) for choice in choices_of(part)]


def random_settings(rng: np.random.Generator) -> dict[str, str]:
    """Return one to three settings; those of names often have a name that there is."""
    types = leaf_types(RunConfig)
    made = {}
    for key in rng.choice(list(types), size=rng.integers(1, 4), replace=False):
        choices = choices_of(types[key])
        among = choices if choices and rng.random() < 0.6 else VALUES
        made[str(key)] = str(among[rng.integers(len(among))])
    return made


def is_meant(value: Any, text: str) -> bool:
    """Whether a setting's value is what the text says."""
    try:
        expected = parse_literal(text)
    except ValueError:
        expected = text
    value, expected = (tuple(one) if isinstance(one, list) else one for one in (value, expected))
    if isinstance(expected, dict) or isinstance(value, dict):
        return True  # of the names of cells and tasks
    listed = tuple(filter(None, text.split(",")))
    alone = isinstance(value, tuple) and value in ((expected,), (text,), (text.strip(),), listed)
    same = value == expected and isinstance(value, bool) == isinstance(expected, bool)
    return bool(same or alone or value in (text, str(expected)))


def of_settings(config: Path, rng: np.random.Generator, place: Path) -> None:
    """A run with random settings; each tenth that is accepted and small is trained."""
    settings = random_settings(rng)
    words = [f"--config.{key}={value}" for key, value in settings.items()]
    command = ["train", f"--config={config}", f"--workdir={place}", *words]
    try:
        resolved, _ = planned_config(parse(command))
    except UserError:
        said = call(*command).splitlines()
        assert len(said) == 1, said
        return
    flat = flatten(to_dict(resolved))
    having = roles(RunConfig)
    names_files = [key for key in settings if having[key] & {PATH, SOURCES}]
    for key, text in settings.items():
        if key not in names_files:  # which become absolute
            assert is_meant(flat[key], text), (key, text, flat[key])
    sizes = [value for value in map(flat.get, settings) if isinstance(value, int | float)]
    if not names_files and all(abs(size) <= LARGE for size in sizes) and rng.random() < 0.1:
        call(*command, "--config.training.steps=2")


def of_options(given: dict[str, list[Any]], rng: np.random.Generator, place: Path) -> None:
    """A command with one or two random options.

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
    for action in rng.permutation(np.array(known, dtype=object))[: rng.integers(1, 3)]:
        option = action.option_strings[-1]
        if action.nargs == 0:
            words.append(option)
            continue
        among = list(action.choices) if action.choices and rng.random() < 0.5 else VALUES
        words.append(f"{option}={among[rng.integers(len(among))]}")
    assert SECRET not in str(words)
    call(name, *(str(word).format(new=place) for word in given[name]), *words)
