"""The ids of a store in a bucket. A shard is fetched when it is first read, and checked against the
manifest. When the disk is nearly full, the least recently read shards are removed.

    gs://bucket/store/0.train.bin ─ bytes of a shard ─► CACHE/shards/SHA256.bin ─► windows
"""

import copy
import hashlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite import storage
from t5x_lite.errors import BAD_DATA, IO_ERROR, UserError, user_errors

_AT_A_TIME = 32  # shards that are requested at once
# Disk space that stays free: this many bytes, or this share of a small disk.
_FREE_BYTES, _FREE_SHARE = 5 << 30, 0.05


class RemoteTokens:
    """Ids [N] that are read like an array: with `len`, slices, arrays of indices, `take` and
    comparisons, or all at once with `np.asarray`. Several threads and processes can read them.

    Args:
        address: file with the ids of all shards, one after another.
        cache: local directory for shards. If it cannot be written, a shard is fetched each time it
            is read.
        dtype: type of the ids.
        shards: "tokens" and "sha256" of each shard.

    Reading raises UserError if a shard cannot be reached, or is not the one that was prepared.
    """

    def __init__(
        self, address: str, cache: Path, dtype: np.dtype, shards: Sequence[dict[str, Any]]
    ):
        self.dtype = dtype
        self._address, self._cache = address, cache
        self._ends = np.cumsum([shard["tokens"] for shard in shards], dtype=np.int64)
        self._length = int(self._ends[-1]) if len(self._ends) else 0
        self._hashes = [shard["sha256"] for shard in shards]
        self._checked: set[int] = set()  # shards whose hashes this process has checked
        self._warned = False
        self._fetching = threading.Lock()

    def __len__(self) -> int:
        return self._length

    def first(self, length: int) -> "RemoteTokens":
        """Return the first `length` of these ids, read in the same way."""
        part = copy.copy(self)
        part._length = length
        return part

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or self.dtype, copy=False)

    def __eq__(self, other: object) -> Any:
        return np.asarray(self) == other

    def __getitem__(self, places: slice | np.ndarray) -> np.ndarray:
        if not isinstance(places, slice):
            return self.take(places)
        begin, end, stride = places.indices(len(self))
        if stride != 1:
            return self.take(np.arange(begin, end, stride))
        found = np.empty(max(end - begin, 0), self.dtype)
        if not len(found):
            return found
        first, last = self._shard_of(np.array([begin, end - 1])).tolist()
        needed = [n for n in range(first, last + 1) if self._begin(n) < self._ends[n]]
        # Copy the part of each shard that falls into the slice.
        for number, shard in self._read(needed):
            at = self._begin(number) - begin  # position of the shard's first id in `found`
            found[max(at, 0) : at + len(shard)] = shard[max(-at, 0) : len(found) - at]
        return found

    def take(self, places: np.ndarray, mode: str = "raise") -> np.ndarray:
        """Return the ids at these positions, from 0; `mode` is as in `np.ndarray.take`."""
        if places.dtype.kind not in "iu":
            raise TypeError(f"places of {places.dtype}; expected whole numbers")
        flat = places.reshape(-1).astype(np.int64)
        if mode == "wrap":
            flat %= len(self)
        elif mode == "clip":
            flat = flat.clip(0, len(self) - 1)
        elif flat.size and (flat.min() < 0 or flat.max() >= len(self)):
            raise IndexError(f"a place outside {len(self)} tokens")
        found = np.empty(flat.shape, self.dtype)
        # Group the positions by shard, so that each shard is read once.
        numbers = self._shard_of(flat)
        by_shard = np.argsort(numbers, kind="stable")
        needed, counts = np.unique(numbers, return_counts=True)
        ends = np.cumsum(counts)
        shards = self._read(needed.tolist())
        for (number, shard), end, count in zip(shards, ends, counts, strict=True):
            of_shard = by_shard[end - count : end]
            found[of_shard] = shard[flat[of_shard] - self._begin(number)]
        return found.reshape(places.shape)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_fetching"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _fetching=threading.Lock())

    def _shard_of(self, places: np.ndarray) -> np.ndarray:
        """Return the index of the shard that holds each position."""
        return np.searchsorted(self._ends, places, side="right")

    def _begin(self, number: int) -> int:
        """Return the position of a shard's first id."""
        return int(self._ends[number - 1]) if number else 0

    def _read(self, numbers: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield these shards in order, each with its number. Shards that are not in the cache are
        fetched.
        """
        for first in range(0, len(numbers), _AT_A_TIME):
            group = numbers[first : first + _AT_A_TIME]
            here = {number: self._read_here(number) for number in group}
            if any(shard is None for shard in here.values()):
                with self._fetching:  # another thread may have fetched them meanwhile
                    here |= {number: self._read_here(number) for number in group}
                    missing = [number for number, shard in here.items() if shard is None]
                    here |= self._fetch(missing) if missing else {}
            for number, shard in here.items():
                assert shard is not None
                yield number, shard

    def _read_here(self, number: int) -> np.ndarray | None:
        """Return a shard from the cache; None if it is missing, incomplete or damaged."""
        path = self._cache / f"{self._hashes[number]}.bin"
        with suppress(OSError):
            os.utime(path)  # mark it as just read
        try:
            shard = np.asarray(np.memmap(path, self.dtype, "r"))
        except (OSError, ValueError):  # ValueError: not a whole number of ids
            return None
        if len(shard) != self._ends[number] - self._begin(number):
            return None
        if number not in self._checked:
            if hashlib.sha256(shard.data).hexdigest() != self._hashes[number]:
                return None
            self._checked.add(number)
        return shard

    def _fetch(self, numbers: Sequence[int]) -> dict[int, np.ndarray]:
        """Fetch shards from the bucket, and keep them in the cache."""
        files, path = storage.file_system(self._address)
        size = self.dtype.itemsize
        begins = [self._begin(number) * size for number in numbers]
        ends = [int(self._ends[number]) * size for number in numbers]
        with user_errors(IO_ERROR, f"{self._address}: cannot be read"):
            contents = files.cat_ranges([path] * len(numbers), begins, ends, on_error="raise")
            for content in contents:
                if isinstance(content, Exception):  # some file systems return errors regardless
                    raise content
        fetched = {}
        for number, content in zip(numbers, contents, strict=True):
            if hashlib.sha256(content).hexdigest() != self._hashes[number]:
                place = self._begin(number)
                reason = f"changed since it was prepared (token {place} on); remove the store"
                raise UserError(BAD_DATA, f"{self._address}: {reason}")
            self._keep(number, content)
            fetched[number] = np.frombuffer(content, self.dtype)
        return fetched

    def _keep(self, number: int, content: bytes) -> None:
        """Write a shard to the cache, as a whole or not at all. Warn once if that fails."""
        partial = None
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            self._make_room()
            descriptor, partial = tempfile.mkstemp(".partial", dir=self._cache)
            with open(descriptor, "wb") as file:
                file.write(content)
            os.replace(partial, self._cache / f"{self._hashes[number]}.bin")
            self._checked.add(number)
        except OSError as error:
            if partial is not None:
                Path(partial).unlink(missing_ok=True)
            if not self._warned:
                reason = f"cannot keep ids of {self._address} ({error.strerror})"
                fix = "make room, or set T5X_LITE_CACHE"
                print(
                    f"t5x_lite: {self._cache}: {reason}, so they are fetched each time; {fix}",
                    file=sys.stderr,
                )
            self._warned = True

    def _make_room(self) -> None:
        """If the disk is nearly full, remove the least recently read tenth of the files in the
        cache. This includes partial files of killed processes.
        """
        disk = shutil.disk_usage(self._cache)
        if disk.free >= min(_FREE_BYTES, _FREE_SHARE * disk.total):
            return
        shards = []
        for path in self._cache.iterdir():
            with suppress(OSError):  # another process may remove it too
                shards.append((path.stat().st_mtime, path))
        for _, path in sorted(shards)[: -(-len(shards) // 10)]:
            with suppress(OSError):
                path.unlink()
