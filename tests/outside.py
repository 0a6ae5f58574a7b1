"""Watch what a command reaches outside of what it was given: an audit hook of Python sees each
import, each file that is opened and each connection.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECRET = "gate_secret"  # part of every path and address that must not be opened
MODULE = "gate_canary"  # which must not be imported

_CALLS = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system")
_events: list[str] = []
_is_watching = False


def _watch(event: str, args: tuple) -> None:
    if not _is_watching:
        return
    is_git = event == "subprocess.Popen" and args[0] == "git"  # which reports ask for the commit
    opens = event in ("open", "import", "exec") or event.startswith(("os.", "shutil.", "glob."))
    words = " ".join(str(arg) for arg in args if isinstance(arg, str | bytes | Path))
    is_named = SECRET in words or MODULE in words
    if (event in _CALLS and not is_git) or (opens and is_named):
        _events.append(f"{event} {args}")


sys.addaudithook(_watch)  # a hook stays, so it is installed once


@contextmanager
def watching() -> Iterator[list[str]]:
    """Record what is imported, opened or called within."""
    global _is_watching
    _events.clear()
    _is_watching = True
    try:
        yield _events
    finally:
        _is_watching = False
