"""Prepare a token store: clean documents, encode them in several processes, and write their ids.

Memory is bounded for text of any size: the text is cut into shards as it is read, a pool of
processes encodes them, and their ids are appended in order. A journal records each written shard.
After a kill, the next run cuts off everything after the last recorded shard, and continues with the
next shard. The manifest is written last: a directory with a manifest is a store.
"""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from t5x_lite import locks, storage
from t5x_lite.cache import cache_directory
from t5x_lite.config import Data
from t5x_lite.config.grammar import names_files, parse_sources
from t5x_lite.config.permission import check_place
from t5x_lite.data.store.beam_pipeline import BeamEncoder, Pipeline
from t5x_lite.data.store.corpus import (
    MANIFEST,
    SPLITS,
    Corpus,
    Split,
    cache_of,
    keep_first,
    open_store,
)
from t5x_lite.data.store.encoding import EncoderPool, LocalEncoder, Progress, SourceEncoder
from t5x_lite.data.store.shards import (
    SourceSetting,
    combined_hash,
    list_sources,
    text_hash,
    training_texts,
)
from t5x_lite.data.text import sources
from t5x_lite.data.tokenizers import tokenizer
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_DATA, IO_ERROR, NO_FILE, UserError
from t5x_lite.progress import say

VERSION = 6  # version of the store: raised when the same settings give different bytes
JOURNAL = "journal.jsonl"

Record = dict[str, Any]  # a JSON object


def prepare(
    data: Data,
    beam_options: Sequence[str] | None = None,
) -> Corpus:
    """Open the store that the settings describe, and make it first if there is none.

    Several processes may call this at once: one makes the store, the others wait. A complete store
    that is named in `data.store` does not need its text any more. It is used even if the text
    cannot be reached, or if a file was touched but still has the same contents.

    Args:
        beam_options: options of Apache Beam, whose workers then read and encode the text; None:
            this machine does so.

    Raises:
        UserError: for text that cannot be used, code or places that are not permitted, or a store
            that was made from something else.
    """
    if data.store:
        check_place(data.store, "data.store")
    if storage.is_remote(data.store):
        corpus = _store_in_bucket(data, beam_options)
        _check_origin(corpus, data)
        return _to_train_on(corpus, data)
    if data.store and (Path(data.store) / MANIFEST).exists():
        corpus = open_store(Path(data.store).resolve())
        _check_origin(corpus, data)
        return _to_train_on(corpus, data)

    origin = _describe_origin(data)
    if data.store:
        store = Path(data.store).resolve()
    else:
        key = json.dumps(origin, sort_keys=True).encode()
        store = cache_directory() / "stores" / hashlib.sha256(key).hexdigest()[:16]
    if not store.name:
        reason = "not a directory that can be created; name another"
        raise UserError(BAD_DATA, f"data.store={data.store}: {reason}")
    if not (store / MANIFEST).exists():
        try:
            storage.make_directory(store.parent)
            with locks.wait_for_lock(f"{store}.lock"):
                if not (store / MANIFEST).exists():  # another process may have made it
                    pipeline = _pipeline(f"{store}.staging", origin, beam_options)
                    _make_store(data, origin, store, pipeline)
        except OSError as error:
            reason = f"the store could not be written: {error.strerror or error}"
            raise UserError(IO_ERROR, f"{store}: {reason}") from error

    corpus = open_store(store)
    if data.store:
        _check_origin(corpus, data)
    return _to_train_on(corpus, data)


def _to_train_on(corpus: Corpus, data: Data) -> Corpus:
    """Return the corpus that a run trains on: with the rates that the settings give its sources,
    and with at most data.unique_tokens tokens.
    """
    rates = [rate for rate, _ in parse_sources(data.source, "data.source")]
    rated = list(corpus.sources)
    for number, rate in enumerate(rates):
        rated[number] = replace(rated[number], rate=rate)
    rated_corpus = replace(corpus, sources=tuple(rated))
    if not data.unique_tokens:
        return rated_corpus
    return keep_first(rated_corpus, data.unique_tokens)


