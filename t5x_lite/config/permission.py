"""Which code of the user's own settings may name, as `module.name`, and how it is imported."""

import importlib
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from t5x_lite.errors import BAD_CONFIG, UserError, user_errors

# Modules that settings may name code of; None: any.
Modules = Collection[str] | None

_imported: set[str] = set()  # by this process
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
        found = getattr(importlib.import_module(module), function)
    _imported.add(module)
    return found


def options_that_allow() -> str:
    """Return the options with which a later command may import what this process has imported."""
    return "".join(f" --allow-code={module}" for module in sorted(_imported))
