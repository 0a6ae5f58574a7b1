"""Text models turn text into ids and back: bytes, SentencePiece, and models of `tokenizers`."""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np

from t5x_lite.errors import BAD_DATA, UserError, optional_import

LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # half a UTF-16 pair, which UTF-8 cannot hold
SPACE_MARK = "\u2581"  # SentencePiece writes a space as ▁; a ▁ in text must not become a space

TextModelKind = Literal["bytes", "sentencepiece", "huggingface"]


class TextModel(Protocol):
    """A model that turns text into ids and back.

    Attributes:
        kind: name of this class in a saved tokenizer.
        size: number of ids.
        ordinary: runs of the ids that text encodes to.
        specials: ids of its special tokens, by name.
        is_own: True if it is bytes or was trained by this package. Special ids are then appended to
            it.
        lossless: True if decode(encode(text)) == text.
    """

    kind: TextModelKind
    size: int
    ordinary: tuple[range, ...]
    specials: dict[str, int]
    is_own: bool
    lossless: bool

    def encode(self, text: str) -> np.ndarray:
        """Encode a text: int32 [tokens]. No id is special, except the one for unknown text."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Return the text of ordinary ids."""
        ...

    def texts(self) -> list[bytes | None]:
        """Return the bytes that each id stands for; None for a special id."""
        ...

    def files(self) -> dict[str, bytes]:
        """Return the files that the model can be rebuilt from, by name."""
        ...


# Long texts are encoded in chunks of about this many characters.
CHUNK = 1 << 20
# Chunks are cut at single spaces, which are never inside a piece of the models here.
_SINGLE_SPACE = re.compile(r"(?<=\S) (?=\S)")


def chunks(text: str) -> Iterator[str]:
    """Cut a text into chunks, each beginning with the space it is cut at.

    A chunk that would grow to twice CHUNK before such a space is cut after CHUNK characters
    instead. A few tokens may then differ from the tokens of the whole text.
    """
    start = 0
    while len(text) - start > CHUNK:
        space = _SINGLE_SPACE.search(text, start + CHUNK, start + 2 * CHUNK)
        end = space.start() if space else start + CHUNK
        yield text[start:end]
        start = end
    yield text[start:]


def _join_ids(parts: Iterable[list[int]]) -> np.ndarray:
    """Concatenate lists of ids: int32 [tokens]."""
    return np.concatenate([np.array(part, np.int32) for part in parts])


def runs_between(size: int, special: Collection[int]) -> tuple[range, ...]:
    """Return the runs of ids below `size` that are not special.

    >>> runs_between(10, [0, 1, 6])
    (range(2, 6), range(7, 10))
    """
    runs = [range(a + 1, b) for a, b in pairwise([-1, *sorted(special), size])]
    return tuple(run for run in runs if run)


def printable_bytes() -> dict[str, int]:
    """Return GPT-2's table that writes each byte as one printable character (released code).

    >>> table = printable_bytes()
    >>> table["A"], table["Ġ"]
    (65, 32)
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    for number, byte in enumerate(others):
        table[chr(256 + number)] = byte
    return table


_BYTE_OF = printable_bytes()


class Bytes:
    """Text model whose ids are the bytes of UTF-8."""

    kind: TextModelKind = "bytes"
    size: int = 256
    ordinary: tuple[range, ...] = (range(256),)
    specials: dict[str, int] = {}
    is_own: bool = True
    lossless: bool = True

    def files(self) -> dict[str, bytes]:
        """Return nothing: no files are needed."""
        return {}

    def encode(self, text: str) -> np.ndarray:
        """Return the bytes of a text."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def decode(self, ids: list[int]) -> str:
        """Return the text of these bytes. Invalid UTF-8 becomes U+FFFD."""
        return bytes(ids).decode(errors="replace")

    def texts(self) -> list[bytes | None]:
        """Return the byte of each id."""
        return [bytes([byte]) for byte in range(256)]


