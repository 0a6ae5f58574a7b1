"""Format the commands that --dry-run prints, so that people can paste them into a shell."""

import shlex
from collections.abc import Sequence


def with_input(command: Sequence[str], text: str) -> str:
    """Return a command with a text as its input, written as a here-document. Its end marker is not
    a line of the text.

    >>> print(with_input(["sbatch", "--nodes=2"], "echo a"))
    sbatch --nodes=2 <<'END'
    echo a
    END
    """
    end = "END"
    while end in text.splitlines():
        end += "_"
    return f"{shlex.join(command)} <<'{end}'\n{text.removesuffix(chr(10))}\n{end}"
