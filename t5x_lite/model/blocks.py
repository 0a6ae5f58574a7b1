"""A block of a stack: a mixer, which mixes positions, and a feed-forward part, which processes each
position independently. Each has its residual connection, norm and dropout.

The mesh ends here: parts are written as if for one device, and the block gathers their inputs and
scatters their outputs (see parts/contract.py and parallel/collectives.py).

Shapes: B rows, T positions, E encoder positions, D d_model, C of the T positions on this device of
the mesh axis `sequence`, P of the C positions on this device of `tensor`.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from t5x_lite.config import ModelDimensions
from t5x_lite.model.dense import Unsummed, Written, constrain, parameter_dtype, with_axes
from t5x_lite.model.dropout import Dropout, Noise
from t5x_lite.model.kv_cache import KVCache
from t5x_lite.model.masks import AttentionMask
from t5x_lite.model.parts.adapter import Adapter
from t5x_lite.model.parts.attention import CrossAttention, KeysAndValues
from t5x_lite.model.parts.contract import Auxiliary, add_auxiliary
from t5x_lite.model.parts.norms import make_norm
from t5x_lite.model.parts.options import part_name
from t5x_lite.model.parts.positions import make_positions
from t5x_lite.model.parts.table import make_feed_forward, make_mixer, splits_of
from t5x_lite.parallel.collectives import (
    from_experts,
    gather_stream,
    own_dimensions,
    own_positions,
    own_stream,
    parts,
    stream_places,
    sum_over_batch,
    sum_to_stream,
    to_experts,
    whole_row,
)


class StackContext(struct.PyTreeNode):
    """Inputs that all blocks of a stack share, for the positions that a part sees.

    Attributes:
        segments: number of the segment at each position; 0 is padding.
        mask_bias: mask.bias(position_bias).
        bidirectional: True if a query may see later keys.
        local_mask_bias: the mask_bias of local layers; None: there are none.
        is_local: True in a local layer; None: all layers are alike.
        position_bias: the bias that positions add to the attention logits.
        encoded: hidden states of the encoder, at this device's positions.
        slot: slot of the decoding state that the first token of x is written to.
        whole: context for whole rows, for parts that run whole; None: this one covers whole rows.
    """

    segments: Int[Array, "B T"]
    positions: Int[Array, "B T"]
    mask: AttentionMask
    mask_bias: Array
    noise: Noise
    local_mask_bias: Array | None = None
    is_local: Bool[Array, ""] | None = None
    position_bias: Array | None = None
    cross_mask: AttentionMask | None = None
    cross_mask_bias: Array | None = None
    encoded: Float[Array, "B E D"] | None = None
    slot: int | Int[Array, ""] = 0
    whole: "StackContext | None" = None
    bidirectional: bool = struct.field(pytree_node=False, default=False)

    def in_layer(self, pattern: tuple[str, ...], depth: int | Int[Array, ""]) -> "StackContext":
        """Return the context of one layer. Local layers have their own mask."""
        if self.local_mask_bias is None:
            return self
        kinds = jnp.array([kind == "local" for kind in pattern])
        is_local = kinds[depth % len(pattern)]
        return self.replace(
            mask_bias=jnp.where(is_local, self.local_mask_bias, self.mask_bias),
            is_local=is_local,
            whole=self.whole and self.whole.in_layer(pattern, depth),
        )

    def seen_by(self, splits: tuple[str, ...]) -> "StackContext":
        """Return the context for a part that these mesh axes may split."""
        return self if self.whole is None or "sequence" in splits else self.whole


class BlockState(struct.PyTreeNode):
    """Decoding state of one block.

    Attributes:
        mixer: the mixer's own decoding state.
        encoder: the encoder's keys and values.
    """

    mixer: Any
    encoder: KVCache | None = None


Splits = tuple[str, ...]  # mesh axes that may split a part


class Block(nn.Module):
    """The mixer, then cross-attention if there is an encoder, then the feed-forward part, each with
    its residual connection.

    Returns x [B, P, D] and the auxiliary losses of its parts. During generation it returns its new
    state instead of the losses.
    """

    config: ModelDimensions

    @nn.compact
    def __call__(
        self,
        x_BPD: Float[Array, "B P D"],
        depth: int | Int[Array, ""],
        context: StackContext,
        state: BlockState | None = None,
    ) -> tuple[Array, Auxiliary | BlockState]:
        config = self.config
        context = context.in_layer(config.layer_pattern, depth)
        auxiliary: Auxiliary = {}
        new_state = state

        # The parts as functions [B, T, D] → [B, T, D], and the mesh axes that may split each.
        mixer, mixer_splits = self._own(make_mixer, name=part_name(config.mixer))
        feed_forward, feed_splits = self._own(make_feed_forward, name="feed_forward")

        def mix(y: Array, context: StackContext) -> Written:
            nonlocal auxiliary, new_state
            if state is None:
                written, losses = _mix(mixer, y, context)
                auxiliary = add_auxiliary(auxiliary, _shared(losses, mixer_splits))
                return written
            # Generation: the mixer reads the new tokens after those in its state.
            read = mixer.step if y.shape[1] == 1 else mixer.prefill
            y, mixer_state = read(y, state.mixer, context)
            new_state = state.replace(mixer=mixer_state)
            return y

        def cross_attend(y: Array, context: StackContext) -> Written:
            attention = CrossAttention(own_dimensions(config), name="cross_attention")
            # During generation, the encoder's keys and values are in the state.
            if state is not None and state.encoder is not None:
                kept = state.encoder
                return attention(y, context, KeysAndValues(kept.keys, kept.values))
            assert context.encoded is not None, "cross-attention needs an encoder"
            return attention(y, context, _whole_memory(attention.memory(context.encoded)))

        def feed(y: Array, context: StackContext) -> Written:
            nonlocal auxiliary
            # During generation, experts drop no token.
            written, losses = _feed(feed_forward, y, context, drops=state is None)
            auxiliary = add_auxiliary(auxiliary, _shared(losses, feed_splits))
            return written

        steps: list[tuple[str, Splits, Callable]] = [(part_name(config.mixer), mixer_splits, mix)]
        if context.cross_mask is not None:
            steps.append(("cross_attention", CrossAttention.splits, cross_attend))
        if feed_forward is not None:
            steps.append(("feed_forward", feed_splits, feed))

        # The Universal Transformer adds positions and depth before every layer.
        signal = make_positions(config).before_layer(own_stream(context.positions), depth)
        if signal is not None:
            x_BPD += signal.astype(x_BPD.dtype)

        x_BPD = self._residual_sum(x_BPD, steps, depth, context)
        return x_BPD, auxiliary if new_state is None else new_state

    def _own(self, make: Callable, name: str) -> tuple[Any, Splits]:
        """Make a part with this device's sizes, and return it with the axes that may split it."""
        # parent=None: this module is only asked how it splits, and adds no parameters.
        whole = make(self.config, parent=None)
        if whole is None:
            return None, ()
        splits = splits_of(whole)
        is_split = "tensor" in splits or "expert" in splits
        own = own_dimensions(self.config) if is_split else self.config
        return make(own, name=name), splits

    def _residual_sum(
        self,
        x_BPD: Float[Array, "B P D"],
        steps: list[tuple[str, Splits, Callable]],
        depth: int | Int[Array, ""],
        context: StackContext,
    ) -> Float[Array, "B P D"]:
        """Add the output of each part to the residual stream, with its norms and dropout."""
        config, length = self.config, context.segments.shape[1]
        places = stream_places(length)
        # PaLM and GPT-NeoX: all parts read the stream as it was at the start of the block.
        before_BPD = x_BPD
        shared = None
        if config.parallel_residual and config.shared_norm:
            shared = _Reading(make_norm(config, name="norm")(x_BPD), length)

        for number, (name, splits, part) in enumerate(steps):
            # Pre-norm reads a normalised copy of the residual stream; post-norm reads the stream,
            # and normalises the sum.
            read_BPD = before_BPD if config.parallel_residual else x_BPD
            if shared is not None:
                reading = shared
            elif config.norm_position in ("pre", "both"):
                normed_BPD = make_norm(config, name=f"{name}_norm")(read_BPD)
                # ModernBERT: the mixer of the first layer reads the embeddings without a norm.
                if number == 0 and not config.first_norm:
                    normed_BPD = jnp.where(depth == 0, read_BPD, normed_BPD)
                reading = _Reading(normed_BPD, length)
            else:
                reading = _Reading(read_BPD, length)
            # Gather the positions that the part reads; reduce its output to this device's.
            y = part(reading.for_part(splits), context.seen_by(splits))
            y = _to_stream(y, splits, config)
            if config.norm_position in ("output", "both"):
                y = make_norm(config, name=f"{name}_output_norm")(y)

            if config.adapter_size:
                y = Adapter(config, name=f"{name}_adapter")(y)
            y = Dropout(config.dropout)(y, context.noise, places)
            # ReZero (Bachlechner et al., 2020): multiply by a learned number that starts at 0.
            if config.rezero:
                zero = with_axes(nn.initializers.zeros)
                y *= self.param(f"{name}_share", zero, (), parameter_dtype(config)).astype(y.dtype)

            x_BPD += y
            if config.norm_position == "post":
                x_BPD = make_norm(config, name=f"{name}_norm")(x_BPD)
            x_BPD = constrain(x_BPD, "batch", "sequence", None)
        return x_BPD


