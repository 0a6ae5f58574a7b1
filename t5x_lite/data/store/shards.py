"""The text of a source as a store takes it: each document in a split, shards of a few megabytes."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from t5x_lite.config import Data
from t5x_lite.data.store.corpus import Split
from t5x_lite.data.text import sources
from t5x_lite.data.text.cleaning import Cleaner
from t5x_lite.data.text.files import Continuation
from t5x_lite.specs import AllowedCode, parse_sources

SHARD_BYTES = 4_000_000  # of text
# Up to so many documents are split by the rank of their hash, so that each split has some; to know
# the ranks, all text is read twice. More documents, or longer ones, are split by chance.
_FEW_DOCUMENTS = 200
_FEW_CHARACTERS = 1 << 30

Shard = list[tuple[Split, bytes]]  # the split and the UTF-8 of each document


class SourceSetting(NamedTuple):
    """A source, and the setting that names it."""

    name: str
    key: str

    @property
    def where(self) -> str:
        """As errors name it."""
        return f"{self.key}={self.name}"

    @property
    def is_held_out(self) -> bool:
        """Whether it is validation text as a whole."""
        return self.key == "data.validation_source"


def list_sources(data: Data) -> list[SourceSetting]:
    """The sources of a store: those to train on, then the one that is held out.

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
    """A document, or a part of one that is longer than files.LONGEST."""

    text: str
    is_continuation: bool  # of the document before


def clean_documents(
    data: Data,
    source: SourceSetting,
    cleaner: Cleaner | None = None,
    allowed: AllowedCode = None,
) -> Iterator[CleanDocument]:
    """The documents of a source, cleaned.

    Args:
        cleaner: counts the issues; None: they are not counted.
        allowed: the modules that may be imported for a source; None: any.
    """
    if cleaner is None:
        cleaner = Cleaner(data.text_cleaning, source.where)
    started = False  # whether a part of the same document was kept already
    documents = sources.documents(source.name, data.document, data.field, source.key, allowed)
    for document in documents:
        if not isinstance(document, Continuation):
            started = False
        text = cleaner(document)
        if text is not None:
            yield CleanDocument(text, is_continuation=started)
            started = True


def documents_by_split(
    data: Data,
    source: SourceSetting,
    cleaner: Cleaner | None = None,
    allowed: AllowedCode = None,
) -> Iterator[tuple[Split, str]]:
    """The split and the text of each document.

    Validation text is a source of its own, or a share of each: documents whose hash is small, so
    that copies within a source are in the same split. Of few documents at least one is held out. A
    source of one document is cut in two at that share of its characters.

    Args:
        cleaner, allowed: as of `clean_documents`.
    """
    documents = clean_documents(data, source, cleaner, allowed)
    if data.validation_source:
        source_split: Split = "validation" if source.is_held_out else "train"
        for document in documents:
            yield source_split, document.text
        return

    fraction = data.validation_fraction
    small = _read_small_source(data, source, allowed)
    if small is not None and len(small.hashes) == 1:
        train_characters = int(small.characters * (1 - fraction))
        yield from _cut_in_two(documents, train_characters)
        return

    # Documents of smaller hashes are held out.
    border = fraction * 2**64
    if small is not None and len(set(small.hashes)) > 1:
        hashes = sorted(set(small.hashes))
        held_out = max(round(len(hashes) * fraction), 1)
        held_out = min(held_out, len(hashes) - 1)
        border = hashes[held_out]
    split: Split = "train"
    for document in documents:
        if not document.is_continuation:
            split = "validation" if _hash(document.text) < border else "train"
        yield split, document.text


class _SmallSource(NamedTuple):
    hashes: list[int]  # of the text of each document
    characters: int


def _read_small_source(
    data: Data, source: SourceSetting, allowed: AllowedCode
) -> _SmallSource | None:
    """The hashes and the size of all documents; None where they are many."""
    hashes = []
    characters = 0
    for document in clean_documents(data, source, allowed=allowed):
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
    """One document, which may come in parts: its first characters for training, then held out."""
    remaining = train_characters
    for document in documents:
        train = document.text[:remaining]
        validation = document.text[remaining:]
        if train:
            yield "train", train
        if validation:
            yield "validation", validation
        remaining -= len(train)


def make_shards(documents: Iterable[tuple[Split, str]]) -> Iterator[Shard]:
    """The documents, as many at a time as make SHARD_BYTES."""
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


def shard_hash(shard: Shard) -> str:
    """The hash of a shard's text."""
    digest = hashlib.blake2b(digest_size=16)
    for split, utf8 in shard:
        digest.update(f"{split} {len(utf8)} ".encode() + utf8)
    return digest.hexdigest()


def combined_hash(shard_hashes: Iterable[str]) -> str:
    """The hash of a source's text: of the hashes of its shards."""
    digest = hashlib.sha256()
    for shard_hash in shard_hashes:
        digest.update(shard_hash.encode())
    return digest.hexdigest()


def text_hash(data: Data, source: SourceSetting, allowed: AllowedCode = None) -> str:
    """The hash of a source's whole text, as in a manifest."""
    documents = documents_by_split(data, source, allowed=allowed)
    return combined_hash(shard_hash(shard) for shard in make_shards(documents))


def training_texts(data: Data, allowed: AllowedCode = None) -> Iterator[str]:
    """The text that a tokenizer is trained on: a document of each source in turn."""
    readers = []
    for source in list_sources(data):
        if not source.is_held_out:
            readers.append(documents_by_split(data, source, allowed=allowed))
    while readers:
        for reader in list(readers):
            document = next(reader, None)
            if document is None:
                readers.remove(reader)
                continue
            split, text = document
            if split == "train":
                yield text
