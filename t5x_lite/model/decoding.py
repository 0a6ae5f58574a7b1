"""Incremental decoding: the decoder reads a prompt, then one token at a time. Each mixer owns its
decoding state (attention's KV cache, an LSTM's state), so no token is computed twice.

Shapes: B rows, T tokens read now, S slots, E encoder positions, W d_model, V vocabulary.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float, Int

from t5x_lite.config import ModelDimensions
from t5x_lite.model.blocks import Block, BlockState
from t5x_lite.model.dropout import Noise
from t5x_lite.model.heads import Params, Row, logits
from t5x_lite.model.masks import AttentionMask, find_rules
from t5x_lite.model.parts.attention import CrossAttention
from t5x_lite.model.parts.table import layers_of_period, make_mixer
from t5x_lite.model.transformer import Stack, Transformer, parameter_axes
from t5x_lite.parallel.axes import is_kernel, stays_wide


class DecodingWeights(struct.PyTreeNode):
    """The parameters of a model, rearranged for decoding: unstacked layers, and dense kernels cast
    to the compute dtype and stored as [out, in], which is faster for small batches.
    """

    outer: Params  # all but the decoder's layers; "decoder" holds its final norm and relative bias
    layers: list[Params]  # variables of each Block
    head: Params  # parameters that heads.logits reads


def _transpose_kernels(config: ModelDimensions, params: Params, axes: Params) -> Params:
    """Return parameters as flax variables, with dense kernels transposed in a collection of their
    own.
    """
    names: Any = flatten_dict(axes)
    leaves: Any = flatten_dict(params)
    kept, transposed = {}, {}
    for path, leaf in leaves.items():
        if is_kernel(names[path]) and leaf.ndim == 2 and not stays_wide(names[path]):
            transposed[path] = leaf.astype(config.dtype).T
        else:
            kept[path] = leaf
    return {"params": unflatten_dict(kept), "transposed": unflatten_dict(transposed)}


def decoding_weights(config: ModelDimensions, params: Params) -> DecodingWeights:
    """Rearrange the parameters of a model with a decoder for decoding."""
    # Unstack the decoder's layers.
    axes = parameter_axes(config)
    name = "stack" if config.shared_stacks else "decoder"
    stack, head = dict(params[name]), params.get("head", {})
    if "block" in stack:
        # All layers share one block.
        block = _transpose_kernels(config, stack.pop("block"), axes[name]["block"])
        layers = [block] * config.num_decoder_layers
    else:
        scanned = stack.pop("layers")
        period = len(layers_of_period(config))
        layers = []
        for i in range(config.num_decoder_layers):
            # The scan's turn, and the layer's place among the blocks of one turn.
            turn, place = divmod(i, period)
            layer, layer_axes = jax.tree.map(lambda x, i=turn: x[i], scanned), axes[name]["layers"]
            if period > 1:
                layer, layer_axes = (tree[f"block_{place}"] for tree in (layer, layer_axes))
            layers.append(_transpose_kernels(config, layer, layer_axes))

    # The head. A tied embedding table is already a transposed kernel.
    of_head = _transpose_kernels(config, head, axes.get("head", {}))
    if config.tie_embeddings:
        table = params.get("decoder_embedding", params["embedding"])
        of_head["transposed"]["output"] = table.astype(config.dtype)
    of_head = {"head": of_head["params"], "transposed": of_head["transposed"], "kernel": None}
    return DecodingWeights({**params, "decoder": stack}, layers, of_head)


class DecoderState(struct.PyTreeNode):
    """The decoding state after the tokens read so far."""

    blocks: list[BlockState]
    filled: Int[Array, "B S"]  # 1 where a slot holds a token of the text
    positions: Int[Array, "B S"]  # position in the text of the token in each slot
    encoder_segments: Int[Array, "B E"] | None = None


def initial_state(
    config: ModelDimensions, weights: DecodingWeights, rows: int, slots: int, row: Row | None = None
) -> DecoderState:
    """Return the decoding state before the first token, for up to `slots` tokens.

    Args:
        row: the encoder's input, if there is an encoder.
    """
    mixer = make_mixer(config)
    states = [BlockState(mixer.initial_state(rows, slots)) for _ in weights.layers]
    nothing = jnp.zeros((rows, slots), jnp.int32)
    if row is None:
        return DecoderState(states, nothing, nothing)

    # Run the encoder once, and cache its keys and values for each layer's cross-attention.
    model: Any = Transformer(config, packed=False)
    encoded = model.apply({"params": weights.outer}, row, method=Transformer.encode).hidden_states
    attention: Any = CrossAttention(config)
    for number, layer in enumerate(weights.layers):
        variables = {
            name: collection.get("cross_attention", {}) for name, collection in layer.items()
        }
        of_encoder = attention.apply(variables, encoded, method=CrossAttention.encoder_state)
        states[number] = states[number].replace(encoder=of_encoder)
    return DecoderState(states, nothing, nothing, row["encoder_segments"])


def read_tokens(
    config: ModelDimensions,
    weights: DecodingWeights,
    state: DecoderState,
    tokens: Int[Array, "B T"],
    is_real: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    slot: int | Int[Array, ""],
    bidirectional: bool = False,
) -> tuple[Float[Array, "B T W"], DecoderState]:
    """Read T tokens per row into the slots from `slot` on, and return the hidden states of these
    tokens and the updated state.

    The new tokens attend to all tokens read before, and causally to each other.

    Args:
        is_real: 0 where a token is padding.
        bidirectional: the new tokens attend to each other both ways (the inputs of a prefix
            decoder).
    """
    # Mark the new slots as filled, and make the attention mask of the new tokens over all slots.
    update = jax.lax.dynamic_update_slice_in_dim
    state = state.replace(
        filled=update(state.filled, is_real, slot, 1),
        positions=update(state.positions, positions, slot, 1),
    )
    # From slot 0 on, query t is in slot t. A single token needs no causal mask.
    is_beginning = isinstance(slot, int) and slot == 0
    mask = AttentionMask(
        is_real,
        state.filled,
        query_positions=positions,
        key_positions=state.positions,
        query_places=None if is_beginning else slot + jnp.arange(tokens.shape[1]),
        causal=tokens.shape[1] > 1 and not bidirectional,
        rules=find_rules(config.attention_rules),
        of_queries={"positions": positions, "segments": is_real},
        of_keys={"positions": state.positions, "segments": state.filled},
    )
    cross_mask = None
    if state.encoder_segments is not None:
        cross_mask = AttentionMask(is_real, state.encoder_segments)

    # The inputs that all blocks share.
    noise = Noise(jnp.arange(len(tokens)))
    stack: Any = Stack(config, len(weights.layers), share_layers=True)
    stack_params = {"params": weights.outer["decoder"]}
    context = stack.apply(
        stack_params,
        mask,
        config.architecture == "prefix_decoder",
        positions,
        noise,
        cross_mask=cross_mask,
        slot=slot,
        method=Stack.context,
    )

    # Embed the tokens, and pass them through the blocks one by one.
    row = {"decoder_tokens": tokens, "decoder_positions": positions}
    embedder: Any = Transformer(config)
    x = embedder.apply({"params": weights.outer}, row, "decoder", method=Transformer.embed)
    blocks = []
    of_layers = layers_of_period(config)
    for depth, (layer, block_state) in enumerate(zip(weights.layers, state.blocks, strict=True)):
        block: Any = Block(of_layers[depth % len(of_layers)])
        x, block_state = block.apply(layer, x, jnp.array(depth), context, block_state)
        blocks.append(block_state)
    x = stack.apply(stack_params, x, noise, method=Stack.finish)
    return x, state.replace(blocks=blocks)


def next_logits(
    config: ModelDimensions, weights: DecodingWeights, hidden: Float[Array, "B W"]
) -> Float[Array, "B V"]:
    """Return the logits of the token after each hidden state."""
    return logits(config, weights.head, hidden)
