"""Losses as sums and a weight: add them over microbatches, devices and batches, then divide once.

Shapes: B rows, T positions, D d_model, V vocabulary, C classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from jaxtyping import Array, Float, Int, Shaped

from t5x_lite.model.matmul import compiler_splits, wide_dtype

# total_loss, which is minimised; nll and correct, which are reported; weight, the divisor of each.
Sums = dict[str, Array]

Labels = tuple[Int[Array, "..."], Float[Array, "..."]]  # targets and weights
SumsOf = Callable[[Any, Float[Array, "*rows D"], Labels], Sums]  # from head_params, hidden, labels


@dataclass(frozen=True)
class LossSettings:
    """Settings of the loss; see config.Training."""

    z_loss: float = 0.0
    label_smoothing: float = 0.0
    chunk: int = 0  # positions of each row whose logits exist at a time; 0: see default_chunk
    auxiliary_lm: float = 0.0  # weight of the language model's loss beside the task's loss


class VocabularyShard(NamedTuple):
    """The part of the vocabulary that the logits cover, since several devices may share it.

    Attributes:
        size: size of the whole vocabulary, without padding.
        ids: ids [V] of the columns of the logits.
        sum, max: reduce over all devices what each has computed from its own columns.
    """

    size: int
    ids: Int[Array, " V"]
    sum: Callable[[Array], Array] = lambda x: x
    max: Callable[[Array], Array] = jax.lax.stop_gradient


def token_sums(
    logits: Float[Array, "*rows V"],
    targets: Int[Array, "*rows"],
    weights: Float[Array, "*rows"],
    vocabulary: VocabularyShard,
    settings: LossSettings,
) -> Sums:
    """Return weighted sums over all positions.

    nll is in nats. correct counts the targets that no other logit exceeds. total_loss, which is
    minimised, is nll with label smoothing (Szegedy et al., 2016, §7), plus z_loss · log²Z (Mesh
    TensorFlow, T5).
    """
    logits = logits.astype(wide_dtype(logits.dtype))

    # −log p(target) = log Z − the target's logit. It is found by comparing ids, not by a gather,
    # since a comparison also works on a sharded vocabulary.
    largest = vocabulary.max(logits.max(-1))
    z = vocabulary.sum(jnp.exp(logits - largest[..., None]).sum(-1))
    log_z = largest + jnp.log(z)
    is_target = vocabulary.ids == targets[..., None]
    target_logits = vocabulary.sum(jnp.where(is_target, logits, 0).sum(-1))
    nll = log_z - target_logits

    total_loss = nll
    # Label smoothing spreads a share of the target evenly over the vocabulary.
    if settings.label_smoothing:
        smoothing = settings.label_smoothing
        is_real = vocabulary.ids < vocabulary.size
        total_logit = vocabulary.sum(jnp.where(is_real, logits, 0).sum(-1))
        mean_logit = total_logit / vocabulary.size
        total_loss = (1 - smoothing) * nll + smoothing * (log_z - mean_logit)
    # The z-loss keeps log Z near 0, where bfloat16 is precise.
    if settings.z_loss:
        total_loss += settings.z_loss * jnp.square(log_z)

    correct = (target_logits >= largest).astype(nll.dtype)
    by_position = {
        "total_loss": total_loss,
        "nll": nll,
        "correct": correct,
        "weight": jnp.ones_like(nll),
    }
    # A position of weight 0 does not count, even if padding has become NaN: NaN × 0 would be NaN.
    return {
        name: jnp.where(weights != 0, value * weights, 0).sum()
        for name, value in by_position.items()
    }


def default_chunk(rows: int, length: int, width: int) -> int:
    """Return the number of positions of each row in a chunk.

    The limit is where the logits [rows · chunk, V] are as large as the gradient of a head
    [width, V], which exists anyway, or 128 if that is more. Rows are split into chunks of equal
    length.

    >>> default_chunk(rows=8, length=1024, width=768), default_chunk(rows=2, length=512, width=4096)
    (128, 512)
    """
    most = max(128, width // rows)
    chunks = -(-length // most)
    return -(-length // chunks)


def cross_entropy(
    logits_of: Callable[[Any, Float[Array, "B T D"]], Float[Array, "B T V"]],
    head_params: Any,
    hidden_BTD: Float[Array, "B T D"],
    targets_BT: Int[Array, "B T"],
    weights_BT: Float[Array, "B T"],
    vocabulary: VocabularyShard,
    settings: LossSettings = LossSettings(),
) -> Sums:
    """Return `token_sums` of a head's logits, computed in chunks of `settings.chunk` positions of
    each row.

    The forward pass also computes the gradient of each chunk. So the logits of all positions never
    exist at once, and none are computed twice.

    Only total_loss can be differentiated, with respect to head_params and hidden. The gradient of
    nll or correct raises TypeError.
    """
    rows, length, width = hidden_BTD.shape
    chunk = min(settings.chunk or default_chunk(rows, length, width), length)

    def split(x: Shaped[Array, "B T *rest"]) -> Shaped[Array, "chunks *rows"]:
        """[B, T, …] → [chunks, B, chunk, …]."""
        # A single chunk: flatten it to rows of one matrix, so that XLA:TPU does not copy the head.
        # (If the compiler splits the sequence, flattening would gather it.)
        if chunk == length and not compiler_splits():
            return x.reshape(1, -1, *x.shape[2:])
        rest = [(0, 0)] * (x.ndim - 2)
        x = jnp.pad(x, [(0, 0), (0, -length % chunk), *rest])
        chunks = x.reshape(x.shape[0], -1, chunk, *x.shape[2:])
        return jnp.moveaxis(chunks, 1, 0)

    def sums(head_params: Any, hidden: Float[Array, "*rows D"], labels: Labels) -> Sums:
        targets, weights = labels
        return token_sums(logits_of(head_params, hidden), targets, weights, vocabulary, settings)

    return _chunked(sums, head_params, split(hidden_BTD), (split(targets_BT), split(weights_BT)))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked(
    sums: SumsOf, head_params: Any, hidden: Float[Array, "chunks *rows D"], labels: Labels
) -> Sums:
    """Add up the sums of all chunks, the leading axis of hidden and labels."""

    def add(total: Sums, chunk: tuple[Array, Labels]) -> tuple[Sums, None]:
        hidden, labels = chunk
        return jax.tree.map(jnp.add, total, sums(head_params, hidden, labels)), None

    zeros = _zero_sums(sums, head_params, hidden, labels)
    return jax.lax.scan(add, zeros, (hidden, labels))[0]


def _zero_sums(
    sums: SumsOf, head_params: Any, hidden: Float[Array, "chunks *rows D"], labels: Labels
) -> Sums:
    first_hidden, first_labels = jax.tree.map(lambda x: x[0], (hidden, labels))
    shapes = jax.eval_shape(sums, head_params, first_hidden, first_labels)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def _chunked_forward(
    sums: SumsOf,
    wrapped_params: Any,
    wrapped_hidden: CustomVJPPrimal,
    wrapped_labels: tuple[CustomVJPPrimal, CustomVJPPrimal],
) -> tuple[Sums, tuple[Any, Array]]:
    """Return the sums, and the gradients of total_loss, computed chunk by chunk."""
    # With symbolic_zeros=True, jax wraps each argument in an object with .value and .perturbed.
    wrapped = wrapped_params, wrapped_hidden, wrapped_labels
    arguments: Any = jax.tree.map(
        lambda x: x.value, wrapped, is_leaf=lambda x: hasattr(x, "perturbed")
    )
    head_params, hidden, labels = arguments

    def total_loss(
        head_params: Any, hidden: Float[Array, "*rows D"], labels: Labels
    ) -> tuple[Float[Array, ""], Sums]:
        chunk_sums = sums(head_params, hidden, labels)
        return chunk_sums["total_loss"], chunk_sums

    # Compute the gradient of a chunk while its logits exist, so that they are neither kept nor
    # recomputed.
    gradient = jax.grad(total_loss, argnums=(0, 1), has_aux=True)

    def add(total: tuple[Sums, Any], chunk: tuple[Array, Labels]) -> tuple[tuple[Sums, Any], Array]:
        (for_params, for_hidden), chunk_sums = gradient(head_params, *chunk)
        return jax.tree.map(jnp.add, total, (chunk_sums, for_params)), for_hidden

    # Sum the gradients of parameters in float32 or better, regardless of the parameters' dtype.
    wide = jax.tree.map(lambda x: jnp.zeros(x.shape, wide_dtype(x.dtype)), head_params)
    zeros = _zero_sums(sums, head_params, hidden, labels), wide
    (total, for_params), for_hidden = jax.lax.scan(add, zeros, (hidden, labels))
    for_params = jax.tree.map(lambda g, x: g.astype(x.dtype), for_params, head_params)
    return total, (for_params, for_hidden)


def _chunked_backward(
    sums: SumsOf, gradients: tuple[Any, Array], cotangents: dict[str, Array | SymbolicZero]
) -> tuple[Any, Array, None]:
    """Scale the gradients from the forward pass by the cotangent of total_loss."""
    wanted = {
        name: cotangent
        for name, cotangent in cotangents.items()
        if not isinstance(cotangent, SymbolicZero)
    }
    # The weight is a constant of the batch, so its gradient is zero. Gradients of nll and correct
    # are not stored: raise, instead of silently returning zero.
    if not wanted.keys() <= {"total_loss", "weight"}:
        names = sorted(wanted)
        raise TypeError(f"cross_entropy: got the gradient of {names}, but only total_loss has one")
    if "total_loss" not in wanted:
        return (*jax.tree.map(jnp.zeros_like, gradients), None)
    scale = wanted["total_loss"]

    def scaled(g: Array) -> Array:
        return (g.astype(scale.dtype) * scale).astype(g.dtype)

    for_params, for_hidden = jax.tree.map(scaled, gradients)
    return for_params, for_hidden, None


_chunked.defvjp(_chunked_forward, _chunked_backward, symbolic_zeros=True)


def class_sums(
    logits: Float[Array, "*rows C"], labels: Int[Array, "*rows"], weights: Float[Array, "*rows"]
) -> Sums:
    """Return sums over rows, or over the segments of rows. nll, in nats, is minimised."""
    log_probabilities = jax.nn.log_softmax(logits)
    nll = -jnp.take_along_axis(log_probabilities, labels[..., None], -1)[..., 0]
    correct = (logits.argmax(-1) == labels).astype(nll.dtype)
    return _label_sums(nll, correct, weights)


def _label_sums(nll: Array, correct: Array, weights: Array) -> Sums:
    """Return weighted sums. An entry of weight 0 adds 0, even if it is inf or NaN."""
    of_each = {"total_loss": nll, "nll": nll, "correct": correct, "weight": jnp.ones_like(nll)}

    def weighted(value: Array) -> Float[Array, ""]:
        return jnp.where(weights > 0, value * weights, 0).sum()

    return {name: weighted(value) for name, value in of_each.items()}


def number_sums(
    predicted_BS: Float[Array, "B S"],
    labels_BS: Float[Array, "B S"],
    weights_BS: Float[Array, "B S"],
) -> Sums:
    """Return sums over segments, with the squared error as nll; correct is 0."""
    error = jnp.square(predicted_BS - labels_BS.astype(predicted_BS.dtype))
    return _label_sums(error, jnp.zeros_like(error), weights_BS)


def choice_sums(
    scores_BS: Float[Array, "B S"],
    is_right_BS: Float[Array, "B S"],
    weights_BS: Float[Array, "B S"],
    groups_BS: Int[Array, "B S"],
) -> Sums:
    """Return sums over groups of segments. A group holds the answers to one question. nll scores
    the right answer by a softmax over the group. A tie is not correct.
    """
    # Compare each segment with the others of its group; −∞ keeps other groups out.
    same_group = groups_BS[:, :, None] == groups_BS[:, None, :]
    is_other = same_group & ~jnp.eye(scores_BS.shape[1], dtype=bool)
    others = jnp.where(is_other, scores_BS[:, None, :], -jnp.inf)
    log_z = jax.nn.logsumexp(jnp.where(same_group, scores_BS[:, None, :], -jnp.inf), -1)
    correct = (scores_BS > others.max(-1)).astype(scores_BS.dtype)
    return _label_sums(log_z - scores_BS, correct, weights_BS * is_right_BS)


def span_sums(
    logits_BT2: Float[Array, "B T 2"],
    spans_BS2: Int[Array, "B S 2"],
    weights_BS: Float[Array, "B S"],
    segments_BT: Int[Array, "B T"],
) -> Sums:
    """Return sums over segments. nll is the mean for the first and the last position, each under a
    softmax over the segment (Devlin et al., 2019, §4.2). A segment is correct if both positions are
    the most probable.
    """
    # Segments are numbered from 1; 0 is padding.
    segment_numbers = jnp.arange(spans_BS2.shape[1]) + 1
    of_segment_BST = segments_BT[:, None, :] == segment_numbers[None, :, None]
    nll, correct = [], []
    for side in (0, 1):
        logits_BST = jnp.where(of_segment_BST, logits_BT2[:, None, :, side], -jnp.inf)
        target_BS = spans_BS2[..., side]
        # A segment that does not exist has weight 0 and only logits of −∞: make them 0, so that
        # their softmax is not NaN.
        logits_BST = jnp.where(weights_BS[..., None] > 0, logits_BST, 0)
        log_probabilities = jax.nn.log_softmax(logits_BST)
        nll.append(-jnp.take_along_axis(log_probabilities, target_BS[..., None], -1)[..., 0])
        correct.append(logits_BST.argmax(-1) == target_BS)
    both = (correct[0] & correct[1]).astype(logits_BT2.dtype)
    return _label_sums((nll[0] + nll[1]) / 2, both, weights_BS)
