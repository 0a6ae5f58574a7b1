"""The gate between settings and the machine: which code and which places settings may name.

Settings that the user has written, in a config file, on the command line or in Python, may name any
code and place. The config.json of a run, a report.json and all other data may come from somebody
else. They may name only what the user has also written, or permits by name: see provenance.py.

A *place* is anything outside of the process that a setting names: a file, a directory, an address
in a bucket, a data set, a run to start from, or a service that metrics are sent to.
"""

import importlib
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from t5x_lite.config.grammar import absolute
from t5x_lite.errors import BAD_CONFIG, UserError, user_errors

# Modules whose code settings may name; None: any.
Modules = Collection[str] | None

_imported: set[str] = set()  # modules of the user's own that this process has imported


class NotPermitted(UserError):
    """Raised if data names code or a place that it may not name."""


@dataclass
class Permission:
    """The code and the places that settings may name.

    Attributes:
        modules: Python modules, or files that end in .py; None: any.
        places: absolute places, written as in settings; everything below a place is also permitted.
        is_guarded: True inside commands and functions of api.py. Elsewhere the caller is Python
            code, which has written every place itself.
    """

    modules: set[str] | None = field(default_factory=set)
    places: set[str] = field(default_factory=set)
    is_guarded: bool = False

    def admits_place(self, place: str) -> bool:
        """True for a place that may be opened."""
        if not self.is_guarded:
            return True
        place = absolute(place)
        run = place.rpartition("@")[0]  # run of the checkpoint RUN@STEP
        if place in self.places or (run and run in self.places):
            return True
        # In addresses, parts such as .. and :: have different meanings in different file systems.
        if "::" in place or ".." in PurePosixPath(place).parts:
            return False
        # A permitted data set may also be opened with options that select a part of it.
        if place.startswith(("hf:", "tfds:")):
            name, _, query = place.partition("?")
            options = {option.partition("=")[0] for option in query.split("&") if option}
            return name in self.places and options <= _OF_DATA_SETS
        # Other schemes, such as service:NAME, have no directories.
        if ":" in place.partition("/")[0] and "://" not in place:
            return False
        return any(place.startswith(f"{above.rstrip('/')}/") for above in self.places)


# Options of a data set that only select a part of it.
_OF_DATA_SETS = {"name", "split", "revision"}

_permission: ContextVar[Permission] = ContextVar("permission")


def permission() -> Permission:
    """Return a copy of the current permission, to hand to another process."""
    now = _permission.get(None) or Permission()
    modules = None if now.modules is None else set(now.modules)
    return replace(now, modules=modules, places=set(now.places))


@contextmanager
def with_permission(now: Permission) -> Iterator[None]:
    """Within, permit this and nothing else."""
    token = _permission.set(now)
    try:
        yield
    finally:
        _permission.reset(token)


@contextmanager
def allow(code: Modules = (), paths: Iterable[str] = ()) -> Iterator[None]:
    """Within, settings may also name code of these modules and open these places.

    Args:
        code: names of modules; None: any.
        paths: files, directories (with everything in them), or addresses such as hf:NAME.
    """
    now = permission()
    modules = None if code is None or now.modules is None else {*now.modules, *code}
    places = now.places | set(map(absolute, paths))
    with with_permission(replace(now, modules=modules, places=places)):
        yield


@contextmanager
def guarded() -> Iterator[None]:
    """Within, settings may open only permitted places."""
    with with_permission(replace(permission(), is_guarded=True)):
        yield


def grant(modules: Iterable[str] = (), places: Iterable[str] = ()) -> None:
    """Add what the user has written to the current permission, until the enclosing context ends."""
    now = _permission.get(None)
    if now is None:
        return
    if now.modules is not None:
        now.modules.update(modules)
    now.places.update(absolute(place) for place in places if place)


def service(name: str) -> str:
    """Return the place that stands for a service that metrics are sent to."""
    return f"service:{name}"


def named_code(*settings: str) -> set[str]:
    """Return the modules of every `module.name` in settings that name code.

    >>> sorted(named_code("2 * mine.noise(rate=0.5) + causal_lm", "texts.read", "a/b.txt"))
    ['mine', 'texts']
    """
    names = re.findall(r"(?<![\w./-])([^\W\d][\w.]*)\.[^\W\d]\w*", " ".join(settings))
    return set(names)


def check_place(
    place: str, where: str, does: str = "opens nothing outside of its directory"
) -> None:
    """Reject a place that settings may not name.

    Args:
        where: names the setting in error messages.
        does: end of "the file that names it is data, which …", for error messages.
    """
    if not permission().admits_place(place):
        reason = f"the file that names it is data, which {does}"
        fix = f"add --allow-path={shlex.quote(place)}, or in Python load it within allow(paths=[…])"
        raise NotPermitted(BAD_CONFIG, f"{where}={place}: {reason}; if you trust it, {fix}")


def check_code(module: str, where: str) -> None:
    """Reject a module, or a Python file, that settings may not name."""
    permitted = permission().modules
    if permitted is not None and module not in permitted:
        reason = "the file that names it is data, which imports no module"
        fix = f"add --allow-code={module}, or in Python load it within allow(code=[{module!r}])"
        raise NotPermitted(BAD_CONFIG, f"{where}: {reason}; if you trust {module}, {fix}")


def check_named(modules: Collection[str], places: Collection[str], where: str) -> None:
    """Reject modules and places that data may not name, all of them in one error.

    Args:
        where: the file that names them, for error messages.
    """
    now = permission()
    refused = [] if now.modules is None else sorted(set(modules) - now.modules)
    options = [f"--allow-code={module}" for module in refused]
    for place in sorted(places):
        if not now.admits_place(place):
            options.append(f"--allow-path={shlex.quote(place)}")
    if options:
        reason = "is data, and names code or files outside of it"
        fix = f"if you trust it, add {' '.join(options)}"
        raise NotPermitted(BAD_CONFIG, f"{where}: {reason}; {fix}")


def import_code(name: str, where: str) -> Any:
    """Import the function or class that a setting names as `module.name`.

    Args:
        where: names the setting in error messages.

    Raises:
        UserError: if the module is not permitted, or if importing it fails.
    """
    module, _, function = name.rpartition(".")
    check_code(module, where)
    if "" not in sys.path:
        sys.path.append("")  # the current directory, as with `python -m`
    with user_errors(BAD_CONFIG, f"{where}: expected module.function of your own"):
        found = getattr(importlib.import_module(module), function)
    _imported.add(module)
    return found


def options_that_allow() -> str:
    """Return the options that allow a later command to import what this process has imported."""
    return "".join(f" --allow-code={module}" for module in sorted(_imported))
