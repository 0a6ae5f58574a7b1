"""Directories in a bucket, such as gs://BUCKET/RUN, or on any other file system that fsspec
supports.

A remote directory has a local mirror. Small files are read and written in the mirror, by the same
code as anywhere else, and copied to the bucket: before each checkpoint, every half minute, and at
the end. Large files are written to the bucket directly and are never in the mirror.

    gs://bucket/run                        a temporary directory
    config.json  metrics.jsonl …  ◄─ push ── config.json  metrics.jsonl …
    tokenizer/                    ─ fetch ─► tokenizer/ …
    checkpoints/STEP  ◄──────────────────── orbax
"""

import atexit
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO

from t5x_lite.errors import IO_ERROR, USAGE, UserError, optional_import, user_errors

LOCK = ".lock.json"  # the lock file in a bucket: see locks.py
_LARGE = {"checkpoints", "best", "profile"}  # directories that are not fetched
_PUSH_EVERY, _PUSH_EVERY_AT_MOST = 30.0, 600.0  # seconds between pushes, at least and at most
_PUSH_SHARE = 0.05  # fraction of the time that pushes may take, if there are many metrics
_PACKAGES = {"gs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3")}


def is_remote(address: str | Path) -> bool:
    """Return True if an address is in a bucket, False for a path.

    >>> is_remote("gs://bucket/run"), is_remote("runs/gpt")
    (True, False)
    """
    return "://" in str(address)


