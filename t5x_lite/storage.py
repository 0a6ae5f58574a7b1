"""Directories in a bucket: gs://BUCKET/RUN, and whatever else fsspec reaches.

A directory there has a mirror here. What is small is read and written in the mirror, by the same
code as anywhere else, and copied: before each checkpoint, every half minute, and at the end. What
is large is written there at once and is never here.

    gs://bucket/run                        a temporary directory
    config.json  metrics.jsonl …  ◄─ push ── config.json  metrics.jsonl …
    tokenizer/                    ─ fetch ─► tokenizer/ …
    checkpoints/STEP  ◄──────────────────── orbax
"""

import atexit
import errno
import fcntl
import json
import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from t5x_lite.errors import IO_ERROR, USAGE, UserError, optional_import, user_errors

_LARGE = {"checkpoints", "best", "profile"}  # directories that are not fetched
_PUSH_EVERY, _PUSH_EVERY_AT_MOST = 30.0, 600.0  # seconds
_PUSH_SHARE = 0.05  # of the time, where metrics are many
_PACKAGES = {"gs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3")}


def is_remote(address: str | Path) -> bool:
    """Whether an address is in a bucket, and not a path.

    >>> is_remote("gs://bucket/run"), is_remote("runs/gpt")
    (True, False)
    """
    return "://" in str(address)


