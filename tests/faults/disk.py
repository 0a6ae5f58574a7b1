"""A disk that fails, and one that loses what was not flushed when the power goes.

disk.c records what a process writes below a directory, call by call, and lets calls fail. `Disk`
does the recorded calls again, and knows after each what would be left without power.

A file has the content that it had when it was flushed last, or a later one; a directory has the
names that it had when it was flushed last, or later ones. More is not promised: POSIX, fsync.
"""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SOURCE = Path(__file__).with_suffix(".c")


@cache
def library(directory: Path) -> Path:
    """The compiled disk.c."""
    made = directory / "disk.so"
    words = ["cc", "-O1", "-shared", "-fPIC", "-o", made, SOURCE, "-ldl", "-lpthread"]
    subprocess.run(list(map(str, words)), check=True)
    return made


def watched(directory: Path, below: Path, **more: Any) -> dict[str, str]:
    """The environment of a process whose calls below a directory are watched.

    Args:
        directory: where the library is made.
        more: log, a file that the calls are recorded in; or error, start and times: which error
            calls have, from the how many-th on, and how many; names=1: only those that make a file
            or a directory.
    """
    settings = {f"DISK_{name.upper()}": str(value) for name, value in more.items()}
    return {"LD_PRELOAD": str(library(directory)), "DISK_BELOW": str(below.resolve()), **settings}


class Call(NamedTuple):
    """A call that succeeded."""

    name: str
    path: Path
    target: Path  # of a rename
    offset: int
    content: bytes


def read_calls(log: Path) -> Iterator[Call]:
    """Read what disk.c has recorded."""
    with log.open("rb") as file:
        content = file.read()
    place = 0
    while place < len(content):
        texts = []
        for _ in range(5):
            end = content.index(b"\0", place)
            texts.append(content[place:end].decode())
            place = end + 1
        name, path, target, offset, length = texts
        end = place + int(length)
        yield Call(name, Path(path), Path(target), int(offset), content[place:end])
        place = end


@dataclass
class File:
    """A file: what a process reads, and what is on the device at least."""

    content: bytearray = field(default_factory=bytearray)
    flushed: bytes = b""


@dataclass
class Directory:
    """A directory: the names that a process sees, and those on the device at least."""

    names: dict[str, "File | Directory"] = field(default_factory=dict)
    flushed: dict[str, "File | Directory"] = field(default_factory=dict)


class Disk:
    """What the calls of a process have left below a directory, which was empty before."""

    def __init__(self, top: Path):
        self._top = top
        self.root = Directory()

    def _find(self, path: Path) -> "File | Directory":
        found: File | Directory = self.root
        for name in path.relative_to(self._top).parts:
            assert isinstance(found, Directory)
            found = found.names[name]
        return found

    def _parent(self, path: Path) -> Directory:
        found = self._find(path.parent)
        assert isinstance(found, Directory)
        return found

    def do(self, call: Call) -> None:
        """Do a call again."""
        if call.name == "directory":
            if call.path != self._top:
                self._parent(call.path).names[call.path.name] = Directory()
        elif call.name in ("create", "truncate"):
            file = self._parent(call.path).names.setdefault(call.path.name, File())
            if call.name == "truncate":
                file.content.clear()  # type: ignore[union-attr]
        elif call.name == "remove":
            del self._parent(call.path).names[call.path.name]
        elif call.name == "rename":
            moved = self._parent(call.path).names.pop(call.path.name)
            self._parent(call.target).names[call.target.name] = moved
        else:
            self._change(call, self._find(call.path))

    def _change(self, call: Call, node: "File | Directory") -> None:
        """Do a call on an open file again."""
        if isinstance(node, Directory):
            assert call.name == "flush"
            node.flushed = dict(node.names)
        elif call.name == "flush":
            node.flushed = bytes(node.content)
        elif call.name == "cut":
            node.content = node.content[: call.offset].ljust(call.offset, b"\0")
        else:
            end = call.offset + len(call.content)
            node.content = node.content.ljust(end, b"\0")
            node.content[call.offset : end] = call.content

    def write(self, target: Path, fate: Callable[[], str]) -> None:
        """Write what is left without power.

        Args:
            fate: says for each file and directory whether all that was done to it is on the device
                ("kept"), only what was flushed ("lost"), or of a file also its size ("zeros").
        """
        self._write(self.root, target, fate)

    def _write(self, node: Directory, target: Path, fate: Callable[[], str]) -> None:
        target.mkdir()
        names = node.names if fate() == "kept" else node.flushed
        for name, inner in names.items():
            if isinstance(inner, Directory):
                self._write(inner, target / name, fate)
                continue
            content, chosen = bytes(inner.content), fate()
            if chosen != "kept":
                size = len(content) if chosen == "zeros" else 0
                content = inner.flushed.ljust(size, b"\0")
            (target / name).write_bytes(content)


FATES = ("kept", "lost", "zeros")


def fates(rng: np.random.Generator) -> tuple[Callable[[], str], ...]:
    """A process that is killed, two devices that lose all they may, and one that loses some."""
    return (*(lambda fate=fate: fate for fate in FATES), lambda: str(rng.choice(FATES)))
