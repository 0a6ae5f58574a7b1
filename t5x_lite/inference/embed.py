"""Embed texts as vectors: the hidden states of a model, optionally pooled.

Shapes: N texts, T positions, D d_model.
"""

from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import numpy as np
from jaxtyping import Array, Float

from t5x_lite.config import ModelDimensions
from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rows.layouts import RowShape, lay_out
from t5x_lite.errors import IO_ERROR, USAGE, UserError, user_errors
from t5x_lite.inference.buckets import bucket_length
from t5x_lite.inference.generate import first_and_rest
from t5x_lite.model.heads import Params, Row
from t5x_lite.model.parts.positions import position_limit
from t5x_lite.model.transformer import Transformer
from t5x_lite.parallel.placement import to_host
from t5x_lite.training.loaded_model import LoadedModel

Pooling = Literal["mean", "cls", "none"]

_ROWS_PER_BATCH = 8


def embed(loaded: LoadedModel, texts: list[str], pooling: Pooling = "mean") -> list[np.ndarray]:
    """Embed each text as a vector [D], or return its hidden states [T, D].

    An encoder-only model whose tokenizer has [CLS] reads `[CLS] text [SEP]`; other models with an
    encoder read the text and EOS. A decoder reads the start token and the text, causally. A model
    with two decoders (ELMo) gives vectors of width 2 D.

    Args:
        pooling: "mean" averages all positions, special tokens included (as in
            sentence-transformers); "cls" takes the first position of an encoder; "none" keeps all
            positions.

    Raises:
        UserError: if a text has more tokens than the position table has rows, or if pooling is
            "cls" and the model has no encoder.
    """
    if pooling not in get_args(Pooling):
        raise UserError(USAGE, f"embed: pooling={pooling!r}: expected mean, cls or none")
    has_encoder = loaded.model.architecture in ("encoder", "encoder_decoder")
    if pooling == "cls" and not has_encoder:
        reason = "the first position of a decoder does not see the text"
        raise UserError(USAGE, f"embed: pooling=cls: {reason}; use mean")

    vectors = []
    for start in range(0, len(texts), _ROWS_PER_BATCH):
        for states in _hidden_states(loaded, texts[start : start + _ROWS_PER_BATCH]):
            if pooling == "mean":
                vectors.append(states.mean(0))
            else:
                vectors.append(states[0] if pooling == "cls" else states)
    return vectors


def save(path: Path, vectors: list[np.ndarray]) -> None:
    """Write the vectors as one array: [N, D], or [N, T, D] with zeros after shorter texts."""
    longest = max(len(vector) for vector in vectors)
    padded = []
    for vector in vectors:
        padding = [(0, longest - len(vector)), *[(0, 0)] * (vector.ndim - 1)]
        padded.append(np.pad(vector, padding))
    with user_errors(IO_ERROR, f"embed: {path} cannot be written"):
        np.save(path, np.stack(padded))


def _hidden_states(loaded: LoadedModel, texts: list[str]) -> list[np.ndarray]:
    """Return the hidden states [T, D] of each text, without padding, in float32."""
    model, vocabulary = loaded.model, loaded.tokenizer.vocabulary
    encoded, starts = [loaded.tokenizer.encode(text) for text in texts], None
    if model.architecture in ("decoder", "prefix_decoder"):
        starts, encoded = first_and_rest([loaded.after_start(ids) for ids in encoded])
    ids = [_framed(of_text, loaded) for of_text in encoded]
    longest = max(map(len, ids))
    if position_limit(model) is not None and longest > model.max_length:
        reason = f"a text has {longest} tokens, the model reads {model.max_length}"
        raise UserError(USAGE, f"embed: {reason}; shorten it")

    # Lay out rows as in training. A decoder reads its targets shifted right, after the start token,
    # so it never reads the last one: EOS.
    length = bucket_length(longest, position_limit(model))
    inputs, nothing = Ragged.from_rows(ids), Ragged.empty(len(ids))
    if model.architecture == "encoder":
        pairs, shape = Pairs(inputs, nothing, scored=nothing), RowShape(length, scored=1)
    elif model.is_encoder_decoder:
        one_target = Ragged.from_array(np.zeros((len(ids), 1), np.int32))
        pairs, shape = Pairs(inputs, one_target), RowShape(length, decoder=1)
    else:
        prefix = model.architecture == "prefix_decoder"
        pairs = Pairs(nothing, inputs)
        shape = RowShape(decoder=length, bidirectional_prefix=prefix)
    row = lay_out(pairs, shape, vocabulary, starts=starts)
    with loaded.within():
        hidden = _read(model, loaded.params, row)
        states = to_host(hidden).astype(np.float32)
    return [of_text[: len(tokens)] for of_text, tokens in zip(states, ids, strict=True)]


def _framed(ids: np.ndarray, loaded: LoadedModel) -> np.ndarray:
    """Add the special tokens that this model reads around a text."""
    model, vocabulary = loaded.model, loaded.tokenizer.vocabulary
    if model.architecture == "encoder" and "[CLS]" in vocabulary.specials:
        framed = [[vocabulary["[CLS]"]], ids, [vocabulary["[SEP]"]]]
    else:
        framed = [loaded.conventions.before_inputs, ids, [vocabulary.eos]]
    return np.concatenate(framed).astype(np.int32)


@partial(jax.jit, static_argnums=0)
def _read(model: ModelDimensions, params: Params, row: Row) -> Float[Array, "N T D"]:
    """Return the hidden states of the encoder, or of the decoder if there is no encoder."""
    transformer: Any = Transformer(model, packed=False)
    method = Transformer.encode if model.is_encoder_decoder else Transformer.__call__
    return transformer.apply({"params": params}, row, method=method).both_ways