def _store_in_bucket(data: Data, beam_options: Sequence[str] | None) -> Corpus:
    """Open a store in a bucket. If there is none, make it in the cache and move it there."""
    address = data.store.rstrip("/")
    if not storage.exists(f"{address}/{MANIFEST}"):
        origin = _describe_origin(data)
        here = cache_of(f"{address} as it is made")
        here.parent.mkdir(parents=True, exist_ok=True)
        with locks.wait_for_lock(f"{address}.lock"):
            if not storage.exists(f"{address}/{MANIFEST}"):  # another process may have made it
                if not _is_made(here, origin):  # else an earlier run failed to copy it
                    pipeline = _pipeline(f"{address}.staging", origin, beam_options)
                    _make_store(data, origin, here, pipeline)
                storage.upload(here, address, last=MANIFEST)
                shutil.rmtree(here)
    return open_store(address)


def _is_made(store: Path, origin: Record) -> bool:
    """Return True if the store is complete and has this origin. Remove a complete store of another
    origin.
    """
    if not (store / MANIFEST).exists():
        return False
    made_from = json.loads((store / MANIFEST).read_text())["made_from"]
    is_same = made_from == json.loads(json.dumps(origin))
    if not is_same:
        shutil.rmtree(store)
    return is_same


# The origin of a store, which the manifest records as `made_from`.


def _describe_origin(data: Data) -> Record:
    """Describe the settings, the tokenizer and the text of a store."""
    return {
        "settings": _describe_settings(data),
        "tokenizer": _describe_tokenizer(data),
        "text": _describe_text(data),
    }


def _describe_settings(data: Data) -> Record:
    """Describe the settings that the tokens depend on, besides the text and the tokenizer.

    Two stores with the same settings, text and tokenizer have the same bytes.
    """
    validation = data.validation_fraction
    if data.validation_source:
        validation = "a source of its own"
    return {
        "document": data.document,
        "field": data.field,
        "add_specials": data.add_specials,
        "text_cleaning": asdict(data.text_cleaning),
        "version": VERSION,
        "validation": validation,
    }


def _describe_tokenizer(data: Data) -> str:
    """Return the setting, or a hash of the files that it names."""
    if not names_files(data.tokenizer):
        return data.tokenizer
    contents = tokenizer.files(data.tokenizer).values()
    return hashlib.sha256(b"".join(contents)).hexdigest()[:16]


def _describe_text(data: Data) -> list[list[str]]:
    """Return for each source its setting, its name, and a line that changes when its text does."""
    lines = []
    for source in list_sources(data):
        fingerprint = sources.fingerprint(source.name, source.key)
        lines.append([source.key, source.name, fingerprint])
    return lines


def _check_origin(corpus: Corpus, data: Data) -> None:
    """Reject a store that was made with other settings, or from other text.

    A tokenizer or text that cannot be reached is not compared.
    """
    origin = corpus.manifest["made_from"]
    for name, value in _describe_settings(data).items():
        stored_value = origin["settings"].get(name)
        if stored_value != value:
            raise _origin_error(corpus, name, stored_value, value)

    # Files may have moved, but their names and their order must be the same.
    stored_names = [Path(name).name for _, name, _ in origin["text"]]
    names = [Path(source.name).name for source in list_sources(data)]
    if names != stored_names:
        raise _origin_error(corpus, "the text", stored_names, names)

    with _if_reachable():
        description = _describe_tokenizer(data)
        if description != origin["tokenizer"]:
            raise _origin_error(corpus, "tokenizer", origin["tokenizer"], description)
    with _if_reachable():
        text = _describe_text(data)
        if text != origin["text"]:
            # Files were touched or moved, or their text is different: compare its hash.
            hashes = [text_hash(data, source) for source in list_sources(data)]
            if hashes != [record["text"] for record in corpus.manifest["sources"]]:
                raise _origin_error(corpus, "the text", origin["text"], text)


def _origin_error(corpus: Corpus, what: str, stored: object, now: object) -> UserError:
    fix = "name another data.store, or remove this one"
    return UserError(
        BAD_DATA, f"{corpus.path}: made with {what} {stored!r}, now it is {now!r}; {fix}"
    )


