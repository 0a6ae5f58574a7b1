"""Attention masks: which keys each query may attend to.

Shapes: B rows, T queries, S keys, H heads.
"""

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

MASKED = -1e9  # added to the logits of keys that are masked

# (what is known of each query [B, T], what is known of each key [B, S]) → bool [B, T, S], True
# where the query may attend to the key
Rule = Callable[[Mapping[str, Array], Mapping[str, Array]], Array]


class AttentionMask(struct.PyTreeNode):
    """A query attends to the keys of its own segment. If causal, only to keys at or before its own
    place, and to keys marked as prefix. If rows are not packed, each is one segment followed by
    padding, to which no token attends. Further rules may be added.

    >>> segments = jnp.array([[1, 1, 2]])
    >>> mask = AttentionMask(segments, segments, causal=True, packed=True).mask()
    >>> mask[0, 0].astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """

    query_segments: Int[Array, "B T"]  # 0 is padding
    key_segments: Int[Array, "B S"]
    prefix: Bool[Array, "B S"] | None = None  # attended to from everywhere in the segment
    # Where distances do not follow from the order of the arrays, as in decoding:
    query_positions: Int[Array, "B T"] | None = None
    key_positions: Int[Array, "B S"] | None = None
    # The number of each query among the keys, where they are not the same tokens: the slots of the
    # KV cache in decoding, and this device's positions where several share a row.
    query_places: Int[Array, " T"] | None = None
    # Further rules, all of which must hold, and what they read by name: a rank in the order of
    # prediction (XLNet), a window. No fused kernel has them.
    query_keys: Mapping[str, Int[Array, "B T"]] = struct.field(default_factory=dict)
    key_keys: Mapping[str, Int[Array, "B S"]] = struct.field(default_factory=dict)
    rules: tuple[Rule, ...] = struct.field(pytree_node=False, default=())
    # If several devices share a row: which of them this is, and how many there are.
    shard: int | Int[Array, ""] = 0
    shards: int = struct.field(pytree_node=False, default=1)
    causal: bool = struct.field(pytree_node=False, default=False)
    packed: bool = struct.field(pytree_node=False, default=False)

    def mask(self) -> Bool[Array, "B 1 T S"]:
        """True where a query may attend to a key; B is 1 where all rows are alike."""
        T, S = self.query_segments.shape[1], self.key_segments.shape[1]
        mask = jnp.ones((1, 1, T, S), bool)

        # Packed rows: keys of the query's own segment. Else padding is masked. In causal rows it
        # need not be, since it comes after every token; but it does in decoding, where the slots
        # of shorter prompts are empty.
        if self.packed:
            mask = (self.query_segments[:, :, None] == self.key_segments[:, None, :])[:, None]
        elif not self.causal or self.query_places is not None:
            mask = (self.key_segments > 0)[:, None, None, :]

        # Time: the past, and the prefix.
        if self.causal:
            places = jnp.arange(T) if self.query_places is None else self.query_places
            past = (jnp.arange(S) <= places[:, None])[None, None]
            if self.prefix is not None:
                past |= self.prefix[:, None, None, :]
            mask &= past

        for rule in self.rules:
            mask &= rule(self.query_keys, self.key_keys)[:, None]
        return jnp.broadcast_to(mask, (*mask.shape[:2], T, S))

    def bias(
        self, position_bias: Float[Array, "#B #H T S"] | None = None
    ) -> Float[Array, "#B #H T S"]:
        """What is added to the logits: the position bias (or 0), −10⁹ where masked; B and H are 1
        where alike.
        """
        visible = 0.0 if position_bias is None else position_bias
        return jnp.where(self.mask(), visible, MASKED)

    def distances(self) -> Int[Array, "T S"] | Int[Array, "B T S"] | np.ndarray:
        """The position of each key − that of each query."""
        if self.query_positions is not None and self.key_positions is not None:
            return self.key_positions[:, None, :] - self.query_positions[:, :, None]
        if self.query_places is not None:
            return jnp.arange(self.key_segments.shape[1]) - self.query_places[:, None]
        # Constants of numpy: whatever is computed from them is computed once, by the compiler.
        T, S = self.query_segments.shape[1], self.key_segments.shape[1]
        return np.arange(S)[None, :] - np.arange(T)[:, None]
