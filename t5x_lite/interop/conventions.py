"""How a model of Hugging Face begins and ends texts: what its tokenizer puts before a text, and
which ids end one.
"""

from pathlib import Path
from typing import Any

from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_DATA, UserError, read_json
from t5x_lite.interop.config_keys import GENERATION_HARMLESS, GENERATION_NEUTRAL
from t5x_lite.training.run_directory import Conventions


def read(path: Path, tokenizer_files: Path, tokenizer: Tokenizer) -> Conventions:
    """Read the conventions of a model.

    Args:
        path: directory of the model.
        tokenizer_files: directory of its tokenizer, or one of its files.

    Raises:
        UserError: for a setting of generation_config.json that would change what is generated.
    """
    directory = tokenizer_files if tokenizer_files.is_dir() else tokenizer_files.parent
    return Conventions(_begin(directory, tokenizer), _ends(path, tokenizer))


def _begin(directory: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids that a tokenizer puts before a text for a decoder."""
    bos = tokenizer.vocabulary.bos
    settings = _read_if_there(directory / "tokenizer_config.json")
    adds_bos = settings.get("add_bos_token")
    if isinstance(adds_bos, bool):
        return (bos,) if adds_bos and bos is not None else ()
    description = _read_if_there(directory / "tokenizer.json")
    if description:
        return _before_text(description.get("post_processor"))
    # LLaMA's class adds <s> unless it is told not to; GPT-2's adds nothing.
    return (bos,) if tokenizer.model.kind == "sentencepiece" and bos is not None else ()


def _before_text(processor: dict[str, Any] | None) -> tuple[int, ...]:
    """Return the special ids before a text by the post-processor of a `tokenizers` file."""
    if not processor:
        return ()
    if processor["type"] == "Sequence":
        return tuple(i for part in processor["processors"] for i in _before_text(part))
    if processor["type"] != "TemplateProcessing":
        return ()
    ids: list[int] = []
    for part in processor["single"]:
        if "SpecialToken" not in part:
            break
        ids += processor["special_tokens"][part["SpecialToken"]["id"]]["ids"]
    return tuple(ids)


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
            reason = "is no setting that is known, which may change what is generated"
            fix = "remove it from generation_config.json if it does not"
            raise UserError(BAD_DATA, f"{path}: {key}={value!r} {reason}; {fix}")
    stated = generation.get("eos_token_id")
    if stated is None:
        stated = _read_if_there(path / "config.json").get("eos_token_id")
    ends = stated if isinstance(stated, list) else [stated]
    size = tokenizer.vocabulary.size
    for i in ends:
        if i is not None and (type(i) is not int or not 0 <= i < size):
            reason = f"eos_token_id is {i!r}, expected an id below {size:,}"
            raise UserError(BAD_DATA, f"{path}: {reason}")
    return tuple(i for i in ends if i is not None)


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json(path, "correct it") if path.is_file() else {}
