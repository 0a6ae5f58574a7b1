"""Tokenizers turn text into ids and back, and add special ids.

Special ids are never part of a text: no text encodes to one, except that text which an existing
tokenizer does not know encodes to <unk>.
"""

import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np

from t5x_lite import storage
from t5x_lite.config.grammar import names_files, parse_call
from t5x_lite.config.named import Named, find_named
from t5x_lite.config.permission import check_place
from t5x_lite.data.tokenizers.text_models import (
    LONE_SURROGATE,
    Bytes,
    HuggingFace,
    SentencePiece,
    TextModel,
    byte_level_bpe_json,
    train_byte_level_bpe_json,
    wordpiece_json,
)
from t5x_lite.data.tokenizers.vocabulary import SENTINELS, SPECIALS, Vocabulary, make_vocabulary
from t5x_lite.errors import BAD_CONFIG, BAD_DATA, NO_FILE, UserError, nearest, user_errors
from t5x_lite.progress import say


class Tokenizer:
    """A text model with its special ids.

    Args:
        model: text model; bytes by default.
        add_specials: append the special ids that objectives may need to an existing model. Our own
            models always have them.

    Attributes:
        vocabulary: the ids that objectives need to know.
        lossless: True if decode(encode(text)) == text.
        fingerprint: hash of everything that ids depend on.

    >>> tokenizer = Tokenizer()
    >>> tokenizer.encode("Hi!").tolist(), tokenizer.decode([72, 105, 33])
    ([72, 105, 33], 'Hi!')
    """

    def __init__(self, model: TextModel | None = None, add_specials: bool = False):
        self.model: TextModel = model or Bytes()
        self.lossless = self.model.lossless
        self._add_specials = add_specials or self.model.is_own
        self.vocabulary: Vocabulary = make_vocabulary(self.model, self._add_specials)
        # If an id has several names, the first one is written.
        self._names: dict[int, str] = {}
        for name, token_id in self.vocabulary.specials.items():
            self._names.setdefault(token_id, name)
        self.fingerprint = self._hash()

    def _hash(self) -> str:
        kind = self.model.kind
        description = [kind, SPECIALS, SENTINELS, self._add_specials, self.lossless]
        digest = hashlib.sha256(json.dumps(description).encode())
        for content in self.model.files().values():
            digest.update(content)
        return digest.hexdigest()[:16]

    def extends(self, other: "Tokenizer") -> bool:
        """Return True if this is the other tokenizer, or the other tokenizer with more ids:
        appended special ids, or tokens added to its file.
        """
        if self.fingerprint == other.fingerprint:
            return True
        is_larger = self.vocabulary.size > other.vocabulary.size
        same_text = _without_added_tokens(self.model) == _without_added_tokens(other.model)
        return is_larger and same_text and self.vocabulary.extends(other.vocabulary)

    def encode(self, text: str) -> np.ndarray:
        """Encode a text: int32 [tokens]. No id is special, except <unk>.

        Lone surrogates become U+FFFD.
        """
        ids = self.model.encode(LONE_SURROGATE.sub("\ufffd", text))
        return np.asarray(ids, np.int32)

    def encode_with_specials(self, text: str) -> np.ndarray:
        """Encode a text in which special tokens are written by name: int32 [tokens]. The text
        between them is encoded piece by piece.

        >>> tokenizer = Tokenizer()
        >>> ids = tokenizer.encode_with_specials("a<extra_id_0>b</s>")
        >>> ids.tolist() == [97, tokenizer.vocabulary.sentinel(0), 98, tokenizer.vocabulary.eos]
        True
        """
        vocabulary = self.vocabulary
        names = {f"<extra_id_{i}>": vocabulary.sentinel(i) for i in range(vocabulary.sentinels)}
        names |= vocabulary.specials
        longest_first = sorted(names, key=len, reverse=True)
        pieces = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
        ids = [
            np.array([names[piece]], np.int32) if piece in names else self.encode(piece)
            for piece in pieces
            if piece
        ]
        return np.concatenate(ids) if ids else self.encode("")

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids. Special ids are written by name, such as <extra_id_0>."""
        array = np.asarray(list(ids), np.int64)
        is_ordinary = self.vocabulary.is_ordinary(array)
        pairs = zip(is_ordinary.tolist(), array.tolist(), strict=True)
        texts = []
        for is_text, group in groupby(pairs, key=itemgetter(0)):
            run = [token_id for _, token_id in group]
            if is_text:
                texts.append(self.model.decode(run))
            else:
                texts.extend(self.name(token_id) for token_id in run)
        return "".join(texts)

    def decode_after(self, before: Iterable[int], ids: Iterable[int]) -> str:
        """Return the text that ids add to the text of the ids before them.

        With the vocabularies of T5, LLaMA and BERT, decoding `ids` on their own would lose the
        space that they begin with.
        """
        before = list(before)
        if before and before[-1] == self.vocabulary.eos:
            return self.decode(ids)  # a new text begins after EOS
        # Decoding starts anew after a special id, which would also lose the space: leave them out.
        before = [i for i in before if self.vocabulary.is_ordinary(np.array(i))]
        text, whole = self.decode(before), self.decode([*before, *ids])
        if whole.startswith(text):
            return whole[len(text) :]
        # The decoder has also changed the end of the text before: return all from there on.
        pairs = enumerate(zip(text, whole, strict=False))
        return whole[next((i for i, (a, b) in pairs if a != b), len(whole)) :]

    def as_written(self, text: str) -> str:
        """Return a text as this vocabulary writes it: BERT's writes "3.8" as "3. 8". A text with
        characters that it does not know, and so cannot write, is returned unchanged.
        """
        ids = self.encode(text)
        if not self.vocabulary.is_ordinary(ids).all():
            return text
        return self.decode(ids).strip()

    def name(self, token_id: int) -> str:
        """Return how a special id is written.

        >>> tokenizer = Tokenizer()
        >>> tokenizer.name(tokenizer.vocabulary.eos)
        '</s>'
        """
        sentinel = self.vocabulary.size - 1 - token_id
        if 0 <= sentinel < self.vocabulary.sentinels:
            return f"<extra_id_{sentinel}>"
        return self._names.get(token_id, f"<id {token_id}>")

    def show(self, token_id: int) -> str:
        """Return one token as text without surrounding whitespace; quoted if it is only whitespace.

        >>> Tokenizer().show(ord("a")), Tokenizer().show(ord(" "))
        ('a', "' '")
        """
        text = self.decode([token_id])
        return text.strip() or repr(text)

    def save(self, directory: Path) -> None:
        """Write the model's files, and vocabulary.json, which says what they are."""
        storage.make_directory(directory)
        for name, content in self.model.files().items():
            storage.write_durably(directory / name, content)
        record = {
            "kind": self.model.kind,
            "own": self.model.is_own,
            "add_specials": self._add_specials,
            "fingerprint": self.fingerprint,
        }
        storage.write_durably(directory / "vocabulary.json", json.dumps(record))