class SentencePiece:
    """Text model of a SentencePiece file.

    Args:
        proto: serialised model.
        is_own: True for a model trained here, which is lossless; False for an existing one, such as
            T5's.
    """

    kind: TextModelKind = "sentencepiece"

    def __init__(self, proto: bytes, is_own: bool = False):
        import sentencepiece

        self.is_own = is_own
        self.lossless = is_own
        self._proto = proto
        model: Any = sentencepiece.SentencePieceProcessor(model_proto=proto)
        self._model = model
        self.size: int = model.get_piece_size()
        special = []
        # SentencePiece finds user-defined symbols, such as <mask>, in text. Here they are special.
        user_defined: dict[str, int] = {}
        for i in range(self.size):
            if model.is_control(i) or model.is_unknown(i):
                special.append(i)
            elif _SPECIAL.fullmatch(model.id_to_piece(i)) and not is_own:
                user_defined[model.id_to_piece(i)] = i
        self.ordinary = runs_between(self.size, [*special, *user_defined.values()])
        self._user_defined = list(user_defined.values())
        # Special ids of our own models are appended outside the model.
        self.specials: dict[str, int] = {}
        if not is_own:
            _add_our_names(user_defined)
            self.specials |= user_defined
            self._add_special("<pad>", model.pad_id())
            self._add_special("</s>", model.eos_id())
            self._add_special("<s>", model.bos_id())
        # A lossless model spells a ▁ of the text as bytes.
        self._space_mark_ids: list[int] = []
        for byte in SPACE_MARK.encode():
            self._space_mark_ids.append(model.piece_to_id(f"<0x{byte:02X}>"))

    def _add_special(self, name: str, token_id: int) -> None:
        if token_id >= 0:  # negative: the model has no such token
            self.specials[name] = token_id

    def files(self) -> dict[str, bytes]:
        """Return the serialised model."""
        return {"spiece.model": self._proto}

    def encode(self, text: str) -> np.ndarray:
        """Encode a text. Text that the model does not know becomes its <unk>; no other id is
        special.
        """
        if self.lossless:
            return _join_ids(self._encode_lossless(text))
        # Existing models add a space before each text and drop the spaces around it. They do so for
        # every chunk.
        ids = _join_ids(self._model.encode(chunk) for chunk in chunks(text))
        if self._user_defined:
            ids[np.isin(ids, self._user_defined)] = self._model.unk_id()
        return ids

    def _encode_lossless(self, text: str) -> Iterator[list[int]]:
        """Yield the ids of the text between two ▁, and of the bytes of each ▁."""
        for chunk in chunks(text):
            first, *others = chunk.split(SPACE_MARK)
            yield self._model.encode(first)
            for part in others:
                yield self._space_mark_ids
                yield self._model.encode(part)

    def decode(self, ids: list[int]) -> str:
        """Return the text of ordinary ids."""
        if not self.lossless:
            return self._model.decode(ids)
        # SentencePiece would decode the bytes of ▁ to a space, so decode only the ids between them.
        mark = self._space_mark_ids
        texts = []
        start = 0
        for i in range(len(ids) - len(mark) + 1):
            if ids[i : i + len(mark)] == mark:
                texts.append(self._model.decode(ids[start:i]))
                start = i + len(mark)
        texts.append(self._model.decode(ids[start:]))
        return SPACE_MARK.join(texts)

    @property
    def is_bpe(self) -> bool:
        """True for a BPE, whose scores are the negated ranks of its merges; False for a unigram
        model, whose scores are log-probabilities.
        """
        scores = [score for _, score in self.scores() if score < 0]
        return all(score == round(score) for score in scores)

    def scores(self) -> list[tuple[str, float]]:
        """Return the piece and the score of each id."""
        pieces = [self._model.id_to_piece(i) for i in range(self.size)]
        scores = [self._model.get_score(i) for i in range(self.size)]
        return list(zip(pieces, scores, strict=True))

    def texts(self) -> list[bytes | None]:
        """Return the bytes of each id; None for a special id."""
        texts: list[bytes | None] = [None] * self.size
        for run in self.ordinary:
            for i in run:
                piece = self._model.id_to_piece(i)
                if self._model.is_byte(i):  # written as <0x0A>
                    texts[i] = bytes([int(piece[3:5], 16)])
                else:
                    texts[i] = piece.replace(SPACE_MARK, " ").encode()
        return texts


# Names of the special tokens in other tokenizers.
_OTHER_NAMES = {
    "<pad>": ("[PAD]", "<|pad|>"),
    "</s>": ("<|endoftext|>", "<|end_of_text|>", "<eos>", "[SEP]"),
    "<s>": ("<|begin_of_text|>", "<bos>", "<|endoftext|>"),
    "[MASK]": ("<mask>",),
    "[CLS]": ("<s>",),
    "[SEP]": ("</s>",),
}
_HIDDEN = "\U0010fffe"  # not a character; goes before names that must not be found in text
_BYTE = re.compile("<0x[0-9A-F]{2}>")  # a byte of a character that has no piece
_MAX_IDS = 10_000_000  # ten times the ids of the largest vocabularies
_SPECIAL = re.compile(
    r"\[(PAD|UNK|CLS|SEP|MASK|unused\d+)\]|</?(s|pad|unk|mask|bos|eos|extra_id_\d+)>|<\|.*\|>"
)


