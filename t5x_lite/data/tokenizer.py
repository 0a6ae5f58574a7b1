"""Text to ids and back. Special ids stand outside the text: no raw text ever encodes to one."""

import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path

import numpy as np

from t5x_lite.errors import BAD_CONFIG, BAD_DATA, NO_FILE, Refusal, nearest
from t5x_lite.settings import parse_call

SENTINELS = 100
# What any objective may need, so that all cells of a comparison can share one tokenizer.
SPECIALS = ("<pad>", "</s>", "<s>", "[MASK]", "[CLS]", "[SEP]")
SPECIALS += ("[R]", "[S]", "[X]", "<fim_prefix>", "<fim_middle>", "<fim_suffix>")
_SPACE_MARK = "\u2581"  # SentencePiece writes a space so; in raw text it must not become one
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_TRAINING_BYTES = 50_000_000


@dataclass(frozen=True)
class Vocabulary:
    """The ids that objectives and layouts need to know; None where the tokenizer has no such id."""

    size: int  # of all ids, specials included
    ordinary: tuple[int, int]  # ids that text encodes to lie in [low, high)
    pad: int
    eos: int
    bos: int | None = None
    mask: int | None = None
    cls: int | None = None
    sep: int | None = None
    sentinels: int = 0  # how many; they are the last ids, <extra_id_0> the very last

    def sentinel(self, i):
        """The id of <extra_id_i>: size − 1 − i, as T5 numbers them (i: int or array)."""
        return self.size - 1 - i

    @property
    def start(self) -> int:
        """What a decoder reads first: bos, else pad (as T5 does)."""
        return self.pad if self.bos is None else self.bos

    def is_ordinary(self, ids: np.ndarray) -> np.ndarray:
        """True where an id stands for text."""
        return (ids >= self.ordinary[0]) & (ids < self.ordinary[1])


def _appended(pieces: int, first: int) -> Vocabulary:
    """The vocabulary of `pieces` ids of text, SPECIALS and sentinels appended; text starts at id `first`."""
    at = {name: pieces + i for i, name in enumerate(SPECIALS)}
    return Vocabulary(
        size=pieces + len(SPECIALS) + SENTINELS,
        ordinary=(first, pieces),
        pad=at["<pad>"],
        eos=at["</s>"],
        bos=at["<s>"],
        mask=at["[MASK]"],
        cls=at["[CLS]"],
        sep=at["[SEP]"],
        sentinels=SENTINELS,
    )


