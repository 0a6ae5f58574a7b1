"""The page on which models write, fill in blanks and score text side by side."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from t5x_lite.data.tasks.kinds.table import kind_of
from t5x_lite.data.tokenizers.text_models import LONE_SURROGATE
from t5x_lite.errors import USAGE, UserError, nearest
from t5x_lite.pages.server import Json, LocalServer

if TYPE_CHECKING:
    from t5x_lite.api import LanguageModel
    from t5x_lite.inference.token_predictions import TokenPrediction

_PAGE = Path(__file__).with_name("play.html")
# Options of inference.generate that the page offers
_OPTIONS = ("max_new_tokens", "temperature", "top_k", "top_p", "seed")
_TOP = 8  # number of likeliest tokens shown for each place


def play_server(models: Mapping[str, "LanguageModel"], port: int = 0) -> LocalServer:
    """Return the server of the page, for named models. One request is computed at a time."""
    computing = Lock()

    def ask(request: Json) -> Iterator[Json]:
        name = request.get("model")
        if not isinstance(name, str) or name not in models:
            raise UserError(USAGE, f"model: expected one of {', '.join(models)}")
        with computing:
            yield from answer(models[name], request)

    def describe_all(query: Mapping[str, str]) -> list[Json]:
        return [describe(name, model) for name, model in models.items()]

    return LocalServer(_PAGE, {"/models": describe_all}, {"/ask": ask}, port)


def describe(name: str, model: "LanguageModel") -> Json:
    """Return what the page shows about a model, and the actions that the model supports."""
    return {"name": name, "about": model.summary, "actions": actions_of(model)}


def actions_of(model: "LanguageModel") -> list[str]:
    """Return the names of the ACTIONS that a model supports."""
    dimensions, rows = model.dimensions, model.rows
    can = {
        "reply": kind_of(model.config.task).replies,
        "continue": dimensions.architecture != "encoder" or rows.bounds_whole_text,
        "fill": rows.masked or rows.uses_sentinels,
        "score": dimensions.architecture in ("encoder", "decoder") or rows.uses_sentinels,
    }
    return [name for name in ACTIONS if can[name] and dimensions.lm_head]


def answer(model: "LanguageModel", request: Mapping[str, Any]) -> Iterator[Json]:
    """Carry out a request, and yield the answers as they are computed.

    Args:
        request: an action and a text; to continue the text or to reply to it, also options of
            inference.generate; to reply, also the earlier turns.

    Raises:
        UserError: if the model does not support the action, or the request is not valid.
    """
    action, text = request.get("action"), request.get("text")
    possible = actions_of(model)
    if action not in possible:
        raise UserError(USAGE, f"action: got {action!r}; {nearest(action, possible)}")
    if not isinstance(text, str):
        raise UserError(USAGE, f"text: got {text!r}, expected a text")
    text = LONE_SURROGATE.sub("\ufffd", text)  # allowed in JSON, but not in UTF-8
    options = {name: request[name] for name in _OPTIONS if name in request}
    if action == "reply":
        before = request.get("turns", [])
        if not isinstance(before, list):
            raise UserError(USAGE, f"turns: got {before!r}, expected a list")
        text = model.render([*before, {"role": "user", "content": text}])
        options["cut"] = True
    yield from ACTIONS[action](model, text, options)


def _continue(model: "LanguageModel", text: str, options: Json) -> Iterator[Json]:
    """Yield the text that a model writes, piece by piece, and then its tokens."""
    for written in model.stream_tokens(text, _TOP, **options):
        if isinstance(written, str):
            yield {"piece": written}
        else:
            yield {"tokens": _as_json(written)}


def _fill(model: "LanguageModel", text: str, options: Json) -> Iterator[Json]:
    """Yield the model's answer for each blank: a text, or the likeliest tokens."""
    yield {"blanks": model.fill(text, _TOP)}


def _score(model: "LanguageModel", text: str, options: Json) -> Iterator[Json]:
    """Yield the predicted tokens of a text, and its bits per byte."""
    if not text:
        raise UserError(USAGE, "text: got none, expected one to score")
    tokens = _as_json(model.predict_tokens(text, top=_TOP))
    yield {"tokens": tokens, "bits_per_byte": model.score(text).bits_per_byte}


def _as_json(tokens: "list[TokenPrediction]") -> list[Json]:
    return [token._asdict() for token in tokens]


ACTIONS = {"reply": _continue, "continue": _continue, "fill": _fill, "score": _score}
