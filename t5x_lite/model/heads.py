"""Heads, which predict from the hidden states. HEAD_MODULES holds their layers, by the name of the
parameters, and what these cost. Each entry of HEADS says which hidden states a head reads, how its
loss is computed as sums, and which row keys it needs.

A head of your own is a function that returns a Head, with layers of its own if it needs any. Name
it in the settings of the model: model.heads=("my_module.my_head",).

A head is written for one device. If several devices share rows, it gets whole rows, unless it
`splits_rows`: then it gets this device's positions of hidden states and row keys, and its sums are
added over the devices. If they share the vocabulary, it gets this device's part of the output
layer.

Shapes: B rows, T positions, K scored positions, S segments with a label, D d_model, V embedding
rows, C classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_lite.config import ModelDimensions
from t5x_lite.config.named import find_named
from t5x_lite.errors import BAD_CONFIG, UserError, user_errors
from t5x_lite.model.dense import (
    Dense,
    Parameter,
    constrain,
    normal,
    padded_with_zeros,
    parameter_dtype,
    with_axes,
)
from t5x_lite.model.dropout import Dropout, Noise
from t5x_lite.model.losses import (
    LossSettings,
    Sums,
    VocabularyShard,
    choice_sums,
    class_sums,
    cross_entropy,
    number_sums,
    span_sums,
)
from t5x_lite.model.masks import MASKED
from t5x_lite.model.matmul import matmul, matmul_transposed
from t5x_lite.model.parts.activations import activate, softcapped
from t5x_lite.model.parts.contract import Auxiliary
from t5x_lite.model.parts.norms import make_norm
from t5x_lite.model.parts.options import part_name

# A batch of rows: arrays [B, …] by the keys of data/rows/layouts.py.
Row = dict[str, Array]
Params = dict[str, Any]


class ModelOutput(NamedTuple):
    """Output of the Transformer, which heads read.

    Attributes:
        hidden_states: hidden states of the decoder, or of the encoder if there is no decoder.
        auxiliary: the losses of each stack by name, summed over its non-padding positions.
        backward_states: hidden states of a backward decoder, which at each position has read the
            text after it.
    """

    hidden_states: Float[Array, "B T D"]
    auxiliary: dict[str, Auxiliary]
    backward_states: Float[Array, "B T D"] | None = None

    @property
    def both_ways(self) -> Float[Array, "B T F"]:
        """Hidden states of both decoders, concatenated at each position, or of the only one."""
        if self.backward_states is None:
            return self.hidden_states
        return jnp.concatenate([self.hidden_states, self.backward_states], -1)


class HeadInput(NamedTuple):
    """Inputs of a head's loss.

    Attributes:
        params: parameters of the whole model.
        states: the hidden states that the head's `read` returned.
        vocabulary: this device's part of the vocabulary.
        noise, key: for dropout; key=None: no dropout.
    """

    config: ModelDimensions
    params: Params
    states: Array
    row: Row
    settings: LossSettings
    vocabulary: VocabularyShard
    noise: Noise
    key: Array | None = None


class LanguageModelHead(nn.Module):
    """Map hidden states [..., D] to float32 logits [..., V] by a kernel [D, V]: the transposed
    embedding table, or its own. With config.mlm_head, BERT's transform comes first.
    """

    config: ModelDimensions

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "*rows D"],
        kernel: Array | None,
        ids: Int[Array, " V"] | None = None,
    ) -> Float[Array, "*rows V"]:
        config, dtype = self.config, parameter_dtype(self.config)

        # Project to the width of the table, by BERT's transform, or by one layer if embeddings are
        # factorised.
        width = config.embedding_size if config.tie_embeddings else config.d_model
        width_axis = "factor" if width != config.d_model else "pooled"
        if config.mlm_head:
            hidden = Dense(config, width, ("embed", width_axis), name="dense")(hidden)
            hidden = make_norm(config, name="norm")(activate(config.activation, hidden))
        elif width != config.d_model:
            hidden = Dense(config, width, ("embed", width_axis), name="dense")(hidden)
        # T5 1.0 scales the hidden states, since its output layer is the embedding table.
        if config.scale_logits:
            hidden = hidden * config.d_model**-0.5
        hidden = hidden.astype(config.dtype)

        # Multiply by the table.
        rows = config.embedding_rows
        if self.has_variable("transposed", "output"):  # when decoding, see decoding.py
            logits = matmul_transposed(hidden, self.get_variable("transposed", "output"))
        else:
            if not config.tie_embeddings:
                stddev = config.d_model**-0.5 if config.init == "fan_in" else config.init_stddev
                init = padded_with_zeros(normal(stddev), config.vocab_size, 1)
                draw = with_axes(init, "pooled", "vocab")
                kernel = self.param("output", draw, (config.d_model, rows), dtype)
            assert kernel is not None, "tied embeddings need the table"
            logits = matmul(hidden, kernel)
        if config.mlm_head:
            logits += self.param("bias", with_axes(nn.initializers.zeros, "vocab"), (rows,), dtype)
        logits = softcapped(logits, config.logits_softcap)

        # Mask the ids that pad the vocabulary.
        if rows * config.tensor_parts > config.vocab_size:
            ids = jnp.arange(rows) if ids is None else ids
            logits = jnp.where(ids < config.vocab_size, logits, MASKED)
        if logits.ndim == 3:
            return constrain(logits, "batch", "sequence", "vocab")
        return constrain(logits, "batch", "vocab")


class SequenceLabelHead(nn.Module):
    """Map the hidden state of one position [..., D] to float32 logits [..., C].

    An encoder has BERT's pooler and the layer on top of it (released code). A decoder has only this
    layer (Radford et al., 2018, §3.2).
    """

    config: ModelDimensions

    @nn.compact
    def __call__(self, state: Float[Array, "*rows D"], noise: Noise) -> Float[Array, "*rows C"]:
        config = self.config
        if config.architecture == "encoder":
            state = Dense(config, config.d_model, ("embed", "pooled"), name="pooler")(state)
            state = jnp.tanh(state)
        state = Dropout(config.dropout)(state, noise)
        output = Dense(config, config.num_classes, ("pooled", "classes"), name="output")
        return output(state).astype(parameter_dtype(config))


class TokenHead(nn.Module):
    """Map hidden states [..., D] to float32 logits [..., C] at each position: whether an answer
    begins and whether it ends there (Devlin et al., 2019, §4.2), or the labels of a word (§5.3).
    """

    config: ModelDimensions

    @nn.compact
    def __call__(self, hidden: Float[Array, "*rows D"]) -> Float[Array, "*rows C"]:
        output = Dense(self.config, self.config.token_classes, ("embed", "classes"), name="output")
        return output(hidden).astype(parameter_dtype(self.config))


class HeadModule(NamedTuple):
    """The layers of a head.

    Attributes:
        make: config → the layers.
        call: (layers, output of the Transformer, embedding table) → their output, for
            initialisation.
        flops: (config, positions of a row, scored positions) → FLOPs of a row's forward pass.
        wanted: config → True if the model has these layers.
    """

    make: Callable[[ModelDimensions], Any]
    call: Callable[[Any, ModelOutput, Parameter], Array]
    flops: Callable[[ModelDimensions, int, float], float]
    wanted: Callable[[ModelDimensions], bool] = lambda config: True


def _language_model_flops(config: ModelDimensions, positions: int, scored: float | int) -> float:
    """Return the FLOPs of the output table and of the layers before it."""
    width = config.embedding_size if config.tie_embeddings else config.d_model
    products = config.vocab_size * width
    if config.mlm_head or width != config.d_model:
        products += config.d_model * width
    # Both decoders predict every token, with the same head.
    if config.backward_decoder:
        scored *= 2
    return 2.0 * scored * products


def _quiet(rows: int) -> Noise:
    return Noise(jnp.arange(rows))


_OWN = "head_"  # prefix of the names of your own heads' parameters

# By their key in the model's parameters.
HEAD_MODULES = {
    "head": HeadModule(
        LanguageModelHead,
        wanted=lambda config: config.lm_head,
        call=lambda head, output, table: head(output.hidden_states, table.T),
        flops=_language_model_flops,
    ),
    "classifier": HeadModule(
        SequenceLabelHead,
        wanted=lambda config: config.num_classes > 0,
        call=lambda head, output, table: head(output.both_ways[:, 0], _quiet(1)),
        flops=lambda config, positions, scored: (
            2.0 * config.d_model * (config.d_model + config.num_classes)
        ),
    ),
    "token_head": HeadModule(
        TokenHead,
        wanted=lambda config: config.token_classes > 0,
        call=lambda head, output, table: head(output.both_ways),
        flops=lambda config, positions, scored: (
            2.0 * config.d_model * config.token_classes * positions
        ),
    ),
}


def head_params(params: Params) -> Params:
    """Select the part of a model's parameters that `logits` reads."""
    head = params.get("head", {})
    table = params.get("decoder_embedding", params["embedding"])
    # Tied embeddings: use the decoder's table, transposed, unless the head has its own kernel.
    kernel = None if "output" in head else table.T
    return {"head": head, "kernel": kernel}