def file_system(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it.

    Raises:
        UserError: where a package is missing, or the scheme is not known.
    """
    scheme = address.partition("://")[0]
    if scheme in _PACKAGES:
        optional_import(*_PACKAGES[scheme], address)
    import fsspec

    # What it warns of, and what it tries again, is no user's business; what fails is raised.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    with user_errors(USAGE, f"{address}: cannot be reached"):
        return fsspec.core.url_to_fs(address)


@dataclass
class Mirror:
    """A directory in a bucket, and its mirror here."""

    address: str
    here: Path
    copied: dict[str, tuple[int, int]] = field(default_factory=dict)  # name → time and size
    next_push: float = 0.0  # not before, beside other work
    pushing: threading.Lock = field(default_factory=threading.Lock)

    def address_of(self, path: Path) -> str:
        """Of something in the directory here."""
        name = path.relative_to(self.here).as_posix()
        return self.address if name == "." else f"{self.address}/{name}"

    def fetch(self) -> None:
        """Bring what is small here."""
        files, root = file_system(self.address)
        with user_errors(IO_ERROR, f"{self.address}: cannot be read"):
            files.invalidate_cache()
            for path in files.find(root):
                name = path.removeprefix(root).lstrip("/")
                if _LARGE.isdisjoint(name.split("/")) and not name.endswith(_LEASE):
                    target = self.here / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    files.get_file(path, str(target))
        self.copied = self._state()

    def push(self) -> None:
        """Copy what has changed here."""
        files, root = file_system(self.address)
        with self.pushing, user_errors(IO_ERROR, f"{self.address}: cannot be written"):
            began = time.monotonic()
            self.next_push = began + _PUSH_EVERY
            for name, version in self._state().items():
                if self.copied.get(name) != version:
                    files.put_file(str(self.here / name), f"{root}/{name}")
                    self.copied[name] = version
            wait = (time.monotonic() - began) / _PUSH_SHARE
            self.next_push = began + min(max(wait, _PUSH_EVERY), _PUSH_EVERY_AT_MOST)

    def push_in_background(self) -> None:
        """The same beside whatever else is done, now and then. What fails is tried again the next
        time.
        """
        if time.monotonic() < self.next_push or self.pushing.locked():
            return

        def push() -> None:
            with suppress(UserError):
                self.push()

        threading.Thread(target=push, daemon=True, name="push").start()

    def discard(self) -> None:
        """Remove what is here, unless some of it could not be copied."""
        if any(self.copied.get(name) != version for name, version in self._state().items()):
            print(f"t5x_lite: {self.address} lacks what is in {self.here}", file=sys.stderr)
            return
        shutil.rmtree(self.here.parent, ignore_errors=True)

    def _state(self) -> dict[str, tuple[int, int]]:
        state = {}
        for path in sorted(self.here.rglob("*")):
            if path.is_file() and not path.name.endswith((".lock", ".partial")):
                status = path.stat()
                name = path.relative_to(self.here).as_posix()
                state[name] = status.st_mtime_ns, status.st_size
        return state


_MIRRORS: dict[Path, Mirror] = {}


def local_path(address: str | Path) -> Path:
    """The directory to work in: that of the address, or, in a bucket, its mirror.

    Raises:
        UserError: where it cannot be reached.
    """
    if not is_remote(address):
        return Path(address)
    address = str(address).rstrip("/")
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
    return next((_MIRRORS[here] for here in (path, *path.parents) if here in _MIRRORS), None)


def durable_path(path: Path) -> Any:
    """Where what is large is read and written: the path itself, or, in a mirror, the address that
    it stands for, as an etils.epath, which has the methods of a Path.
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
    """Copy all that was written in mirrors."""
    for mirror in _MIRRORS.values():
        mirror.push()


def push(directory: Path, now: bool = True) -> None:
    """Copy what was written in a mirror to where it belongs; of any other directory nothing.

    Args:
        now: not only now and then.
    """
    mirror = _mirror_of(directory)
    if mirror is None:
        return
    if now:
        mirror.push()
    else:
        mirror.push_in_background()


def remove_tree(directory: Path) -> None:
    """Remove a directory, and what it is a mirror of; nothing where there is none."""
    shutil.rmtree(directory, ignore_errors=True)
    mirror = _mirror_of(directory)
    if mirror is not None:
        remove(mirror.address_of(directory))


def with_addresses(message: str) -> str:
    """A message that names the address where it named a mirror."""
    for here, mirror in _MIRRORS.items():
        message = message.replace(str(here), mirror.address)
    return message


def contents(directory: Any) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of all files below a directory, here or in a bucket, sorted by name."""
    if isinstance(directory, Path):
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                yield path.relative_to(directory).as_posix(), path.read_bytes()
        return
    files, root = file_system(str(directory))
    for name in sorted(files.find(root)):
        yield name.removeprefix(root).lstrip("/"), files.cat_file(name)


def exists(address: str) -> bool:
    """Whether a file is there."""
    files, path = file_system(address)
    with user_errors(IO_ERROR, f"{address}: cannot be read"):
        files.invalidate_cache()
        return bool(files.isfile(path))


def read(address: str) -> bytes:
    """The content of a file."""
    files, path = file_system(address)
    with user_errors(IO_ERROR, f"{address}: cannot be read"):
        return files.cat_file(path)


def write(address: str, content: bytes) -> None:
    """Write a file."""
    files, path = file_system(address)
    with user_errors(IO_ERROR, f"{address}: cannot be written"):
        _make_parent(files, path)
        files.pipe_file(path, content)


def remove(address: str) -> None:
    """Remove a file, or a directory with all that is in it; nothing where there is none."""
    files, path = file_system(address)
    with user_errors(IO_ERROR, f"{address}: cannot be removed"), suppress(FileNotFoundError):
        files.invalidate_cache()
        files.rm(path, recursive=True)


def upload(directory: Path, address: str, last: str) -> None:
    """Copy all files of a directory, `last` last."""
    files, root = file_system(address)
    names = [path.relative_to(directory).as_posix() for path in directory.rglob("*")]
    names = [name for name in names if (directory / name).is_file() and name != last]
    with user_errors(IO_ERROR, f"{address}: cannot be written"):
        for name in [*sorted(names), last]:
            _make_parent(files, f"{root}/{name}")
            files.put_file(str(directory / name), f"{root}/{name}")


def _make_parent(files: Any, path: str) -> None:
    """Make the directory that a file will be in, where there are directories."""
    if "file" in files.protocol:
        os.makedirs(os.path.dirname(path), exist_ok=True)


def download(address: str, directory: Path, last: str, leave: str = "") -> None:
    """Copy all files here, unless they are here already: `last`, which tells, is copied last.

    Args:
        leave: a pattern, as of fnmatch, of names that are not copied.
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
        (directory / last).write_bytes(found)


# Who may write.

_HELD: dict[str, dict[str, Any]] = {}  # leases of this process: address → what it says
_SETTLING_SECONDS = 2.0  # after which of two that take a lease over one has it
_RENEWED_EVERY, _EXPIRES_AFTER = 60.0, 600.0  # seconds; of a lease that others wait for
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of some network file systems


@contextmanager
def only_writer(directory: Path, what: str, take_over: bool = False) -> Iterator[None]:
    """Be the only process that writes a directory.

    Args:
        what: to write it means, for errors.
        take_over: from a process that may have ended, where that cannot be told.

    Raises:
        UserError: where another process does.
    """
    if _mirror_of(directory) is not None:
        with lease(_lease_of(directory), what, take_over):
            yield
        return
    with open(directory / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            reason = "another run is going on there; wait or name another"
            raise UserError(USAGE, f"{what}: {reason}") from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            with lease(_lease_of(directory), what, take_over):
                yield
            return
        yield


_LEASE = ".lock.json"


@contextmanager
def wait_for_lock(address: str) -> Iterator[None]:
    """Hold a lock, a file of that name, as soon as no other process has it. Where locks do not end
    with their process, say who has it.
    """
    if not is_remote(address):
        with open(address, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            else:
                yield
                return
        address += ".json"
    waits = False
    while True:
        with ExitStack() as stack:
            try:
                stack.enter_context(lease(address, address, take_over=_has_expired(address)))
            except UserError as error:
                if not waits:
                    reason = str(error).partition(";")[0]
                    minutes = _EXPIRES_AFTER / 60
                    print(
                        f"{reason}: waiting, until it has ended or {minutes:.0f} minutes after its "
                        "machine has vanished",
                        file=sys.stderr,
                    )
                waits = True
                time.sleep(_POLL_EVERY)
                continue
            stack.enter_context(_renewed(address))
            yield
            return


_POLL_EVERY = 1.0  # seconds


@contextmanager
def _renewed(address: str) -> Iterator[None]:
    """Write into a lease, now and then, that its holder lives."""
    over = threading.Event()
    files, path = file_system(address)

    def renew() -> None:
        while not over.wait(_RENEWED_EVERY):
            mine = _HELD[address]
            with suppress(Exception):  # of any file system; the next time it is tried again
                if _is_same(_holder(files, path), mine):
                    renewed = {**mine, "seen": time.time()}
                    files.pipe_file(path, json.dumps(renewed).encode())

    thread = threading.Thread(target=renew, daemon=True, name="renew")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _has_expired(address: str) -> bool:
    """Whether the holder of a lease that is renewed has not done so for long."""
    holder = _holder(*file_system(address))
    return time.time() - holder.get("seen", holder["since"]) > _EXPIRES_AFTER


@contextmanager
def lease(address: str, what: str, take_over: bool = False) -> Iterator[None]:
    """Hold a file that only one process can create, for file systems whose locks do not work, and
    for buckets.

    Args:
        address: of the file.
        what: is held, for errors.
        take_over: from whoever has it.

    Raises:
        UserError: where another process has it, with its host and when it began.
    """
    files, path = file_system(address)
    mine = {**_machine(), "pid": os.getpid(), "since": time.time()}
    content = json.dumps(mine).encode()
    try:
        _create(files, path, content)
    except FileExistsError as error:
        holder = _holder(files, path)
        if address in _HELD or (not take_over and not _is_gone(holder)):
            fix = "if it has ended, add --take-over"
            raise UserError(USAGE, f"{what}: {_who(holder)}; {fix}") from error
        # Another process may do the same at this moment: the last one to write has it.
        files.pipe_file(path, content)
        time.sleep(_SETTLING_SECONDS)
        holder = _holder(files, path)
        if not _is_same(holder, mine):
            reason = f"{_who(holder)}; it took the directory over at the same moment"
            raise UserError(USAGE, f"{what}: {reason}") from error
    _HELD[address] = mine
    try:
        yield
    finally:
        del _HELD[address]
        with suppress(Exception):  # of any file system; whoever took it over keeps it
            if _is_same(_holder(files, path), mine):
                files.rm_file(path)


def check_only_writer(directory: Path) -> None:
    """Raise UserError where another process has taken the directory over, with --take-over."""
    address = _lease_of(directory)
    mine = _HELD.get(address)
    if mine is None:
        return
    holder = _holder(*file_system(address))
    if holder["host"] and not _is_same(holder, mine):
        who = _who(holder).replace("is going on there", "has taken it over")
        raise UserError(IO_ERROR, f"--workdir={directory}: {who}; this one ends")


def _lease_of(directory: Path) -> str:
    mirror = _mirror_of(directory)
    if mirror is not None:
        return f"{mirror.address_of(directory)}/{_LEASE}"
    return str(directory.resolve() / _LEASE)


def _machine() -> dict[str, str]:
    """Its name, and what tells machines and containers apart that share one."""
    facts = {"host": socket.gethostname(), "boot": "", "namespace": ""}
    with suppress(OSError):
        facts["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        facts["namespace"] = os.readlink("/proc/self/ns/pid")
    return facts


def _create(files: Any, path: str, content: bytes) -> None:
    """Create a file, or raise FileExistsError."""
    if "file" in files.protocol:
        _make_parent(files, path)
        with open(path, "xb") as file:
            file.write(content)
        return
    files.pipe_file(path, content, mode="create")


def _holder(files: Any, path: str) -> dict[str, Any]:
    try:
        holder = json.loads(files.cat_file(path))
        known = {"host": str(holder["host"]), "pid": int(holder["pid"])}
        return {**holder, **known, "since": float(holder["since"])}
    except (OSError, ValueError, KeyError, TypeError):  # being written, or removed
        return {"host": "", "pid": 0, "since": time.time()}


def _is_same(holder: dict[str, Any], mine: dict[str, Any]) -> bool:
    """Whether a lease is this process's, renewed or not."""
    return holder | mine == holder


def _is_gone(holder: dict[str, Any]) -> bool:
    """Whether it was a process of this machine that has ended."""
    if any(holder.get(key) != value for key, value in _machine().items()):
        return False
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return holder["pid"] == os.getpid()  # of another program, before this one: see _HELD


def _who(holder: dict[str, Any]) -> str:
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(holder["since"]))
    return (
        f"another run is going on there, process {holder['pid']} of {holder['host']} since {since}"
    )
