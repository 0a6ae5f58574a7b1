"""The token store: a corpus as two flat files of ids on disk, documents ended by EOS.

STORE/manifest.json   what made it: source, tokenizer, counts, hashes
STORE/tokenizer/
STORE/train.bin       little-endian uint16 (uint32 where the vocabulary needs it)
STORE/validation.bin
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np

from t5x_lite.config import Data
from t5x_lite.data import sources, tokenizer
from t5x_lite.errors import BAD_DATA, IO_ERROR, NO_FILE, Refusal, read_json

VERSION = 2
SPLITS = ("train", "validation")
_UNFINISHED = "manifest.json.partial"
_FEW = 200  # so many documents are divided exactly, more by chance


@dataclass(frozen=True)
class Corpus:
    """A prepared store. `tokens[split]` is a read-only memory map; `manifest[split]` counts it."""

    path: Path
    tokenizer: tokenizer.Tokenizer
    manifest: dict
    tokens: dict[str, np.ndarray]


def cache() -> Path:
    """The private directory for stores and compiled programs: $T5X_LITE_CACHE or ~/.cache/t5x_lite."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(os.environ.get("T5X_LITE_CACHE") or Path(base) / "t5x_lite")
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def description(data: Data) -> dict:
    """What a store is made from; two equal descriptions make the same bytes."""
    made = {name: getattr(data, name) for name in ("source", "document", "validation_source", "tokenizer")}
    if not data.validation_source:
        made["validation_fraction"] = data.validation_fraction
    for name in ("source", "validation_source"):
        if made[name]:
            made[f"{name}_fingerprint"] = sources.fingerprint(made[name], f"data.{name}")
    if data.tokenizer.endswith(".model") and Path(data.tokenizer).is_file():
        made["tokenizer_fingerprint"] = hashlib.sha256(Path(data.tokenizer).read_bytes()).hexdigest()[:16]
    return made | {"version": VERSION}


def prepare(data: Data, say=print) -> Corpus:
    """Open the store that the settings describe, and make it first where it is missing.

    Several processes may ask at once: one makes it, the others wait. The manifest comes last: what a kill left
    half-made has none, and is made again.
    Raises Refusal for text that cannot be used, and for a store that was made from something else.
    """
    made_from = description(data)
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
    for name, value in made_from.items():
        if corpus.manifest["made_from"].get(name) != value:
            raise Refusal(
                BAD_DATA,
                f"{store}: made with {name} {corpus.manifest['made_from'].get(name)!r}, now it is {value!r}; "
                "name another data.store, or remove this one",
            )
    return corpus


@contextmanager
def _locked(path: Path):
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(data: Data, made_from: dict, store: Path, say) -> None:
    if store.exists() and any(store.iterdir()) and not (store / _UNFINISHED).exists():
        raise Refusal(BAD_DATA, f"{store}: exists and is no token store; name another data.store")
    store.mkdir(exist_ok=True)
    (store / _UNFINISHED).touch()  # what a kill leaves is ours to write over
    texts = _split(data)
    train_texts = (text for split, text in texts() if split == "train")
    say(f"prepare: tokenizer {data.tokenizer} on {data.source}")
    chosen = tokenizer.make(data.tokenizer, train_texts)
    chosen.save(store / "tokenizer")
    counts = _write(texts(), chosen, store, say)
    for split in SPLITS:
        if not counts[split]["documents"]:
            raise Refusal(
                BAD_DATA,
                f"data.source={data.source}: no document for {split}; give more text, "
                "set data.validation_fraction, or name data.validation_source",
            )
    manifest = {"made_from": made_from, "tokenizer": chosen.fingerprint, "lossless": chosen.lossless, **counts}
    (store / _UNFINISHED).write_text(json.dumps(manifest, indent=2))
    os.replace(store / _UNFINISHED, store / "manifest.json")  # from here on it is a store


def _split(data: Data):
    """A function that yields (split, document): by the validation source, or by a hash of each document's text, so
    that copies fall on the same side. Of few documents at least one is held out, those of the smallest hashes; a
    source of one document is cut in two at that share of its characters.
    """
    if data.validation_source:
        given = (
            ("train", data.source, "data.source"),
            ("validation", data.validation_source, "data.validation_source"),
        )
        return lambda: ((split, t) for split, name, key in given for t in sources.documents(name, data.document, key))

    def texts() -> Iterator[tuple[str, str]]:
        fraction = data.validation_fraction
        documents = sources.documents(data.source, data.document)
        first = list(islice(documents, _FEW + 1))
        hashes = sorted({_hash(text) for text in first})
        if len(first) == 1:
            cut = int(len(first[0]) * (1 - fraction))
            yield from (
                (split, text) for split, text in zip(SPLITS, (first[0][:cut], first[0][cut:]), strict=True) if text
            )
            return
        border = fraction * 2**64
        if 1 < len(hashes) <= len(first) <= _FEW and fraction:
            border = hashes[min(max(1, round(len(hashes) * fraction)), len(hashes) - 1)]
        yield from ((SPLITS[_hash(text) < border], text) for text in chain(first, documents))

    return texts


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest())


def _write(texts, chosen: tokenizer.Tokenizer, directory: Path, say) -> dict:
    """Encode the documents into their split's file; counts of documents, tokens, and bytes of the original text."""
    size = chosen.vocabulary.size
    dtype = np.dtype("<u2" if size <= 1 << 16 else "<u4")
    counts = {split: {"documents": 0, "tokens": 0, "bytes": 0} for split in SPLITS}
    hashes = {split: hashlib.sha256() for split in SPLITS}
    files = {split: open(directory / f"{split}.bin", "wb") for split in SPLITS}
    try:
        for split, text in texts:
            ids = np.append(chosen.encode(text), chosen.vocabulary.eos).astype(dtype).tobytes()
            files[split].write(ids)
            hashes[split].update(ids)
            done = counts[split]
            done["documents"] += 1
            done["tokens"] += len(ids) // dtype.itemsize
            done["bytes"] += len(text.encode(errors="replace"))
    finally:
        for file in files.values():
            file.close()
    for split, done in counts.items():
        say(f"prepare: {split}: {done['documents']:,} documents, {done['tokens']:,} tokens, {done['bytes']:,} bytes")
        done["sha256"] = hashes[split].hexdigest()
    return counts | {"dtype": dtype.str}


def open_store(store: Path) -> Corpus:
    """Open a prepared store. Raises Refusal where its bytes are not those that the manifest has the hashes of."""
    manifest = read_json(store / "manifest.json", "run prepare")
    try:
        tokens = {s: np.memmap(store / f"{s}.bin", np.dtype(manifest["dtype"]), "r") for s in SPLITS}
        hashes = {split: manifest[split]["sha256"] for split in SPLITS}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal(NO_FILE, f"{store}: no usable token store ({error}); run prepare") from error
    for split in SPLITS:
        if hashlib.sha256(tokens[split]).hexdigest() != hashes[split]:
            raise Refusal(BAD_DATA, f"{store}/{split}.bin: changed since it was prepared; remove the store")
    chosen = tokenizer.load(store / "tokenizer")
    if chosen.fingerprint != manifest["tokenizer"]:
        raise Refusal(
            BAD_DATA,
            f"{store}: tokens were made by tokenizer {manifest['tokenizer']}, but its tokenizer is "
            f"{chosen.fingerprint}; prepare the text again",
        )
    return Corpus(store, chosen, manifest, tokens)
