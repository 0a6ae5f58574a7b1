"""The roles of settings: what a setting does besides deciding what a run learns.

The type of a setting carries its roles. Roles of all settings in a section are in its `ROLES`:

    workers: Annotated[int, Range(0, 64), LOCAL] = 1

A setting without a role decides what is learned. It may not change when a run continues, and a
model that starts from another must have the same value.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, get_args, get_type_hints


@dataclass(frozen=True)
class Role:
    """Something that a setting does besides deciding what is learned."""

    meaning: str


RESUMABLE = Role("may change when a run continues")
ADJUSTABLE = Role("may change when a run continues, if the user says so; the change is recorded")
LOCAL = Role("may change when a run continues, and differ between the hosts of a run")
PATH = Role("names a file or directory, relative to where the command is called")
SOURCES = Role("names files in a sum with rates, relative to where the command is called")
TOKENIZER = Role("names files, relative to where the command is called, or a kind of tokenizer")
CODE = Role("may name code of the user's own, as module.name")
SENDS = Role("may name a service that metrics are sent to")
SETTINGS = Role("holds settings of other runs, as KEY=VALUE")
BUDGET = Role("follows from the budget of a comparison")
SIZE = Role("may differ between the runs of one scaling law")
RATE = Role("decides the learning rate of each step, and nothing else")
COMPUTATION = Role("says how a model is trained or computed, not which function it is")
HEADS = Role("says which heads a model has")
OUTPUT = Role("says how the output layer computes")
ADAPTATION = Role("adds parameters to a trained model, none where it is 0")
FORMAT = Role("says how a task is put to a model; fixed once the model has learned the task")


@dataclass(frozen=True)
class OnlyWith:
    """Metadata of a setting that has no effect while another setting of its section is 0, False or
    empty.
    """

    other: str


@cache
def type_hints(schema: type) -> Mapping[str, Any]:
    """Return the type of each field of a dataclass, with its metadata: ranges and roles."""
    hints = get_type_hints(schema, include_extras=True)
    return MappingProxyType({field.name: hints[field.name] for field in dataclasses.fields(schema)})


def setting_types(schema: type) -> dict[str, Any]:
    """Return the type of each setting by its dotted name, including nested sections. The roles of a
    section become metadata of all its types.
    """
    found: dict[str, Any] = {}
    for name, kind in type_hints(schema).items():
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            found |= {f"{name}.{inner}": of for inner, of in setting_types(kind).items()}
        else:
            of_section = getattr(schema, "ROLES", ())
            found[name] = Annotated[kind, *of_section] if of_section else kind
    return found


def roles(schema: type) -> dict[str, set[Role]]:
    """Return the roles of each setting by its dotted name."""
    return {
        name: {part for part in get_args(kind) if isinstance(part, Role)}
        for name, kind in setting_types(schema).items()
    }


def settings_with(schema: type, *wanted: Role) -> set[str]:
    """Return the dotted names of the settings that have at least one of the roles.

    >>> from t5x_lite.config import Task
    >>> from t5x_lite.config.roles import FORMAT
    >>> sorted(settings_with(Task, FORMAT))
    ['in_words', 'kind', 'label_words', 'labels', 'no_answer', 'number_step', 'prompt', 'turn']
    """
    return {name for name, having in roles(schema).items() if having & set(wanted)}


def without_effect(section: Any) -> Iterator[str]:
    """Yield the names of the settings of a section that have no effect; see OnlyWith."""
    for name, kind in type_hints(type(section)).items():
        for part in get_args(kind):
            if isinstance(part, OnlyWith) and not getattr(section, part.other):
                yield name
