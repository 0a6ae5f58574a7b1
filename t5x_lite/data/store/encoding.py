"""Encode shards of text as ids in several processes, and show the progress."""

import hashlib
import multiprocessing
import os
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from t5x_lite.config import Data
from t5x_lite.data.store.corpus import SPLITS, Split
from t5x_lite.data.store.shards import Shard, SourceSetting, read_shards, shard_hash
from t5x_lite.data.text.cleaning import Cleaner
from t5x_lite.data.tokenizers import tokenizer
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_DATA, UserError
from t5x_lite.progress import bar, say
from t5x_lite.workers import end_with_parent

SingleTokenPolicy = Literal["keep", "skip", "stop"]  # what to do with documents of one token


class EncodedShard(NamedTuple):
    """Result of encoding a shard."""

    counts: dict[Split, dict[str, Any]]  # documents, tokens, bytes, words, single_token, sha256
    ids: dict[Split, bytes]


@dataclass(frozen=True)
class ShardEncoder:
    """Encodes the documents of a shard, and puts EOS after each one."""

    tokenizer: Tokenizer
    single_token: SingleTokenPolicy
    dtype: np.dtype  # type of the ids

    def __call__(self, shard: Shard) -> EncodedShard:
        counts = {}
        ids = dict.fromkeys(SPLITS, b"")
        for split in SPLITS:
            documents = [utf8 for document_split, utf8 in shard if document_split == split]
            if documents:
                counts[split], ids[split] = self._encode(documents)
        return EncodedShard(counts, ids)

    def _encode(self, documents: list[bytes]) -> tuple[dict[str, Any], bytes]:
        """Return counts and ids of the documents of one split."""
        eos = np.array([self.tokenizer.vocabulary.eos], self.dtype)
        parts = [np.zeros(0, self.dtype)]
        kept_documents = 0
        kept_bytes = 0
        words = 0
        single_tokens = 0
        for utf8 in documents:
            tokens = self.tokenizer.encode(utf8.decode())
            if len(tokens) <= 1:
                single_tokens += 1
                if self.single_token == "stop":
                    fix = "fix it, or set data.text_cleaning.single_token"
                    raise UserError(BAD_DATA, f"data.source: {utf8!r} is one token; {fix}")
                if self.single_token == "skip":
                    continue
            parts.append(tokens.astype(self.dtype))
            parts.append(eos)
            kept_documents += 1
            kept_bytes += len(utf8)
            words += len(utf8.split())
        all_ids = np.concatenate(parts)
        content = all_ids.tobytes()
        counts = {
            "documents": kept_documents,
            "tokens": len(all_ids),
            "bytes": kept_bytes,
            "words": words,
            "single_token": single_tokens,
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        return counts, content


# Worker processes. Each loads the tokenizer once, then encodes the shards that it is sent.

_worker_encoder: ShardEncoder | None = None


def _start_worker(
    tokenizer_directory: Path, single_token: SingleTokenPolicy, dtype: np.dtype
) -> None:
    """Load the tokenizer when a worker process starts."""
    global _worker_encoder
    end_with_parent()
    _worker_encoder = ShardEncoder(tokenizer.load(tokenizer_directory), single_token, dtype)


def _encode_in_worker(shard: Shard) -> EncodedShard:
    assert _worker_encoder is not None
    return _worker_encoder(shard)


class EncoderPool:
    """Encodes shards in several processes. The first shard is encoded in the calling process, so
    that a small text starts no others.

    Args:
        tokenizer_directory: where the tokenizer is saved, for the other processes.
        dtype: type of the ids.
    """

    def __init__(
        self, tokenizer_directory: Path, tokenizer: Tokenizer, data: Data, dtype: np.dtype
    ):
        self.size = data.processes or os.cpu_count() or 1
        self._encoder = ShardEncoder(tokenizer, data.text_cleaning.single_token, dtype)
        self._tokenizer_directory = tokenizer_directory
        self._executor: ProcessPoolExecutor | None = None
        self._submitted = 0

    def submit(self, shard: Shard) -> Future[EncodedShard]:
        """Start encoding a shard."""
        self._submitted += 1
        if self._submitted == 1 or self.size == 1:
            future = Future()
            future.set_result(self._encoder(shard))
            return future
        if self._executor is None:
            self._executor = self._start_executor()
        return self._executor.submit(_encode_in_worker, shard)

    def _start_executor(self) -> ProcessPoolExecutor:
        encoder = self._encoder
        return ProcessPoolExecutor(
            self.size,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(self._tokenizer_directory, encoder.single_token, encoder.dtype),
        )

    def __enter__(self) -> "EncoderPool":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)


