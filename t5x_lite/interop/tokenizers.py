"""Export a tokenizer to the files that `transformers` reads."""

import json
from typing import Any

from t5x_lite.config import Architecture
from t5x_lite.data.tokenizers.text_models import (
    SPACE_MARK,
    HuggingFace,
    SentencePiece,
    printable_bytes,
)
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.data.tokenizers.vocabulary import T5_SENTINELS
from t5x_lite.errors import BAD_CONFIG, UserError

Json = dict[str, Any]

# The role of a special token in `transformers` → our name of the token.
_ROLES = {
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "bos_token": "<s>",
    "mask_token": "[MASK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
}


def pretrained_files(
    tokenizer: Tokenizer, architecture: Architecture, uses_sentinels: bool = False
) -> dict[str, bytes]:
    """Return the content of the tokenizer's files, by file name.

    They are tokenizer_config.json, and tokenizer.json or a SentencePiece model. Our own tokenizers
    have the special tokens of all objectives. Other programs put those that tokenizer_config.json
    names around texts or in place of tokens, so it names [CLS] and [SEP] only for encoders.

    Args:
        architecture: the model's architecture, which decides the special tokens around a text.
        uses_sentinels: the first sentinel, not [MASK], stands for what is missing.

    Raises:
        UserError: for an existing SentencePiece model that special ids were appended to.
    """
    text_model = tokenizer.model
    if isinstance(text_model, SentencePiece) and not text_model.is_own:
        return _sentencepiece_files(tokenizer, text_model)

    roles, vocabulary = _special_tokens(tokenizer), tokenizer.vocabulary
    # An encoder alone reads [CLS]; but BART's [CLS] is its <s>, which its texts begin with.
    cls_is_start = vocabulary.bos in (None, vocabulary.specials.get("[CLS]"))
    if architecture != "encoder" and not cls_is_start:
        roles.pop("cls_token", None)
        roles.pop("sep_token", None)
    if uses_sentinels and "mask_token" in roles:
        roles["mask_token"] = tokenizer.name(vocabulary.sentinel(0))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **roles}
    return {
        "tokenizer.json": _tokenizer_json(tokenizer, architecture),
        "tokenizer_config.json": _dump(config),
    }


def _special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the names of the tokenizer's special tokens, by their roles."""
    specials = tokenizer.vocabulary.specials
    names = {}
    for role, token in _ROLES.items():
        if token in specials:
            names[role] = tokenizer.name(specials[token])
    return names


def _dump(value: Json) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode()


# An existing SentencePiece model: the file itself, and the class that reads it.


def _sentencepiece_files(tokenizer: Tokenizer, model: SentencePiece) -> dict[str, bytes]:
    """Return the SentencePiece model, and its config: for T5's class if there are sentinels."""
    vocabulary = tokenizer.vocabulary
    appended = set(vocabulary.specials) - {"<pad>", "</s>", "<s>"}
    if appended or vocabulary.sentinels not in (0, T5_SENTINELS):
        reason = "a SentencePiece model with data.add_specials=True has no such file"
        raise UserError(BAD_CONFIG, f"export: {reason}")
    config: Json
    if vocabulary.sentinels:
        name = "spiece.model"
        config = {"tokenizer_class": "T5Tokenizer", "extra_ids": T5_SENTINELS}
    else:
        name = "tokenizer.model"
        config = {"tokenizer_class": "LlamaTokenizer", "legacy": False}
    config.update(_special_tokens(tokenizer))
    (content,) = model.files().values()
    return {name: content, "tokenizer_config.json": _dump(config)}


# Every other tokenizer: the JSON of the `tokenizers` package.


def _tokenizer_json(tokenizer: Tokenizer, architecture: Architecture) -> bytes:
    """Return the content of tokenizer.json. An existing one only changes if ids were appended."""
    text_model = tokenizer.model
    if isinstance(text_model, HuggingFace):
        content = text_model.files()["tokenizer.json"]
        description = json.loads(content)
        if not text_model.is_own:
            appended = _append_special_tokens(description, tokenizer)
            return _dump(description) if appended else content
    elif isinstance(text_model, SentencePiece):
        description = _describe_sentencepiece(text_model)
    else:
        description = _describe_bytes()
    _append_special_tokens(description, tokenizer)
    description["post_processor"] = _template(tokenizer, architecture)
    return _dump(description)


def _append_special_tokens(description: Json, tokenizer: Tokenizer) -> bool:
    """Add the special tokens that the text model lacks. Return True if there are any."""
    added_tokens = description.setdefault("added_tokens", [])
    known = {token["id"] for token in added_tokens}
    token_ids = range(tokenizer.model.size, tokenizer.vocabulary.size)
    appended = [_added_token(tokenizer, i) for i in token_ids if i not in known]
    added_tokens.extend(appended)
    return bool(appended)


def _added_token(tokenizer: Tokenizer, token_id: int) -> Json:
    return {
        "id": token_id,
        "content": tokenizer.name(token_id),
        "special": True,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
    }


def _describe_bytes() -> Json:
    """Describe our byte tokenizer as a byte-level BPE without merges."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": printable_bytes(), "merges": []},
    }


def _describe_sentencepiece(model: SentencePiece) -> Json:
    """Describe our lossless SentencePiece, a unigram model or a BPE with byte fallback."""
    space_to_mark = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
    mark_to_space = {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": space_to_mark,
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [mark_to_space, {"type": "ByteFallback"}, {"type": "Fuse"}],
        },
        "model": _describe_bpe(model) if model.is_bpe else _describe_unigram(model),
    }


def _describe_unigram(model: SentencePiece) -> Json:
    return {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": model.scores()}


def _describe_bpe(model: SentencePiece) -> Json:
    """Describe the merges, which SentencePiece does not store. It merges two pieces if together
    they make a piece, and begins with the merge whose piece has the highest score.
    """
    scores = model.scores()
    ids = {piece: i for i, (piece, _) in enumerate(scores)}
    merges = []
    for piece, score in scores:
        for cut in range(1, len(piece)):
            first, second = piece[:cut], piece[cut:]
            if first in ids and second in ids and piece != "<unk>":
                merges.append((-score, ids[first], ids[second], [first, second]))
    return {
        "type": "BPE",
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": ids,
        "merges": [pair for *_, pair in sorted(merges)],
    }


def _template(tokenizer: Tokenizer, architecture: Architecture) -> Json:
    """Describe the special tokens around a text: `[CLS] A [SEP]`, `A </s>`, or `<s> A`."""
    before = []
    after = []
    if architecture == "encoder":
        before = ["[CLS]"]
        after = ["[SEP]"]
    elif architecture == "encoder_decoder":
        after = ["</s>"]
    else:
        before = ["<s>"]

    first_text = {"Sequence": {"id": "A", "type_id": 0}}
    second_text = {"Sequence": {"id": "B", "type_id": 1}}
    prefix = [{"SpecialToken": {"id": name, "type_id": 0}} for name in before]
    suffix, last = (
        [{"SpecialToken": {"id": name, "type_id": number}} for name in after] for number in (0, 1)
    )
    special_tokens = {}
    for name in before + after:
        token_id = tokenizer.vocabulary[name]
        special_tokens[name] = {"id": name, "ids": [token_id], "tokens": [name]}
    return {
        "type": "TemplateProcessing",
        "single": [*prefix, first_text, *suffix],
        "pair": [*prefix, first_text, *suffix, second_text, *last],
        "special_tokens": special_tokens,
    }
