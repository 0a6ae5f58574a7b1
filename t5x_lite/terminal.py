"""Show untrusted text safely on the user's terminal. Control characters, which can move the cursor,
change the title or paste commands, are printed as escapes.
"""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_KEPT = "\n\t"
_DIRECTIONS = [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C]
_LINE_ENDS = (0x2028, 0x2029)
_SURROGATES = range(0xD800, 0xE000)  # half characters, which cannot be encoded
_SHOWN = {
    number: ascii(chr(number))[1:-1]
    for number in [*range(0x20), *range(0x7F, 0xA0), *_LINE_ENDS, *_DIRECTIONS, *_SURROGATES]
    if chr(number) not in _KEPT
}


def visible(text: str) -> str:
    r"""Replace control characters in a text by escapes, except line ends and tabs. Do the same with
    characters that change the direction of writing, which can make a line look like another.

    >>> visible("a\x1b[2Jb\r\n\u202ec")
    'a\\x1b[2Jb\\r\n\\u202ec'
    """
    return text.translate(_SHOWN)


class _Visible:
    """A stream that writes control characters as escapes."""

    def __init__(self, stream: TextIO):
        self.raw = stream

    def write(self, text: str) -> int:
        self.raw.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextmanager
def visible_output() -> Iterator[None]:
    """Inside the block, print control characters as escapes on standard error, and on standard
    output if it is a terminal. A file or a pipe gets the output of a command unchanged.
    """
    out, err = sys.stdout, sys.stderr
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="backslashreplace")
    if out.isatty():
        sys.stdout = _Visible(out)
    sys.stderr = _Visible(err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


def raw_stderr() -> TextIO:
    """Return the unfiltered standard error, for code that draws with control characters itself."""
    return getattr(sys.stderr, "raw", sys.stderr)
