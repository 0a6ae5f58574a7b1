"""Cut the text of a source into shards of a few megabytes, and assign each document to a split.

A source is read in parts, which are groups of consecutive files. No part depends on the text of
another, so machines can share the work.

    source ─ parts ─► files ─ clean_documents ─► documents ─ split_documents ─ make_shards ─► shards
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from t5x_lite.config import Data
from t5x_lite.config.grammar import parse_sources
from t5x_lite.data.store.corpus import Split
from t5x_lite.data.text import files, sources
from t5x_lite.data.text.cleaning import Cleaner
from t5x_lite.data.text.files import Continuation

if TYPE_CHECKING:
    from fsspec.core import OpenFile

PART_BYTES = 64_000_000  # size of files on disk
SHARD_BYTES = 4_000_000  # size of text
# Up to this many documents are split by the rank of their hash, so that each split has some. To
# know the ranks, all text is read twice. More documents, or longer ones, are split by the hash
# itself.
_FEW_DOCUMENTS = 200
_FEW_CHARACTERS = 1 << 30

Part: TypeAlias = "Sequence[OpenFile] | None"  # None: the whole of a source that is not files
Shard = list[tuple[Split, bytes]]  # split and UTF-8 text of each document


class SourceSetting(NamedTuple):
    """A source, and the setting that names it."""

    name: str
    key: str

    @property
    def where(self) -> str:
        """The setting, as errors name it."""
        return f"{self.key}={self.name}"

    @property
    def is_held_out(self) -> bool:
        """True if the whole source is validation text."""
        return self.key == "data.validation_source"


def list_sources(data: Data) -> list[SourceSetting]:
    """Return the sources of a store: the training sources, then the validation source if there is
    one.

    >>> data = Data(source="a.txt + b.txt", validation_source="c.txt")
    >>> [source.where for source in list_sources(data)]
    ['data.source=a.txt', 'data.source=b.txt', 'data.validation_source=c.txt']
    """
    terms = parse_sources(data.source, "data.source") or [(0.0, "")]
    settings = [SourceSetting(name, "data.source") for _, name in terms]
    if data.validation_source:
        settings.append(SourceSetting(data.validation_source, "data.validation_source"))
    return settings


class CleanDocument(NamedTuple):
    """A document, or a piece of a document that is longer than files.LONGEST."""

    text: str
    is_continuation: bool  # True if it continues the document before


def clean_documents(
    data: Data,
    source: SourceSetting,
    cleaner: Cleaner | None = None,
    part: Part = None,
) -> Iterator[CleanDocument]:
    """Yield the documents of a source, cleaned.

    Args:
        cleaner: cleans documents and counts their issues; None: issues are not counted.
        part: part of the source to read; None: all of it.
    """
    if cleaner is None:
        cleaner = Cleaner(data.text_cleaning, source.where)
    started = False  # True if a piece of the same document was already kept
    documents = sources.documents(source.name, data.document, data.field, source.key, part)
    for document in documents:
        if not isinstance(document, Continuation):
            started = False
        text = cleaner(document)
        if text is not None:
            yield CleanDocument(text, is_continuation=started)
            started = True


@dataclass(frozen=True)
class SplitRule:
    """Which documents of a source are held out.

    Attributes:
        border: documents with a smaller hash are held out.
        train_characters: for a source of one document, the number of characters to train on, before
            the held-out text; None: there are several documents.
    """

    border: float
    train_characters: int | None = None


def split_rule(data: Data, source: SourceSetting) -> SplitRule:
    """Return the rule that splits a source.

    Validation text is a separate source, or a fraction of each source. For a fraction, documents
    with a small hash are held out, so copies within a source are in the same split. If there are
    few documents, at least one is held out. If there is only one, it is cut in two, so that the
    same fraction of its characters is held out.
    """
    if data.validation_source:
        return SplitRule(2**64 if source.is_held_out else 0)
    fraction = data.validation_fraction
    small = _read_small_source(data, source)
    if small is not None and len(small.hashes) == 1:
        return SplitRule(0, train_characters=int(small.characters * (1 - fraction)))
    if small is not None and len(set(small.hashes)) > 1:
        hashes = sorted(set(small.hashes))
        held_out = max(round(len(hashes) * fraction), 1)
        held_out = min(held_out, len(hashes) - 1)
        return SplitRule(hashes[held_out])
    return SplitRule(fraction * 2**64)


def split_documents(
    documents: Iterable[CleanDocument], rule: SplitRule
) -> Iterator[tuple[Split, str]]:
    """Yield the split and the text of each document."""
    if rule.train_characters is not None:
        yield from _cut_in_two(documents, rule.train_characters)
        return
    split: Split = "train"
    for document in documents:
        if not document.is_continuation:
            split = "validation" if _hash(document.text) < rule.border else "train"
        yield split, document.text


class _SmallSource(NamedTuple):
    hashes: list[int]  # hash of each document's text
    characters: int


def _read_small_source(data: Data, source: SourceSetting) -> _SmallSource | None:
    """Return the hashes and the size of all documents; None if they are many or long."""
    hashes = []
    characters = 0
    for document in clean_documents(data, source):
        if not document.is_continuation:
            hashes.append(_hash(document.text))
        characters += len(document.text)
        if len(hashes) > _FEW_DOCUMENTS:
            return None
        if len(hashes) > 1 and characters > _FEW_CHARACTERS:
            return None
    return _SmallSource(hashes, characters)


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest)


def _cut_in_two(
    documents: Iterable[CleanDocument], train_characters: int
) -> Iterator[tuple[Split, str]]:
    """Cut one document, which may come in pieces: its first characters are for training, the rest
    for validation.
    """
    remaining = train_characters
    for document in documents:
        train = document.text[:remaining]
        validation = document.text[remaining:]
        if train:
            yield "train", train
        if validation:
            yield "validation", validation
        remaining -= len(train)


def parts(source: SourceSetting, rule: SplitRule) -> list[Part]:
    """Group the files of a source into parts of about PART_BYTES. A source of one document is a
    single part. If the source does not consist of files, return [None].
    """
    found = sources.find_files(source.name, source.key)
    if found is None:
        return [None]
    if rule.train_characters is not None:
        return [found]
    of_source: list[Part] = []
    part: list[OpenFile] = []
    part_bytes = 0
    for file in found:
        part.append(file)
        part_bytes += files.size_on_disk(file, source.key)
        if part_bytes >= PART_BYTES:
            of_source.append(part)
            part = []
            part_bytes = 0
    return [*of_source, part] if part else of_source


def make_shards(documents: Iterable[tuple[Split, str]]) -> Iterator[Shard]:
    """Group the documents of a part into shards of about SHARD_BYTES."""
    shard: Shard = []
    shard_bytes = 0
    for split, text in documents:
        utf8 = text.encode()
        shard.append((split, utf8))
        shard_bytes += len(utf8)
        if shard_bytes >= SHARD_BYTES:
            yield shard
            shard = []
            shard_bytes = 0
    if shard:
        yield shard


def read_shards(
    data: Data,
    source: SourceSetting,
    cleaner: Cleaner | None = None,
) -> Iterator[Shard]:
    """Yield the shards of all parts of a source.

    Args:
        cleaner: as in `clean_documents`.
    """
    rule = split_rule(data, source)
    for part in parts(source, rule):
        documents = clean_documents(data, source, cleaner, part)
        yield from make_shards(split_documents(documents, rule))


def shard_hash(shard: Shard) -> str:
    """Return the hash of a shard's text and splits."""
    digest = hashlib.blake2b(digest_size=16)
    for split, utf8 in shard:
        digest.update(f"{split} {len(utf8)} ".encode() + utf8)
    return digest.hexdigest()


def combined_hash(shard_hashes: Iterable[str]) -> str:
    """Return the hash of a source's text, made from the hashes of its shards."""
    digest = hashlib.sha256()
    for shard_hash in shard_hashes:
        digest.update(shard_hash.encode())
    return digest.hexdigest()


def text_hash(data: Data, source: SourceSetting) -> str:
    """Return the hash of a source's whole text, as in a manifest."""
    return combined_hash(map(shard_hash, read_shards(data, source)))


def training_texts(data: Data) -> Iterator[str]:
    """Yield the text to train a tokenizer on: one document of each training source in turn."""
    readers = []
    for source in list_sources(data):
        if not source.is_held_out:
            documents = clean_documents(data, source)
            readers.append(split_documents(documents, split_rule(data, source)))
    while readers:
        for reader in list(readers):
            document = next(reader, None)
            if document is None:
                readers.remove(reader)
                continue
            split, text = document
            if split == "train":
                yield text
