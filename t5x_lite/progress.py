"""How far a long piece of work is: a bar on a terminal, nothing elsewhere."""

import sys


def bar(name: str, counted: bool = False):
    """A rich.progress.Progress behind that name, with what its task has as `line` at the end; `disable` is true where
    there is no terminal. counted: show "3/10" and the time left.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    count = (MofNCompleteColumn(), TimeRemainingColumn()) if counted else ()
    begin, end = (TextColumn(text, markup=False) for text in (name, "{task.fields[line]}"))
    console = Console(stderr=True)
    return Progress(begin, BarColumn(), *count, end, console=console, disable=not sys.stderr.isatty())
