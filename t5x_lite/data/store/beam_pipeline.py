"""Encode text on the workers of an Apache Beam pipeline, for text that would take one machine days
to read.

    part of a source ─ read, clean, split ─► shards ─ encode ─► staging/0-00003-00012.json, .ids

Workers write their results into a staging directory that all of them can reach. The process that
runs the pipeline then appends the results to the store, in order. The store is byte for byte the
same as one made on a single machine.
"""

import json
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from t5x_lite import storage
from t5x_lite.config import Data
from t5x_lite.config.permission import Permission, permission, with_permission
from t5x_lite.data.store.corpus import SPLITS, Split
from t5x_lite.data.store.encoding import EncodedShard, Progress, ShardEncoder, SingleTokenPolicy
from t5x_lite.data.store.shards import (
    Part,
    Shard,
    SourceSetting,
    SplitRule,
    clean_documents,
    make_shards,
    parts,
    shard_hash,
    split_documents,
    split_rule,
)
from t5x_lite.data.text.cleaning import Cleaner
from t5x_lite.data.tokenizers import tokenizer
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import IO_ERROR, UserError, optional_import

_TOKENIZER = "tokenizer"
_VOCABULARY = "vocabulary.json"
_ERROR = "error.json"


class Pipeline(NamedTuple):
    """The Beam pipeline that encodes each source of a store.

    Attributes:
        options: options of Apache Beam, such as ("--runner=DataflowRunner", "--project=…").
        staging: address of a directory that all workers can write to.
    """

    options: Sequence[str]
    staging: str


class BeamEncoder:
    """Encodes a source on the workers of a pipeline; see `SourceEncoder`."""

    def __init__(
        self,
        data: Data,
        tokenizer_directory: Path,
        dtype: np.dtype,
        pipeline: Pipeline,
    ):
        self.issues: Counter[str] = Counter()
        self._data = data
        self._dtype = dtype
        self._pipeline = pipeline
        storage.upload(tokenizer_directory, f"{pipeline.staging}/{_TOKENIZER}", last=_VOCABULARY)

    def __call__(
        self, source: SourceSetting, number: int, written: list[str], progress: Progress
    ) -> Iterator[tuple[str, EncodedShard | None]]:
        rule = split_rule(self._data, source)
        # Workers read the parts of the source, encode their shards, and write the results to
        # staging.
        parts_by_name = {
            f"{number}-{index:05}": part for index, part in enumerate(parts(source, rule))
        }
        staging = self._pipeline.staging
        single_token = self._data.text_cleaning.single_token
        self._run(
            parts_by_name,
            _ReadPart(self._data, source, rule, permission(), staging),
            _EncodeShard(single_token, self._dtype, staging),
        )

        # Collect the results in order, without the ids of shards that the store already holds.
        self.issues = Counter()
        count = 0
        for part_name in parts_by_name:
            part = _read_json(staging, part_name)
            self.issues.update(part["issues"])
            for shard_name in part["shards"]:
                shard = _read_json(staging, shard_name)
                progress.add_read(shard["bytes"])
                encoded = None
                if count >= len(written):
                    ids = self._read_ids(shard_name, shard["counts"])
                    encoded = EncodedShard(shard["counts"], ids)
                yield shard["text"], encoded
                count += 1

    def _run(self, parts_by_name: dict[str, Part], read: "_ReadPart", encode: "_EncodeShard"):
        """Run the pipeline to its end.

        Raises:
            UserError: with the error that a worker raised, or if the pipeline failed.
        """
        logging.disable(logging.WARNING)  # importing it warns about optional packages
        beam = optional_import("apache_beam", "beam", "--beam")
        options = optional_import("apache_beam.options.pipeline_options", "beam", "--beam")
        logging.disable(logging.NOTSET)
        staging = self._pipeline.staging
        storage.remove(f"{staging}/{_ERROR}")
        try:
            with beam.Pipeline(options=options.PipelineOptions(self._pipeline.options)) as pipeline:
                _ = (
                    pipeline
                    | "parts" >> beam.Create(list(parts_by_name.items()))
                    | "parts to all workers" >> beam.Reshuffle()
                    | "read" >> beam.FlatMap(read)
                    | "shards to all workers" >> beam.Reshuffle()
                    | "encode" >> beam.Map(encode)
                )
        except (Exception, SystemExit) as error:  # any runner's errors, and those of bad options
            if storage.exists(f"{staging}/{_ERROR}"):
                raised = json.loads(storage.read(f"{staging}/{_ERROR}"))
                raise UserError(raised["code"], raised["reason"]) from error
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(IO_ERROR, f"--beam: the pipeline failed: {said[-1]}") from error

    def _read_ids(self, name: str, counts: dict[Split, dict[str, Any]]) -> dict[Split, bytes]:
        """Read the ids that a worker made from a shard."""
        content = storage.read(f"{self._pipeline.staging}/{name}.ids")
        ids = dict.fromkeys(SPLITS, b"")
        start = 0
        for split in SPLITS:
            if split in counts:
                end = start + counts[split]["tokens"] * self._dtype.itemsize
                ids[split] = content[start:end]
                start = end
        return ids


