"""Making a token store: documents, cleaned, to ids, in shards, by several processes, in bounded memory.

Shards of the text are cut as it is read, made into ids by a pool of processes, and appended in order. A journal names
each one that is done: a run that was killed cuts off what came after the last, and goes on with the next. The manifest
comes last, and makes it a store.
"""

import fcntl
import hashlib
import json
import os
from collections import Counter, deque
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from t5x_lite.config import Data
from t5x_lite.data import sources, tokenizer
from t5x_lite.data.cleaning import Cleaner
from t5x_lite.data.corpus import SPLITS, Corpus, cache, open_store
from t5x_lite.data.encoding import Pool, Progress
from t5x_lite.data.shards import divided, hash_of, hash_of_all, named, shards, text_hash, training_texts
from t5x_lite.errors import BAD_DATA, IO_ERROR, NO_FILE, Refusal
from t5x_lite.settings import names_files, source_terms

VERSION = 4
JOURNAL = "journal.jsonl"


def settings_of(data: Data) -> dict:
    """What makes tokens of a text, beside the text: two stores of equal settings and equal text have the same bytes."""
    made = {name: getattr(data, name) for name in ("document", "field", "add_specials")}
    made |= {"dirt": asdict(data.dirt), "version": VERSION}
    made["validation"] = "a source of its own" if data.validation_source else data.validation_fraction
    return made


def tokenizer_of(data: Data) -> str:
    """Which tokenizer it is: the setting, or a hash of the files it names."""
    if not names_files(data.tokenizer):
        return data.tokenizer
    return hashlib.sha256(b"".join(tokenizer.files(data.tokenizer).values())).hexdigest()[:16]


def text_of(data: Data) -> list[list[str]]:
    """Which text it is, in the order of its sources: the setting, the name, and what changes when the text does."""
    return [[key, name, sources.fingerprint(name, key)] for name, key in named(data)]


def prepare(data: Data, say=print) -> Corpus:
    """Open the store that the settings describe, and make it first where it is missing.

    Several processes may ask at once: one makes it, the others wait. A store that was named (`data.store`) and is
    whole needs its text no more: it is used where the text cannot be reached, and where it was touched but is the same.
    Raises Refusal for text that cannot be used, and for a store that was made from something else.
    """
    if data.store and (Path(data.store) / "manifest.json").exists():
        return _rated(_as_described(open_store(Path(data.store).resolve()), data), data)
    made_from = {"settings": settings_of(data), "tokenizer": tokenizer_of(data), "text": text_of(data)}
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]
    store = Path(data.store).resolve() if data.store else cache() / "stores" / key
    if not store.name:
        raise Refusal(BAD_DATA, f"data.store={data.store}: is no directory that can be made; name another")
    if not (store / "manifest.json").exists():
        try:
            store.parent.mkdir(parents=True, exist_ok=True)
            with _locked(store.with_name(store.name + ".lock")):
                if not (store / "manifest.json").exists():
                    _make(data, made_from, store, say)
        except OSError as error:
            raise Refusal(IO_ERROR, f"{store}: the store could not be written: {error.strerror or error}") from error
    corpus = open_store(store)
    return _rated(_as_described(corpus, data) if data.store else corpus, data)


def _rated(corpus: Corpus, data: Data) -> Corpus:
    """The corpus with the rates that the settings give its sources."""
    rates = [rate for rate, _ in source_terms(data.source, "data.source")]
    rates += [0.0] * (len(corpus.sources) - len(rates))
    rated = (replace(source, rate=rate) for source, rate in zip(corpus.sources, rates, strict=True))
    return replace(corpus, sources=tuple(rated))


def _as_described(corpus: Corpus, data: Data) -> Corpus:
    """The corpus; refused where it was not made as the settings say, or of another text."""

    def refuse(what, had, now):
        mend = "name another data.store, or remove this one"
        raise Refusal(BAD_DATA, f"{corpus.path}: made with {what} {had!r}, now it is {now!r}; {mend}")

    made_from = corpus.manifest["made_from"]
    for name, value in settings_of(data).items():
        if made_from["settings"].get(name) != value:
            refuse(name, made_from["settings"].get(name), value)
    had, now = [Path(name).name for _, name, _ in made_from["text"]], [Path(name).name for name, _ in named(data)]
    if had != now:  # it may be elsewhere, but it keeps its name and its place
        refuse("the text", had, now)
    with _if_reachable():
        if (now := tokenizer_of(data)) != made_from["tokenizer"]:
            refuse("tokenizer", made_from["tokenizer"], now)
    with _if_reachable():
        if (now := text_of(data)) != made_from["text"]:  # touched, moved, or another
            hashes = [text_hash(data, *one) for one in named(data)]
            if hashes != [source["text"] for source in corpus.manifest["sources"]]:
                refuse("the text", made_from["text"], now)
    return corpus


@contextmanager
def _if_reachable():
    """What cannot be reached is not compared."""
    try:
        yield
    except Refusal as refusal:
        if refusal.code != NO_FILE:
            raise


