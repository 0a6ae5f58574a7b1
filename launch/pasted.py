"""Commands that --dry-run prints, for people to paste into a shell."""

import shlex
from collections.abc import Sequence


def with_input(command: Sequence[str], text: str) -> str:
    """Return a command that reads a text, as a here-document: it ends where the text does.

    >>> print(with_input(["sbatch", "--nodes=2"], "echo a"))
    sbatch --nodes=2 <<'END'
    echo a
    END
    """
    end = "END"
    while end in text.splitlines():
        end += "_"
    return f"{shlex.join(command)} <<'{end}'\n{text.removesuffix(chr(10))}\n{end}"