class HuggingFace:
    """A model of the `tokenizers` package.

    Special tokens are never found in text. Other tokens that were added to the model, such as runs
    of spaces, are found.

    Args:
        content: JSON of the model.
        is_own: True for a model trained here.

    Raises:
        UserError: if the model has no ordinary pieces or invalid ids, or the package is not
            installed.
    """

    kind: TextModelKind = "huggingface"

    def __init__(self, content: bytes, is_own: bool = False):
        self.is_own = is_own
        tokenizers = optional_import("tokenizers", "hf", "data.tokenizer")
        self._content = content
        description = json.loads(content)

        # Collect the ids, and find which of them are special.
        added = {}
        special = set()
        for token in description.get("added_tokens", ()):
            added[token["content"]] = token["id"]
            if token.get("special"):
                special.add(token["id"])
        ids = _read_vocabulary(description["model"]) | added
        self.size: int = _checked_size(ids)
        self._pieces = {i: piece for piece, i in ids.items()}
        for i, piece in self._pieces.items():
            if _SPECIAL.fullmatch(piece) and not is_own:  # ours are appended outside the model
                special.add(i)
        self._is_special = np.zeros(self.size, bool)
        self._is_special[list(special)] = True
        without_piece = set(range(self.size)) - self._pieces.keys()
        self.ordinary = runs_between(self.size, special | without_piece)
        if not self.ordinary:
            raise UserError(BAD_DATA, "data.tokenizer: this tokenizers file has no ordinary pieces")

        # Collect the names of the special ids: the tokenizer's own, and ours.
        self.specials: dict[str, int] = {}
        for i in sorted(special):
            if not self._pieces[i].startswith("[unused"):
                self.specials[self._pieces[i]] = i
        _add_our_names(self.specials)
        unknown = self.specials.get("<unk>", self.ordinary[0].start)
        self._unknown = self.specials.get("[UNK]", unknown)

        # Load the model so that it finds no special token in text.
        self._added = {i: piece for piece, i in added.items() if i not in special}
        _hide_special_pieces(description)
        for name in ("post_processor", "truncation", "padding"):
            description[name] = None
        self._model = tokenizers.Tokenizer.from_str(json.dumps(description))
        for i, piece in self._added.items():
            if self._model.token_to_id(piece) != i:
                reason = f"the added token {piece!r} has id {i}, but its place gives it "
                reason += f"{self._model.token_to_id(piece)}; number the added tokens in order"
                raise UserError(BAD_DATA, f"data.tokenizer: {reason}")

        # Find out how the pieces spell text.
        self._is_byte_level = "ByteLevel" in _types(description.get("decoder"))
        model = description["model"]
        self._is_wordpiece: bool = model.get("type") == "WordPiece"
        self._continuation_prefix: str = model.get("continuing_subword_prefix") or ""
        self._word_suffix: str = model.get("end_of_word_suffix") or ""
        self._spells_bytes: bool = model.get("byte_fallback", False)
        is_plain = self._is_byte_level and not description.get("normalizer")
        self.lossless: bool = is_plain and self._keeps_everything()

    def _keeps_everything(self) -> bool:
        """Return True if texts with everything that tokenizers often lose are decoded unchanged."""
        characters = [chr(code) for code in range(256)]
        for text in ("a é\u0085 漢😀\n\t" + "".join(characters), "hi", " hi  "):
            ids = self._model.encode(text).ids
            if self._model.decode(ids) != text:
                return False
        return True

    def files(self) -> dict[str, bytes]:
        """Return the JSON, which any version of `tokenizers` reads."""
        return {"tokenizer.json": self._content}

    def encode(self, text: str) -> np.ndarray:
        """Encode a text. A special token of the vocabulary that is spelled out in the text becomes
        the unknown id.
        """
        parts = []
        for chunk in chunks(text):
            encoding = self._model.encode(chunk, add_special_tokens=False)
            parts.append(encoding.ids)
        ids = _join_ids(parts)
        is_special = self._is_special[ids]
        if is_special.any():
            ids[is_special] = self._unknown
        return ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of ordinary ids."""
        return self._model.decode(ids, skip_special_tokens=False)

    def texts(self) -> list[bytes | None]:
        """Return the bytes of each id; None for a special id."""
        texts: list[bytes | None] = [None] * self.size
        for run in self.ordinary:
            for i in run:
                texts[i] = self._added[i].encode() if i in self._added else self._text(i)
        return texts

    def _text(self, token_id: int) -> bytes:
        """Return the bytes of a piece of the model."""
        piece = self._pieces[token_id]
        if self._is_byte_level:
            return bytes(_BYTE_OF[character] for character in piece)
        if self._spells_bytes and _BYTE.fullmatch(piece):
            return bytes([int(piece[3:5], 16)])
        if self._is_wordpiece:
            return _wordpiece_text(piece, self._continuation_prefix).encode()
        if self._word_suffix:
            return piece.replace(self._word_suffix, " ").encode()
        return piece.replace(SPACE_MARK, " ").encode()


def _wordpiece_text(piece: str, continuation_prefix: str) -> str:
    """Return the text of a piece of WordPiece. WordPiece does not record spaces: assume one before
    a word, and none before punctuation.
    """
    if piece.startswith(continuation_prefix):
        return piece.removeprefix(continuation_prefix)
    return f" {piece}" if piece[:1].isalnum() else piece


def _checked_size(ids: dict[str, int]) -> int:
    """Return the number of ids, the largest plus one.

    Raises:
        UserError: for invalid ids, or two pieces with the same id.
    """
    taken: dict[int, str] = {}
    for piece, i in ids.items():
        if type(i) is not int or not 0 <= i < _MAX_IDS:
            reason = f"{piece!r} has id {i!r}, expected a number from 0 to {_MAX_IDS - 1:,}"
            raise UserError(BAD_DATA, f"data.tokenizer: {reason}")
        if taken.setdefault(i, piece) != piece:
            reason = f"{taken[i]!r} and {piece!r} have the same id, {i}"
            raise UserError(BAD_DATA, f"data.tokenizer: {reason}")
    return max(taken, default=-1) + 1


def _types(decoder: dict[str, Any] | None) -> list[str]:
    """Return the type of a tokenizer's decoder and, if it is a sequence, of all its parts."""
    if not decoder:
        return []
    parts = decoder.get("decoders", ())
    return [decoder["type"], *(name for part in parts for name in _types(part))]


