"""The ids of a store in a bucket. A shard comes here when it is first read, and is checked against
the manifest; when the disk is nearly full, those that were read longest ago go.

    gs://bucket/store/0.train.bin ─ bytes of a shard ─► CACHE/0.train/17.bin ─► windows
"""

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite import storage
from t5x_lite.errors import BAD_DATA, IO_ERROR, UserError, user_errors

_AT_A_TIME = 32  # shards that are asked for at once
_FREE_SHARE = 0.05  # of the disk, that stays free


class RemoteTokens:
    """Ids [N] that are read like an array: `len`, by slices, by places, and all by `np.asarray`.

    Args:
        address: of the file with the ids of all shards, one after another.
        cache: the directory here for its shards.
        shards: "tokens" and "sha256" of each.

    Reading raises UserError where a shard cannot be reached or kept, or is not the one that was
    prepared.
    """

    def __init__(
        self, address: str, cache: Path, dtype: np.dtype, shards: Sequence[dict[str, Any]]
    ):
        self.dtype = dtype
        self._address, self._cache = address, cache
        self._ends = np.cumsum([shard["tokens"] for shard in shards])
        self._hashes = [shard["sha256"] for shard in shards]
        self._checked: set[int] = set()  # shards here that have been checked by this process
        cache.mkdir(exist_ok=True)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or self.dtype, copy=False)

    def __getitem__(self, places: slice | np.ndarray) -> np.ndarray:
        if not isinstance(places, slice):
            return self.take(places)
        begin, end, stride = places.indices(len(self))
        assert stride == 1, "a slice of every token"
        if begin >= end:
            return np.zeros(0, self.dtype)
        first, last = self._shard_of(np.array([begin, end - 1])).tolist()
        needed = [n for n in range(first, last + 1) if self._begin(n) < self._ends[n]]
        shards = np.concatenate([shard for _, shard in self._read(needed)])
        return shards[begin - self._begin(first) :][: end - begin]

    def take(self, places: np.ndarray, mode: str = "raise") -> np.ndarray:
        """The ids at those places, as of `np.ndarray.take`."""
        if mode == "wrap":
            places = places % len(self)
        elif mode == "clip":
            places = np.clip(places, 0, len(self) - 1)
        elif places.size and (places.min() < 0 or places.max() >= len(self)):
            raise IndexError(f"a place outside {len(self)} tokens")
        flat = places.reshape(-1)
        found = np.empty(flat.shape, self.dtype)
        numbers = self._shard_of(flat)
        by_shard = np.argsort(numbers, kind="stable")
        needed, counts = np.unique(numbers, return_counts=True)
        ends = np.cumsum(counts)
        for (number, shard), end, count in zip(
            self._read(needed.tolist()), ends, counts, strict=True
        ):
            of_shard = by_shard[end - count : end]
            found[of_shard] = shard[flat[of_shard] - self._begin(number)]
        return found.reshape(places.shape)

    def _shard_of(self, places: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._ends, places, side="right")

    def _begin(self, number: int) -> int:
        return int(self._ends[number - 1]) if number else 0

    def _path(self, number: int) -> Path:
        return self._cache / f"{number}.bin"

    def _read(self, numbers: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Those shards, in that order."""
        for first in range(0, len(numbers), _AT_A_TIME):
            group = numbers[first : first + _AT_A_TIME]
            here = {number: self._read_here(number) for number in group}
            missing = [number for number, shard in here.items() if shard is None]
            here |= self._fetch(missing)
            for number, shard in here.items():
                assert shard is not None
                yield number, shard

    def _read_here(self, number: int) -> np.ndarray | None:
        """A shard that is here; None: it is not, or not whole."""
        path = self._path(number)
        try:
            os.utime(path)  # it was read just now
            shard = np.asarray(np.memmap(path, self.dtype, "r"))
        except (OSError, ValueError):  # ValueError: of no whole number of ids
            return None
        if number not in self._checked:
            if hashlib.sha256(shard.data).hexdigest() != self._hashes[number]:
                return None
            self._checked.add(number)
        return shard

    def _fetch(self, numbers: Sequence[int]) -> dict[int, np.ndarray]:
        """Bring shards here."""
        if not numbers:
            return {}
        files, path = storage.file_system(self._address)
        size = self.dtype.itemsize
        begins = [self._begin(number) * size for number in numbers]
        ends = [int(self._ends[number]) * size for number in numbers]
        with user_errors(IO_ERROR, f"{self._address}: cannot be read"):
            contents = files.cat_ranges([path] * len(numbers), begins, ends, on_error="raise")
        fetched = {}
        for number, content in zip(numbers, contents, strict=True):
            if hashlib.sha256(content).hexdigest() != self._hashes[number]:
                place = self._begin(number)
                reason = f"changed since it was prepared (token {place} on); remove the store"
                raise UserError(BAD_DATA, f"{self._address}: {reason}")
            self._keep(number, content)
            self._checked.add(number)
            fetched[number] = np.frombuffer(content, self.dtype)
        return fetched

    def _keep(self, number: int, content: bytes) -> None:
        """Write a shard here, at once or not at all."""
        self._make_room()
        partial = self._cache / f"{number}.{os.getpid()}.partial"
        fix = "make room, or set T5X_LITE_CACHE to a larger disk"
        with user_errors(IO_ERROR, f"{self._cache}: cannot be written; {fix}"):
            partial.write_bytes(content)
            os.replace(partial, self._path(number))

    def _make_room(self) -> None:
        """While the disk is nearly full: remove a tenth of the shards, those read longest ago."""
        disk = shutil.disk_usage(self._cache)
        if disk.free >= _FREE_SHARE * disk.total:
            return
        shards = []
        for path in self._cache.glob("*.bin"):
            with suppress(OSError):  # another process does the same
                shards.append((path.stat().st_mtime, path))
        for _, path in sorted(shards)[: -(-len(shards) // 10)]:
            path.unlink(missing_ok=True)