def logits(
    config: ModelDimensions,
    params: Params,
    hidden: Float[Array, "*rows D"],
    ids: Int[Array, " V"] | None = None,
) -> Float[Array, "*rows V"]:
    """Map hidden states to logits over the vocabulary.

    Args:
        params: what `head_params` returns.
        ids: vocabulary ids of the columns of the output layer; None: all ids, in order.
    """
    variables = {"params": params["head"], "transposed": params.get("transposed", {})}
    head: Any = LanguageModelHead(config)
    return head.apply(variables, hidden, params["kernel"], ids)


def scored_positions(output: ModelOutput, row: Row) -> Float[Array, "B K D"]:
    """Select the hidden states at the scored positions of an encoder."""
    return jnp.take_along_axis(output.hidden_states, row["encoder_scored"][..., None], 1)


@dataclass(frozen=True)
class Head:
    """One head and its loss.

    Attributes:
        row_keys: keys that rows must have.
        read: output of the Transformer → the hidden states that the head predicts from.
        sums: computes the loss, as sums, from what `read` returned.
        weight: divisor of the sums of a batch.
        metric_prefix: prefix of the names of its loss and accuracy.
        outputs: computes the logits [B, n, …] that a task's predictions are made from; None: the
            head predicts tokens.
        outputs_per: what n counts: labels, positions, or scored positions.
        splits_rows: True if it processes each position of a decoder independently.
        layers: layers of a head of your own; the parameters of my_module.my_head are named
            head_my_head.
    """

    row_keys: tuple[str, ...]
    read: Callable[[ModelOutput, Row], Array]
    sums: Callable[[HeadInput], Sums]
    weight: Callable[[Row], Array]
    metric_prefix: str = ""
    outputs: Callable[[ModelDimensions, Params, Array, Row], Array] | None = None
    outputs_per: Literal["label", "position", "scored"] = "label"
    splits_rows: bool = False
    layers: HeadModule | None = None


def _vocabulary_sums(given: HeadInput, targets: Array, weights: Array) -> Sums:
    return cross_entropy(
        partial(logits, given.config, ids=given.vocabulary.ids),
        head_params(given.params),
        given.states,
        targets,
        weights,
        given.vocabulary,
        given.settings,
    )


def _decoder_sums(given: HeadInput) -> Sums:
    row = given.row
    return _vocabulary_sums(given, row["decoder_targets"], row["decoder_weights"])


def _encoder_sums(given: HeadInput) -> Sums:
    row = given.row
    return _vocabulary_sums(given, row["encoder_targets"], row["encoder_weights"])


def _backward_states(output: ModelOutput, row: Row) -> Float[Array, "B T D"]:
    assert output.backward_states is not None, "the model has no backward decoder"
    return output.backward_states


def _backward_weights(row: Row) -> Float[Array, "B T"]:
    """Return 1 for tokens that are predicted from those after them: all but the start token."""
    is_text = (row["decoder_segments"] > 0) & (row["decoder_positions"] > 0)
    return is_text.astype(row["decoder_weights"].dtype)


def _backward_sums(given: HeadInput) -> Sums:
    return _vocabulary_sums(given, given.row["decoder_tokens"], _backward_weights(given.row))


def _auxiliary_lm_sums(given: HeadInput) -> Sums:
    """Return the language model's sums, with a scaled loss (Radford et al., 2018, eq. 5)."""
    sums = _decoder_sums(given)
    return sums | {"total_loss": given.settings.auxiliary_lm * sums["total_loss"]}