# Communication around a part.


class _Reading:
    """Input of parts, gathered only once for all parts that read the same positions."""

    def __init__(self, own_BPD: Float[Array, "B P D"], length: int) -> None:
        self._own = own_BPD
        self._length = length
        self._gathered: dict[bool, Array] = {}

    def for_part(self, splits: Splits) -> Array:
        """Return the input at the positions that a part reads: whole rows, or this device's part of
        `sequence`.
        """
        is_whole = "sequence" not in splits
        if is_whole not in self._gathered:
            x_BCD = gather_stream(self._own, self._length)
            self._gathered[is_whole] = whole_row(x_BCD) if is_whole else x_BCD
        return self._gathered[is_whole]


def _to_stream(y: Written, splits: Splits, config: ModelDimensions) -> Float[Array, "B P D"]:
    """Reduce a part's output to this device's positions of the residual stream."""
    # The bias is added once, after the sum over devices.
    if isinstance(y, Unsummed):
        summed = _to_stream_wide(y.terms, splits, config)
        return (summed + y.bias).astype(config.dtype)
    return _to_stream_wide(y, splits, config).astype(config.dtype)


def _to_stream_wide(y: Array, splits: Splits, config: ModelDimensions) -> Float[Array, "B P D"]:
    # A part that runs whole has computed every position, identically on every device.
    if "sequence" not in splits:
        y = own_positions(y)
    if "tensor" in splits:
        y = sum_to_stream(y, config.dtype)
    else:
        y = own_stream(y)
    return y


