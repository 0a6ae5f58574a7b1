"""Shards of text to ids, in several processes, and how far that is."""

import hashlib
import multiprocessing
import os
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import numpy as np

from t5x_lite.config import Data
from t5x_lite.data import tokenizer
from t5x_lite.data.corpus import SPLITS
from t5x_lite.data.shards import Shard
from t5x_lite.errors import BAD_DATA, Refusal
from t5x_lite.progress import bar


def _encode(chosen: tokenizer.Tokenizer, one_token: str, dtype: np.dtype, shard: Shard) -> tuple[dict, dict]:
    """Counts and ids (as bytes) of a shard, by split."""
    counts, ids = {}, dict.fromkeys(SPLITS, b"")
    for split in SPLITS:
        made, documents, size, short = [], 0, 0, 0
        for raw in (raw for s, raw in shard if s == split):
            tokens = chosen.encode(raw.decode())
            if len(tokens) <= 1:
                short += 1
                if one_token == "stop":
                    raise Refusal(BAD_DATA, f"data.source: {raw!r} is one token; mend it, or set data.dirt.one_token")
                if one_token == "skip":
                    continue
            made += [tokens.astype(dtype), np.array([chosen.vocabulary.eos], dtype)]
            documents += 1
            size += len(raw)
        if documents or short:
            whole = np.concatenate(made) if made else np.zeros(0, dtype)
            ids[split] = whole.tobytes()
            counts[split] = {"documents": documents, "tokens": len(whole), "bytes": size, "one_token": short}
            counts[split]["sha256"] = hashlib.sha256(ids[split]).hexdigest()
    return counts, ids


_worker = {}


def _begin(directory: Path, *settings) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker["encode"] = (tokenizer.load(directory), *settings)


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)  # it was killed, and nobody waits for what this one makes


def _in_worker(shard):
    return _encode(*_worker["encode"], shard)


class Pool:
    """Makes ids of shards: the first in this process, so that small texts need no other, the rest in several."""

    def __init__(self, directory: Path, chosen, data: Data, dtype: np.dtype):
        self._settings = data.dirt.one_token, dtype
        self._directory, self._chosen = directory, chosen
        self.size = data.processes or os.cpu_count() or 1
        self._pool, self._seen = None, 0

    def submit(self, shard: Shard) -> Future:
        """Its result is (counts, ids): see `_encode`."""
        self._seen += 1
        if self._seen == 1 or self.size == 1:
            done = Future()
            done.set_result(_encode(self._chosen, *self._settings, shard))
            return done
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            begin = (self._directory, *self._settings)
            self._pool = ProcessPoolExecutor(self.size, context, _begin, begin)
        return self._pool.submit(_in_worker, shard)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._pool:
            self._pool.shutdown(cancel_futures=True)


class Progress:
    """How far a source is: a bar on a terminal, elsewhere a line now and then. total: bytes of text, 0: not known."""

    def __init__(self, name: str, total: int, say):
        self._name, self._total, self._say = name, total, say
        self._read = self._wrote = 0
        self._start = self._shown = time.monotonic()
        self._bar = bar(name)
        self._task = self._bar.add_task("", total=total or None, line="")

    def __enter__(self):
        self._bar.start()
        return self

    def __exit__(self, *_):
        self._bar.stop()

    def read(self, size: int) -> None:
        """So many bytes of text more were read."""
        self._read += size

    def wrote(self, size: int) -> None:
        """So many bytes of ids more were written."""
        self._wrote += size
        seconds = time.monotonic() - self._start
        rate = self._read / max(seconds, 1e-9)
        line = f"{self._read / 1e6:,.0f} MB read, {rate / 1e6:.1f} MB/s, {self._wrote / 1e6:,.0f} MB of tokens"
        if self._total > self._read:
            left = (self._total - self._read) / rate
            line += f", ETA {left:.0f}s, then {self._wrote * self._total / self._read / 1e6:,.0f} MB"
        self._bar.update(self._task, completed=self._read, line=line)
        if self._bar.disable and time.monotonic() - self._shown > 5:
            self._shown = time.monotonic()
            self._say(f"prepare: {self._name}: {line}")
