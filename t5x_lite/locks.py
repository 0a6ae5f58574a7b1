"""Locks: which process may write to a directory.

On a local disk the operating system holds the lock, and frees it when the process ends. In a
bucket, and on network disks without locks, the lock is a file that only one process can create and
that names its owner. If the owner is killed, the file stays until another process on the same
machine finds that the owner has ended, or until somebody takes the lock over.
"""

import errno
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from t5x_lite import storage
from t5x_lite.errors import IO_ERROR, USAGE, UserError

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # errors of some network file systems
FILES = (".lock", storage.LOCK)  # lock files in a directory
_POLL_EVERY = 1.0  # seconds
_SETTLING_SECONDS = 2.0  # until it is clear which of two processes has taken a lock over
_held: dict[str, "Owner"] = {}  # the lock files that this process holds, by address


def _machine() -> str:
    """Return an id that tells apart machines, and containers on one machine, of the same name."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


@dataclass(frozen=True)
class Owner:
    """The process that holds a lock file."""

    host: str = field(default_factory=socket.gethostname)
    machine: str = field(default_factory=_machine)
    pid: int = field(default_factory=os.getpid)
    since: float = field(default_factory=time.time)

    def is_gone(self) -> bool:
        """Return True if the owner was a process of this machine and has ended."""
        here = Owner()
        if (self.host, self.machine) != (here.host, here.machine):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return self.pid == here.pid  # an earlier process had our pid; our own locks are in _held

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.since))
        return f"process {self.pid} of {self.host} since {since}"


class Held(UserError):
    """Another process holds a lock file."""

    def __init__(self, what: str, owner: Owner | None, fix: str):
        who = owner or "which has just begun"
        super().__init__(USAGE, f"{what}: another run is going on there, {who}; {fix}")
        self.owner = owner


@contextmanager
def only_writer(directory: Path, what: str, take_over: bool = False) -> Iterator[None]:
    """Make sure that no other process writes to the directory.

    Args:
        what: setting that names the directory, for errors.
        take_over: take over the lock of a process that may have ended, if there is no way to tell.

    Raises:
        UserError: if another process writes to the directory.
    """
    with ExitStack() as stack:
        if storage.is_mirrored(directory) or not _flock(stack, directory / FILES[0], what):
            stack.enter_context(lock_file(_file_of(directory), what, take_over))
        yield


@contextmanager
def wait_for_lock(address: str) -> Iterator[None]:
    """Wait until no other process holds the lock file at this address, then hold it."""
    with ExitStack() as stack:
        if storage.is_remote(address) or not _flock(stack, Path(address)):
            said = False
            while True:
                try:
                    stack.enter_context(lock_file(f"{address}.json", address))
                    break
                except Held as held:
                    if not said:
                        waiting = f"waiting; if it has ended, remove {address}.json"
                        print(Held(address, held.owner, waiting), file=sys.stderr)
                    said = True
                    time.sleep(_POLL_EVERY)
        yield


@contextmanager
def lock_file(address: str, what: str, take_over: bool = False) -> Iterator[None]:
    """Hold a lock file, which only one process can create.

    Raises:
        UserError: if another process holds it; the error names its host and when it began.
    """
    mine = Owner()
    content = json.dumps(asdict(mine)).encode()
    try:
        storage.create(address, content)
    except FileExistsError as error:
        owner = _owner(address)
        if address in _held or not (take_over or (owner and owner.is_gone())):
            raise Held(what, owner, "if it has ended, add --take-over") from error
        # Another process may take it over at the same moment. The last one to write wins.
        storage.write(address, content)
        time.sleep(_SETTLING_SECONDS)
        if _owner(address) != mine:
            raise Held(what, _owner(address), "it took the lock at the same moment") from error
    _held[address] = mine
    try:
        yield
    finally:
        del _held[address]
        with suppress(Exception):  # any error of a file system
            # A process that has taken the lock over keeps it.
            if _owner(address) == mine:
                storage.remove(address)


def check_only_writer(directory: Path) -> None:
    """Raise UserError if another process has taken the directory over."""
    mine = _held.get(_file_of(directory))
    if mine is None:
        return
    owner = _owner(_file_of(directory))
    if owner not in (None, mine):
        reason = f"another run has taken it over, {owner}; this one ends"
        raise UserError(IO_ERROR, f"--workdir={directory}: {reason}")


def _flock(stack: ExitStack, path: Path, what: str = "") -> bool:
    """Hold a lock of the operating system until the stack is closed. Return False if the file
    system has no locks.

    Args:
        what: setting to name in the error if another process holds the lock; empty: wait for it.
    """
    file: Any = stack.enter_context(open(path, "w"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if what else 0))
    except BlockingIOError as error:
        reason = "another run is going on there; wait or name another"
        raise UserError(USAGE, f"{what}: {reason}") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def _file_of(directory: Path) -> str:
    """Return the address of a directory's lock file."""
    return storage.address_of(directory / storage.LOCK)


def _owner(address: str) -> Owner | None:
    """Return the owner of a lock file; None while it is being written, or after it was removed."""
    try:
        fields: dict[str, Any] = {"machine": ""}
        fields |= json.loads(storage.read(address))
        return Owner(**fields)
    except (UserError, ValueError, TypeError):
        return None