def _class_logits(
    config: ModelDimensions,
    params: Params,
    states: Array,
    noise: Noise | None = None,
    key: Array | None = None,
) -> Array:
    head: Any = SequenceLabelHead(config)
    rngs = {} if key is None else {"dropout": key}
    # In evaluation and inference there is no key, and no dropout.
    noise = _quiet(len(states)) if noise is None or key is None else noise
    return head.apply({"params": params["classifier"]}, states, noise, rngs=rngs)


def _logits_of_labels(given: HeadInput) -> Array:
    return _class_logits(given.config, given.params, given.states, given.noise, given.key)


def _sequence_label_sums(given: HeadInput) -> Sums:
    predicted = _class_logits(given.config, given.params, given.states)
    weights = _real_rows(given.row).astype(predicted.dtype)
    return class_sums(predicted, given.row["encoder_labels"], weights)


def _label_states(output: ModelOutput, row: Row) -> Float[Array, "B S F"]:
    """Select the hidden state from which the label of each segment is predicted. A backward decoder
    adds its state at the segment's first position, where it has read the whole segment.
    """
    places = row["label_positions"]
    states = jnp.take_along_axis(output.hidden_states, places[..., None], 1)
    if output.backward_states is None:
        return states
    # Positions count from 0 in each segment, so place − position is the segment's first place.
    firsts = places - jnp.take_along_axis(row["decoder_positions"], places, 1)
    backward = jnp.take_along_axis(output.backward_states, firsts[..., None], 1)
    return jnp.concatenate([states, backward], -1)


def _class_sums(given: HeadInput) -> Sums:
    predicted, row = _logits_of_labels(given), given.row
    labels = row["label_values"][..., 0].astype(jnp.int32)
    return class_sums(predicted, labels, row["label_weights"].astype(predicted.dtype))


def _number_sums(given: HeadInput) -> Sums:
    predicted, row = _logits_of_labels(given)[..., 0], given.row
    weights = row["label_weights"].astype(predicted.dtype)
    return number_sums(predicted, row["label_values"][..., 0], weights)


def _choice_sums(given: HeadInput) -> Sums:
    scores, row = _logits_of_labels(given)[..., 0], given.row
    weights = row["label_weights"].astype(scores.dtype)
    return choice_sums(scores, row["label_values"][..., 0], weights, row["label_groups"])


def _token_logits(
    config: ModelDimensions, params: Params, hidden: Array, row: Row | None = None
) -> Array:
    head: Any = TokenHead(config)
    return head.apply({"params": params["token_head"]}, hidden)


def _span_sums(given: HeadInput) -> Sums:
    predicted, row = _token_logits(given.config, given.params, given.states), given.row
    weights = row["label_weights"].astype(predicted.dtype)
    # Answers are places within a segment; logits are indexed by places in the row.
    starts = row["label_positions"]  # first place of each segment
    spans = row["label_values"].astype(jnp.int32) + starts[..., None]
    return span_sums(predicted, spans, weights, row["encoder_segments"])


def _token_class_sums(given: HeadInput) -> Sums:
    predicted, row = _token_logits(given.config, given.params, given.states), given.row
    weights = row["encoder_weights"].astype(predicted.dtype)
    return class_sums(predicted, row["encoder_targets"], weights)


def _real_rows(row: Row) -> Array:
    """Return True for rows that are not padding: [B]."""
    return row["encoder_segments"][:, 0] > 0


def _label_head(
    sums: Callable[[HeadInput], Sums],
    row_keys: tuple[str, ...] = (),
    weight: Callable[[Row], Array] = lambda row: row["label_weights"].sum(),
) -> Head:
    """Return a head that reads one position of each segment."""
    return Head(
        row_keys=("label_values", "label_positions", "label_weights", *row_keys),
        read=_label_states,
        sums=sums,
        weight=weight,
        outputs=lambda config, params, states, row: _class_logits(config, params, states),
    )