@contextmanager
def _if_reachable() -> Iterator[None]:
    """Ignore files that cannot be reached."""
    try:
        yield
    except UserError as error:
        if error.code != NO_FILE:
            raise


# Making a store.


def _pipeline(staging: str, origin: Record, beam_options: Sequence[str] | None) -> Pipeline | None:
    """Return the pipeline that makes a store, or None without Beam. Its staging directory depends
    on the origin, so results for another origin are not reused.
    """
    if beam_options is None:
        return None
    key = hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()[:16]
    return Pipeline(beam_options, f"{staging}-{key}")


def _make_store(
    data: Data,
    origin: Record,
    store: Path,
    pipeline: Pipeline | None,
) -> None:
    """Make the store, or continue to make it."""
    # A journal that was being written when the process was killed does not have its name yet.
    names = [name for name in storage.names_in(store) if not name.startswith(f"{JOURNAL}.")]
    if names and JOURNAL not in names:
        reason = "exists, but is not a token store; name another data.store"
        raise UserError(BAD_DATA, f"{store}: {reason}")
    storage.make_directory(store)
    journal = _Journal(store, origin)

    # Load the tokenizer, or make it.
    store_tokenizer = journal.tokenizer()
    if store_tokenizer is None:
        say(f"prepare: tokenizer {data.tokenizer} on {data.source}")
        texts = training_texts(data)
        store_tokenizer = tokenizer.make(data.tokenizer, texts, data.add_specials)
        store_tokenizer.save(store / "tokenizer")
        journal.write({"tokenizer": store_tokenizer.fingerprint})
    dtype = np.dtype("<u2" if store_tokenizer.vocabulary.size <= 1 << 16 else "<u4")

    # Write the ids of each source.
    records = []
    with ExitStack() as stack:
        if pipeline is None:
            pool = EncoderPool(store / "tokenizer", store_tokenizer, data, dtype)
            encode = LocalEncoder(data, stack.enter_context(pool))
        else:
            encode = BeamEncoder(data, store / "tokenizer", dtype, pipeline)
        for number, source in enumerate(list_sources(data)):
            records.append(_write_source(source, number, journal, encode))

    # Write the manifest, which makes the directory a store.
    totals: dict[Split, Record] = {}
    for split in SPLITS:
        totals[split] = _total([record[split] for record in records])
    _say_totals(data, totals, records)
    manifest = {
        "made_from": origin,
        "tokenizer": store_tokenizer.fingerprint,
        "lossless": store_tokenizer.lossless,
        "dtype": dtype.str,
        **totals,
        "sources": records,
    }
    storage.write_durably(store / MANIFEST, json.dumps(manifest, indent=1))
    (store / JOURNAL).unlink()
    if pipeline is not None:
        storage.remove(pipeline.staging)


def _total(counts: list[Record]) -> Record:
    """Return the counts of one split over all sources."""
    shard_hashes = [shard["sha256"] for source in counts for shard in source["shards"]]
    digest = hashlib.sha256("".join(shard_hashes).encode()).hexdigest()
    return {**_sum(counts), "sha256": digest}


def _sum(counts: list[Record]) -> Record:
    """Add up documents, tokens, bytes and words."""
    names = ["documents", "tokens", "bytes"]
    if all("words" in count for count in counts):  # an earlier version did not count them
        names.append("words")
    return {name: sum(count[name] for count in counts) for name in names}


def _say_totals(data: Data, totals: dict[Split, Record], records: list[Record]) -> None:
    """Show what the store holds and which issues its text had. Reject an empty split."""
    for split, total in totals.items():
        if not total["documents"]:
            raise UserError(
                BAD_DATA,
                f"data.source={data.source}: no document for {split}; give more text, "
                "set data.validation_fraction, or name data.validation_source",
            )
        bytes_per_token = total["bytes"] / total["tokens"]
        say(
            f"prepare: {split}: {total['documents']:,} documents, {total['tokens']:,} tokens, "
            f"{total['bytes']:,} bytes, {bytes_per_token:.2f} bytes a token"
        )
    for record in records:
        if record["text_cleaning"]:
            issues = [f"{count} {issue}" for issue, count in record["text_cleaning"].items()]
            say(f"prepare: {record['source']}: {', '.join(issues)}")


