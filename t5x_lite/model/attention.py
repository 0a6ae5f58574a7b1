"""Multi-head attention (Vaswani et al., 2017, §3.2), with fewer heads for keys and values where the
config says so: multi-query (Shazeer, 2019) and grouped-query attention (Ainslie et al., 2023).

Shapes: B rows, T queries, S keys, E encoder positions, H heads, G key and value heads, K head_dim,
D d_model.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_lite.config import ModelDimensions
from t5x_lite.model.kernels import (
    FUSED_KERNELS,
    attention_weights,
    choose_kernel,
    plain,
    weighted_sum,
)
from t5x_lite.model.kv_cache import KVCache, cache_dtype
from t5x_lite.model.layers import (
    Auxiliary,
    Dense,
    Dropout,
    parameter_dtype,
    split_heads,
    with_axes,
)
from t5x_lite.model.masks import AttentionMask
from t5x_lite.model.parallel import own_kv_heads, part_places, whole_row
from t5x_lite.model.positions import ShawRelative, TransformerXL, rotate


class Attention(nn.Module):
    """softmax(q kᵀ · K^-½ + bias) v, over H heads."""

    config: ModelDimensions
    is_self: bool = True  # self-attention, where positions count; else cross-attention

    def setup(self):
        config = self.config
        # All heads of a projection are one kernel. With mimetic_init cross-attention begins with
        # q kᵀ near 4 x xᵀ: a token of the decoder attends to the same token of the encoder.
        query_features = config.num_heads * config.head_dim
        kv_features = config.num_kv_heads * config.head_dim
        identity = 2.0 if config.mimetic_init and not self.is_self else 0.0
        query_axes, kv_axes = ("embed", "heads"), ("embed", "kv_heads")
        project = partial(Dense, config, to_heads=True)
        self.query = project(query_features, query_axes, is_query=True, plus_identity=identity)
        self.key = project(kv_features, kv_axes, plus_identity=identity)
        self.value = project(kv_features, kv_axes)
        to_stream = partial(Dense, config, config.d_model, writes_to_stream=True)
        self.out = to_stream(("heads", "embed"), from_heads=True)
        self.dropout = Dropout(config.attention_dropout)

        # Of the kinds of positions, rotary, Shaw's and Transformer-XL's act within attention; the
        # biases of T5 and ALiBi come from the stack.
        self.positions = config.positions if self.is_self else "none"
        if self.positions == "shaw":
            self.shaw = ShawRelative(config)
        if self.positions == "transformer_xl":
            self.relative = TransformerXL(config)
        if self.has_prefix:
            init = with_axes(nn.initializers.normal(config.init_stddev), "adapter", "kv_heads")
            shape = (config.prefix_length, kv_features)
            self.prefix_keys = self.param("prefix_keys", init, shape, parameter_dtype(config))
            self.prefix_values = self.param("prefix_values", init, shape, parameter_dtype(config))

    @property
    def has_prefix(self) -> bool:
        """Whether there are keys and values that are no token's."""
        return self.is_self and self.config.prefix_length > 0

    def keys_and_values(
        self, source_BLD: Float[Array, "B L D"], positions_BL: Int[Array, "B L"] | None = None
    ) -> tuple[Float[Array, "B G S K"], Float[Array, "B G S K"]]:
        """The source, projected to keys and values: of the L positions that a device has, those of
        all S.
        """
        keys = self._rotated(self.key(source_BLD), positions_BL)
        return whole_row(keys, axis=2), whole_row(self.value(source_BLD), axis=2)

    def attend(
        self,
        x_BTD: Float[Array, "B T D"],
        keys: Float[Array, "B G S K"],
        values: Float[Array, "B G S K"],
        mask: AttentionMask,
        mask_bias: Float[Array, "#B #H T S"],
        position_bias: Float[Array, "#B #H T S"] | None = None,
        positions_BT: Int[Array, "B T"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "B P D"]:
        """Attention from x to keys and values, with the output projection.

        Args:
            mask_bias: mask and position bias as one additive bias, for the plain kernel:
                mask.bias(position_bias), computed once for all layers.
            position_bias: the position bias alone, for fused kernels, which take the mask too.
        """
        config = self.config

        # Queries, scaled before the product: K^-½, unless the initialisation holds it (T5).
        scale = config.head_dim**-0.5 if config.scale_attention else 1.0
        q = self._rotated(self.query(x_BTD), positions_BT)
        q = (q * scale).astype(keys.dtype)

        # softmax(q kᵀ + bias) v, by the kernel that can compute it.
        dropout = partial(self.dropout, deterministic=deterministic, places=part_places(q.shape[1]))
        drops_weights = config.attention_dropout > 0 and not deterministic
        kernel = choose_kernel(replace(config, positions=self.positions), mask, drops_weights)
        if self.has_prefix:
            keys, values, mask_bias = self._after_prefix(keys, values, mask_bias)
            y = weighted_sum(dropout(attention_weights(q, keys, mask_bias)), values)
        elif kernel != "plain":
            y = FUSED_KERNELS[kernel](q, keys, values, mask, position_bias)
        elif self.positions == "shaw":
            distances = mask.distances()
            weights = attention_weights(q, keys, mask_bias + self.shaw.logits(q, distances))
            weights = dropout(weights)
            y = weighted_sum(weights, values) + self.shaw.weighted_sum(weights, distances)
        elif self.positions == "transformer_xl":
            longest = max(q.shape[2], keys.shape[2])
            relative_logits = self.relative.logits(q, mask.distances(), longest, scale)
            q += self.relative.u[:, None].astype(q.dtype) * scale
            y = plain(q, keys, values, mask, mask_bias + relative_logits, dropout)
        else:
            y = plain(q, keys, values, mask, mask_bias, dropout)

        return self.out(y)

    def _after_prefix(self, keys, values, mask_bias) -> tuple[Array, Array, Array]:
        """Keys and values after those of the prefix, which every query attends to."""
        rows = keys.shape[0]

        def join(prefix, after):
            prefix = own_kv_heads(prefix, self.config.num_kv_heads)
            split = split_heads(prefix[None].astype(after.dtype), self.config.head_dim)
            before = jnp.broadcast_to(split, (rows, *split.shape[1:]))
            return jnp.concatenate([before, after], 2)

        sides = [(0, 0), (0, 0), (0, 0), (self.config.prefix_length, 0)]
        bias = jnp.pad(mask_bias, sides)
        return join(self.prefix_keys, keys), join(self.prefix_values, values), bias

    def _rotated(self, x, positions) -> Array:
        if self.positions != "rotary":
            return x
        return rotate(x, positions, self.config.rotary_base)


class SelfAttention(Attention):
    """Attention within a stack: a mixer (see blocks.py), whose decoding state is a KVCache."""

    def __call__(self, x_BTD: Float[Array, "B T D"], context: Any) -> tuple[Array, Auxiliary]:
        """[B, T, D] → [B, T, D]; context: blocks.StackContext."""
        keys, values = self.keys_and_values(x_BTD, context.positions)
        return self._attend(x_BTD, keys, values, context), {}

    def initial_state(self, rows: int, slots: int) -> KVCache:
        """Room for the keys and values of so many tokens."""
        config = self.config
        return KVCache.empty(
            (rows, config.num_kv_heads, slots, config.head_dim), cache_dtype(config.dtype)
        )

    def prefill(
        self, x_BTD: Float[Array, "B T D"], state: KVCache, context: Any
    ) -> tuple[Array, KVCache]:
        """Read T tokens into the slots from context.slot on."""
        state = state.write(*self.keys_and_values(x_BTD, context.positions), context.slot)
        return self._attend(x_BTD, state.keys, state.values, context), state

    step = prefill  # one token is read like many

    def _attend(self, x_BTD, keys, values, context):
        return self.attend(
            x_BTD,
            keys,
            values,
            context.mask,
            context.mask_bias,
            context.position_bias,
            context.positions,
            context.deterministic,
        )


class CrossAttention(Attention):
    """Attention from the decoder to the encoder's hidden states."""

    is_self: bool = False

    def __call__(
        self, x_BTD: Float[Array, "B T D"], context: Any, state: KVCache | None = None
    ) -> Array:
        """[B, T, D] → [B, T, D]; state: the encoder's keys and values, where they are kept."""
        if state is None:
            keys, values = self.keys_and_values(context.encoded)
        else:
            keys, values = state.keys, state.values
        return self.attend(
            x_BTD,
            keys,
            values,
            context.cross_mask,
            context.cross_mask_bias,
            deterministic=context.deterministic,
        )

    def encoder_state(self, encoded_BED: Float[Array, "B E D"]) -> KVCache:
        """The encoder's keys and values, to be kept."""
        keys, values = self.keys_and_values(encoded_BED)
        dtype = cache_dtype(self.config.dtype)
        return jax.tree.map(lambda x: x.astype(dtype), KVCache(keys, values))
