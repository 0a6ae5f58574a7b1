"""The token store: a corpus as flat files of ids on disk, documents ended by EOS.

STORE/manifest.json      what made it: sources, tokenizer, counts, dirt, the SHA-256 of every shard
STORE/tokenizer/
STORE/0.train.bin        of source 0: little-endian uint16 (uint32 where the vocabulary needs it)
STORE/0.validation.bin
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from t5x_lite.data import tokenizer
from t5x_lite.errors import BAD_DATA, NO_FILE, Refusal, read_json

SPLITS = ("train", "validation")


@dataclass(frozen=True)
class Source:
    """One source of a corpus: its name, the rate it is given (0: none), its tokens, a read-only map for each split."""

    name: str
    rate: float
    tokens: dict[str, np.ndarray]


@dataclass(frozen=True)
class Corpus:
    """A prepared store. `manifest[split]` counts what all its sources hold."""

    path: Path
    tokenizer: tokenizer.Tokenizer
    manifest: dict
    sources: tuple[Source, ...]

    @property
    def tokens(self) -> dict[str, np.ndarray]:
        """The tokens of all sources, {split: ids}; of several, in memory."""
        if len(self.sources) == 1:
            return self.sources[0].tokens
        return {split: np.concatenate([source.tokens[split] for source in self.sources]) for split in SPLITS}


def cache() -> Path:
    """The private directory for stores and compiled programs: $T5X_LITE_CACHE or ~/.cache/t5x_lite."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(os.environ.get("T5X_LITE_CACHE") or Path(base) / "t5x_lite")
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def open_store(store: Path) -> Corpus:
    """Open a prepared store. Raises Refusal where its bytes are not those that the manifest has the hashes of."""
    manifest = read_json(store / "manifest.json", "run prepare")
    found = []
    try:
        dtype = np.dtype(manifest["dtype"])
        for number, source in enumerate(manifest["sources"]):
            tokens = {split: _tokens(store / f"{number}.{split}.bin", dtype, source[split]) for split in SPLITS}
            found.append(Source(source["source"], 0.0, tokens))
        fingerprint = manifest["tokenizer"]
        for split in SPLITS:
            if manifest[split]["tokens"] != sum(len(source.tokens[split]) for source in found):
                raise ValueError(f"the tokens of {split} do not add up")
        made_from = manifest["made_from"]
        if not isinstance(made_from["settings"], dict) or not isinstance(made_from["tokenizer"], str):
            raise TypeError("made_from names no settings or tokenizer")
        if not all(len(text) == 3 for text in made_from["text"]):
            raise TypeError("made_from names no text")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal(NO_FILE, f"{store}: no usable token store ({error}); run prepare") from error
    chosen = tokenizer.load(store / "tokenizer")
    if chosen.fingerprint != fingerprint:
        raise Refusal(
            BAD_DATA,
            f"{store}: tokens were made by tokenizer {fingerprint}, but its tokenizer is "
            f"{chosen.fingerprint}; prepare the text again",
        )
    return Corpus(store, chosen, manifest, tuple(found))


def _tokens(path: Path, dtype: np.dtype, counted: dict) -> np.ndarray:
    """The ids of a file, whose shards must have the hashes that are recorded."""
    if not counted["tokens"]:
        return np.zeros(0, dtype)
    tokens = np.memmap(path, dtype, "r")
    start = 0
    for shard in counted["shards"]:
        end = start + shard["tokens"]
        if hashlib.sha256(tokens[start:end]).hexdigest() != shard["sha256"]:
            raise Refusal(BAD_DATA, f"{path}: changed since it was prepared (token {start} on); remove the store")
        start = end
    if start != len(tokens):
        raise Refusal(BAD_DATA, f"{path}: has {len(tokens)} tokens, {start} were prepared; remove the store")
    return tokens
