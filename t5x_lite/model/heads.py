"""Heads: what is predicted from the hidden states. Each entry of HEADS says which hidden states a
head reads, its loss as sums, and the row keys it needs.

Shapes: B rows, T positions, K scored positions, D d_model, V embedding rows, C classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_lite.config import ModelDimensions
from t5x_lite.model.layers import (
    Dense,
    Norm,
    activate,
    constrain,
    parameter_dtype,
    with_axes,
)
from t5x_lite.model.losses import LossSettings, Sums, class_sums, cross_entropy
from t5x_lite.model.masks import MASKED
from t5x_lite.model.matmul import matmul, matmul_transposed

# A batch of rows, [B, …] each, by the keys of data/rows/layouts.py.
Row = dict[str, Array]
Params = dict[str, Any]


class LanguageModelHead(nn.Module):
    """Hidden states [..., D] to logits [..., V], float32, by a kernel [D, V]: the embedding table
    transposed, or its own. With config.mlm_head BERT's transform comes first.
    """

    config: ModelDimensions

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "*rows D"], kernel: Array | None
    ) -> Float[Array, "*rows V"]:
        config, dtype = self.config, parameter_dtype(self.config)

        # To the width of the table: BERT's transform, or, where embeddings are factorised, a layer.
        width = config.embedding_size if config.tie_embeddings else config.d_model
        width_axis = "factor" if width != config.d_model else "pooled"
        if config.mlm_head:
            hidden = Dense(config, width, ("embed", width_axis), name="dense")(hidden)
            hidden = Norm(config, name="norm")(activate(config.activation, hidden))
        elif width != config.d_model:
            hidden = Dense(config, width, ("embed", width_axis), name="dense")(hidden)
        if config.scale_logits:
            hidden = hidden * config.d_model**-0.5
        hidden = hidden.astype(config.dtype)

        # Times the table.
        rows = config.embedding_rows
        if self.has_variable("transposed", "output"):  # in decoding: see decoding.py
            logits = matmul_transposed(hidden, self.get_variable("transposed", "output"))
        else:
            if not config.tie_embeddings:
                stddev = config.d_model**-0.5 if config.init == "fan_in" else config.init_stddev
                init = with_axes(nn.initializers.normal(stddev), "pooled", "vocab")
                kernel = self.param("output", init, (config.d_model, rows), dtype)
            assert kernel is not None, "tied embeddings need the table"
            logits = matmul(hidden, kernel)
        if config.mlm_head:
            logits += self.param("bias", with_axes(nn.initializers.zeros, "vocab"), (rows,), dtype)

        # Mask the padding of the vocabulary.
        if rows > config.vocab_size:
            logits = jnp.where(jnp.arange(rows) < config.vocab_size, logits, MASKED)
        if logits.ndim == 3:
            return constrain(logits, "batch", "sequence", "vocab")
        return constrain(logits, "batch", "vocab")


class SequenceLabelHead(nn.Module):
    """The first position [B, D] to logits [B, C], float32: BERT's pooler and the layer on it
    (released code).
    """

    config: ModelDimensions

    @nn.compact
    def __call__(self, first_BD: Float[Array, "B D"]) -> Float[Array, "B C"]:
        config = self.config
        pooled = Dense(config, config.d_model, ("embed", "pooled"), name="pooler")(first_BD)
        logits = Dense(config, config.num_classes, ("pooled", "classes"), name="output")(
            jnp.tanh(pooled)
        )
        return logits.astype(parameter_dtype(config))


def head_params(params: Params) -> Params:
    """The part of a model's parameters that `logits` reads."""
    head = params.get("head", {})
    table = params.get("decoder_embedding", params["embedding"])
    kernel = None if "output" in head else table.T
    return {"head": head, "kernel": kernel}


def logits(
    config: ModelDimensions, params: Params, hidden: Float[Array, "*rows D"]
) -> Float[Array, "*rows V"]:
    """Hidden states to logits over the vocabulary, by the parameters that `head_params` picks."""
    variables = {"params": params["head"], "transposed": params.get("transposed", {})}
    head: Any = LanguageModelHead(config)
    return head.apply(variables, hidden, params["kernel"])


def scored_positions(hidden: Float[Array, "B T D"], row: Row) -> Float[Array, "B K D"]:
    """The hidden states at the scored positions of an encoder."""
    return jnp.take_along_axis(hidden, row["encoder_scored"][..., None], 1)


@dataclass(frozen=True)
class Head:
    """One head and its loss."""

    params_key: str  # of the model's parameters, those that it predicts with
    row_keys: tuple[str, ...]  # that rows must have
    # All hidden states [B, T, D] → those that it predicts from:
    read: Callable[[Array, Row], Array]
    # The loss of what `read` returns:
    sums: Callable[[ModelDimensions, Params, Array, Row, LossSettings], Sums]
    weight: Callable[[Row], Array]  # by which the sums of a batch are divided
    metric_prefix: str = ""  # of loss and accuracy


def _vocabulary_sums(
    stack: str,
    config: ModelDimensions,
    params: Params,
    hidden: Array,
    row: Row,
    settings: LossSettings,
) -> Sums:
    return cross_entropy(
        partial(logits, config),
        head_params(params),
        hidden,
        row[f"{stack}_targets"],
        row[f"{stack}_weights"],
        config.vocab_size,
        settings,
    )


def _label_sums(
    config: ModelDimensions, params: Params, hidden: Array, row: Row, settings: LossSettings
) -> Sums:
    head: Any = SequenceLabelHead(config)
    predicted = head.apply({"params": params["classifier"]}, hidden)
    return class_sums(predicted, row["encoder_labels"], _real_rows(row).astype(predicted.dtype))


def _real_rows(row: Row) -> Array:
    """Rows that are no padding: bool [B]."""
    return row["encoder_segments"][:, 0] > 0


HEADS = {
    # Every position of a decoder: GPT, T5.
    "lm": Head(
        params_key="head",
        row_keys=("decoder_targets", "decoder_weights"),
        read=lambda hidden, row: hidden,
        sums=partial(_vocabulary_sums, "decoder"),
        weight=lambda row: row["decoder_weights"].sum(),
    ),
    # The scored positions of an encoder: BERT.
    "mlm": Head(
        params_key="head",
        row_keys=("encoder_scored", "encoder_targets", "encoder_weights"),
        read=scored_positions,
        sums=partial(_vocabulary_sums, "encoder"),
        weight=lambda row: row["encoder_weights"].sum(),
    ),
    # The first position of an encoder: next sentence, sentence order.
    "sequence_label": Head(
        params_key="classifier",
        row_keys=("encoder_labels", "encoder_segments"),
        read=lambda hidden, row: hidden[:, 0],
        sums=_label_sums,
        weight=lambda row: _real_rows(row).sum(),
        metric_prefix="label_",
    ),
}