def _read_vocabulary(model: dict[str, Any]) -> dict[str, int]:
    """Return the id of each piece, from the JSON of a `tokenizers` model."""
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        return dict(vocab)
    return {piece: i for i, (piece, _) in enumerate(vocab)}


def _add_our_names(specials: dict[str, int]) -> None:
    """Add our names of special tokens, in place, if a tokenizer uses other names."""
    for name, other_names in _OTHER_NAMES.items():
        for other_name in other_names:
            if other_name in specials:
                specials.setdefault(name, specials[other_name])


def _hide_special_pieces(description: dict[str, Any]) -> None:
    """Change the special tokens of a `tokenizers` model, in place, so that none is found in text.

    A special token that is also a piece of the model needs no entry among the added tokens. The
    others keep their entries, since the ids of added tokens follow from their places, but get a
    name that no text contains.
    """
    model = description["model"]
    in_model = _read_vocabulary(model)
    added = []
    for token in description.get("added_tokens", ()):
        if token.get("special") or _SPECIAL.fullmatch(token["content"]):
            if token["content"] in in_model:
                continue
            token["content"] = _HIDDEN + token["content"]
        added.append(token)
    description["added_tokens"] = added
    # A Unigram model finds all its pieces in text, so hide the special ones among them too.
    if isinstance(model["vocab"], list):
        for entry in model["vocab"]:
            if _SPECIAL.fullmatch(entry[0]):
                entry[0] = _HIDDEN + entry[0]


def wordpiece_json(vocabulary: bytes) -> bytes:
    """Return BERT's WordPiece with this vocab.txt as `tokenizers` JSON, uncased if its pieces are
    all lower case.
    """
    tokenizers = optional_import("tokenizers", "hf", "data.tokenizer")
    lines = vocabulary.decode().removesuffix("\n").split("\n")
    pieces = [line.removesuffix("\r") for line in lines]
    ordinary = [piece for piece in pieces if not _SPECIAL.fullmatch(piece)]
    is_cased = any(piece != piece.lower() for piece in ordinary)
    ids = {piece: i for i, piece in enumerate(pieces)}
    model = tokenizers.models.WordPiece(ids, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=not is_cased)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    return tokenizer.to_str().encode()


def byte_level_bpe_json(encoder: bytes, merges: bytes) -> bytes:
    """Return GPT-2's byte-level BPE with this encoder.json and vocab.bpe as `tokenizers` JSON."""
    tokenizers = optional_import("tokenizers", "hf", "data.tokenizer")
    pairs = []
    for line in merges.decode().split("\n"):
        if line and not line.startswith("#version"):
            pairs.append(tuple(line.split()))
    model = tokenizers.models.BPE(json.loads(encoder), pairs)
    return _byte_level(model).to_str().encode()


def train_byte_level_bpe_json(texts: list[str], pieces: int) -> bytes:
    """Train a byte-level BPE; return it as `tokenizers` JSON. It may have fewer pieces."""
    tokenizers = optional_import("tokenizers", "hf", "data.tokenizer")
    tokenizer = _byte_level(tokenizers.models.BPE())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=pieces,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str().encode()


def _byte_level(model: Any) -> Any:
    """Return the tokenizer of a BPE model that reads text as GPT-2 does."""
    tokenizers = optional_import("tokenizers", "hf", "data.tokenizer")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer
