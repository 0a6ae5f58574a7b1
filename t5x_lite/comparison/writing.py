"""What the models of a comparison write: each fills in or continues the same few texts."""

from collections.abc import Sequence
from typing import NamedTuple, NotRequired, TypedDict

from t5x_lite.inference.fill import fill
from t5x_lite.inference.generate import continue_texts
from t5x_lite.training.loaded_model import LoadedModel


class Sampling(TypedDict, total=False):
    """How a text is continued; the options are those of inference.generate."""

    max_new_tokens: int
    temperature: float
    top_p: float


# How prompts are continued: by sampling, because the likeliest text of a small model repeats itself
SAMPLED: Sampling = {"max_new_tokens": 48, "temperature": 0.8, "top_p": 0.9}


class GivenTexts(NamedTuple):
    """Texts for all models. Each model is given those of the first kind that it can read.

    Attributes:
        blanks: texts with blanks, which masked models fill with words.
        spans: texts with blanks, which models trained with sentinels fill with spans.
        prompts: texts that all other models continue.
    """

    blanks: Sequence[str] = ()
    spans: Sequence[str] = ()
    prompts: Sequence[str] = ()


class Written(Sampling):
    """One text, and what a model makes of it: words, spans or a continuation.

    Attributes:
        step: number of steps that the model was trained for.
        text: the text that it is given.
        words: per blank, the likeliest words, each with its probability.
        spans: per blank, what the model writes there.
        continuation: what it writes after the text, and how it was sampled.
    """

    step: int
    text: str
    words: NotRequired[list[list[tuple[str, float]]]]
    spans: NotRequired[list[str]]
    continuation: NotRequired[str]


def write_texts(loaded: LoadedModel, given: GivenTexts) -> list[Written]:
    """Return what a model makes of each text that it can read."""
    step = loaded.step
    if loaded.rows.masked:
        return [{"step": step, "text": text, "words": fill(loaded, text)} for text in given.blanks]
    if loaded.rows.uses_sentinels:
        return [{"step": step, "text": text, "spans": fill(loaded, text)} for text in given.spans]
    continued = continue_texts(loaded, given.prompts, **SAMPLED)
    return [
        {"step": step, "text": text, "continuation": more, **SAMPLED}
        for text, more in zip(given.prompts, continued, strict=True)
    ]
