"""How texts begin and end for a model that was imported from elsewhere."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from t5x_lite import storage
from t5x_lite.data.tokenizers.vocabulary import Vocabulary
from t5x_lite.errors import BAD_DATA, UserError, read_json, user_errors

FILE = "generation.json"  # in the directory of a run


class Conventions(NamedTuple):
    """How texts begin and end for a model that was imported, or that started from an imported one.

    Attributes:
        begin: ids that a decoder reads before a text: the ids that its tokenizer adds or, if there
            is an encoder, the id that the decoder starts from. None: the start token, which begins
            the rows of models that were trained here.
        before_inputs: ids that the encoder of an encoder-decoder reads before a text (BART: <s>).
        ends: ids that end a text, besides the vocabulary's end of text.
        model_type: kind of model, as `transformers` names it. It is exported as this if possible.
    """

    begin: tuple[int, ...] | None = None
    before_inputs: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    model_type: str = ""


def check_ids(ids: Sequence[Any], vocabulary: Vocabulary, where: str) -> tuple[int, ...]:
    """Return these ids, or raise UserError if one of them is not in the vocabulary."""
    for i in ids:
        if type(i) is not int or not 0 <= i < vocabulary.size:
            reason = f"got the id {i!r}, expected a number below {vocabulary.size:,}"
            raise UserError(BAD_DATA, f"{where}: {reason}")
    return tuple(ids)


def read_conventions(workdir: Path, vocabulary: Vocabulary) -> Conventions:
    """Return the conventions of an imported model, or our own if none are recorded."""
    path = workdir / FILE
    if not path.exists():
        return Conventions()
    record = read_json(path, "bring it back, or import the model again")
    with user_errors(BAD_DATA, f"{path}: cannot be understood"):
        # Files of earlier versions have no `before_inputs` and no `model_type`.
        begin, before = record["begin"], record.get("before_inputs", ())
        return Conventions(
            None if begin is None else check_ids(begin, vocabulary, str(path)),
            check_ids(before, vocabulary, str(path)),
            check_ids(record["ends"], vocabulary, str(path)),
            str(record.get("model_type", "")),
        )


def write_conventions(workdir: Path, conventions: Conventions) -> None:
    """Record the conventions of an imported model in its run directory."""
    storage.write_durably(workdir / FILE, json.dumps(conventions._asdict(), indent=2))


def keep_ends(workdir: Path, init_from: Path) -> None:
    """Copy the conventions of an imported model to a run that starts from it: the ids that end its
    texts, and the kind of model to export as. The beginning of texts is not copied, since the run's
    rows begin like all rows of models trained here.
    """
    path = init_from / FILE
    if path.exists() and not (workdir / FILE).exists():
        record = read_json(path, "bring it back, or import the model again")
        record |= {"begin": None, "before_inputs": ()}
        if jax.process_index() == 0:
            storage.write_durably(workdir / FILE, json.dumps(record, indent=2))