@contextmanager
def _locked(path: Path):
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(data: Data, made_from: dict, store: Path, say) -> None:
    """Make the store, or go on making it."""
    if store.exists() and any(store.iterdir()) and not (store / JOURNAL).exists():
        raise Refusal(BAD_DATA, f"{store}: exists and is no token store; name another data.store")
    store.mkdir(exist_ok=True)
    journal = _Journal(store, made_from)
    chosen = journal.tokenizer()
    if chosen is None:
        say(f"prepare: tokenizer {data.tokenizer} on {data.source}")
        chosen = tokenizer.make(data.tokenizer, training_texts(data), data.add_specials)
        chosen.save(store / "tokenizer")
        journal.write({"tokenizer": chosen.fingerprint})
    dtype = np.dtype("<u2" if chosen.vocabulary.size <= 1 << 16 else "<u4")
    made = []
    with Pool(store / "tokenizer", chosen, data, dtype) as pool:
        for number, (name, key) in enumerate(named(data)):
            made.append(_write(data, name, key, number, store, journal, pool, say))
    totals = {split: _total([source[split] for source in made]) for split in SPLITS}
    for split, total in totals.items():
        if not total["documents"]:
            raise Refusal(
                BAD_DATA,
                f"data.source={data.source}: no document for {split}; give more text, "
                "set data.validation_fraction, or name data.validation_source",
            )
        per_token = total["bytes"] / total["tokens"]
        counted = f"{total['documents']:,} documents, {total['tokens']:,} tokens, {total['bytes']:,} bytes"
        say(f"prepare: {split}: {counted}, {per_token:.2f} bytes a token")
    for source in made:
        if source["dirt"]:
            say(f"prepare: {source['source']}: " + ", ".join(f"{n} {case}" for case, n in source["dirt"].items()))
    manifest = {"made_from": made_from, "tokenizer": chosen.fingerprint, "lossless": chosen.lossless}
    manifest |= {"dtype": dtype.str, **totals, "sources": made}
    partial = store / "manifest.json.partial"
    partial.write_text(json.dumps(manifest, indent=1))
    os.replace(partial, store / "manifest.json")  # from here on it is a store
    (store / JOURNAL).unlink()


def _total(counts: list[dict]) -> dict:
    hashes = "".join(shard["sha256"] for count in counts for shard in count["shards"])
    return _summed(counts) | {"sha256": hashlib.sha256(hashes.encode()).hexdigest()}


def _summed(counts: list[dict]) -> dict:
    return {name: sum(count[name] for count in counts) for name in ("documents", "tokens", "bytes")}


class _Journal:
    """What is done: a line that says what is being made, one for the tokenizer, then one a shard."""

    def __init__(self, store: Path, made_from: dict):
        self._store, self._path = store, store / JOURNAL
        self._lines = self._read()
        if not self._lines or self._lines[0] != json.loads(json.dumps(made_from)):
            self.forget()  # what a kill left is of something else, and ours to write over
            self._lines = []
            self.write(made_from)

    def _read(self) -> list[dict]:
        lines = self._path.read_text().splitlines(keepends=True) if self._path.exists() else []
        if lines and not lines[-1].endswith("\n"):  # cut off by a kill
            os.truncate(self._path, sum(len(line.encode()) for line in lines[:-1]))
            lines.pop()
        try:
            return [json.loads(line) for line in lines]
        except ValueError:
            return []

    def write(self, record: dict) -> None:
        with open(self._path, "a") as file:
            file.write(json.dumps(record) + "\n")

    def forget(self) -> None:
        """Begin anew the next time."""
        self._path.write_text("")

    def tokenizer(self) -> tokenizer.Tokenizer | None:
        """The one that was made for this store, if it was."""
        return tokenizer.load(self._store / "tokenizer") if len(self._lines) > 1 else None

    def shards(self, number: int) -> list[dict]:
        """Those of a source that are done."""
        return [line for line in self._lines[2:] if line["source"] == number]


def _write(data, name, key, number, store, journal, pool, say) -> dict:
    """Append the shards of one source to its files; its part of the manifest."""
    cleaner, made, waiting, digests = Cleaner(data.dirt, f"{key}={name}"), journal.shards(number), deque(), []
    done, ends = len(made), made[-1]["ends"] if made else dict.fromkeys(SPLITS, 0)
    with ExitStack() as opened:
        files = {s: opened.enter_context(_cut_at(store / f"{number}.{s}.bin", ends[s])) for s in SPLITS}
        progress = opened.enter_context(Progress(name, sources.size(name, key), say))

        def finish():
            digest, future = waiting.popleft()
            counts, ids = future.result()
            for split, file in files.items():
                file.write(ids[split])
                file.flush()
            ends = {split: file.tell() for split, file in files.items()}
            made.append({"source": number, "text": digest, "counts": counts, "ends": ends})
            journal.write(made[-1])
            progress.wrote(sum(map(len, ids.values())))

        for shard in shards(divided(data, name, key, cleaner)):
            digests.append(hash_of(shard))
            progress.read(sum(len(raw) for _, raw in shard))
            if len(digests) > done:
                waiting.append((digests[-1], pool.submit(shard)))
            elif made[len(digests) - 1]["text"] != digests[-1]:
                break
            if len(waiting) > pool.size:
                finish()
        while waiting:
            finish()
        if digests != [shard["text"] for shard in made]:
            journal.forget()
            raise Refusal(BAD_DATA, f"{key}={name}: changed while its store was made; start again")
        for file in files.values():
            os.fsync(file.fileno())
    counted = {split: _counted([shard["counts"].get(split) for shard in made]) for split in SPLITS}
    short = sum(counts["one_token"] for shard in made for counts in shard["counts"].values())
    dirt = cleaner.met + Counter(one_token=short)
    return {"source": name, "text": hash_of_all(digests), "dirt": dict(dirt), **counted}


def _counted(parts: list[dict | None]) -> dict:
    parts = [part for part in parts if part]
    return _summed(parts) | {"shards": [{name: part[name] for name in ("tokens", "sha256")} for part in parts]}


def _cut_at(path: Path, end: int):
    """The file, opened to go on behind what is known to be whole."""
    file = open(path, "ab")
    file.truncate(end)
    file.seek(end)
    return file
