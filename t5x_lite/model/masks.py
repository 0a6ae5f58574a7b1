"""Attention masks: which keys each query may attend to.

A rule of your own is a frozen dataclass with the methods of `Rule`; its fields are its options.
Name it in the settings of the model: model.attention_rules=("my_module.MyRule",).

Shapes: B rows, T queries, S keys, H heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from t5x_lite.config import ModelDimensions
from t5x_lite.config.named import find_named
from t5x_lite.config.ranges import Positive
from t5x_lite.errors import BAD_CONFIG, UserError, user_errors

MASKED = -1e9  # added to the logits of masked keys

# Arrays [B, T] of a stack by name: positions, segments, tokens, and anything that a loss adds to a
# row, such as a rank in the order of prediction (XLNet).
Known = Mapping[str, Array]


@runtime_checkable
class Rule(Protocol):
    """Decides which keys a query may attend to."""

    def __call__(self, queries: Known, keys: Known) -> Bool[Array, "B T S"]:
        """Return True where a query may attend to a key. During generation, only positions and
        segments are known. A query that is left without keys attends to itself.
        """
        ...

    def visible(self, positions: int, bidirectional: bool) -> float:
        """Return the mean number of keys that the rule lets a query see in a row of this many
        positions, for FLOPs. If not bidirectional, only keys up to the query's own position count.
        """
        ...


@dataclass(frozen=True)
class Window:
    """A query attends to the `size` positions up to its own and, in an encoder, to the `size`
    positions from its own on (Beltagy et al., 2020, §3.1).

    >>> Window(2).visible(4, bidirectional=False), Window(2).visible(4, bidirectional=True)
    (1.75, 2.5)
    """

    size: Positive = 128

    def __call__(self, queries: Known, keys: Known) -> Bool[Array, "B T S"]:
        """Return True where the key lies within the window."""
        distance = queries["positions"][:, :, None] - keys["positions"][:, None, :]
        return jnp.abs(distance) < self.size

    def visible(self, positions: int, bidirectional: bool) -> float:
        """Return the mean number of keys within the window. The first queries have fewer."""
        size = min(self.size, positions)
        before = size - size * (size - 1) / 2 / positions  # including the query's own
        return 2 * before - 1 if bidirectional else before


RULES = {"window": Window}


@cache
def find_rules(texts: tuple[str, ...], setting: str = "attention_rules") -> tuple[Rule, ...]:
    """Make the rules that model.attention_rules, or another setting of the model, names.

    Raises:
        UserError: for an unknown rule, or one without the methods of Rule.
    """
    rules = []
    for text in texts:
        make = find_named(text, RULES, f"model.{setting}", "rule")
        with user_errors(BAD_CONFIG, f"model.{setting}={text}: cannot be made"):
            rule = make()
        if not isinstance(rule, Rule):
            reason = (
                "expected methods __call__(queries, keys) and visible(positions, bidirectional)"
            )
            raise UserError(BAD_CONFIG, f"model.{setting}={text}: {reason}")
        rules.append(rule)
    return tuple(rules)


def visible_keys(
    config: ModelDimensions, positions: int, bidirectional: bool, layers: int
) -> float | int:
    """Return the mean number of keys that a query of self-attention may see, averaged over the
    layers of a stack.
    """
    kinds = config.layer_pattern or ("global",)
    local = sum(kinds[layer % len(kinds)] == "local" for layer in range(layers))
    in_global = _visible_keys(config.attention_rules, positions, bidirectional)
    if not local:
        return in_global
    in_local = _visible_keys(config.local_rules, positions, bidirectional)
    return (local * in_local + (layers - local) * in_global) / layers


def _visible_keys(rules: tuple[str, ...], positions: int, bidirectional: bool) -> float | int:
    most = positions if bidirectional else (positions + 1) / 2
    for rule in find_rules(rules):
        settings = "model.attention_rules or model.local_rules"
        with user_errors(BAD_CONFIG, f"{settings}: visible of {rule} failed"):
            seen = rule.visible(positions, bidirectional)
            if not 0 < seen <= positions:
                raise ValueError(f"got {seen}, expected more than 0, at most {positions}")
            most = min(most, seen)
    return most


class AttentionMask(struct.PyTreeNode):
    """Which keys each query may attend to.

    A query attends to the keys of its own segment; if causal, only to keys at or before its own
    place and to keys marked as prefix. If rows are not packed, each is one segment followed by
    padding, to which no token attends. Further rules may restrict attention more.

    >>> segments = jnp.array([[1, 1, 2]])
    >>> mask = AttentionMask(segments, segments, causal=True, packed=True).mask()
    >>> mask[0, 0].astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """

    query_segments: Int[Array, "B T"]  # 0 is padding
    key_segments: Int[Array, "B S"]
    prefix: Bool[Array, "B S"] | None = None  # True for keys that their whole segment attends to
    # Set if distances do not follow from the order of the arrays, as in decoding.
    query_positions: Int[Array, "B T"] | None = None
    key_positions: Int[Array, "B S"] | None = None
    # The index of each query among the keys, if queries and keys are not the same tokens: slots of
    # the KV cache in decoding, or this device's positions if several devices share a row.
    query_places: Int[Array, " T"] | None = None
    # Further rules, all of which must hold, and the arrays that they read. No fused kernel supports
    # them.
    of_queries: Known = struct.field(default_factory=dict)
    of_keys: Known = struct.field(default_factory=dict)
    rules: tuple[Rule, ...] = struct.field(pytree_node=False, default=())
    # If several devices share a row: the index of this device, and their number.
    shard: int | Int[Array, ""] = 0
    shards: int = struct.field(pytree_node=False, default=1)
    causal: bool = struct.field(pytree_node=False, default=False)
    packed: bool = struct.field(pytree_node=False, default=False)

    def mask(self) -> Bool[Array, "B 1 T S"]:
        """Return True where a query may attend to a key. B is 1 if all rows have the same mask."""
        T, S = self.query_segments.shape[1], self.key_segments.shape[1]
        mask = jnp.ones((1, 1, T, S), bool)

        # In packed rows, a query sees the keys of its own segment. Otherwise only padding is
        # masked. Causal rows need no mask for padding, which comes after every token, except in
        # decoding, where the slots of shorter prompts are empty.
        if self.packed:
            mask = (self.query_segments[:, :, None] == self.key_segments[:, None, :])[:, None]
        elif not self.causal or self.query_places is not None:
            mask = (self.key_segments > 0)[:, None, None, :]

        # In causal rows, a query sees the past and the prefix.
        if self.causal:
            places = jnp.arange(T) if self.query_places is None else self.query_places
            past = (jnp.arange(S) <= places[:, None])[None, None]
            if self.prefix is not None:
                past |= self.prefix[:, None, None, :]
            mask &= past

        for rule in self.rules:
            known = ", ".join(sorted(self.of_keys))
            settings = "model.attention_rules or model.local_rules"
            with user_errors(BAD_CONFIG, f"{settings}: {rule} failed, given {known}"):
                allowed = rule(self.of_queries, self.of_keys)
                if allowed.dtype != bool or allowed.ndim != 3:
                    got = f"{allowed.dtype}{list(allowed.shape)}"
                    raise TypeError(f"got {got}, expected bool of [rows, queries, keys]")
            mask &= allowed[:, None]
        # A query without any key attends to itself. Otherwise the softmax would average over all
        # masked keys.
        if self.rules:
            places = jnp.arange(T) if self.query_places is None else self.query_places
            itself = jnp.arange(S) == places[:, None]
            mask = jnp.where(mask.any(-1, keepdims=True), mask, itself)
        return jnp.broadcast_to(mask, (*mask.shape[:2], T, S))

    def bias(
        self, position_bias: Float[Array, "#B #H T S"] | None = None
    ) -> Float[Array, "#B #H T S"]:
        """Return the bias to add to the logits: the position bias (or 0), or −10⁹ where masked. B
        and H are 1 if it is the same for all rows or heads.
        """
        visible = 0.0 if position_bias is None else position_bias
        return jnp.where(self.mask(), visible, MASKED)

    def distances(self) -> Int[Array, "T S"] | Int[Array, "B T S"] | np.ndarray:
        """Return the position of each key minus the position of each query."""
        # Decoding: keys are in the slots of a cache, whose positions differ from row to row.
        if self.query_positions is not None and self.key_positions is not None:
            return self.key_positions[:, None, :] - self.query_positions[:, :, None]
        # Devices share a row: these queries are only some of its positions.
        if self.query_places is not None:
            return jnp.arange(self.key_segments.shape[1]) - self.query_places[:, None]
        # As numpy arrays they are constants, so the compiler evaluates what depends on them once.
        T, S = self.query_segments.shape[1], self.key_segments.shape[1]
        return np.arange(S)[None, :] - np.arange(T)[:, None]
