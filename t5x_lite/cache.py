"""The user's private directory for token stores, compiled programs and other files that can be
recreated.

Its contents are trusted: a compiled program is run, a store is trained on. The directory must
therefore belong to the user, and no other user may write to it.
"""

import os
import stat
from pathlib import Path

from t5x_lite.errors import IO_ERROR, UserError


def cache_directory() -> Path:
    """Return $T5X_LITE_CACHE or ~/.cache/t5x_lite, and create it if needed.

    Raises:
        UserError: if others may write to it.
    """
    directory = os.environ.get("T5X_LITE_CACHE")
    if directory:
        path = Path(directory)
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        path = Path(base) / "t5x_lite"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = path.stat()
    if not hasattr(os, "getuid"):  # Windows
        return path
    if status.st_uid not in (os.getuid(), 0):
        reason = "it belongs to somebody else, and programs that are run lie there"
        raise UserError(IO_ERROR, f"the cache {path}: {reason}; set T5X_LITE_CACHE to another")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason = "others may write to it, and programs that are run lie there"
        fix = f"chmod go-w {path}, or set T5X_LITE_CACHE to another"
        raise UserError(IO_ERROR, f"the cache {path}: {reason}; {fix}")
    return path
