"""A tokenizer of ours in the files that `transformers` reads."""

import json

from t5x_lite.config import Model
from t5x_lite.data.text_models import SPACE_MARK, SentencePiece, printable_bytes
from t5x_lite.data.tokenizer import Tokenizer
from t5x_lite.data.vocabulary import T5_SENTINELS
from t5x_lite.errors import BAD_CONFIG, Refusal

_ROLES = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>", "mask_token": "[MASK]", "cls_token": "[CLS]"}
_ROLES |= {"sep_token": "[SEP]"}


def pretrained_files(tokenizer: Tokenizer, model: Model) -> dict[str, bytes]:
    """tokenizer.json, or somebody's SentencePiece model, and tokenizer_config.json. Raises Refusal for somebody's
    SentencePiece model that special ids were appended to.
    """
    vocabulary, text = tokenizer.vocabulary, tokenizer.model
    roles = {
        role: tokenizer.name(vocabulary.specials[name]) for role, name in _ROLES.items() if name in vocabulary.specials
    }
    if isinstance(text, SentencePiece) and not text.ours:
        if vocabulary.sentinels not in (0, T5_SENTINELS) or set(vocabulary.specials) - {"<pad>", "</s>", "<s>"}:
            raise Refusal(BAD_CONFIG, "export: a SentencePiece model with data.add_specials=True has no such file")
        kind = {"tokenizer_class": "T5Tokenizer", "extra_ids": T5_SENTINELS} if vocabulary.sentinels else {}
        kind = kind or {"tokenizer_class": "LlamaTokenizer", "legacy": False}
        (content,) = text.files().values()
        name = "spiece.model" if vocabulary.sentinels else "tokenizer.model"
        return {name: content, "tokenizer_config.json": _dump(kind | roles)}
    described = json.loads(text.files()["tokenizer.json"]) if text.kind == "huggingface" else _describe(text)
    known = {token["id"] for token in described["added_tokens"]}
    first = text.size  # what was appended
    appended = [i for i in range(first, vocabulary.size) if i not in known]
    described["added_tokens"] += [
        {"id": i, "content": tokenizer.name(i), "special": True, "single_word": False}
        | dict.fromkeys(("lstrip", "rstrip", "normalized"), False)
        for i in appended
    ]
    if text.ours:
        described["post_processor"] = _frame(tokenizer, model.architecture)
    content = text.files()["tokenizer.json"] if text.kind == "huggingface" and not appended else _dump(described)
    return {
        "tokenizer.json": content,
        "tokenizer_config.json": _dump({"tokenizer_class": "PreTrainedTokenizerFast"} | roles),
    }


def _dump(value: dict) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode()


def _describe(text) -> dict:
    """The JSON of `tokenizers` for bytes, or for our own lossless SentencePiece."""
    nothing = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": []}
    if text.kind == "bytes":
        by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        model = {"type": "BPE", "vocab": printable_bytes(), "merges": []}
        return nothing | {"normalizer": None, "pre_tokenizer": by_bytes, "decoder": by_bytes, "model": model}
    return nothing | {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": text.scores()},
    }


def _frame(tokenizer: Tokenizer, architecture: str) -> dict:
    """What stands around a text, as our layouts have it: [CLS] … [SEP], … </s> or <s> …"""
    before, behind = {"encoder": ("[CLS]", "[SEP]"), "encoder_decoder": (None, "</s>")}.get(architecture, ("<s>", None))
    text = {"Sequence": {"id": "A", "type_id": 0}}
    specials = [name for name in (before, behind) if name]
    frame = [*[{"SpecialToken": {"id": before, "type_id": 0}}] * bool(before), text]
    frame += [{"SpecialToken": {"id": behind, "type_id": 0}}] * bool(behind)
    ids = {name: {"id": name, "ids": [tokenizer.vocabulary[name]], "tokens": [name]} for name in specials}
    pair = [*frame, {"Sequence": {"id": "B", "type_id": 1}}, *frame[len(frame) - bool(behind) :]]
    return {"type": "TemplateProcessing", "single": frame, "pair": pair, "special_tokens": ids}
