"""Make parts from settings such as `name` or `name(option=value, …)`."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args

from t5x_lite.config import ModelDimensions
from t5x_lite.config.named import Named, OneOf, find_named, option_types, write_call
from t5x_lite.errors import BAD_CONFIG, UserError


def make_part(table: Mapping[str, Any], setting: str, config: ModelDimensions, **more: Any) -> Any:
    """Make the part that a setting of the model names; None if the table has None for this name.

    Args:
        table: name → class, or None.
        setting: key of the setting within the model's settings, such as "mixer".
        more: arguments that are not in the setting, such as the name of the flax module.

    Raises:
        UserError: for an unknown name or option, or an invalid value.
    """
    part = find_part(f"model.{setting}", getattr(config, setting), tuple(table.items()))
    return None if part.target is None else part(config, **more)


def part_name(spec: str) -> str:
    """Return the name of a part without its options and its Python module.

    >>> part_name("lstm(cells=64)"), part_name("my.module.Linear")
    ('lstm', 'Linear')
    """
    return spec.partition("(")[0].strip().rpartition(".")[2]


def write_part(table: Mapping[str, Any], name: str, **options: Any) -> str:
    """Write a part as a setting, without options that have their default value.

    >>> from t5x_lite.model.parts.positions import POSITIONS
    >>> write_part(POSITIONS, "rotary", base=5e5), write_part(POSITIONS, "rotary", base=1e4)
    ('rotary(base=500000.0)', 'rotary')
    """
    defaults = {} if table.get(name) is None else {f.name: f.default for f in fields(table[name])}
    given = {key: value for key, value in sorted(options.items()) if value != defaults.get(key)}
    return write_call(name, given)


def own_options(part: Any) -> dict[str, Any]:
    """Return all options of a part, with the values that it was made with."""
    return {name: getattr(part, name) for name in option_types(type(part))}


def canonical(table: Mapping[str, Any], spec: str) -> str:
    """Write a setting in canonical form, so that equal parts are equal strings.

    >>> from t5x_lite.model.parts.positions import POSITIONS
    >>> canonical(POSITIONS, "rotary(scaling='linear(factor=2.0)', base=10000.0)")
    "rotary(scaling='linear')"
    """
    part = find_named(spec, table, "part", "part")
    options = dict(part.options)
    for name, kind in option_types(part.target).items():
        for metadata in get_args(kind):
            if isinstance(metadata, OneOf) and name in options:
                options[name] = canonical(metadata.table, options[name])
    return write_part(table, part.name, **options)


@cache
def find_part(key: str, spec: str, items: tuple[tuple[str, Any], ...]) -> Named:
    """Find the part that a setting names, and check its options."""
    part = find_named(spec, dict(items), key, "part")
    if part.target is not None and not is_dataclass(part.target):
        raise UserError(BAD_CONFIG, f"{key}={spec}: got {part.target!r}, expected a flax module")
    return part
