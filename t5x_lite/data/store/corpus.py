"""The token store: a corpus as flat files of ids on disk, with EOS after each document.

STORE/manifest.json      origin, counts, issues of the text, SHA-256 of each shard
STORE/tokenizer/
STORE/0.train.bin        ids of source 0: little-endian uint16, or uint32 for a large vocabulary
STORE/0.validation.bin

If a store is in a bucket, its manifest and tokenizer are copied to the local cache, and ids are
fetched when they are read.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from t5x_lite import locks, storage
from t5x_lite.cache import cache_directory
from t5x_lite.data.store.remote_tokens import RemoteTokens
from t5x_lite.data.tokenizers import tokenizer
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_DATA, NO_FILE, UserError, read_json

Tokens = np.ndarray | RemoteTokens
Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")
MANIFEST = "manifest.json"
_TOKENS = "[0-9]*.bin"  # the files of ids
_DTYPES = ("<u2", "<u4")  # of ids


@dataclass(frozen=True)
class Source:
    """One source of a corpus."""

    name: str
    rate: float  # rate given in the setting; 0: none
    tokens: dict[str, Tokens]  # split → ids, read as needed from disk or a bucket
    words_per_token: float = 0.0  # in the training text; 0: not counted


@dataclass(frozen=True)
class Corpus:
    """A prepared token store."""

    path: Path
    tokenizer: Tokenizer
    manifest: dict[str, Any]  # manifest[split] holds the counts over all sources
    sources: tuple[Source, ...]

    def tokens(self, split: Split) -> np.ndarray:
        """Return the ids of all sources. The ids of several sources, or of a store in a bucket, are
        copied into memory.
        """
        parts = [np.asarray(source.tokens[split]) for source in self.sources]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]


def _first(tokens: Tokens, length: int) -> Tokens:
    """Return the first `length` tokens, without reading them."""
    return tokens.first(length) if isinstance(tokens, RemoteTokens) else tokens[:length]


def keep_first(corpus: Corpus, unique_tokens: int) -> Corpus:
    """Return the corpus with less training text: `unique_tokens` tokens, from the beginning of each
    source in proportion to its size. EOS replaces the last token of each source that is cut. The
    manifest's counts of documents, bytes and words become estimates.

    Raises:
        UserError: if there is less text than that, or if nothing is left of a source.
    """
    whole = corpus.manifest["train"]
    got = f"data.unique_tokens: got {unique_tokens:,}"
    if unique_tokens > whole["tokens"]:
        reason = f"the training text has {whole['tokens']:,} tokens"
        fix = "lower it, give more text, or set 0 for all of it"
        raise UserError(BAD_DATA, f"{got}, but {reason}; {fix}")
    # Round so that the sources add up to unique_tokens.
    sizes = np.cumsum([0, *(len(source.tokens["train"]) for source in corpus.sources)])
    lengths = np.diff(sizes * unique_tokens // whole["tokens"]).tolist()
    sources = []
    for source, length in zip(corpus.sources, lengths, strict=True):
        train = source.tokens["train"]
        if len(train) and not length:
            reason = f"of which {source.name} has no share: it has {len(train):,} tokens"
            raise UserError(BAD_DATA, f"{got}, {reason}; set more, or leave that source out")
        kept = train
        if length < len(train):  # copy, to end in EOS: the text is read again from its beginning
            kept = np.array(_first(train, length))
            kept[-1:] = corpus.tokenizer.vocabulary.eos
        sources.append(replace(source, tokens={**source.tokens, "train": kept}))
    share = unique_tokens / whole["tokens"]
    counts = {name: round(share * whole[name]) for name in whole if name != "sha256"}
    of_part = hashlib.sha256(f"{whole['sha256']} {lengths}".encode()).hexdigest()
    train = counts | {"tokens": unique_tokens, "sha256": of_part}
    manifest = {**corpus.manifest, "train": train}
    return replace(corpus, manifest=manifest, sources=tuple(sources))


def hold_out(corpus: Corpus) -> Corpus:
    """Return the corpus with other validation text: the end of each source's training text, which
    is then removed from training. Settings that are chosen by this text can still be judged on the
    corpus's own validation text.

    The new text has about as many tokens as the old validation text, but at most a tenth of the
    training text. It begins at the first document that begins in its first half, if there is one.
    """
    in_train = sum(len(source.tokens["train"]) for source in corpus.sources)
    in_validation = sum(len(source.tokens["validation"]) for source in corpus.sources)
    share = min(in_validation / in_train, 0.1)
    eos = corpus.tokenizer.vocabulary.eos
    sources = []
    for source in corpus.sources:
        train = source.tokens["train"]
        length = round(share * len(train))
        held_out = np.asarray(train[len(train) - length :])
        # Begin at the start of a document, if there is one in the first half.
        begins = np.flatnonzero(held_out[: length // 2] == eos) + 1
        if len(begins):
            held_out = held_out[begins[0] :]
        kept = _first(train, len(train) - len(held_out))
        sources.append(replace(source, tokens={"train": kept, "validation": held_out}))
    manifest = {
        **corpus.manifest,
        "train": {"tokens": sum(len(source.tokens["train"]) for source in sources)},
        "validation": {"held out of": corpus.manifest["train"]},
    }
    return replace(corpus, manifest=manifest, sources=tuple(sources))


def cache_of(address: str) -> Path:
    """Return the directory in the cache for a store in a bucket."""
    return cache_directory() / "stores" / _short_hash(address)


def _short_hash(place: str) -> str:
    return hashlib.sha256(os.fsencode(place)).hexdigest()[:16]


def open_store(place: str | Path, check_again: bool = False) -> Corpus:
    """Open a prepared store, on disk or in a bucket.

    Args:
        place: directory or address of the store.
        check_again: compute the hashes even if they were right before and no file has changed.

    Raises:
        UserError: if there is no store, or its contents do not match the hashes in its manifest.
            For a store in a bucket, hashes are checked when ids are read.
    """
    address = str(place).rstrip("/") if storage.is_remote(place) else ""
    store = cache_of(address) if address else Path(place)
    if address:
        if not storage.exists(f"{address}/{MANIFEST}"):
            raise UserError(NO_FILE, f"{address}: no token store; run prepare")
        store.parent.mkdir(parents=True, exist_ok=True)
        with locks.wait_for_lock(f"{store}.lock"):  # several processes of a host share the cache
            storage.download(address, store, last=MANIFEST, leave=_TOKENS)
    # Take the stamps first, so that a change while the files are read is noticed.
    stamps = _stamps(store)
    manifest = read_json(store / MANIFEST, "run prepare")
    store_tokenizer = tokenizer.load(store / "tokenizer")
    ids = store_tokenizer.vocabulary.size
    try:
        sources = _open_sources(store, address, manifest)
        _check_manifest(manifest, sources)
        if not address and (check_again or not _is_verified(store, stamps)):
            _check_hashes(store, manifest, sources, ids)
            _remember_verified(store, stamps)
        fingerprint = manifest["tokenizer"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = f"no usable token store ({error}); run prepare"
        raise UserError(NO_FILE, f"{store}: {reason}") from error
    if store_tokenizer.fingerprint != fingerprint:
        raise UserError(
            BAD_DATA,
            f"{store}: tokens were made by tokenizer {fingerprint}, but its tokenizer is "
            f"{store_tokenizer.fingerprint}; prepare the text again",
        )
    return Corpus(store, store_tokenizer, manifest, tuple(sources))


def _open_sources(store: Path, address: str, manifest: dict[str, Any]) -> list[Source]:
    """Open the ids of each source, on disk or in a bucket."""
    if manifest["dtype"] not in _DTYPES:
        raise ValueError(f"dtype is {manifest['dtype']!r}, expected one of {', '.join(_DTYPES)}")
    dtype = np.dtype(manifest["dtype"])
    sources = []
    for number, record in enumerate(manifest["sources"]):
        tokens: dict[str, Tokens] = {}
        for split in SPLITS:
            path = store / f"{number}.{split}.bin"
            if address:
                file, shards = f"{address}/{path.name}", record[split]["shards"]
                tokens[split] = RemoteTokens(file, store / "shards", dtype, shards)
            else:
                tokens[split] = _open_tokens(path, dtype, record[split]["tokens"])
        of_training = record["train"]
        words_per_token = of_training.get("words", 0) / max(of_training["tokens"], 1)
        sources.append(Source(record["source"], 0.0, tokens, words_per_token))
    return sources


def _check_manifest(manifest: dict[str, Any], sources: list[Source]) -> None:
    """Raise ValueError, KeyError or TypeError if the manifest is incomplete or contradictory."""
    for record in manifest["sources"]:
        _check_count(record["text_cleaning"].values())
        if not isinstance(record["source"], str) or not isinstance(record["text"], str):
            raise TypeError("a source has no name or no hash")
        for split in SPLITS:
            of_split = record[split]
            _check_count(of_split[name] for name in ("documents", "tokens", "bytes"))
            _check_count(shard["tokens"] for shard in of_split["shards"])
    for split in SPLITS:
        tokens = sum(len(source.tokens[split]) for source in sources)
        if manifest[split]["tokens"] != tokens:
            raise ValueError(f"the tokens of {split} do not add up")
        for record in manifest["sources"]:
            if record[split]["tokens"] != sum(shard["tokens"] for shard in record[split]["shards"]):
                raise ValueError(f"the shards of {split} do not add up")
    made_from = manifest["made_from"]
    has_settings = isinstance(made_from["settings"], dict)
    has_tokenizer = isinstance(made_from["tokenizer"], str)
    if not has_settings or not has_tokenizer:
        raise TypeError("made_from names no settings or tokenizer")
    if not all(len(text) == 3 for text in made_from["text"]):
        raise TypeError("made_from names no text")


def _check_count(counts: Iterable[Any]) -> None:
    for count in counts:
        if type(count) is not int or count < 0:
            raise TypeError(f"a count is {str(count)[:50]!r}, expected a whole number")


def _open_tokens(path: Path, dtype: np.dtype, prepared: int) -> np.ndarray:
    """Map a file of ids into memory, after checking that it holds `prepared` ids."""
    if not prepared:
        return np.zeros(0, dtype)
    tokens = np.asarray(np.memmap(path, dtype, "r"))
    if len(tokens) != prepared:
        reason = f"has {len(tokens)} tokens, {prepared} were prepared; remove the store"
        raise UserError(BAD_DATA, f"{path}: {reason}")
    return tokens


def _check_hashes(
    store: Path, manifest: dict[str, Any], sources: list[Source], vocab_size: int
) -> None:
    """Raise UserError if a shard does not match its hash in the manifest, or holds ids that the
    tokenizer does not have.
    """
    for number, (record, source) in enumerate(zip(manifest["sources"], sources, strict=True)):
        for split in SPLITS:
            start = 0
            for shard in record[split]["shards"]:
                end = start + shard["tokens"]
                tokens = source.tokens[split][start:end]
                if hashlib.sha256(tokens.data).hexdigest() != shard["sha256"]:
                    reason = f"changed since it was prepared (token {start} on); remove the store"
                    raise UserError(BAD_DATA, f"{store / f'{number}.{split}.bin'}: {reason}")
                if len(tokens) and tokens.max() >= vocab_size:
                    reason = f"holds the id {tokens.max()}, the tokenizer has {vocab_size}"
                    raise UserError(BAD_DATA, f"{store / f'{number}.{split}.bin'}: {reason}")
                start = end


# Hashing a large store takes minutes. So a store whose hashes were right is not hashed again until
# one of its files changes: the stamps of the files are saved in the cache. Without a usable cache,
# a store is hashed every time.

_SETTLED_AFTER = 2.0  # seconds; two writes within one tick of the disk's clock get the same time
_NO_CACHE = (OSError, RuntimeError, ValueError)  # no space, no home directory, invalid JSON


def _stamps(store: Path) -> list[list[Any]]:
    """Return size, inode and times of each file. At least one of them changes when a file is
    written or replaced.
    """
    stamps = []
    for path in sorted([*store.glob(MANIFEST), *store.glob(_TOKENS)]):
        s = path.stat()
        stamps.append([path.name, s.st_size, s.st_dev, s.st_ino, s.st_mtime_ns, s.st_ctime_ns])
    return stamps


def _is_verified(store: Path, stamps: list[list[Any]]) -> bool:
    """Return True if the store's hashes were right when its files had these stamps, and it still
    has them. The stamps were taken before the files were opened.
    """
    with suppress(*_NO_CACHE):
        return json.loads(_verified(store).read_bytes()) == stamps == _stamps(store)
    return False


def _remember_verified(store: Path, stamps: list[list[Any]]) -> None:
    """Save the stamps, unless a file has changed since they were taken, or so recently that another
    change could go unnoticed.
    """
    newest = max(time_ns for *_, modified, changed in stamps for time_ns in (modified, changed))
    if stamps != _stamps(store) or time.time() - newest / 1e9 < _SETTLED_AFTER:
        return
    with suppress(*_NO_CACHE):
        _verified(store).parent.mkdir(exist_ok=True)
        _verified(store).write_text(json.dumps(stamps))


def _verified(store: Path) -> Path:
    """Return the path of the file that holds the stamps."""
    return cache_directory() / "verified" / f"{_short_hash(str(store.resolve()))}.json"
