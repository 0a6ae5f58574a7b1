"""How a Hugging Face model begins and ends texts: the ids that its tokenizer puts before a text,
and the ids that end a text.
"""

from pathlib import Path
from typing import Any

from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_DATA, UserError, read_json, user_errors
from t5x_lite.interop.config_keys import GENERATION_HARMLESS, GENERATION_NEUTRAL
from t5x_lite.interop.families.table import FAMILIES
from t5x_lite.training.text_conventions import Conventions, check_ids


def read(path: Path, tokenizer_files: Path, tokenizer: Tokenizer) -> Conventions:
    """Read the conventions of a model.

    Args:
        path: directory of the model.
        tokenizer_files: directory of its tokenizer, or one of its files.

    Raises:
        UserError: for a setting of generation_config.json that would change what is generated.
    """
    directory = tokenizer_files if tokenizer_files.is_dir() else tokenizer_files.parent
    config = read_json(path / "config.json", "expected the directory of a model")
    model_type = config["model_type"]
    family = FAMILIES[model_type]
    before_text, ends = _before_text(directory, tokenizer, family.adds_bos), _ends(path, tokenizer)
    if family.constants["architecture"] != "encoder_decoder":
        return Conventions(before_text, (), ends, model_type)
    # The encoder reads the ids that the tokenizer puts before a text. The decoder starts from an id
    # of its own.
    start, begin = config.get("decoder_start_token_id"), None
    if start is not None:
        begin = check_ids([start], tokenizer.vocabulary, f"{path}: decoder_start_token_id")
    return Conventions(begin, before_text, ends, model_type)


def _before_text(directory: Path, tokenizer: Tokenizer, adds_bos: bool) -> tuple[int, ...]:
    """Return the ids that a tokenizer puts before a text.

    Args:
        adds_bos: True if the tokenizer's class puts <s> there unless its files say otherwise.
    """
    vocabulary = tokenizer.vocabulary
    settings = _read_if_there(directory / "tokenizer_config.json")
    told_to_add = settings.get("add_bos_token")
    if told_to_add is False:
        return ()
    stated = settings.get("bos_token")
    name = stated.get("content") if isinstance(stated, dict) else stated
    bos = vocabulary.bos if name is None else vocabulary.specials.get(name)
    if told_to_add is True:
        if bos is None:
            reason = f"add_bos_token is true, but the vocabulary has no {name or 'bos_token'}"
            raise UserError(BAD_DATA, f"{directory}/tokenizer_config.json: {reason}; correct one")
        return (bos,)
    where = f"{directory}/tokenizer.json"
    description = _read_if_there(directory / "tokenizer.json")
    if description:
        with user_errors(BAD_DATA, f"{where}: its post_processor cannot be understood"):
            ids = _ids_before(description.get("post_processor"))
        return check_ids(ids, vocabulary, f"{where}: post_processor")
    return (bos,) if adds_bos and bos is not None else ()


def _ids_before(processor: dict[str, Any] | None) -> list[int]:
    """Return the special ids that the post-processor of a `tokenizers` file puts before a text."""
    if not processor:
        return []
    if processor["type"] == "Sequence":
        return [i for part in processor["processors"] for i in _ids_before(part)]
    if processor["type"] in ("RobertaProcessing", "BertProcessing"):
        return [processor["cls"][1]]
    if processor["type"] != "TemplateProcessing":
        return []
    ids: list[int] = []
    for part in processor["single"]:
        if "SpecialToken" not in part:
            break
        ids += processor["special_tokens"][part["SpecialToken"]["id"]]["ids"]
    return ids


def _ends(path: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids that end a text."""
    generation = _read_if_there(path / "generation_config.json")
    for key, value in generation.items():
        if key in GENERATION_NEUTRAL:
            if value not in (None, *GENERATION_NEUTRAL[key]):
                reason = "changes what is generated, which `generate` does not do"
                fix = "remove it from generation_config.json"
                raise UserError(BAD_DATA, f"{path}: {key}={value!r} {reason}; {fix}")
        elif key not in GENERATION_HARMLESS and value is not None:
            reason = "is unknown, so it may change what is generated"
            fix = "remove it from generation_config.json if it does not"
            raise UserError(BAD_DATA, f"{path}: {key}={value!r} {reason}; {fix}")
    stated = generation.get("eos_token_id")
    if stated is None:
        stated = _read_if_there(path / "config.json").get("eos_token_id")
    ends = stated if isinstance(stated, list) else [stated]
    ids = [i for i in ends if i is not None]
    return check_ids(ids, tokenizer.vocabulary, f"{path}: eos_token_id")


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json(path, "correct it") if path.is_file() else {}
