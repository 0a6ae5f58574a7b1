"""The text of a source as a store takes it: divided into splits, in shards of a few megabytes."""

import hashlib
from collections.abc import Iterable, Iterator

from t5x_lite.config import Data
from t5x_lite.data import sources
from t5x_lite.data.cleaning import Cleaner
from t5x_lite.data.corpus import SPLITS
from t5x_lite.data.files import Continued
from t5x_lite.settings import source_terms

SHARD = 4_000_000  # bytes of text
_FEW = 200  # so many documents are divided exactly, more by chance
_MUCH = 1 << 30  # characters after which even few documents are divided by chance

Shard = list[tuple[str, bytes]]  # the split and the UTF-8 of each document


def named(data: Data) -> list[tuple[str, str]]:
    """The sources of a store, and the setting that names each: those to train on, then the one held out."""
    terms = source_terms(data.source, "data.source") or [(0.0, "")]
    found = [(name, "data.source") for _, name in terms]
    return found + ([(data.validation_source, "data.validation_source")] if data.validation_source else [])


def texts(data: Data, name: str, key: str, cleaner: Cleaner | None = None) -> Iterator[tuple[str, bool]]:
    """The documents of a source, cleaned, and whether each goes on with the one before (see files.LONGEST)."""
    cleaner, begun = cleaner or Cleaner(data.dirt, f"{key}={name}"), False
    for document in sources.documents(name, data.document, data.field, key):
        begun &= isinstance(document, Continued)
        text = cleaner(document)
        if text is not None:
            yield text, begun
            begun = True


def divided(data: Data, name: str, key: str, cleaner: Cleaner | None = None) -> Iterator[tuple[str, str]]:
    """(split, text) of each document: by the validation source, or by a hash of its text, so that copies within one
    source fall on the same side. Of few documents at least one is held out, those of the smallest hashes; a source of
    one document is cut in two at that share of its characters.
    """
    if data.validation_source:
        split = SPLITS[key == "data.validation_source"]
        yield from ((split, text) for text, _ in texts(data, name, key, cleaner))
        return
    fraction, first, size, few = data.validation_fraction, [], 0, True
    for text, goes_on in texts(data, name, key):
        first += [] if goes_on else [_hash(text)]
        size += len(text)
        few = len(first) <= _FEW and (size <= _MUCH or len(first) == 1)
        if not few:
            break
    border, split, left = fraction * 2**64, SPLITS[0], int(size * (1 - fraction))
    if few and len(set(first)) > 1:
        hashes = sorted(set(first))
        border = hashes[min(max(1, round(len(hashes) * fraction)), len(hashes) - 1)]
    for text, goes_on in texts(data, name, key, cleaner):
        if few and len(first) == 1:
            yield from ((s, part) for s, part in zip(SPLITS, (text[:left], text[left:]), strict=True) if part)
            left = max(left - len(text), 0)
        else:
            split = split if goes_on else SPLITS[_hash(text) < border]
            yield split, text


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def shards(documents: Iterator[tuple[str, str]]) -> Iterator[Shard]:
    """The divided documents, as many at a time as make SHARD bytes."""
    held, size = [], 0
    for split, text in documents:
        raw = text.encode()
        held.append((split, raw))
        size += len(raw)
        if size >= SHARD:
            yield held
            held, size = [], 0
    if held:
        yield held


def hash_of(shard: Shard) -> str:
    """The hash of a shard's text."""
    digest = hashlib.blake2b(digest_size=16)
    for split, raw in shard:
        digest.update(f"{split} {len(raw)} ".encode() + raw)
    return digest.hexdigest()


def hash_of_all(digests: Iterable[str]) -> str:
    """The hash of a source's text, of the hashes of its shards."""
    whole = hashlib.sha256()
    for digest in digests:
        whole.update(digest.encode())
    return whole.hexdigest()


def text_hash(data: Data, name: str, key: str) -> str:
    """The hash of a source's whole text as a manifest has it: of the hashes of its shards."""
    return hash_of_all(map(hash_of, shards(divided(data, name, key))))


def training_texts(data: Data) -> Iterator[str]:
    """The text that a tokenizer is trained on: each source in turn, a document at a time."""
    readers = [divided(data, name, key) for name, key in named(data) if key == "data.source"]
    while readers:
        for reader in list(readers):
            split, text = next(reader, (None, ""))
            if split is None:
                readers.remove(reader)
            elif split == "train":
                yield text
