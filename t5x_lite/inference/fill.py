"""Fill blanks, written ___: a word each by an encoder, any number of words by a model of
sentinels.
"""

import re
from functools import partial

import jax
import numpy as np

from t5x_lite.config import ModelDimensions
from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rows.layouts import RowShape, lay_out
from t5x_lite.errors import USAGE, UserError
from t5x_lite.inference.generate import bucket_length, generate_ids
from t5x_lite.model import transformer
from t5x_lite.model.heads import Params, Row, head_params, logits, scored_positions
from t5x_lite.training.run_directory import LoadedModel

_BLANK = re.compile(r" ?_{3,}")  # a token holds the space before it, so the blank does too


def split_at_blanks(loaded: LoadedModel, text: str) -> list[np.ndarray]:
    """The ids of the text before, between and after its blanks."""
    parts = _BLANK.split(text)
    if len(parts) < 2:
        raise UserError(USAGE, f"{text!r} has no blank; write one as ___")
    return [loaded.tokenizer.encode(part) for part in parts]


def with_cls_and_sep(loaded: LoadedModel, parts: list[np.ndarray]) -> np.ndarray:
    """The ids of all parts between [CLS] and [SEP]. Raises UserError where the model has fewer
    positions.
    """
    vocabulary, config = loaded.tokenizer.vocabulary, loaded.model
    ids = np.concatenate([[vocabulary["[CLS]"]], *parts, [vocabulary["[SEP]"]]]).astype(np.int32)
    if config.has_position_table and len(ids) > config.max_length:
        reason = f"the text has {len(ids)} tokens, the model reads {config.max_length}"
        raise UserError(USAGE, f"{reason}; shorten it")
    return ids


def fill_words(loaded: LoadedModel, text: str, top: int = 5) -> list[list[tuple[str, float]]]:
    """For each blank, the likeliest tokens and their probabilities, by a masked language model."""
    vocabulary, config = loaded.tokenizer.vocabulary, loaded.model
    # [CLS] text [MASK] text [SEP]
    first, *rest = split_at_blanks(loaded, text)
    mask = vocabulary["[MASK]"]
    parts = [first]
    for part in rest:
        parts.append(np.append(mask, part))
    ids = with_cls_and_sep(loaded, parts)
    blanks = np.flatnonzero(ids == mask).astype(np.int32)

    # The row that such a model is trained on, scored at the blanks.
    no_answers = np.zeros_like(blanks)
    pair = Pairs(
        Ragged.from_rows([ids]), Ragged.from_rows([no_answers]), scored=Ragged.from_rows([blanks])
    )
    shape = RowShape(
        encoder=bucket_length(len(ids), config.max_length), scored=bucket_length(len(blanks))
    )
    row = lay_out(pair, shape, vocabulary)
    with loaded.within():
        probabilities = np.asarray(_blank_probabilities(config, loaded.params, row))[: len(blanks)]

    def word(token: int) -> str:
        text = loaded.tokenizer.decode([token])
        return text.strip() or repr(text)

    likeliest = np.argsort(-probabilities, -1)[:, :top]
    return [
        [(word(token), float(of_blank[token])) for token in tokens]
        for tokens, of_blank in zip(likeliest, probabilities, strict=True)
    ]


@partial(jax.jit, static_argnums=0)
def _blank_probabilities(config: ModelDimensions, params: Params, row: Row):
    """Of every id at the scored positions of one row: [K, V]."""
    output = transformer.apply(config, params, row, packed=False)
    hidden = scored_positions(output, row)[0]
    return jax.nn.softmax(logits(config, head_params(params), hidden))


def fill_spans(loaded: LoadedModel, text: str, max_new_tokens: int = 32) -> list[str]:
    """For each blank, what a model of span corruption (or i.i.d. denoising) writes after its
    sentinel.
    """
    vocabulary = loaded.tokenizer.vocabulary
    # text <extra_id_0> text <extra_id_1> text </s>
    first, *rest = split_at_blanks(loaded, text)
    if len(rest) > vocabulary.sentinels:
        reason = f"got {len(rest)} blanks, the tokenizer has {vocabulary.sentinels} sentinels"
        raise UserError(USAGE, f"fill: {reason}")
    parts = [first]
    for number, part in enumerate(rest):
        parts.append(np.append(vocabulary.sentinel(number), part))
    ids = np.concatenate([*parts, [vocabulary.eos]]).astype(np.int32)
    written = generate_ids(loaded, [ids], max_new_tokens)[0]

    # What was written, cut before each sentinel: a span begins with the sentinel of its blank.
    sentinel_number = vocabulary.size - 1 - written
    cuts = np.flatnonzero(sentinel_number < vocabulary.sentinels)
    spans = [""] * len(rest)
    for piece in np.split(written, cuts):
        if not len(piece):
            continue
        blank = vocabulary.size - 1 - int(piece[0])
        if blank < len(rest) and not spans[blank]:
            spans[blank] = loaded.tokenizer.decode(piece[1:])
    return spans


def fill(loaded: LoadedModel, text: str, top: int = 5) -> list:
    """Fill the blanks of a text by whatever the model was trained for; see fill_words and
    fill_spans.
    """
    loaded.check_predicts_tokens("fill")
    if loaded.rows.aligned:
        return fill_words(loaded, text, top)
    if loaded.rows.uses_sentinels:
        return fill_spans(loaded, text)
    objective = loaded.config.objective
    raise UserError(USAGE, f"fill: a model trained on {objective} knows no blanks; use generate")
