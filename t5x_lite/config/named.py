"""Functions and classes that settings name, with their options. They come from a table, or from a
module of the user's own: `my_module.name(option=value)`.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from t5x_lite.config.grammar import parse_call, read_value
from t5x_lite.config.permission import import_code
from t5x_lite.config.ranges import Check, check_value
from t5x_lite.errors import BAD_CONFIG, UserError, nearest, user_errors

# Fields that every flax module has, which are not options.
_NO_OPTIONS = ("config", "parent", "name")


@dataclass(frozen=True)
class Named:
    """A function or class that a setting names.

    Attributes:
        options: the options that the setting gives, checked.
    """

    name: str
    options: dict[str, Any]
    target: Any = field(repr=False)

    def __str__(self) -> str:
        """Write the name and its options as in a config."""
        return write_call(self.name, self.options)

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        """Call the function or class with its options."""
        return self.target(*arguments, **self.options, **more)


def write_call(name: str, options: Mapping[str, Any]) -> str:
    """Write a name with its options.

    >>> write_call("span_corruption", {"noise_density": 0.2}), write_call("causal_lm", {})
    ('span_corruption(noise_density=0.2)', 'causal_lm')
    """
    inside = ", ".join(f"{key}={value!r}" for key, value in options.items())
    return f"{name}({inside})" if inside else name


def find_named(text: str, table: Mapping[str, Any], key: str, what: str) -> Named:
    """Find the function or class that a setting names, and check its options.

    The options of a function or class are its keyword-only parameters and its parameters with a
    default. The options of a dataclass are its fields.

    Args:
        text: `name` or `name(option=value, …)`. The name is an entry of the table, or `module.name`
            for the user's own code.
        table: name → function, class, or None, which has no options.
        key: the setting, for error messages.
        what: what the table holds, for error messages, such as "objective".

    Raises:
        UserError: for an unknown name or option, or a value that is out of range.
    """
    call = parse_call(text, key)
    if call.name in table:
        target = table[call.name]
    elif "." in call.name:
        target = import_code(call.name, f"{key}={call.name}")
    else:
        hint = nearest(call.name, table)
        raise UserError(BAD_CONFIG, f"{key}={call.name}: no such {what}; {hint}")

    with user_errors(BAD_CONFIG, f"{key}={call.name}: its options cannot be read"):
        kinds = option_types(target)
        by_place = _places(target)
    given: dict[str, str] = {}
    for place, value in enumerate(call.arguments):
        if place >= len(by_place):
            expected = "expected options by name" if kinds else "it has no options"
            raise UserError(BAD_CONFIG, f"{key}={text}: got {value}; {expected}")
        given[by_place[place]] = value
    for option, value in call.options.items():
        if option in given:
            raise UserError(BAD_CONFIG, f"{key}={text}: {option} is given twice; give it once")
        given[option] = value

    options = {}
    for option, value in given.items():
        if option not in kinds:
            hint = nearest(option, kinds) if kinds else "it has none"
            reason = f"{call.name} has no option {option}"
            raise UserError(BAD_CONFIG, f"{key}={text}: {reason}; {hint}")
        kind = kinds[option]
        where = f"{key}={text}: {option}"
        with user_errors(BAD_CONFIG, f"{where}: its annotation cannot be checked"):
            options[option] = check_value(read_value(value, kind), kind, where)
    return Named(call.name, options, target)


@dataclass(frozen=True)
class OneOf(Check):
    """Metadata of a text type whose values name an entry of a table, or code of the user's own:
    `choice: Annotated[str, OneOf("choice", CHOICES)] = "token"`.
    """

    what: str
    table: Mapping[str, Any] = field(hash=False)

    def find(self, text: str, key: str) -> Named:
        """Find the function or class that a value names; see find_named."""
        return find_named(text, self.table, key, self.what)

    def check(self, value: str, key: str) -> None:
        """Raise UserError for a value with an unknown name, or with invalid options."""
        self.find(value, key)


def option_types(target: Any) -> dict[str, Any]:
    """Return the type of each option of a function or a dataclass."""
    if target is None:
        return {}
    is_plain_class = inspect.isclass(target) and not dataclasses.is_dataclass(target)
    annotated: Any = target.__init__ if is_plain_class else target
    hints = get_type_hints(annotated, include_extras=True)
    if dataclasses.is_dataclass(target):
        names = [entry.name for entry in dataclasses.fields(target)]
        return {name: hints[name] for name in names if name not in _NO_OPTIONS}
    kinds = {}
    for parameter in inspect.signature(target).parameters.values():
        has_default = parameter.default is not parameter.empty
        if parameter.kind is parameter.KEYWORD_ONLY or has_default:
            kinds[parameter.name] = hints.get(parameter.name, Any)
    return kinds


def _places(target: Any) -> list[str]:
    """Return the options of a function that may be given without their names, in order."""
    if target is None or dataclasses.is_dataclass(target):
        return []
    places = []
    for parameter in inspect.signature(target).parameters.values():
        has_default = parameter.default is not parameter.empty
        if has_default and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            places.append(parameter.name)
    return places
