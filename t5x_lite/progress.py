"""How far a long piece of work is: a bar on a terminal, nothing elsewhere."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def bar(name: str, counted: bool = False) -> "Progress":
    """A rich progress bar, its name before it and its task's field `line` after it; `disable` is
    true where there is no terminal.

    Args:
        counted: also show "3/10" and the time left.
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
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