def _shared(losses: Auxiliary, splits: Splits) -> Auxiliary:
    """Return one device's share of auxiliary losses. The shares are later summed over `sequence`,
    but a part that runs whole computes the complete losses on each device.
    """
    if "sequence" in splits:
        return losses
    return jax.tree.map(lambda loss: loss / parts("sequence"), losses)


def _mix(mixer: Any, y: Array, context: StackContext) -> tuple[Written, Auxiliary]:
    if parts("sequence") == 1 or "sequence" not in splits_of(mixer):
        return mixer(y, context)
    # Devices that share rows send each other keys and values, but keep their queries.
    return mixer(y, context, _whole_memory(mixer.memory(y, context)))


def _whole_memory(memory: Any) -> Any:
    """Gather a mixer's memory over all positions: arrays [B, heads, positions, …]."""
    return jax.tree.map(lambda x: whole_row(x, axis=2), memory)


def _feed(
    feed_forward: Any, y: Array, context: StackContext, drops: bool
) -> tuple[Written, Auxiliary]:
    if "expert" not in splits_of(feed_forward):
        return feed_forward(y, context)
    # Send tokens to the devices that hold their experts, and the results back.
    routed = feed_forward.dispatch(y, context, drops)
    sent = jax.tree.map(to_experts, routed.sent)
    found = from_experts(feed_forward.compute(sent, context))
    return feed_forward.combine(found, routed, sum_over_batch(routed.counts))
