"""The manifest of a directory: a file that lists the other files with their size and SHA-256. It is
written once they are complete.

Any change to a listed file is noticed: a flipped bit, a missing or truncated file, a file from
another directory. Files that are not listed do not matter. The manifest also records facts about
the directory, such as the step of a checkpoint, and its own SHA-256.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, Literal

from t5x_lite import storage

NAME = "manifest.json"
Level = Literal["full", "files", "off"]
LEVELS: tuple[Level, ...] = ("full", "files", "off")
_FORMAT = 1
_BLOCK = 1 << 20  # bytes that are hashed at a time
_THREADS = min(os.cpu_count() or 1, 16)

_level: ContextVar[Level] = ContextVar("verification", default="full")


@contextmanager
def verification(level: Level) -> Iterator[None]:
    """Set how thoroughly directories are checked when they are read.

    Args:
        level: "full" compares every file with its hash, and every array with its checksum; "files"
            leaves out the arrays; "off" checks neither, nor the hash of the manifest.
    """
    token = _level.set(level)
    try:
        yield
    finally:
        _level.reset(token)


def verification_level() -> Level:
    """Return how thoroughly directories are checked."""
    return _level.get()


class Damage(Exception):
    """A directory does not match its manifest. The message names the file and what is wrong."""


def write(directory: Any, facts: dict[str, Any], leave_out: Collection[str] = ()) -> None:
    """Write the manifest of a directory whose files are complete. On a local disk, flush all files,
    and then the manifest, to the device.

    Args:
        directory: a path, or an address in a bucket as etils.epath.
        facts: recorded in the manifest; must be JSON.
        leave_out: names of files at the top that may still change.
    """
    files = _hash_files(directory, {NAME, *leave_out}, flush=True)
    content = {"format": _FORMAT, **facts, "files": files}
    text = json.dumps({"sha256": _hash_of(content), "manifest": content}, indent=1)
    storage.write_durably(directory / NAME, text)


def is_in(directory: Any) -> bool:
    """Return True if a directory has a manifest, intact or damaged. A file of the same name that
    another program wrote does not count.
    """
    try:
        record = json.loads((directory / NAME).read_bytes())
    except OSError:
        return False
    except (ValueError, RecursionError):
        return True
    return isinstance(record, dict) and not {"sha256", "manifest"}.isdisjoint(record)


def read(directory: Any) -> dict[str, Any]:
    """Read the facts of a manifest, and "files": {name: [bytes, SHA-256]}.

    Raises:
        Damage: if there is none, or it has changed.
    """
    try:
        record = json.loads((directory / NAME).read_bytes())
        content, expected = record["manifest"], record["sha256"]
    except FileNotFoundError as error:
        raise Damage(f"{NAME} is missing") from error
    except OSError as error:
        raise Damage(f"{NAME} cannot be read ({error.strerror or error})") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damage(f"{NAME} is not a manifest") from error
    if not isinstance(content, dict):
        raise Damage(f"{NAME} is not a manifest")
    if verification_level() != "off" and _hash_of(content) != expected:
        raise Damage(f"{NAME} has changed since it was written")
    if content.get("format") != _FORMAT:
        raise Damage(f"{NAME} has format {content.get('format')}, expected {_FORMAT}")
    return content


def check_files(directory: Any, facts: dict[str, Any]) -> None:
    """Compare all files with the facts that `read` returned.

    Raises:
        Damage: if a file is missing or has changed; the message names it.
    """
    found = _hash_files(directory, {NAME})
    for name, (size, digest) in facts["files"].items():
        if name not in found:
            raise Damage(f"{name} is missing")
        if found[name][0] != size:
            raise Damage(f"{name} has {found[name][0]:,} bytes, expected {size:,}")
        if found[name][1] != digest:
            raise Damage(f"{name} has changed since it was written")


def _hash_of(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _hash_files(
    directory: Any, leave_out: Collection[str], flush: bool = False
) -> dict[str, tuple[int, str]]:
    """Return the size and SHA-256 of each file below a directory, by name. Hash several files in
    parallel.

    Args:
        flush: flush files and directories to the device.
    """
    names = [name for name in storage.names_below(directory) if name not in leave_out]

    def hash_file(name: str) -> tuple[int, str]:
        with storage.open_to_read(directory / name) as file:
            if flush and isinstance(directory, Path):
                os.fsync(file.fileno())
            return _hash_stream(file)

    with ThreadPoolExecutor(_THREADS) as pool:
        hashes = dict(zip(names, pool.map(hash_file, names), strict=True))
    if flush and isinstance(directory, Path):
        for path in (directory, *directory.rglob("*")):
            if path.is_dir():
                storage.flush(path)
    return hashes


def _hash_stream(file: BinaryIO) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    while block := file.read(_BLOCK):
        digest.update(block)
        size += len(block)
    return size, digest.hexdigest()