def file_system(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it.

    Raises:
        UserError: if a package is missing, or the scheme is unknown.
    """
    scheme = address.partition("://")[0]
    if scheme in _PACKAGES:
        optional_import(*_PACKAGES[scheme], address)
    import fsspec

    # Hide gcsfs's warnings and retries from users. Failures are still raised.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    with user_errors(USAGE, f"{address}: cannot be reached"):
        return fsspec.core.url_to_fs(address)


@dataclass
class Mirror:
    """A directory in a bucket, and its local mirror."""

    address: str
    here: Path
    # Name → time and size of the copied file
    copied: dict[str, tuple[int, int]] = field(default_factory=dict)
    next_push: float = 0.0  # earliest time of the next push in the background
    pushing: threading.Lock = field(default_factory=threading.Lock)

    def address_of(self, path: Path) -> str:
        """Return the remote address of a path inside the mirror."""
        name = path.relative_to(self.here).as_posix()
        return self.address if name == "." else f"{self.address}/{name}"

    def fetch(self) -> None:
        """Copy the small files of the bucket into the mirror."""
        files, root = file_system(self.address)
        with user_errors(IO_ERROR, f"{self.address}: cannot be read"):
            files.invalidate_cache()
            for path in files.find(root):
                name = path.removeprefix(root).lstrip("/")
                if _LARGE.isdisjoint(name.split("/")) and not name.endswith(LOCK):
                    target = self.here / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    files.get_file(path, str(target))
        self.copied = self._state()

    def push(self) -> None:
        """Copy the changed files of the mirror to the bucket."""
        files, root = file_system(self.address)
        with self.pushing, user_errors(IO_ERROR, f"{self.address}: cannot be written"):
            began = time.monotonic()
            self.next_push = began + _PUSH_EVERY
            for name, version in self._state().items():
                if self.copied.get(name) != version:
                    _make_parent(files, f"{root}/{name}")
                    files.put_file(str(self.here / name), f"{root}/{name}")
                    self.copied[name] = version
            wait = (time.monotonic() - began) / _PUSH_SHARE
            self.next_push = began + min(max(wait, _PUSH_EVERY), _PUSH_EVERY_AT_MOST)

    def push_in_background(self) -> None:
        """Push in a background thread, at most every 30 s. Files that could not be pushed are tried
        again with the next push.
        """
        if time.monotonic() < self.next_push or self.pushing.locked():
            return

        def push() -> None:
            with suppress(UserError):
                self.push()

        threading.Thread(target=push, daemon=True, name="push").start()

    def discard(self) -> None:
        """Remove the mirror, unless some of its files could not be copied to the bucket."""
        if any(self.copied.get(name) != version for name, version in self._state().items()):
            print(f"t5x_lite: {self.address} lacks what is in {self.here}", file=sys.stderr)
            return
        shutil.rmtree(self.here.parent, ignore_errors=True)

    def _state(self) -> dict[str, tuple[int, int]]:
        """Return the time and size of each file in the mirror, by name."""
        state = {}
        for path in sorted(self.here.rglob("*")):
            if path.is_file() and not path.name.endswith((".lock", ".partial")):
                status = path.stat()
                name = path.relative_to(self.here).as_posix()
                state[name] = status.st_mtime_ns, status.st_size
        return state


_MIRRORS: dict[Path, Mirror] = {}


def local_path(address: str | Path) -> Path:
    """Return the directory to work in: the path itself, or the mirror of an address in a bucket.

    Raises:
        UserError: if the address cannot be reached.
    """
    if not is_remote(address):
        return Path(address)
    address = str(address).rstrip("/")
    # A mirror of this directory, or of one above it, may exist already.
    for mirror in _MIRRORS.values():
        if f"{address}/".startswith(f"{mirror.address}/"):
            mirror.push()
            mirror.fetch()
            return mirror.here / address.removeprefix(mirror.address).lstrip("/")
    parent = Path(tempfile.mkdtemp(prefix="t5x_lite-"))
    mirror = Mirror(address, parent / (address.rpartition("/")[2] or "run"))
    mirror.here.mkdir()
    atexit.register(mirror.discard)
    mirror.fetch()
    _MIRRORS[mirror.here] = mirror
    return mirror.here


def _mirror_of(path: Path) -> Mirror | None:
    """Return the mirror that a path is in, or None."""
    return next((_MIRRORS[here] for here in (path, *path.parents) if here in _MIRRORS), None)


def is_mirrored(path: Path) -> bool:
    """Return True if a path is in the mirror of a bucket."""
    return _mirror_of(path) is not None


def address_of(path: Path) -> str:
    """Return the remote address of a path in a mirror, or the absolute path of any other path."""
    mirror = _mirror_of(path)
    return str(path.absolute()) if mirror is None else mirror.address_of(path)


def durable_path(path: Path) -> Any:
    """Return where to read and write large files: the path itself or, for a path in a mirror, its
    remote address. The address is an etils.epath, which has the methods of a Path.

    Raises:
        UserError: if runs cannot be written to that kind of address.
    """
    mirror = _mirror_of(path)
    if mirror is None:
        return path
    from etils import epath

    try:
        return epath.Path(mirror.address_of(path))
    except KeyError as error:
        reason = "no run can be kept there; expected a directory, gs://… or s3://…"
        raise UserError(USAGE, f"{mirror.address}: {reason}") from error


def push_all() -> None:
    """Push all mirrors to their buckets."""
    for mirror in _MIRRORS.values():
        mirror.push()


def push(directory: Path, now: bool = True) -> None:
    """Push the mirror that a directory is in. Do nothing for any other directory.

    Args:
        now: push at once, and wait for it; otherwise push in the background, at most every 30 s.
    """
    mirror = _mirror_of(directory)
    if mirror is None:
        return
    if now:
        mirror.push()
    else:
        mirror.push_in_background()


def rename(directory: Any, target: Any) -> None:
    """Rename a directory, local or remote, to a target in the same parent directory."""
    if isinstance(directory, Path):
        directory.rename(target)
        return
    files, name = file_system(str(directory))
    with user_errors(IO_ERROR, f"{directory}: cannot be renamed"):
        files.mv(name, file_system(str(target))[1], recursive=True)


def remove_tree(path: Path) -> None:
    """Remove a directory or a file, and its remote copy if it is in a mirror. Do nothing if it does
    not exist.
    """
    if path.is_file():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)
    mirror = _mirror_of(path)
    if mirror is not None:
        remove(mirror.address_of(path))


def with_addresses(message: str) -> str:
    """Replace the paths of mirrors in a message by their remote addresses."""
    for here, mirror in _MIRRORS.items():
        message = message.replace(str(here), mirror.address)
    return message


def names_in(directory: Any) -> list[str]:
    """Return the names of the files and directories in a directory, local or remote, or an empty
    list if there is no such directory.
    """
    if isinstance(directory, Path):
        return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    files, root = file_system(str(directory))
    files.invalidate_cache()
    try:
        found = files.ls(root, detail=False)
    except FileNotFoundError:
        return []
    return sorted(path.rstrip("/").rpartition("/")[2] for path in found)


def names_below(directory: Any) -> list[str]:
    """Return the names of all files below a directory, local or remote, relative to it."""
    if isinstance(directory, Path):
        paths = (path for path in directory.rglob("*") if path.is_file())
        return sorted(path.relative_to(directory).as_posix() for path in paths)
    files, root = file_system(str(directory))
    files.invalidate_cache()
    return sorted(name.removeprefix(root).lstrip("/") for name in files.find(root))


def open_to_read(path: Any) -> BinaryIO:
    """Open a file, local or remote."""
    if isinstance(path, Path):
        return open(path, "rb")
    files, name = file_system(str(path))
    return files.open(name, "rb")


def write_durably(path: Any, content: str | bytes) -> None:
    """Write a file in one step, and flush it to the device: after a crash, it is complete or
    unchanged. A symbolic link is replaced, not followed.
    """
    if isinstance(content, str):
        content = content.encode()
    if not isinstance(path, Path):
        return write(str(path), content)
    # Include the pid, so that processes that write at the same time use different files.
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    with open(partial, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    flush(path.parent)


def make_directory(directory: Path) -> None:
    """Make a directory and those above it, and flush their names to the device."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in missing:
        flush(path.parent)


def flush(path: Path) -> None:
    """Flush a file, or the names in a directory, to the device."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def exists(address: str) -> bool:
    """Return True if there is a file at the address."""
    files, path = file_system(address)
    with user_errors(IO_ERROR, f"{address}: cannot be read"):
        files.invalidate_cache()
        return bool(files.isfile(path))


def read(address: str) -> bytes:
    """Return the contents of a file."""
    files, path = file_system(address)
    with user_errors(IO_ERROR, f"{address}: cannot be read"):
        return files.cat_file(path)


def write(address: str, content: bytes) -> None:
    """Write a file at an address."""
    files, path = file_system(address)
    with user_errors(IO_ERROR, f"{address}: cannot be written"):
        _make_parent(files, path)
        files.pipe_file(path, content)


def create(address: str, content: bytes) -> None:
    """Write a file that does not exist yet.

    Raises:
        FileExistsError: if it exists. If several processes try at once, one of them succeeds.
    """
    files, path = file_system(address)
    if "file" in files.protocol:
        _make_parent(files, path)
        with open(path, "xb") as file:
            file.write(content)
        return
    files.pipe_file(path, content, mode="create")


def remove(address: str) -> None:
    """Remove a file, or a directory with everything in it. Do nothing if it does not exist."""
    files, path = file_system(address)
    with user_errors(IO_ERROR, f"{address}: cannot be removed"), suppress(FileNotFoundError):
        files.invalidate_cache()
        files.rm(path, recursive=True)


def upload(directory: Path, address: str, last: str) -> None:
    """Copy all files of a directory to an address, with `last` as the last one."""
    files, root = file_system(address)
    names = [path.relative_to(directory).as_posix() for path in directory.rglob("*")]
    names = [name for name in names if (directory / name).is_file() and name != last]
    with user_errors(IO_ERROR, f"{address}: cannot be written"):
        for name in [*sorted(names), last]:
            _make_parent(files, f"{root}/{name}")
            files.put_file(str(directory / name), f"{root}/{name}")


def _make_parent(files: Any, path: str) -> None:
    """Make the directory of a file, on file systems that have directories."""
    if "file" in files.protocol:
        os.makedirs(os.path.dirname(path), exist_ok=True)


def download(address: str, directory: Path, last: str, leave: str = "") -> None:
    """Copy all files from an address, unless they are already here. That is the case if the local
    copy of `last` is the same, since it is copied last.

    Args:
        leave: pattern of names that are not copied, as in fnmatch.
    """
    files, root = file_system(address)
    with user_errors(IO_ERROR, f"{address}: cannot be read"):
        found = files.cat_file(f"{root}/{last}")
        if (directory / last).is_file() and (directory / last).read_bytes() == found:
            return
        if directory.exists():
            shutil.rmtree(directory)
        for path in files.find(root):
            name = path.removeprefix(root).lstrip("/")
            if name != last and not fnmatchcase(name, leave):
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                files.get_file(path, str(directory / name))
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.rglob("*"):
            flush(path)
        write_durably(directory / last, found)