class SourceEncoder(Protocol):
    """Encodes the text of a source.

    Attributes:
        issues: number of documents with each issue, in the source that was encoded last.
    """

    issues: Counter[str]

    def __call__(
        self, source: SourceSetting, number: int, written: list[str], progress: "Progress"
    ) -> Iterator[tuple[str, EncodedShard | None]]:
        """Yield for each shard, in order, the hash of its text and the encoded shard, or None if it
        is already written.

        Args:
            number: index of the source, from 0.
            written: hashes of the source's first shards, which are already written. These shards
                are not encoded again.
            progress: counts the bytes that are read.
        """
        ...


class LocalEncoder:
    """Encodes a source on this machine; see `SourceEncoder`."""

    def __init__(self, data: Data, pool: EncoderPool):
        self.issues: Counter[str] = Counter()
        self._data = data
        self._pool = pool

    def __call__(
        self, source: SourceSetting, number: int, written: list[str], progress: "Progress"
    ) -> Iterator[tuple[str, EncodedShard | None]]:
        cleaner = Cleaner(self._data.text_cleaning, source.where)
        self.issues = cleaner.counts
        pending: deque[tuple[str, Future[EncodedShard]]] = deque()  # oldest first
        for index, shard in enumerate(read_shards(self._data, source, cleaner)):
            text = shard_hash(shard)
            progress.add_read(sum(len(utf8) for _, utf8 in shard))
            if index < len(written):
                yield text, None
                continue
            pending.append((text, self._pool.submit(shard)))
            # Keep enough shards waiting to occupy all processes, but no more, to bound memory.
            if len(pending) > self._pool.size:
                oldest, future = pending.popleft()
                yield oldest, future.result()
        while pending:
            oldest, future = pending.popleft()
            yield oldest, future.result()


class Progress:
    """Progress of a source: a bar on a terminal, or else a line every few seconds.

    Args:
        total: bytes of text; 0 if not known.
    """

    def __init__(self, name: str, total: int):
        self._name = name
        self._total = total
        self._bytes_read = 0
        self._bytes_written = 0
        self._start_time = time.monotonic()
        self._last_line_time = self._start_time
        self._bar = bar(name)
        self._task = self._bar.add_task("", total=total or None, line="")

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def add_read(self, count: int) -> None:
        """Count bytes of text that were read."""
        self._bytes_read += count

    def add_written(self, count: int) -> None:
        """Count bytes of ids that were written, and update the display."""
        self._bytes_written += count
        now = time.monotonic()
        line = self._line(now)
        self._bar.update(self._task, completed=self._bytes_read, line=line)
        is_terminal = not self._bar.disable
        if not is_terminal and now - self._last_line_time > 5:
            self._last_line_time = now
            say(f"prepare: {self._name}: {line}")

    def _line(self, now: float) -> str:
        """Format the bytes read, the speed, the size of the ids and, if known, the time left."""
        bytes_per_second = self._bytes_read / max(now - self._start_time, 1e-9)
        line = (
            f"{self._bytes_read / 1e6:,.0f} MB read, {bytes_per_second / 1e6:.1f} MB/s, "
            f"{self._bytes_written / 1e6:,.0f} MB of tokens"
        )
        if self._total <= self._bytes_read:
            return line
        seconds_left = (self._total - self._bytes_read) / bytes_per_second
        expected_bytes = self._bytes_written * self._total / self._bytes_read
        return f"{line}, ETA {seconds_left:.0f}s, then {expected_bytes / 1e6:,.0f} MB"
