"""Predict each token of a text: how likely it is, and which tokens are likeliest in its place.

Shapes: N tokens of the text, D positions of a row, V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from t5x_lite.config import ModelDimensions
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import USAGE, UserError
from t5x_lite.inference.fill import has_blank
from t5x_lite.inference.generate import encode_prompts
from t5x_lite.inference.masked_rows import framed, masked_rows
from t5x_lite.inference.score import (
    Piece,
    around_blank,
    around_each_token,
    around_sentinel,
    check_context,
    decoder_rows,
    like_lengths,
    pieces_of,
    row_length,
    way_to_score,
)
from t5x_lite.model import transformer
from t5x_lite.model.heads import Params, Row, head_params, logits
from t5x_lite.model.parts.positions import position_limit
from t5x_lite.parallel.placement import to_host
from t5x_lite.training.loaded_model import LoadedModel


class TokenPrediction(NamedTuple):
    """The prediction of one token of a text.

    Attributes:
        text: the token as text; joined, the tokens of a text are the text.
        probability: probability of the token.
        likeliest: the likeliest tokens in its place with their probabilities, the likeliest first.
    """

    text: str
    probability: float
    likeliest: list[tuple[str, float]]


# Log-probability of each token [N], log-probabilities of the likeliest ids [N, top], and these ids
_Found = tuple[np.ndarray, np.ndarray, np.ndarray]


def predict_tokens(
    loaded: LoadedModel, text: str, context: str = "", top: int = 5
) -> list[TokenPrediction]:
    """Predict each token of a text.

    A model that reads from left to right predicts a token given those before it; a model with
    masks, given all others and the context before the text. A model with sentinels predicts a token
    given all others if there is no context, and otherwise from left to right, after the context or
    in its blank. As in `score`, other encoder-decoders and prefix decoders need a context.

    A text that is longer than the position table is predicted in pieces, each given the context but
    not the pieces before it, as in `score`. A model without a position table reads the whole text.

    Args:
        top: number of likeliest tokens to return.

    Raises:
        UserError: if a context is needed but missing, or has a blank where it may not; or if the
            text is too long for masks or a sentinel.
    """
    loaded.check_predicts_tokens("score")
    ids = loaded.tokenizer.encode(text)
    way = way_to_score(loaded, context)
    if way == "sentinels":
        return _predict_at_sentinels(loaded, ids, context, top)
    if way == "masks":
        if has_blank(context):
            reason = "the context of a masked model comes before the text, token by token"
            raise UserError(USAGE, f"score: {reason}; write it without ___")
        before = loaded.tokenizer.encode(context)
        find = _found_at_masks
    else:
        check_context(loaded, context)
        (before,) = encode_prompts(loaded, [context])
        find = _found_from_left_to_right
    return _predict(loaded, ids, before, top, find)


def predict_ids(
    loaded: LoadedModel, ids: np.ndarray, before: np.ndarray, top: int = 5
) -> list[TokenPrediction]:
    """Predict the tokens of an encoded text, given the encoded context, as they were written."""
    find = _found_at_masks if loaded.rows.masked else _found_from_left_to_right
    return _predict(loaded, ids, before, top, find)


def _predict(
    loaded: LoadedModel, ids: np.ndarray, before: np.ndarray, top: int, find: Callable[..., _Found]
) -> list[TokenPrediction]:
    top = _checked_top(loaded, top)
    if not len(ids):
        return []
    return _as_predictions(loaded.tokenizer, before, ids, find(loaded, before, ids, top))


def _predict_at_sentinels(
    loaded: LoadedModel, ids: np.ndarray, context: str, top: int
) -> list[TokenPrediction]:
    """Predict tokens as `score` does: with a context, all of them in place of one sentinel, else
    each in place of its own.
    """
    top = _checked_top(loaded, top)
    if not len(ids):
        return []
    if context:
        before, after = around_blank(loaded, context, "sentinels")
        spans = [(before, ids, after)]
    else:
        before = ids[:0]
        spans = around_each_token(ids)
    of_spans = []
    for left, span, right in spans:
        inputs, targets = around_sentinel(loaded, left, right, span)
        found = _found_from_left_to_right(loaded, inputs, targets, top)
        of_spans.append([column[1 : 1 + len(span)] for column in found])
    chosen, values, likeliest = map(np.concatenate, zip(*of_spans, strict=True))
    return _as_predictions(loaded.tokenizer, before, ids, (chosen, values, likeliest))


def _checked_top(loaded: LoadedModel, top: int) -> int:
    if not isinstance(top, int) or isinstance(top, bool) or top < 1:
        raise UserError(USAGE, f"top: got {top!r}, expected a whole number, at least 1")
    return min(top, loaded.model.vocab_size)


def _as_predictions(
    tokenizer: Tokenizer, before: np.ndarray, ids: np.ndarray, found: _Found
) -> list[TokenPrediction]:
    """Write the ids as text, each as what it adds to the ids before it."""
    pieces = _pieces_of_text(tokenizer, before, ids)
    predictions = []
    for piece, chosen, values, likeliest in zip(pieces, *found, strict=True):
        words = map(tokenizer.show, likeliest.tolist())
        others = list(zip(words, np.exp(values).tolist(), strict=True))
        predictions.append(TokenPrediction(piece, float(np.exp(chosen)), others))
    return predictions


def _pieces_of_text(tokenizer: Tokenizer, before: np.ndarray, ids: np.ndarray) -> list[str]:
    """Return the characters that each id adds to the text.

    If several ids encode one character, the last of them adds it. A character that is never
    completed is added by the last id of the text.
    """
    pieces, written = [], ""
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode_after(before, ids[:end])
        if end < len(ids):
            text = text.rstrip("\ufffd")  # perhaps the first bytes of a character
        if not text.startswith(written):
            text = written
        pieces.append(text[len(written) :])
        written = text
    return pieces


def _found_from_left_to_right(
    loaded: LoadedModel, before: np.ndarray, ids: np.ndarray, top: int
) -> _Found:
    pieces = [Piece(0, before, ids)]
    if position_limit(loaded.model) is not None:
        pieces = pieces_of(loaded, [before], [ids])
    of_pieces = []
    for piece in pieces:
        row, (first,) = decoder_rows(loaded, [piece])
        with loaded.within():
            found = map(to_host, _at_all_positions(loaded.model, loaded.params, row, top))
        last = first + len(piece.targets)
        of_pieces.append([column[first:last] for column in found])
    chosen, values, likeliest = map(np.concatenate, zip(*of_pieces, strict=True))
    return chosen, values, likeliest


def _found_at_masks(loaded: LoadedModel, before: np.ndarray, ids: np.ndarray, top: int) -> _Found:
    """Mask each token in a row of its own (Salazar et al., 2020)."""
    mask = loaded.tokenizer.vocabulary["[MASK]"]
    whole, first = framed(loaded, [before, ids])
    positions = np.arange(len(ids)) + first + len(before)
    if len(whole) > loaded.model.max_length:
        reason = f"the text has {len(whole)} tokens, the model reads {loaded.model.max_length}"
        raise UserError(USAGE, f"score: {reason}; shorten it")
    chosen = np.zeros(len(ids))
    values, likeliest = np.zeros((len(ids), top)), np.zeros((len(ids), top), np.int32)
    for numbers in like_lengths([len(whole)] * len(ids)):
        batch = np.tile(whole, (len(numbers), 1))
        batch[np.arange(len(numbers)), positions[numbers]] = mask
        row = masked_rows(loaded, list(batch), row_length(len(whole), loaded.model.max_length))
        # A model that writes by unmasking never predicts the mask itself.
        hidden = [mask] if loaded.rows.bounds_whole_text else []
        with loaded.within():
            found = _at_one_position(
                loaded.model,
                loaded.params,
                row,
                positions[numbers],
                ids[numbers],
                np.array(hidden, np.int32),
                top,
            )
        chosen[numbers], values[numbers], likeliest[numbers] = map(to_host, found)
    return chosen, values, likeliest


@partial(jax.jit, static_argnums=(0, 3))
def _at_all_positions(
    model: ModelDimensions, params: Params, row: Row, top: int
) -> tuple[Float[Array, "D"], Float[Array, "D top"], Int[Array, "D top"]]:
    """Return the predictions at all positions of a decoder's only row."""
    hidden = transformer.apply(model, params, row, packed=False).hidden_states[0]
    return _find(logits(model, head_params(params), hidden), row["decoder_targets"][0], top)


@partial(jax.jit, static_argnums=(0, 6))
def _at_one_position(
    model: ModelDimensions,
    params: Params,
    row: Row,
    positions: Int[Array, "N"],
    answers: Int[Array, "N"],
    impossible: Int[Array, "ids"],
    top: int,
) -> tuple[Float[Array, "N"], Float[Array, "N top"], Int[Array, "N top"]]:
    """Return the predictions at one position of each of N rows."""
    hidden = transformer.apply(model, params, row, packed=False).hidden_states
    hidden = hidden[jnp.arange(len(hidden)), positions]
    logits_NV = logits(model, head_params(params), hidden)
    return _find(logits_NV.at[:, impossible].set(-jnp.inf), answers, top)


def _find(logits_NV: Array, answers: Array, top: int) -> tuple[Array, Array, Array]:
    log_probabilities = jax.nn.log_softmax(logits_NV)
    chosen = jnp.take_along_axis(log_probabilities, answers[:, None], -1)[:, 0]
    values, likeliest = jax.lax.top_k(log_probabilities, top)
    return chosen, values, likeliest
