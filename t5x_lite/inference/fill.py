"""Fill the blanks (___) in a text: a masked language model fills each with one token, a model
trained with sentinels with any number of words.
"""

import re
from functools import partial

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from t5x_lite.config import ModelDimensions
from t5x_lite.errors import USAGE, UserError
from t5x_lite.inference.buckets import bucket_length
from t5x_lite.inference.decode_loop import Sampling
from t5x_lite.inference.generate import generate_ids
from t5x_lite.inference.masked_rows import framed, masked_rows
from t5x_lite.model import transformer
from t5x_lite.model.heads import Params, Row, head_params, logits
from t5x_lite.parallel.placement import to_host
from t5x_lite.training.loaded_model import LoadedModel

_BLANK = re.compile(r" ?_{3,}")  # tokens include the space before a word, so a blank does too


def has_blank(text: str) -> bool:
    """Return True if a text has a blank, ___."""
    return _BLANK.search(text) is not None


def split_at_blanks(loaded: LoadedModel, text: str) -> list[np.ndarray]:
    """Split a text at its blanks; return the ids of each part.

    Raises:
        UserError: if the text has no blank.
    """
    if not has_blank(text):
        raise UserError(USAGE, f"{text!r} has no blank; write one as ___")
    return [loaded.tokenizer.encode(part) for part in _BLANK.split(text)]


def before_sentinels(loaded: LoadedModel) -> list[int]:
    """Return the ids that precede a text with sentinels: UL2's mode token, or none.

    Only a model that was trained with mode tokens reads one.
    """
    mode = loaded.rows.mode_of_sentinels
    return [loaded.tokenizer.vocabulary[f"[{mode}]"]] if mode else []


def fill_words(loaded: LoadedModel, text: str, top: int = 5) -> list[list[tuple[str, float]]]:
    """Return the `top` likeliest tokens for each blank, with their probabilities."""
    vocabulary, config = loaded.tokenizer.vocabulary, loaded.model
    # The model reads: text [MASK] text.
    first, *rest = split_at_blanks(loaded, text)
    mask = vocabulary["[MASK]"]
    parts = [first]
    for part in rest:
        parts.append(np.append(mask, part))
    ids, _ = framed(loaded, parts)
    blanks = np.flatnonzero(ids == mask)
    row = masked_rows(loaded, [ids], bucket_length(len(ids), config.max_length))
    with loaded.within():
        probabilities = to_host(_blank_probabilities(config, loaded.params, row, blanks))

    if loaded.rows.bounds_whole_text:  # as in unmasking, the mask itself is not an answer
        probabilities = np.array(probabilities)
        probabilities[:, mask] = 0
        probabilities /= probabilities.sum(-1, keepdims=True)
    likeliest = np.argsort(-probabilities, -1)[:, :top]
    return [
        [(loaded.tokenizer.show(token), float(of_blank[token])) for token in tokens]
        for tokens, of_blank in zip(likeliest, probabilities, strict=True)
    ]


@partial(jax.jit, static_argnums=0)
def _blank_probabilities(
    config: ModelDimensions, params: Params, row: Row, blanks: Int[Array, "K"]
) -> Float[Array, "K V"]:
    """Return the probability of every id at the given positions of one row."""
    hidden = transformer.apply(config, params, row, packed=False).hidden_states[0, blanks]
    return jax.nn.softmax(logits(config, head_params(params), hidden))


def fill_spans(loaded: LoadedModel, text: str, max_new_tokens: int = 32) -> list[str]:
    """Return the text that a model trained with sentinels writes for each blank; it may be empty.

    Raises:
        UserError: if there are more blanks than sentinels.
    """
    vocabulary = loaded.tokenizer.vocabulary
    # The model reads: text <extra_id_0> text <extra_id_1> text </s>.
    first, *rest = split_at_blanks(loaded, text)
    if len(rest) > vocabulary.sentinels:
        reason = f"got {len(rest)} blanks, the tokenizer has {vocabulary.sentinels} sentinels"
        raise UserError(USAGE, f"fill: {reason}")
    parts = [first]
    for number, part in enumerate(rest):
        parts.append(np.append(vocabulary.sentinel(number), part))
    ids = np.concatenate([before_sentinels(loaded), *parts, [vocabulary.eos]]).astype(np.int32)
    # It writes: <extra_id_0> span <extra_id_1> span. The first token is forced, because some models
    # begin differently if the text is short.
    begins = Sampling(first_token=vocabulary.sentinel(0))
    written = generate_ids(loaded, [ids], max_new_tokens, begins)[0]

    # Cut the output before each sentinel: every span follows the sentinel of its blank.
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
    """Fill the blanks in a text with fill_words or fill_spans, as the model was trained.

    Raises:
        UserError: if the model was trained with neither masks nor sentinels.
    """
    loaded.check_predicts_tokens("fill")
    if loaded.rows.masked:
        return fill_words(loaded, text, top)
    if loaded.rows.uses_sentinels:
        return fill_spans(loaded, text)
    objective = loaded.config.objective
    reason = f"a model trained on {objective} cannot fill blanks"
    raise UserError(USAGE, f"fill: {reason}; use generate")
