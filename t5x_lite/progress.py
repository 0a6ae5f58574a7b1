"""Progress bars for long operations, shown on terminals only."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def bar(name: str, counted: bool = False) -> "Progress":
    """Return a rich progress bar, which shows its name, the bar, and its task's field `line`.

    Its attribute `disable` is True if standard error is no terminal.

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
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