def _read_json(staging: str, name: str) -> dict[str, Any]:
    """Read a record that a worker wrote to the staging directory."""
    if not storage.exists(f"{staging}/{name}.json"):
        reason = f"no worker wrote {staging}/{name}.json"
        fix = "name a data.store that all workers can write, as in a bucket"
        raise UserError(IO_ERROR, f"--beam: {reason}; {fix}")
    return json.loads(storage.read(f"{staging}/{name}.json"))


# Code that workers run. A worker may repeat the work of one that failed; the result is the same.


@dataclass(frozen=True)
class _ReadPart:
    """Reads a part of a source, and yields the names and texts of its shards."""

    data: Data
    source: SourceSetting
    rule: SplitRule
    permitted: Permission
    staging: str

    def __call__(self, named_part: tuple[str, Part]) -> Iterator[tuple[str, Shard]]:
        name, part = named_part
        cleaner = Cleaner(self.data.text_cleaning, self.source.where)
        names = []
        with _told(self.staging), with_permission(self.permitted):
            documents = clean_documents(self.data, self.source, cleaner, part)
            for shard in make_shards(split_documents(documents, self.rule)):
                names.append(f"{name}-{len(names):05}")
                yield names[-1], shard
        record = {"shards": names, "issues": dict(cleaner.counts)}
        storage.write(f"{self.staging}/{name}.json", json.dumps(record).encode())


@dataclass(frozen=True)
class _EncodeShard:
    """Encodes a shard, and writes the result to the staging directory."""

    single_token: SingleTokenPolicy
    dtype: np.dtype
    staging: str

    def __call__(self, named_shard: tuple[str, Shard]) -> None:
        name, shard = named_shard
        text = shard_hash(shard)
        place = f"{self.staging}/{name}"
        if storage.exists(f"{place}.json"):  # left by a pipeline that was killed
            record = json.loads(storage.read(f"{place}.json"))
            if record["text"] == text:
                return
        with _told(self.staging):
            encoder = ShardEncoder(_load_tokenizer(self.staging), self.single_token, self.dtype)
            encoded = encoder(shard)
        storage.write(f"{place}.ids", b"".join(encoded.ids[split] for split in SPLITS))
        size = sum(len(utf8) for _, utf8 in shard)
        record = {"text": text, "bytes": size, "counts": encoded.counts}
        storage.write(f"{place}.json", json.dumps(record).encode())


@cache
def _load_tokenizer(staging: str) -> Tokenizer:
    """Download the tokenizer, once per worker process."""
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory) / _TOKENIZER
        storage.download(f"{staging}/{_TOKENIZER}", here, last=_VOCABULARY)
        return tokenizer.load(here)


@contextmanager
def _told(staging: str) -> Iterator[None]:
    """Save a UserError where the process that runs the pipeline finds it, then raise it again."""
    try:
        yield
    except UserError as error:
        record = {"code": error.code, "reason": str(error)}
        storage.write(f"{staging}/{_ERROR}", json.dumps(record).encode())
        raise
