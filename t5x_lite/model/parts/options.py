"""Parts as settings name them: `name`, or `name(option=value, …)`."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from t5x_lite.config import ModelDimensions
from t5x_lite.config.grammar import import_code, parse_call
from t5x_lite.config.ranges import check_value
from t5x_lite.errors import BAD_CONFIG, UserError, nearest

_NO_OPTIONS = {"config", "parent", "name"}  # what every part is made with


def make_part(table: Mapping[str, Any], setting: str, config: ModelDimensions, **more: Any) -> Any:
    """Make the part that a setting of the model names; None where the table has None for it.

    Args:
        table: name → class.
        setting: its key within the model's settings, such as "mixer".
        more: what is not in the setting, such as the name of a module.

    Raises:
        UserError: for a name, an option or a value that does not exist.
    """
    part, options = find_part(f"model.{setting}", getattr(config, setting), tuple(table.items()))
    return None if part is None else part(config, **options, **more)


def part_name(spec: str) -> str:
    """Return the name of a part, without its options and its module.

    >>> part_name("lstm(cells=64)"), part_name("my.module.Linear")
    ('lstm', 'Linear')
    """
    return spec.partition("(")[0].strip().rpartition(".")[2]


def write_part(table: Mapping[str, Any], name: str, **options: Any) -> str:
    """Write a part as a setting names it, without options that are the default's.

    >>> from t5x_lite.model.parts.positions import POSITIONS
    >>> write_part(POSITIONS, "rotary", base=5e5), write_part(POSITIONS, "rotary", base=1e4)
    ('rotary(base=500000.0)', 'rotary')
    """
    defaults = {} if table.get(name) is None else {f.name: f.default for f in fields(table[name])}
    given = {key: value for key, value in sorted(options.items()) if value != defaults.get(key)}
    inside = ", ".join(f"{key}={value!r}" for key, value in given.items())
    return f"{name}({inside})" if inside else name


def canonical(table: Mapping[str, Any], spec: str) -> str:
    """Write a setting in the one way in which equal parts are equal texts."""
    name, options = parse_call(spec, "part")
    return write_part(table, name, **options)


@cache
def find_part(key: str, spec: str, items: tuple[tuple[str, Any], ...]) -> tuple[Any, dict]:
    """Return the class of a part and its options, checked."""
    part: Any = None
    table = dict(items)
    name, options = parse_call(spec, key)
    if name in table:
        part = table[name]
    elif "." in name:
        part = import_code(name, f"{key}={name}")
    else:
        raise UserError(BAD_CONFIG, f"{key}={name}: no such part; {nearest(name, table)}")
    if part is None:
        return None, {}
    if not is_dataclass(part):
        raise UserError(BAD_CONFIG, f"{key}={name}: got {part!r}, expected a flax module")
    hints = get_type_hints(part, include_extras=True)
    known = [field.name for field in fields(part) if field.name not in _NO_OPTIONS]
    for option, value in options.items():
        if option not in known:
            hint = nearest(option, known) if known else "it has none"
            raise UserError(BAD_CONFIG, f"{key}={spec}: {name} has no option {option}; {hint}")
        options[option] = check_value(value, hints[option], f"{key}={spec}: {option}")
    return part, options
