"""Lines of progress, and bars on terminals."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

from t5x_lite import storage
from t5x_lite.terminal import raw_stderr

if TYPE_CHECKING:
    from rich.progress import Progress

Listener = Callable[[str], None]


def _print(line: str) -> None:
    """Print a line at once. A run continues even if the reader of its output has gone away."""
    with suppress(BrokenPipeError):
        print(line, flush=True)


_listener: ContextVar[Listener] = ContextVar("listener", default=_print)


def say(line: str) -> None:
    """Show a line of progress: print it, or pass it to the function given to messages_to.

    Files in a bucket are named by their remote addresses.
    """
    _listener.get()(storage.with_addresses(line))


@contextmanager
def messages_to(listener: Listener) -> Iterator[None]:
    """Inside the block, pass all lines of progress to a function.

    >>> lines = []
    >>> with messages_to(lines.append):
    ...     say("step 1")
    >>> lines
    ['step 1']
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def current_listener() -> Listener:
    """Return the function that lines of progress go to."""
    return _listener.get()


def to_stderr(line: str) -> None:
    """Print a line to standard error, for commands whose standard output is their result."""
    print(line, file=sys.stderr, flush=True)


def silent(line: str) -> None:
    """Discard a line of progress."""


def columns(rows: Iterable[Sequence[str] | str], align: str) -> str:
    """Align rows of cells in columns. A row that is a string becomes a line of its own.

    Args:
        align: < or > for each column.

    >>> print(columns([("tokens", "1,024", "of each"), "all of them:", ("bytes", "96")], "<><"))
    tokens  1,024  of each
    all of them:
    bytes      96
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    table = Table.grid(padding=(0, 2))
    for side in align:
        table.add_column(justify="left" if side == "<" else "right", no_wrap=True)
    for row in rows:
        if not isinstance(row, str):
            table.add_row(*(Text(re.sub(r"\s", " ", cell)) for cell in row))
    console = Console(width=100_000, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    aligned = iter(capture.get().splitlines())
    return "\n".join(row if isinstance(row, str) else next(aligned).rstrip() for row in rows)


def bar(name: str, counted: bool = False) -> "Progress":
    """Return a rich progress bar, which shows its name, the bar, and its task's field `line`.

    Its attribute `disable` is True if standard error is not a terminal.

    Args:
        name: the text before the bar.
        counted: True to also show the count, such as 3/10, and the time left.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = [TextColumn(name, markup=False), BarColumn()]
    if counted:
        columns += [MofNCompleteColumn(), TimeRemainingColumn()]
    columns.append(TextColumn("{task.fields[line]}", markup=False))
    return Progress(*columns, console=Console(file=raw_stderr()), disable=not sys.stderr.isatty())
