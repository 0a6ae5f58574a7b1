"""A block of a stack: a mixer, which mixes positions, and a feed-forward part, which treats each
position alone, each with its residual connection, norm and dropout.

To add a mixer (linear attention) or a feed-forward part (a mixture of experts): write the module,
name it in MIXERS below or in layers.FEED_FORWARDS, and in the setting model.mixer or
model.feed_forward of config/schema.py.

Shapes: B rows, T positions, E encoder positions, D d_model.
"""

from typing import Any, Protocol

import flax.linen as nn
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from t5x_lite.config import ModelDimensions
from t5x_lite.model.attention import CrossAttention, SelfAttention
from t5x_lite.model.kv_cache import KVCache
from t5x_lite.model.layers import (
    FEED_FORWARDS,
    Adapter,
    Auxiliary,
    Dropout,
    Norm,
    add_auxiliary,
    constrain,
    parameter_dtype,
    with_axes,
)
from t5x_lite.model.lstm import LSTM
from t5x_lite.model.masks import AttentionMask
from t5x_lite.model.parallel import gather_stream, own_stream, stream_places
from t5x_lite.model.positions import sinusoidal


class StackContext(struct.PyTreeNode):
    """What all blocks of a stack share; T are this device's positions."""

    segments: Int[Array, "B T"]  # 0 is padding
    positions: Int[Array, "B T"]
    mask: AttentionMask
    mask_bias: Array  # mask.bias(position_bias)
    position_bias: Array | None = None  # what positions add to attention's logits
    cross_mask: AttentionMask | None = None
    cross_mask_bias: Array | None = None
    encoded: Float[Array, "B E D"] | None = None  # hidden states of the encoder, own positions
    slot: int | Int[Array, ""] = 0  # of the decoding state, where the first token of x is written
    deterministic: bool = struct.field(pytree_node=False, default=True)


class Mixer(Protocol):
    """The part of a block that mixes positions: an entry of MIXERS, made with the config.

    It owns its decoding state: the keys and values of attention, the two vectors of an LSTM.
    """

    def __call__(self, x_BTD: Array, context: StackContext) -> tuple[Array, Auxiliary]:
        """Whole rows, as in training: [B, T, D] → [B, T, D], and auxiliary losses."""
        ...

    def initial_state(self, rows: int, slots: int) -> Any:
        """The empty decoding state, with room for `slots` tokens. Every array has rows as its
        first axis, since beam search reorders them.
        """
        ...

    def prefill(self, x_BTD: Array, state: Any, context: StackContext) -> tuple[Array, Any]:
        """Read T tokens of each row, padding where context.segments is 0: the outputs [B, T, D],
        and the updated state.
        """
        ...

    def step(self, x_B1D: Array, state: Any, context: StackContext) -> tuple[Array, Any]:
        """Read one token of each row; also the first, where a prompt has one."""
        ...


MIXERS = {"attention": SelfAttention, "lstm": LSTM}


class BlockState(struct.PyTreeNode):
    """What one block keeps while text is generated."""

    mixer: Any  # of the mixer's own kind
    encoder: KVCache | None = None  # the encoder's keys and values


class Block(nn.Module):
    """The mixer, then cross-attention where there is an encoder, then feed-forward; each with its
    residual.

    Returns x [B, T, D], and the auxiliary losses of its parts, or, where text is generated, its new
    state.
    """

    config: ModelDimensions

    @nn.compact
    def __call__(
        self,
        x_BTD,
        depth: int | Int[Array, ""],
        context: StackContext,
        state: BlockState | None = None,
    ) -> tuple[Array, Auxiliary | BlockState]:
        config = self.config
        mixer: Any = MIXERS[config.mixer](config, name=config.mixer)
        auxiliary: Auxiliary = {}
        mixer_state = None if state is None else state.mixer

        # The parts, each [B, T, D] → [B, T, D]. They differ in what else they read and leave.
        def mix(y):
            nonlocal auxiliary, mixer_state
            if state is None:
                y, losses = mixer(y, context)
                auxiliary = add_auxiliary(auxiliary, losses)
            elif y.shape[1] == 1:
                y, mixer_state = mixer.step(y, state.mixer, context)
            else:
                y, mixer_state = mixer.prefill(y, state.mixer, context)
            return y

        def cross_attend(y):
            return CrossAttention(config, name="cross_attention")(
                y, context, state and state.encoder
            )

        def feed(y):
            nonlocal auxiliary
            module = FEED_FORWARDS[config.feed_forward](config, name="feed_forward")
            y, losses = module(y, context)
            auxiliary = add_auxiliary(auxiliary, losses)
            return y

        parts = {config.mixer: mix}
        if context.cross_mask is not None:
            parts["cross_attention"] = cross_attend
        if config.feed_forward != "none":
            parts["feed_forward"] = feed

        # The Universal Transformer's positions, with the depth, come before every layer.
        if config.positions == "universal":
            positions = own_stream(context.positions)
            signal = sinusoidal(positions, config.d_model) + sinusoidal(
                jnp.asarray(depth), config.d_model
            )
            x_BTD += signal.astype(x_BTD.dtype)

        length = context.segments.shape[1]
        places = stream_places(length)
        shared_norm = None
        if config.parallel_residual:
            shared_norm = gather_stream(Norm(config, name="norm")(x_BTD), length)

        for name, part in parts.items():
            # Pre-norm reads a normalised copy of the residual stream; post-norm reads the stream,
            # and normalises the sum.
            if shared_norm is not None:
                y = part(shared_norm)
            elif config.norm_position == "pre":
                y = part(gather_stream(Norm(config, name=f"{name}_norm")(x_BTD), length))
            else:
                y = part(gather_stream(x_BTD, length))
            if config.adapter_size:
                y = Adapter(config, name=f"{name}_adapter")(y)
            y = Dropout(config.dropout)(y, context.deterministic, places)
            # ReZero (Bachlechner et al., 2020): a learned share, 0 at first.
            if config.rezero:
                zero = with_axes(nn.initializers.zeros)
                y *= self.param(f"{name}_share", zero, (), parameter_dtype(config)).astype(y.dtype)

            x_BTD += y
            if config.norm_position == "post":
                x_BTD = Norm(config, name=f"{name}_norm")(x_BTD)
            x_BTD = constrain(x_BTD, "batch", "sequence", None)

        if state is not None:
            return x_BTD, state.replace(mixer=mixer_state)
        return x_BTD, auxiliary
