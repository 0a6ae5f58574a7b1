"""The decoder, a few tokens at a time: keys and values of what was read are kept, in slots, and not computed again.

Shapes: B rows, T tokens read now, S slots, G key and value heads, K head size, E encoder positions, W width.
"""

import jax
import jax.numpy as jnp
from flax import struct
from flax.traverse_util import flatten_dict, unflatten_dict

from t5x_lite.config import Model
from t5x_lite.model.attention import Attention
from t5x_lite.model.heads import logits
from t5x_lite.model.kernels import Sight
from t5x_lite.model.layers import head_size
from t5x_lite.model.transformer import Block, Context, Stack, Transformer


class Weights(struct.PyTreeNode):
    """The parameters of a model as writing wants them: each layer by itself, and kernels in the type of the computation
    and transposed, [out, in], which few rows are multiplied with faster.
    """

    outer: dict  # all but the decoder's layers
    layers: list[dict]  # variables of Block
    head: dict  # what `heads.logits` reads


def _turned(config: Model, params: dict) -> dict:
    """Parameters as variables, kernels in a collection of their own."""
    flat = flatten_dict(params)
    kernels = {path: leaf.astype(config.dtype).T for path, leaf in flat.items() if path[-1] == "kernel"}
    others = {path: leaf for path, leaf in flat.items() if path not in kernels}
    return {"params": unflatten_dict(others), "turned": unflatten_dict(kernels)}


def weights(config: Model, params: dict) -> Weights:
    """Of the parameters of a model with a decoder."""
    name = "stack" if config.shared_stacks else "decoder"
    stack, head = dict(params[name]), dict(params.get("head", {}))
    depth = config.decoder_layers or config.layers
    if "block" in stack:
        layers = [_turned(config, stack.pop("block"))] * depth
    else:
        stacked = stack.pop("layers")
        layers = [_turned(config, jax.tree.map(lambda x: x[i], stacked)) for i in range(depth)]  # noqa: B023
    table = params.get("decoder_embedding", params["embedding"])
    if "output" in head:
        table = head.pop("output").T
    head = _turned(config, head)
    kernels = {**head["turned"], "kernel": table.astype(config.dtype)}
    return Weights({**params, "decoder": stack}, layers, {"head": head["params"], "turned": kernels, "kernel": None})


def _part(variables: dict, name: str) -> dict:
    """The variables of a module inside."""
    return {collection: tree.get(name, {}) for collection, tree in variables.items()}


class Cache(struct.PyTreeNode):
    """What was read so far."""

    own: list[tuple]  # keys and values of each layer, [B, G, S, K] both
    filled: jax.Array  # [B, S]: 1 where a slot holds a token of the text
    positions: jax.Array  # [B, S]: its place in the text
    across: list[tuple] | None = None  # keys and values of the encoder, for each layer [B, G, E, K]
    encoder_segments: jax.Array | None = None  # [B, E]


def empty(config: Model, weights: Weights, rows: int, slots: int, row: dict | None = None) -> Cache:
    """A cache of that size; row: what the encoder reads, where there is one."""
    shape = rows, config.kv_heads or config.heads, slots, head_size(config)
    wide = jax.default_backend() == "cpu"  # where attention of few queries is four times slower in bfloat16
    dtype = jnp.promote_types(config.dtype, jnp.float32) if wide else config.dtype
    own = [(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in weights.layers]
    nothing = jnp.zeros((rows, slots), jnp.int32)
    if config.architecture != "encoder_decoder":
        return Cache(own, nothing, nothing)
    encoded = Transformer(config, packed=False).apply({"params": weights.outer}, row, method=Transformer.encode)
    look = Attention(config, own=False)
    layers = [_part(layer, "cross_attention") for layer in weights.layers]
    across = [look.apply(layer, encoded, method=Attention.remember) for layer in layers]
    across = jax.tree.map(lambda x: x.astype(dtype), across)
    return Cache(own, nothing, nothing, across, row["encoder_segments"])


def read(config: Model, weights: Weights, cache: Cache, tokens, real, positions, slot, both_ways: bool = False):
    """Read tokens [B, T], of which some are real [B, T] (1, else 0), at their positions, into the slots from `slot` on:
    (hidden states [B, T, W], the cache with them).

    They see all that was read before and, of themselves, their past, or both_ways all.
    """
    put = jax.lax.dynamic_update_slice_in_dim
    cache = cache.replace(filled=put(cache.filled, real, slot, 1), positions=put(cache.positions, positions, slot, 1))
    several = tokens.shape[1] > 1
    sight = Sight(real, cache.filled, None, positions, cache.positions, causal=several and not both_ways)
    across = None if cache.across is None else Sight(real, cache.encoder_segments)
    stack = Stack(config, len(weights.layers), shared=True)
    of_stack = {"params": weights.outer["decoder"]}
    bidirectional = config.architecture == "prefix_decoder"
    context = Context(positions, sight, across, slot=slot)
    context = context.prepared(stack.apply(of_stack, sight, bidirectional, method=Stack.bias))
    row = {"decoder_tokens": tokens, "decoder_positions": positions}
    x = Transformer(config).apply({"params": weights.outer}, row, "decoder", method=Transformer.embed)
    own = []
    for number, (layer, kept) in enumerate(zip(weights.layers, cache.own, strict=True)):
        mine = {"number": jnp.array(number), "own": kept}
        if across is not None:
            mine["across"] = cache.across[number]
        x, kept = Block(config).apply(layer, x, mine, context)
        own.append(kept)
    return stack.apply(of_stack, x, method=Stack.finish), cache.replace(own=own)


def next_logits(config: Model, weights: Weights, hidden):
    """Logits [B, V] of what comes after the hidden states [B, W]."""
    return logits(config, weights.head, hidden)