class Tokenizer:
    """Encodes and decodes with one of two models of text: bytes, or a SentencePiece model.

    `proto` is a serialised SentencePiece model, None for bytes; `own` says that SPECIALS are appended to it (ours),
    not only sentinels (T5's, whose special ids are its own). Attributes: `vocabulary`, `lossless`, `fingerprint`.

    >>> tokenizer = Tokenizer()
    >>> tokenizer.encode("Hi!").tolist(), tokenizer.decode([72, 105, 33])
    ([72, 105, 33], 'Hi!')
    """

    def __init__(self, proto: bytes | None = None, own: bool = True):
        self._proto, self._own = proto, own
        if proto is None:
            self.vocabulary = _appended(256, 0)
        else:
            import sentencepiece

            self._model = model = sentencepiece.SentencePieceProcessor(model_proto=proto)
            pieces = model.get_piece_size()
            if own:
                self.vocabulary = _appended(pieces, 1)
                self._space = [model.piece_to_id(f"<0x{byte:02X}>") for byte in _SPACE_MARK.encode()]
            else:
                self.vocabulary = _foreign(model)
        self.lossless = own
        content = (proto or b"bytes") + json.dumps([SPECIALS, SENTINELS, own]).encode()
        self.fingerprint = hashlib.sha256(content).hexdigest()[:16]

    def encode(self, text: str) -> np.ndarray:
        """Ids of the text (int32), without any special id. Lone surrogates become U+FFFD."""
        text = _LONE_SURROGATE.sub("\ufffd", text)
        if self._proto is None:
            return np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        if not self._own or _SPACE_MARK not in text:
            return np.array(self._model.encode(text), np.int32)
        first, *rest = (self._model.encode(part) for part in text.split(_SPACE_MARK))
        return np.array(sum((self._space + part for part in rest), first), np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids; a special id is written by its name, such as <extra_id_0>."""
        vocabulary = self.vocabulary
        ids = np.asarray(list(ids), np.int64)
        text = []
        for ordinary, group in groupby(ids.tolist(), key=lambda i: bool(vocabulary.is_ordinary(i))):
            run = list(group)
            text += [self._text(run)] if ordinary else [self.name(i) for i in run]
        return "".join(text)

    def _text(self, ids: list[int]) -> str:
        if self._proto is None:
            return bytes(ids).decode(errors="replace")
        if not self._own:
            return self._model.decode(ids)
        marks, text, start = len(self._space), [], 0
        for i in range(len(ids) - marks + 1):  # SentencePiece would decode these three bytes to a space
            if ids[i : i + marks] == self._space:
                text.append(self._model.decode(ids[start:i]))
                start = i + marks
        return _SPACE_MARK.join([*text, self._model.decode(ids[start:])])

    def name(self, i: int) -> str:
        """How a special id is written; the piece itself for an ordinary one."""
        vocabulary = self.vocabulary
        if vocabulary.size - 1 - i < vocabulary.sentinels:
            return f"<extra_id_{vocabulary.size - 1 - i}>"
        special = i - (vocabulary.size - SENTINELS - len(SPECIALS))
        if self._own and special >= 0:
            return SPECIALS[special]
        return self._model.id_to_piece(i) if self._proto else chr(i)

    def save(self, directory: Path) -> None:
        """Write tokenizer.json, and spiece.model where there is one."""
        directory.mkdir(parents=True, exist_ok=True)
        if self._proto is not None:
            (directory / "spiece.model").write_bytes(self._proto)
        record = {"kind": "sentencepiece" if self._proto else "bytes", "own": self._own}
        (directory / "tokenizer.json").write_text(json.dumps(record | {"fingerprint": self.fingerprint}))


def _foreign(model) -> Vocabulary:
    """The vocabulary of somebody else's SentencePiece model, sentinels appended as T5 does."""
    ordinary = [i for i in range(model.get_piece_size()) if not (model.is_control(i) or model.is_unknown(i))]
    if model.pad_id() < 0 or model.eos_id() < 0:
        raise Refusal(BAD_DATA, "data.tokenizer: this SentencePiece model has no pad or no eos id; train one instead")
    return Vocabulary(
        size=model.get_piece_size() + SENTINELS,
        ordinary=(ordinary[0], ordinary[-1] + 1),
        pad=model.pad_id(),
        eos=model.eos_id(),
        bos=model.bos_id() if model.bos_id() >= 0 else None,
        sentinels=SENTINELS,
    )


def load(directory: Path) -> Tokenizer:
    """The tokenizer that `save` wrote; refused when its bytes are not those it was saved with."""
    try:
        record = json.loads((directory / "tokenizer.json").read_text())
        proto = (directory / "spiece.model").read_bytes() if record["kind"] == "sentencepiece" else None
        tokenizer = Tokenizer(proto, record["own"])
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise Refusal(NO_FILE, f"{directory}: no usable tokenizer ({error})") from error
    if tokenizer.fingerprint != record["fingerprint"]:
        raise Refusal(
            BAD_DATA,
            f"{directory}: the tokenizer has fingerprint {tokenizer.fingerprint}, "
            f"but was saved with {record['fingerprint']}; its file has changed, bring the old one back",
        )
    return tokenizer


def make(spec: str, documents: Iterable[str]) -> Tokenizer:
    """The tokenizer of `data.tokenizer`: bytes, a path to a .model, or one trained on the documents."""
    if spec.endswith(".model"):
        try:
            if not (proto := Path(spec).read_bytes()):
                raise RuntimeError("the file is empty")
            return Tokenizer(proto, own=False)
        except (OSError, RuntimeError) as error:
            raise Refusal(NO_FILE, f"data.tokenizer={spec}: no usable SentencePiece model ({error})") from error
    name, options = parse_call(spec, "data.tokenizer")
    if name == "bytes" and not options:
        return Tokenizer()
    if name != "sentencepiece" or set(options) - {"vocab_size"}:
        kinds = ["bytes", "sentencepiece(vocab_size=8192)", "PATH.model"]
        raise Refusal(BAD_CONFIG, f"data.tokenizer={spec}: {nearest(spec, kinds)}")
    return train(documents, options.get("vocab_size", 8192))


def train(documents: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a lossless SentencePiece unigram model: no normalisation, whitespace kept, bytes for the rest.

    vocab_size: of all ids, the specials and sentinels included. The first 50 MB of the documents are read. Of the
    pieces at most half are single characters; rarer characters are spelled in bytes.
    """
    import sentencepiece

    least = 257 + len(SPECIALS) + SENTINELS
    if type(vocab_size) is not int or vocab_size < least:
        raise Refusal(BAD_CONFIG, f"data.tokenizer: got vocab_size={vocab_size}, expected a number from {least} on")
    pieces = vocab_size - len(SPECIALS) - SENTINELS
    texts = list(_sentences(documents))
    characters = Counter(chain.from_iterable(texts)).most_common()
    rare = {ord(character): " " for character, _ in characters[max((pieces - 257) // 2, 1) :]}
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(text.translate(rare) for text in texts) if rare else iter(texts),
            model_writer=model,
            vocab_size=pieces,
            model_type="unigram",
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
            num_threads=1,  # with more, the sums and so the pieces depend on the number
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise Refusal(
            BAD_DATA,
            f"data.tokenizer: no {vocab_size} ids can be learned from this text ({reason}); give another vocab_size",
        ) from error
    return Tokenizer(model.getvalue())


def _sentences(documents: Iterable[str]):
    """Stretches of at most 2,000 characters, up to the training budget."""
    budget = _TRAINING_BYTES
    for text in documents:
        for start in range(0, len(text), 2000):
            budget -= len(piece := text[start : start + 2000])
            if budget < 0:
                return
            yield _LONE_SURROGATE.sub("\ufffd", piece.replace("\0", " "))