def _without_added_tokens(model: TextModel) -> tuple[str, Any]:
    """Return everything that decides how a model encodes text, except for added tokens."""
    contents: dict[str, Any] = {}
    for name, content in model.files().items():
        if name != "tokenizer.json":
            contents[name] = content
            continue
        description = json.loads(content)
        parts = ("model", "normalizer", "pre_tokenizer", "decoder")
        contents[name] = {part: description.get(part) for part in parts}
    return model.kind, contents


def load(directory: Path) -> Tokenizer:
    """Load the tokenizer that `save` wrote.

    Raises:
        UserError: if there is none, or its files have changed since they were saved.
    """
    with user_errors(NO_FILE, f"{directory}: no usable tokenizer"):
        record = json.loads((directory / "vocabulary.json").read_text())
        if record["kind"] == "sentencepiece":
            model = SentencePiece((directory / "spiece.model").read_bytes(), record["own"])
        elif record["kind"] == "huggingface":
            model = HuggingFace((directory / "tokenizer.json").read_bytes(), record["own"])
        else:
            model = Bytes()
        tokenizer = Tokenizer(model, record["add_specials"])
        saved_fingerprint = record.get("fingerprint")
    if tokenizer.fingerprint != saved_fingerprint:
        raise UserError(
            BAD_DATA,
            f"{directory}: the tokenizer has fingerprint {tokenizer.fingerprint}, "
            f"but was saved with {saved_fingerprint}; its file has changed, restore the old one",
        )
    return tokenizer


# Sets of files that a tokenizer's directory may hold, in the order in which they are tried.
_SAVED = ["vocabulary.json"]  # read by `load`
_GPT2 = ["encoder.json", "vocab.bpe"]
_LAYOUTS = [
    _SAVED,
    ["spiece.model"],
    ["tokenizer.model"],
    ["tokenizer.json"],
    _GPT2,
    ["vocab.json", "merges.txt"],
    ["vocab.txt"],
]


def files(spec: str) -> dict[str, bytes]:
    """Return the files of an existing tokenizer, by name.

    Args:
        spec: path of a .model, a vocab.txt, a tokenizer.json, or encoder.json with vocab.bpe; or of
            a directory that holds one of these.

    Raises:
        UserError: for files that settings may not name, that cannot be read, or that are empty.
    """
    check_place(spec, "data.tokenizer")
    path = Path(spec)
    if path.is_dir():
        directory = path
        names = _find_layout(directory, spec)
    else:
        directory = path.parent
        names = _GPT2 if path.name in _GPT2 else [path.name]
    contents = {}
    for name in names:
        try:
            content = (directory / name).read_bytes()
        except OSError as error:
            reason = f"cannot read {error.filename}: {error.strerror}"
            raise UserError(NO_FILE, f"data.tokenizer={spec}: {reason}") from error
        if not content:
            reason = f"{name} is empty; restore the file"
            raise UserError(NO_FILE, f"data.tokenizer={spec}: {reason}")
        contents[name] = content
    return contents


def _find_layout(directory: Path, spec: str) -> list[str]:
    """Return the names of the first known set of files in a directory."""
    for names in _LAYOUTS:
        if all((directory / name).is_file() for name in names):
            return names
    wanted = ", ".join(" with ".join(names) for names in _LAYOUTS if names is not _SAVED)
    raise UserError(NO_FILE, f"data.tokenizer={spec}: this directory has none of {wanted}")


def _model_of_files(contents: dict[str, bytes]) -> TextModel:
    """Build the text model that these files describe."""
    if len(contents) == 2:
        encoder, merges = contents.values()
        return HuggingFace(byte_level_bpe_json(encoder, merges))
    ((name, content),) = contents.items()
    if name.endswith(".json"):
        return HuggingFace(content)
    if name.endswith(".txt"):
        return HuggingFace(wordpiece_json(content))
    return SentencePiece(content)


def make(
    spec: str,
    documents: Iterable[str],
    add_specials: bool = False,
) -> Tokenizer:
    """Make the tokenizer that `data.tokenizer` describes.

    Args:
        spec: "bytes", the path of an existing tokenizer, or one to train:
            "sentencepiece(vocab_size=…)" or "byte_level_bpe(vocab_size=…)".
        documents: text to train on.
        add_specials: append to an existing tokenizer the special ids and sentinels that it lacks.

    Raises:
        UserError: for a tokenizer that does not exist, cannot be read, or cannot be trained.
    """
    if names_files(spec):
        contents = files(spec)
        if "vocabulary.json" in contents:
            return load(Path(spec))
        with user_errors(NO_FILE, f"data.tokenizer={spec}: no usable tokenizer"):
            return Tokenizer(_model_of_files(contents), add_specials)
    return _find_kind(spec)(documents)


def _find_kind(spec: str) -> Named:
    """Find a kind of tokenizer by its name, with its options."""
    if parse_call(spec, "data.tokenizer").name not in _KINDS:
        existing = "a path to .model, tokenizer.json, vocab.txt or vocab.bpe"
        raise UserError(BAD_CONFIG, f"data.tokenizer={spec}: {nearest(spec, [*_KINDS, existing])}")
    return find_named(spec, _KINDS, "data.tokenizer", "tokenizer")


def planned_size(spec: str, add_specials: bool = False) -> int:
    """Return how many ids the tokenizer that `make` returns will have, without training it.

    >>> planned_size("sentencepiece(vocab_size=32000)"), planned_size("bytes")
    (32000, 524)
    """
    if not names_files(spec):
        kind = _find_kind(spec)
        if kind.target is not of_bytes:
            return kind.options.get("vocab_size", _DEFAULT_VOCAB_SIZE)
    return make(spec, (), add_specials).vocabulary.size


# Training.

ModelType = Literal["bpe", "unigram"]  # SentencePiece's model types
_DEFAULT_VOCAB_SIZE = 8192
# Characters to train on; SentencePiece needs half a gigabyte for them
_TRAINING_CHARACTERS = 20_000_000
_TEXT_CHARACTERS = 2000  # SentencePiece reads lines ("sentences") of limited length
_OTHER_PIECES = 257  # pieces that do not depend on the text: every byte, and <unk>
_APPENDED_IDS = len(SPECIALS) + SENTINELS
_MIN_VOCAB_SIZE = _APPENDED_IDS + _OTHER_PIECES + 1
_MAX_PIECES = 2_000_000  # SentencePiece chooses from a million candidates and all characters


def of_bytes(documents: Iterable[str]) -> Tokenizer:
    """Return the tokenizer whose ids are bytes; it is not trained."""
    return Tokenizer()


def _pieces_for(vocab_size: int) -> int:
    """Return how many pieces a text model has in a vocabulary of this size.

    Raises:
        UserError: if the vocabulary is too small for any text.
    """
    if type(vocab_size) is not int or vocab_size < _MIN_VOCAB_SIZE:
        expected = f"expected a number from {_MIN_VOCAB_SIZE} on"
        raise UserError(BAD_CONFIG, f"data.tokenizer: got vocab_size={vocab_size}, {expected}")
    return min(vocab_size - _APPENDED_IDS, _MAX_PIECES)


def _trained(model: TextModel, vocab_size: int) -> Tokenizer:
    """Return the tokenizer of a trained model, and say if it has fewer ids than were asked for."""
    tokenizer = Tokenizer(model)
    size = tokenizer.vocabulary.size
    if size < vocab_size:
        say(
            f"data.tokenizer: asked for vocab_size={vocab_size}, made {size}: "
            "this text is too small for more ids"
        )
    return tokenizer


def train_sentencepiece(
    documents: Iterable[str],
    vocab_size: int = _DEFAULT_VOCAB_SIZE,
    model_type: ModelType = "bpe",
) -> Tokenizer:
    """Train a lossless SentencePiece model.

    It normalises nothing and keeps all whitespace. At most half of the requested pieces are single
    characters; rarer characters are spelled as bytes. The first 20 million characters of the
    documents are read. If they are too few for `vocab_size` ids, the vocabulary is the largest that
    they support. The same text always gives the same tokenizer.

    Args:
        vocab_size: number of ids, special ones and sentinels included.
        model_type: "bpe" repeatedly merges the most frequent pair (Sennrich et al., 2016);
            "unigram", as in T5's tokenizer, repeatedly removes the pieces that a unigram model
            needs least (Kudo, 2018).

    Raises:
        UserError: if `vocab_size` is too small for any text, or the text has nothing to learn from.
    """
    pieces = _pieces_for(vocab_size)
    texts = _without_rare_characters(list(_training_texts(documents)), pieces)
    try:
        proto = _train_model(texts, pieces, model_type)
    except RuntimeError:
        # Most likely the text is too small: allow fewer pieces. Any other error is raised again.
        try:
            proto = _train_model(texts, pieces, model_type, hard_vocab_limit=False)
        except RuntimeError as error:
            if not any(map(str.strip, texts)):
                raise _no_text() from error
            reason = str(error).strip().splitlines()[-1]
            problem = f"no {vocab_size} ids can be learned from this text ({reason})"
            fix = "give more text, or another vocab_size"
            raise UserError(BAD_DATA, f"data.tokenizer: {problem}; {fix}") from error
    return _trained(SentencePiece(proto, is_own=True), vocab_size)


def train_byte_level_bpe(
    documents: Iterable[str], vocab_size: int = _DEFAULT_VOCAB_SIZE
) -> Tokenizer:
    """Train a byte-level BPE with GPT-2's rules (Radford et al., 2019, §2.2), using `tokenizers`.

    Args:
        vocab_size: number of ids, special ones and sentinels included.

    Raises:
        UserError: if `vocab_size` is too small for any text, the text has nothing to learn from, or
            the package is not installed.
    """
    texts = list(_training_texts(documents))
    if not any(map(str.strip, texts)):
        raise _no_text()
    content = train_byte_level_bpe_json(texts, _pieces_for(vocab_size))
    return _trained(HuggingFace(content, is_own=True), vocab_size)


def _no_text() -> UserError:
    problem = "there is no text to learn ids from; give some"
    return UserError(BAD_DATA, f"data.tokenizer: {problem}")


_KINDS: dict[str, Callable[..., Tokenizer]] = {
    "bytes": of_bytes,
    "sentencepiece": train_sentencepiece,
    "byte_level_bpe": train_byte_level_bpe,
}


def _training_texts(documents: Iterable[str]) -> Iterator[str]:
    """Cut the documents into short texts, up to the number of characters to train on."""
    characters = 0
    for document in documents:
        for start in range(0, len(document), _TEXT_CHARACTERS):
            text = document[start : start + _TEXT_CHARACTERS]
            characters += len(text)
            if characters > _TRAINING_CHARACTERS:
                return
            text = text.replace("\0", " ")  # SentencePiece does not read NUL
            yield LONE_SURROGATE.sub("\ufffd", text)


def _without_rare_characters(texts: list[str], pieces: int) -> list[str]:
    """Replace all but the most frequent characters by spaces. The number of characters that remain
    is about half the number of pieces.
    """
    counts = Counter()
    for text in texts:
        counts.update(text)
    max_characters = max((pieces - _OTHER_PIECES) // 2, 1)
    rare = [character for character, _ in counts.most_common()[max_characters:]]
    if not rare:
        return texts
    table = str.maketrans(dict.fromkeys(rare, " "))
    return [text.translate(table) for text in texts]


def _train_model(texts: list[str], pieces: int, model_type: ModelType, **options: Any) -> bytes:
    """Train a SentencePiece model, and return it serialised.

    Raises:
        RuntimeError: if the text does not yield that many pieces.
    """
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=pieces,
        model_type=model_type,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        allow_whitespace_only_pieces=True,
        byte_fallback=True,
        character_coverage=1.0,
        max_sentence_length=1 << 20,
        unk_id=0,
        pad_id=-1,
        bos_id=-1,
        eos_id=-1,
        num_threads=1,  # sums, and so the pieces, would depend on the number of threads
        minloglevel=2,
        **options,
    )
    return model.getvalue()
