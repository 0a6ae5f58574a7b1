"""Fill blanks, written ___: a word each by an encoder, any number of words by a model of sentinels."""

import re
from functools import partial

import jax
import numpy as np

from t5x_lite.config import Model
from t5x_lite.data.layouts import Shape, lay_out
from t5x_lite.data.objectives import Pairs, mixture
from t5x_lite.data.ragged import Ragged
from t5x_lite.errors import USAGE, Refusal
from t5x_lite.inference.generate import generate, slots
from t5x_lite.model.heads import head_weights, logits
from t5x_lite.model.transformer import Transformer
from t5x_lite.training.rundir import Trained

_BLANK = re.compile(r" ?_{3,}")  # a token holds the space before it, so the blank does too


def blanks(trained: Trained, text: str) -> list[np.ndarray]:
    """The ids of what stands before, between and behind the blanks of a text."""
    parts = _BLANK.split(text)
    if len(parts) < 2:
        raise Refusal(USAGE, f"{text!r} has no blank; write one as ___")
    return [trained.tokenizer.encode(part) for part in parts]


def framed(trained: Trained, parts: list[np.ndarray]) -> np.ndarray:
    """The ids of all parts between [CLS] and [SEP]. Raises Refusal where the model has less positions."""
    vocabulary, config = trained.tokenizer.vocabulary, trained.config.model
    ids = np.concatenate([[vocabulary["[CLS]"]], *parts, [vocabulary["[SEP]"]]]).astype(np.int32)
    if config.positions == "learned" and len(ids) > config.max_length:
        raise Refusal(USAGE, f"the text has {len(ids)} tokens, the model reads {config.max_length}; shorten it")
    return ids


def fill_words(trained: Trained, text: str, top: int = 5) -> list[list[tuple[str, float]]]:
    """For each blank, the likeliest tokens and their probabilities, by a masked language model."""
    vocabulary, config = trained.tokenizer.vocabulary, trained.config.model
    first, *rest = blanks(trained, text)
    mask = vocabulary["[MASK]"]
    ids = framed(trained, [first, *([mask, *part] for part in rest)])
    scored = np.flatnonzero(ids == mask).astype(np.int32)
    pair = Pairs(Ragged.of([ids]), Ragged.of([np.zeros_like(scored)]), scored=Ragged.of([scored]))
    row = lay_out(pair, Shape(slots(len(ids), config.max_length), 0, slots(len(scored))), vocabulary)
    of_blanks = np.asarray(_probabilities(config, trained.params, row))[: len(scored)]
    likeliest = np.argsort(-of_blanks, -1)[:, :top]
    return [
        [(trained.tokenizer.decode([i]).strip() or repr(trained.tokenizer.decode([i])), float(p[i])) for i in best]
        for best, p in zip(likeliest, of_blanks, strict=True)
    ]


@partial(jax.jit, static_argnums=0)
def _probabilities(config: Model, params: dict, row: dict):
    """Of every id at the scored positions of one row: [K, V]."""
    hidden = Transformer(config, packed=False).apply({"params": params}, row)[0]
    return jax.nn.softmax(logits(config, head_weights(params), hidden))


def fill_spans(trained: Trained, text: str, max_new: int = 32) -> list[str]:
    """For each blank, what a model of span corruption (or i.i.d. denoising) writes behind its sentinel."""
    vocabulary = trained.tokenizer.vocabulary
    first, *rest = blanks(trained, text)
    if len(rest) > vocabulary.sentinels:
        raise Refusal(USAGE, f"fill: got {len(rest)} blanks, the tokenizer has {vocabulary.sentinels} sentinels")
    pieces = [[vocabulary.sentinel(i), *part] for i, part in enumerate(rest)]
    ids = np.concatenate([first, *pieces, [vocabulary.eos]]).astype(np.int32)
    written = generate(trained, [ids], max_new)[0]
    spans, at = [""] * len(rest), None
    for group in np.split(written, np.flatnonzero(vocabulary.size - 1 - written < vocabulary.sentinels)):
        at = vocabulary.size - 1 - int(group[0]) if len(group) else len(rest)
        if at < len(rest) and not spans[at]:
            spans[at] = trained.tokenizer.decode(group[1:])
    return spans


def fill(trained: Trained, text: str, top: int = 5) -> list:
    """Fill the blanks of a text by whatever the model was trained for; see fill_words and fill_spans."""
    objectives = [objective for _, objective in mixture(trained.config.objective)]
    if objectives[0].aligned:
        return fill_words(trained, text, top)
    if any(objective.uses_sentinels for objective in objectives):
        return fill_spans(trained, text)
    raise Refusal(USAGE, f"fill: a model of {trained.config.objective} knows no blanks; use generate")
