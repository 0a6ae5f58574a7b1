"""Who has written settings. What the user's own settings name is permitted, and a config that the
user has trained on this machine is recognised.

    config file, command line, Python ── written_here ──► any code, any place
    config.json, report.json ── known_places ──► no code; only the places that were permitted to the
                                                 same settings before, on this machine
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from t5x_lite import storage
from t5x_lite.cache import cache_directory
from t5x_lite.config.grammar import is_generated, names_files, parse_list, parse_sources, read_value
from t5x_lite.config.permission import grant, named_code, permission, service
from t5x_lite.config.roles import CODE, PATH, SENDS, SETTINGS, SOURCES, TOKENIZER, Role, roles
from t5x_lite.config.schema import CompareConfig, RunConfig, to_dict
from t5x_lite.errors import UserError

WRITES_HERE = "tensorboard"  # the logger that sends nothing, but writes to the run's directory


class Outside(NamedTuple):
    """Code and places that settings name."""

    modules: set[str]
    places: set[str]

    def __or__(self, other: "Outside") -> "Outside":
        return Outside(self.modules | other.modules, self.places | other.places)


def names_in(config: Any) -> Outside:
    """Return the code and the places that the settings of a RunConfig, CompareConfig or Task name.

    >>> from t5x_lite.config import Task
    >>> names_in(Task(name="mine", source="python:mine.read"))
    Outside(modules={'mine'}, places=set())
    """
    named = Outside(set(), set())
    of_schema = roles(type(config))
    for key, value in _flat(config):
        for text in _texts(value):
            named |= _names_in_text(text, of_schema[key])
    if isinstance(config, RunConfig):
        for stage in config.stages:
            named |= names_in_settings(_as_texts(stage))
    if isinstance(config, CompareConfig):
        for cell in config.cells.values():
            named |= names_in(cell)
        named |= names_in_settings(_as_texts(config.tune))
    return named


def names_in_settings(settings: Iterable[str]) -> Outside:
    """Return the code and places that texts such as "optimizer.name=mine.shampoo,adamw" name."""
    named = Outside(set(), set())
    of_schema = roles(CompareConfig) | roles(RunConfig)
    for setting in settings:
        key, _, values = setting.partition("=")
        of_key = of_schema.get(re.sub(r"^(base|cells\.[^.]+)\.", "", key), set())
        literal = read_value(values)
        written = [values, *parse_list(values, key)] if literal == values else _texts(literal)
        for value in written:
            named |= _names_in_text(value, of_key)
    return named


def _names_in_text(text: str, of_setting: set[Role]) -> Outside:
    modules: set[str] = set()
    places: set[str] = set()
    if SETTINGS in of_setting:
        return names_in_settings([text])
    if CODE in of_setting:
        modules |= named_code(text)
    if SENDS in of_setting and "." not in text and text != WRITES_HERE:
        places.add(service(text))
    if TOKENIZER in of_setting:
        if names_files(text):
            places.add(text)
        else:
            modules |= named_code(text)
    if of_setting & {PATH, SOURCES}:
        terms = (
            [source for _, source in parse_sources(text, "")] if SOURCES in of_setting else [text]
        )
        for source in terms:
            scheme, _, address = source.partition(":")
            if scheme == "python":
                modules.add(address.rpartition(".")[0])
            elif not is_generated(source):
                places.add(source)
    return Outside(modules, places)


def _flat(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a config by their dotted names."""
    for name, value in vars(config).items():
        if dataclasses.is_dataclass(value):
            yield from _flat(value, f"{path}{name}.")
        elif name != "cells":
            yield f"{path}{name}", value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _texts(inner)


def _as_texts(settings: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield nested settings, with several values each, as texts KEY=VALUE: one for each value."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _as_texts(value, f"{path}{name}.")
        else:
            for text in _texts(value):
                yield f"{path}{name}={text}"


# The user's own settings.


def written_here(config: Any) -> None:
    """Permit what a config of the user's own names; see names_in."""
    named = names_in(config)
    grant(named.modules, named.places)


def settings_written_here(settings: Iterable[str]) -> None:
    """Permit what settings on the command line name; see names_in_settings."""
    named = names_in_settings(settings)
    grant(named.modules, named.places)


# Data.


def known_places(settings: Mapping[str, Any]) -> set[str]:
    """Return the places that the user has permitted to these settings on this machine, for example
    by training the run here. The run may have been moved to another directory since.
    """
    with suppress(OSError, RuntimeError, UserError):  # no usable cache
        return set(_mark_of(settings).read_text("utf-8").splitlines())
    return set()


def remember(config: RunConfig | CompareConfig, more: Iterable[str] = ()) -> None:
    """Record these settings, with the places that they name and that are permitted now, so that
    known_places finds them.

    Args:
        more: places that they name in another way, such as by the name of a task.
    """
    now, settings = permission(), to_dict(config)
    named = names_in(config).places | set(more)
    places = {place for place in named if now.admits_place(place)} | known_places(settings)
    with suppress(OSError, RuntimeError, UserError):
        mark = _mark_of(settings)
        mark.parent.mkdir(exist_ok=True)
        storage.write_durably(mark, "\n".join(sorted(places)))


def _mark_of(settings: Mapping[str, Any]) -> Path:
    """Return the file that holds the permitted places of settings."""
    content = json.dumps(settings, sort_keys=True, default=repr).encode()
    return cache_directory() / "written" / hashlib.sha256(content).hexdigest()
