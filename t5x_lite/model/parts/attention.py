"""Multi-head attention (Vaswani et al., 2017, §3.2). With fewer K/V heads than query heads it is
multi-query (Shazeer, 2019) or grouped-query attention (Ainslie et al., 2023).

Shapes: B rows, T queries, S keys, L positions of a source, E encoder positions, H query heads, G
K/V heads, K head_dim, D d_model, P positions of a learned prefix, F features of all G heads.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t5x_lite.config import ModelDimensions
from t5x_lite.model.dense import (
    Dense,
    Written,
    join_heads,
    normal,
    parameter_dtype,
    split_heads,
    with_axes,
)
from t5x_lite.model.dropout import Dropout, Noise
from t5x_lite.model.kernels import (
    FUSED_KERNELS,
    attention_weights,
    choose_kernel,
    plain,
    weighted_sum,
)
from t5x_lite.model.kv_cache import KVCache, cache_dtype
from t5x_lite.model.masks import AttentionMask
from t5x_lite.model.parts.contract import Auxiliary, Setting, StackShape
from t5x_lite.model.parts.norms import make_norm
from t5x_lite.model.parts.positions import NoPositions, make_positions


class KeysAndValues(NamedTuple):
    """Keys and values to attend to."""

    keys: Float[Array, "B G S K"]
    values: Float[Array, "B G S K"]


class Attention(nn.Module):
    """softmax(q kᵀ · K^-½ + bias) v, over H heads.

    Attributes:
        is_cross: True for attention to an encoder, which ignores positions.
    """

    config: ModelDimensions
    is_cross: bool = False
    splits = ("tensor", "sequence")
    takes_positions = True

    def setup(self) -> None:
        config = self.config
        # One kernel projects to all heads. With mimetic_init, cross-attention starts with
        # q kᵀ ≈ 4 x xᵀ, so that a decoder token attends to the same token in the encoder.
        query_features = config.num_heads * config.head_dim
        kv_features = config.num_kv_heads * config.head_dim
        identity = 2.0 if config.mimetic_init and self.is_cross else 0.0
        query_axes, kv_axes = ("embed", "heads"), ("embed", "kv_heads")
        project = partial(Dense, config, to_heads=True, use_bias=config.attention_bias != "none")
        self.query = project(query_features, query_axes, is_query=True, plus_identity=identity)
        self.key = project(kv_features, kv_axes, plus_identity=identity)
        self.value = project(kv_features, kv_axes)
        write = partial(Dense, config, config.d_model, writes_to_stream=True, is_last=True)
        self.out = write(
            ("heads", "embed"), from_heads=True, use_bias=config.attention_bias == "all"
        )
        if self.normalises:
            self.query_norm = make_norm(config)
            self.key_norm = make_norm(config)
        self.dropout = Dropout(config.attention_dropout)

        # Parameters of relative positions and of a learned prefix.
        self._relative: Any = None
        named = self.kind.attention_module()
        if named:
            name, module = named
            setattr(self, name, module)
            self._relative = getattr(self, name)
        if self.has_prefix:
            init = with_axes(normal(config.init_stddev), "adapter", "kv_heads")
            shape = (config.prefix_length, kv_features)
            self.prefix_keys = self.param("prefix_keys", init, shape, parameter_dtype(config))
            self.prefix_values = self.param("prefix_values", init, shape, parameter_dtype(config))

    @property
    def normalises(self) -> bool:
        """True if queries and keys are normalised."""
        return self.config.qk_norm != "none" and not self.is_cross

    def _normed_and_rotated(
        self,
        x_BHTK: Float[Array, "B H T K"],
        norm: Callable[[Array], Array] | None,
        positions_BT: Int[Array, "B T"] | None,
        is_local: Bool[Array, ""] | None,
    ) -> Float[Array, "B H T K"]:
        """Apply QK-norm and rotary positions to queries or keys, as configured."""
        if norm is not None:
            # OLMo 2 normalises the features of all heads together, Qwen3 each head by itself.
            if self.config.qk_norm == "all":
                x_BHTK = split_heads(norm(join_heads(x_BHTK)), self.config.head_dim)
            else:
                x_BHTK = norm(x_BHTK)
        if positions_BT is None:
            return x_BHTK
        rotated = self.kind.rotate(x_BHTK, positions_BT)
        if is_local is None or not self.config.local_positions:
            return rotated
        # Local layers may rotate differently. All layers run the same scanned code: compute both
        # rotations and select one.
        local = make_positions(self.config, "local_positions").rotate(x_BHTK, positions_BT)
        return jnp.where(is_local, local, rotated)

    @property
    @nn.nowrap
    def kind(self) -> NoPositions:
        """The position scheme of this attention; cross-attention has none."""
        return NoPositions(self.config) if self.is_cross else make_positions(self.config)

    @property
    def has_prefix(self) -> bool:
        """True if learned keys and values precede those of the tokens."""
        return not self.is_cross and self.config.prefix_length > 0

    def keys_and_values(
        self,
        source_BLD: Float[Array, "B L D"],
        positions_BL: Int[Array, "B L"] | None = None,
        is_local: Bool[Array, ""] | None = None,
    ) -> KeysAndValues:
        """Project a source to keys and values."""
        norm = self.key_norm if self.normalises else None
        keys = self._normed_and_rotated(self.key(source_BLD), norm, positions_BL, is_local)
        return KeysAndValues(keys, self.value(source_BLD))

    def attend(
        self,
        x_BTD: Float[Array, "B T D"],
        memory: KeysAndValues,
        mask: AttentionMask,
        mask_bias: Float[Array, "#B #H T S"],
        noise: Noise,
        position_bias: Float[Array, "#B #H T S"] | None = None,
        positions_BT: Int[Array, "B T"] | None = None,
        is_local: Bool[Array, ""] | None = None,
        bidirectional: bool = False,
    ) -> Written:
        """Attend from x to keys and values, and project the output.

        Args:
            mask_bias: mask and position bias as one additive bias, for the plain kernel:
                mask.bias(position_bias), computed once for all layers.
            position_bias: the position bias only, for fused kernels, which also take the mask.
            is_local, bidirectional: see StackContext.
        """
        config = self.config
        keys, values = memory

        # Scale the queries before the product by query_width^-½ (by default K^-½). T5 leaves this
        # out, since its initialisation contains the factor.
        scale = config.query_width**-0.5 if config.scale_attention else 1.0
        norm = self.query_norm if self.normalises else None
        q = self._normed_and_rotated(self.query(x_BTD), norm, positions_BT, is_local)
        q = (q * scale).astype(keys.dtype)

        # softmax(q kᵀ + bias) v, by the best kernel that can compute it.
        dropout = partial(self.dropout, noise=noise, places=noise.own_places(q.shape[1]))
        drops_weights = config.attention_dropout > 0 and noise.is_on
        kernel = choose_kernel(
            config, mask, self.kind, drops_weights, learned_prefix=self.has_prefix
        )
        if self.has_prefix:
            keys, values, mask_bias = self._after_prefix(keys, values, mask_bias)
            weights = attention_weights(q, keys, mask_bias, config.attention_softcap)
            y = weighted_sum(dropout(weights), values)
        elif kernel != "plain":
            # Only Splash has a soft cap; other fused kernels are never chosen with one.
            cap = config.attention_softcap
            more: dict[str, Any] = {"softcap": cap} if cap else {}
            y = FUSED_KERNELS[kernel](q, keys, values, mask, position_bias, **more)
        elif self._relative is None:
            y = plain(q, keys, values, mask, mask_bias, dropout, config.attention_softcap)
        else:
            y = self._attend_relatively(
                q, keys, values, mask, mask_bias, dropout, scale, bidirectional
            )
        return self.out(y)

    def _attend_relatively(
        self,
        q: Float[Array, "B H T K"],
        keys: Float[Array, "B G S K"],
        values: Float[Array, "B G S K"],
        mask: AttentionMask,
        mask_bias: Float[Array, "#B #H T S"],
        dropout: Callable[[Array], Array],
        scale: float,
        bidirectional: bool,
    ) -> Float[Array, "B H T K"]:
        """Attend with logits (for Shaw also values) that depend on the distance between query and
        key.
        """
        # Terms of query and distance are added to the logits as a bias. The term of query and key
        # is the usual product; Transformer-XL adds a vector u to its queries.
        relative, distances = self._relative, mask.distances()
        longest = max(q.shape[2], keys.shape[2])
        bias = mask_bias + relative.logits(q, distances, longest, scale, bidirectional)
        q = relative.query(q, scale)
        if not relative.adds_to_values:
            return plain(q, keys, values, mask, bias, dropout)
        # Shaw: the same weights also sum vectors that depend on the distance.
        weights = dropout(attention_weights(q, keys, bias))
        return weighted_sum(weights, values) + relative.weighted_sum(weights, distances)

    def _after_prefix(
        self,
        keys: Float[Array, "B G S K"],
        values: Float[Array, "B G S K"],
        mask_bias: Float[Array, "#B #H T S"],
    ) -> tuple[Array, Array, Array]:
        """Prepend the learned prefix, which every query attends to, to keys and values."""
        rows = keys.shape[0]

        def join(prefix: Float[Array, "P F"], after: Float[Array, "B G S K"]) -> Array:
            split = split_heads(prefix[None].astype(after.dtype), self.config.head_dim)
            before = jnp.broadcast_to(split, (rows, *split.shape[1:]))
            return jnp.concatenate([before, after], 2)

        # A bias of 0 for the prefix: it is never masked.
        sides = [(0, 0), (0, 0), (0, 0), (self.config.prefix_length, 0)]
        bias = jnp.pad(mask_bias, sides)
        return join(self.prefix_keys, keys), join(self.prefix_values, values), bias

    @nn.nowrap
    def cost(self, queries: int, keys: int, visible: float | int) -> float:
        """Return the FLOPs of the projections and of the two products, q kᵀ and weights · v.

        Args:
            visible: mean number of keys that a query may see.
        """
        config = self.config
        query_features = config.num_heads * config.head_dim
        kv_features = config.num_kv_heads * config.head_dim
        # 2 FLOPs per kernel entry and position, for two kernels each: query and output, key and
        # value.
        projections = 4.0 * config.d_model * (query_features * queries + kv_features * keys)
        return projections + 4.0 * queries * visible * query_features * self.kind.logits_cost

    @nn.nowrap
    def contradictions(self, setting: Setting) -> Iterator[str]:
        """Yield one message per incompatible setting; see contract.Part."""
        config, mesh = setting.config, setting.mesh
        if config.num_heads % config.num_kv_heads:
            yield (
                f"model.num_kv_heads: {config.num_kv_heads} does not divide model.num_heads "
                f"{config.num_heads}"
            )
        if config.num_heads % mesh.tensor:
            divides = f"mesh.tensor = {mesh.tensor} does not divide"
            yield f"model.num_heads is {config.num_heads}, which {divides}"
        # If there are fewer K/V heads than devices, several devices share each of them.
        if config.num_kv_heads % mesh.tensor and mesh.tensor % config.num_kv_heads:
            divides = f"mesh.tensor = {mesh.tensor} does not divide"
            yield f"model.num_kv_heads is {config.num_kv_heads}, which {divides}"
        if config.attention_softcap and self.kind.needs_logits:
            reason = f"positions {config.positions} add to logits after it"
            yield f"model.attention_softcap: {reason}; set it to 0"
        if config.qk_norm == "all" and mesh.tensor > 1:
            reason = f"needs all heads on each device, but mesh.tensor is {mesh.tensor}"
            yield f"model.qk_norm=all: {reason}; use mesh.fsdp instead"
        if config.attention_dropout and mesh.sequence > 1:
            reason = f"cannot be split over mesh.sequence = {mesh.sequence}"
            yield f"model.attention_dropout: {reason}; set mesh.sequence to 1"


class SelfAttention(Attention):
    """Attention within a stack: a mixer (see contract.py) whose decoding state is a KVCache."""

    def memory(self, x_BTD: Float[Array, "B T D"], context: Any) -> KeysAndValues:
        """Return the keys and values of x, which is all that other positions need from it."""
        return self.keys_and_values(x_BTD, context.positions, context.is_local)

    def __call__(
        self, x_BTD: Float[Array, "B T D"], context: Any, memory: KeysAndValues | None = None
    ) -> tuple[Written, Auxiliary]:
        """Mix positions: [B, T, D] → [B, T, D]. context is a blocks.StackContext."""
        return self._attend(x_BTD, memory or self.memory(x_BTD, context), context), {}

    def initial_state(self, rows: int, slots: int) -> KVCache:
        """Return an empty cache for the keys and values of `slots` tokens."""
        config = self.config
        return KVCache.empty(
            (rows, config.num_kv_heads, slots, config.head_dim), cache_dtype(config.dtype)
        )

    def prefill(
        self, x_BTD: Float[Array, "B T D"], state: KVCache, context: Any
    ) -> tuple[Written, KVCache]:
        """Read T tokens, and cache their keys and values in the slots from context.slot on."""
        # Write the new tokens to the cache first, so that they also attend to each other.
        state = state.write(*self.memory(x_BTD, context), context.slot)
        return self._attend(x_BTD, KeysAndValues(state.keys, state.values), context), state

    step = prefill  # a single token is a prompt of length 1

    def _attend(self, x_BTD: Float[Array, "B T D"], memory: KeysAndValues, context: Any) -> Written:
        return self.attend(
            x_BTD,
            memory,
            context.mask,
            context.mask_bias,
            context.noise,
            context.position_bias,
            context.positions,
            context.is_local,
            context.bidirectional,
        )

    @nn.nowrap
    def flops(self, stack: StackShape) -> float:
        """Return the FLOPs of a layer; see contract.Part."""
        return self.cost(stack.positions, stack.positions, stack.visible)


class CrossAttention(Attention):
    """Attention from the decoder to the encoder's hidden states."""

    is_cross: bool = True

    def memory(self, encoded_BED: Float[Array, "B E D"]) -> KeysAndValues:
        """Return the encoder's keys and values."""
        return self.keys_and_values(encoded_BED)

    def __call__(
        self, x_BTD: Float[Array, "B T D"], context: Any, memory: KeysAndValues | None = None
    ) -> Written:
        """Attend to the encoder: [B, T, D] → [B, T, D]. context is a blocks.StackContext."""
        memory = memory or self.memory(context.encoded)
        return self.attend(
            x_BTD, memory, context.cross_mask, context.cross_mask_bias, context.noise
        )

    def encoder_state(self, encoded_BED: Float[Array, "B E D"]) -> KVCache:
        """Return the encoder's keys and values, cached once for the whole generation."""
        dtype = cache_dtype(self.config.dtype)
        keys, values = self.memory(encoded_BED)
        return jax.tree.map(lambda x: x.astype(dtype), KVCache(keys, values))