class _Journal:
    """Records, as JSON lines, what is already written of a store that is being made.

    The first line is the origin of the store, the second line its tokenizer, and each further line
    one shard.
    """

    def __init__(self, store: Path, origin: Record):
        self.store = store
        self._path = store / JOURNAL
        self._lines = self._read()
        origin = json.loads(json.dumps(origin))
        if not self._lines or self._lines[0] != origin:
            # The journal is new, or an earlier run was making something else: start over.
            self.forget()
            self._lines = []
            self.write(origin)

    def _read(self) -> list[Record]:
        if not self._path.exists():
            return []
        lines = self._path.read_text().splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):  # cut off by a kill
            lines.pop()
            os.truncate(self._path, len("".join(lines).encode()))
        try:
            return [json.loads(line) for line in lines]
        except ValueError:
            return []

    def write(self, record: Record) -> None:
        """Append a line to the journal."""
        with open(self._path, "a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def forget(self) -> None:
        """Empty the journal, so that the next run starts over."""
        storage.write_durably(self._path, "")

    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer of this store, or None if there is none yet."""
        if len(self._lines) < 2:
            return None
        return tokenizer.load(self.store / "tokenizer")

    def shards(self, number: int) -> list[Record]:
        """Return the records of a source's shards that are already written."""
        return [line for line in self._lines[2:] if line["source"] == number]


def _write_source(
    source: SourceSetting, number: int, journal: _Journal, encode: SourceEncoder
) -> Record:
    """Append the shards of one source to its files, and return its record for the manifest.

    Args:
        number: index of the source, from 0.

    Raises:
        UserError: if the text has changed since an earlier run that was killed.
    """
    written = journal.shards(number)
    earlier = [record["text"] for record in written]  # from an earlier run
    ends = written[-1]["ends"] if written else dict.fromkeys(SPLITS, 0)
    hashes: list[str] = []  # hash of the text of each shard
    with ExitStack() as stack:
        files = {}
        for split in SPLITS:
            file = _open_at(journal.store / f"{number}.{split}.bin", ends[split])
            files[split] = stack.enter_context(file)
        storage.flush(journal.store)  # make the new file names durable
        source_bytes = sources.size(source.name, source.key)
        progress = stack.enter_context(Progress(source.name, source_bytes))

        for text, encoded in encode(source, number, earlier, progress):
            hashes.append(text)
            # A shard of an earlier run is only compared; the others are written and recorded.
            if encoded is None:
                if text != earlier[len(hashes) - 1]:
                    break
                continue
            for split, file in files.items():
                file.write(encoded.ids[split])
                file.flush()
                os.fsync(file.fileno())  # before the journal says that it is written
            record = {
                "source": number,
                "text": text,
                "counts": encoded.counts,
                "ends": {split: file.tell() for split, file in files.items()},
            }
            journal.write(record)
            written.append(record)
            progress.add_written(sum(len(ids) for ids in encoded.ids.values()))

        if hashes != [record["text"] for record in written]:
            journal.forget()
            reason = "changed while its store was made; start again"
            raise UserError(BAD_DATA, f"{source.where}: {reason}")

    issues = encode.issues
    splits = {}
    for split in SPLITS:
        counts = [record["counts"][split] for record in written if split in record["counts"]]
        issues += Counter(single_token=sum(count["single_token"] for count in counts))
        shards = [{"tokens": count["tokens"], "sha256": count["sha256"]} for count in counts]
        splits[split] = {**_sum(counts), "shards": shards}
    return {
        "source": source.name,
        "text": combined_hash(hashes),
        "text_cleaning": dict(issues),
        **splits,
    }


def _open_at(path: Path, end: int) -> BinaryIO:
    """Open a file for appending, after cutting it off at the end of its complete part."""
    file = open(path, "ab")
    file.truncate(end)
    file.seek(end)
    return file