HEADS = {
    # Every position of a decoder: GPT, T5.
    "lm": Head(
        row_keys=("decoder_targets", "decoder_weights"),
        read=lambda output, row: output.hidden_states,
        sums=_decoder_sums,
        weight=lambda row: row["decoder_weights"].sum(),
        splits_rows=True,
    ),
    # Every position of a backward decoder: ELMo (Peters et al., 2018, §3.1).
    "backward_lm": Head(
        row_keys=("decoder_tokens", "decoder_segments", "decoder_positions", "decoder_weights"),
        read=_backward_states,
        sums=_backward_sums,
        weight=lambda row: _backward_weights(row).sum(),
        metric_prefix="backward_",
    ),
    # The scored positions of an encoder: BERT.
    "mlm": Head(
        row_keys=("encoder_scored", "encoder_targets", "encoder_weights"),
        read=scored_positions,
        sums=_encoder_sums,
        weight=lambda row: row["encoder_weights"].sum(),
    ),
    # The first position of an encoder: next sentence, sentence order.
    "sequence_label": Head(
        row_keys=("encoder_labels", "encoder_segments"),
        read=lambda output, row: output.hidden_states[:, 0],
        sums=_sequence_label_sums,
        weight=lambda row: _real_rows(row).sum(),
        metric_prefix="label_",
    ),
    # The texts of a decoder's task, in addition to their labels (Radford et al., 2018).
    "auxiliary_lm": Head(
        row_keys=("decoder_targets", "decoder_weights"),
        read=lambda output, row: output.hidden_states,
        sums=_auxiliary_lm_sums,
        weight=lambda row: row["decoder_weights"].sum(),
        metric_prefix="lm_",
        splits_rows=True,
    ),
    # One position of each segment: tasks.
    "class": _label_head(_class_sums),
    "number": _label_head(_number_sums),
    # Several segments are answers to one question: which one is right?
    "choice": _label_head(
        _choice_sums,
        row_keys=("label_groups",),
        weight=lambda row: (row["label_weights"] * row["label_values"][..., 0]).sum(),
    ),
    # All positions of each segment: where does the answer begin and end?
    "span": Head(
        row_keys=("label_values", "label_positions", "label_weights", "encoder_segments"),
        read=lambda output, row: output.hidden_states,
        sums=_span_sums,
        weight=lambda row: row["label_weights"].sum(),
        outputs=_token_logits,
        outputs_per="position",
    ),
    # The scored positions of an encoder: the first piece of each word.
    "token_class": Head(
        row_keys=("encoder_scored", "encoder_targets", "encoder_weights"),
        read=scored_positions,
        sums=_token_class_sums,
        weight=lambda row: row["encoder_weights"].sum(),
        outputs=_token_logits,
        outputs_per="scored",
    ),
}


def find_head(text: str) -> Head:
    """Find a head by its name in HEADS, or one of your own as my_module.my_head.

    Raises:
        UserError: for an unknown name or option.
    """
    if text in HEADS:
        return HEADS[text]
    if "." not in text:
        raise UserError(BAD_CONFIG, f"model.heads={text}: expected my_module.my_head of your own")
    with user_errors(BAD_CONFIG, f"model.heads={text}: failed"):
        head = find_named(text, {}, "model.heads", "head")()
    if not isinstance(head, Head):
        reason = f"got {head!r}, expected a function that returns a model.heads.Head"
        raise UserError(BAD_CONFIG, f"model.heads={text}: {reason}")
    # Without a prefix, its metrics would be mistaken for the language model's.
    if head.metric_prefix:
        return head
    return replace(head, metric_prefix=f"{part_name(text)}_")


def head_layers(config: ModelDimensions) -> dict[str, HeadModule]:
    """Return the layers of all heads of a model, by the names of their parameters."""
    found = {name: layers for name, layers in HEAD_MODULES.items() if layers.wanted(config)}
    for text in config.heads:
        layers = find_head(text).layers
        if layers is not None:
            found[f"{_OWN}{part_name(text)}"] = layers
    return found


def is_of_head(name: str) -> bool:
    """True for the name of a head's parameters."""
    return name in HEAD_MODULES or name.startswith(_OWN)
