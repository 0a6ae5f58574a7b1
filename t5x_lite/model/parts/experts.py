"""A mixture of experts instead of a dense feed-forward part (Shazeer et al., 2017; GShard: Lepikhin
et al., 2021). With top_k=1 it is a Switch Transformer's (Fedus et al., 2022).

A router sends each token to its K most probable experts. An expert has a limited number of slots
per row. A token that finds no free slot is dropped: only the residual stream carries it on. Slots
are assigned in the order of positions, so that no position depends on a later one, and separately
for each row, so that which tokens are dropped does not depend on how devices share the batch.

Shapes: B rows, T positions, D d_model, F d_ff of an expert, E experts, K experts per token, C slots
per expert and row, S slots per expert for all rows that it serves.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_lite.config import ModelDimensions
from t5x_lite.config.grammar import parse_call
from t5x_lite.config.ranges import NonNegative, Positive, Range
from t5x_lite.model.dense import Dense, kernel_init, parameter_dtype, with_axes
from t5x_lite.model.matmul import matmul, rounded, wide_dtype
from t5x_lite.model.parts.activations import activate
from t5x_lite.model.parts.contract import Auxiliary, Measured, Setting, StackShape
from t5x_lite.model.parts.options import own_options, write_part

_FEWEST_SLOTS = 4  # per expert and row, as in Mesh TensorFlow: short rows are rarely balanced


class Sent(NamedTuple):
    """Inputs of the experts, row by row.

    Attributes:
        tokens: zeros in empty slots.
        numbers: index of each slot in the whole batch, the key of its dropout.
    """

    tokens: Float[Array, "E S D"]
    numbers: Int[Array, "E S"]


class Routed(NamedTuple):
    """The router's decisions for the tokens of a device. A choice is one of a token's K experts.

    Attributes:
        slots: slot of each choice, among the E · C of its row; E · C if it was dropped.
        gates: weights of the outputs of a token's experts; 0 for dropped choices.
        probabilities: router probabilities; 0 for padding.
        counts: number of choices of each expert, including dropped ones.
        dropped: share of each token's choices that were dropped.
    """

    sent: Sent
    slots: Int[Array, "B T K"]
    gates: Float[Array, "B T K"]
    probabilities: Float[Array, "B T E"]
    counts: Float[Array, " E"]
    dropped: Float[Array, "B T"]


def slots_per_row(length: int, places: float, experts: int) -> int:
    """Return the number of slots per expert and row: `places` slots per token, shared evenly by the
    experts, but at least 4 and at most the length of the row.

    >>> slots_per_row(512, 1.25 * 2, 8), slots_per_row(8, 1.25 * 2, 8), slots_per_row(2, 1.0, 1)
    (160, 4, 2)
    """
    return min(length, max(math.ceil(places * length / experts), _FEWEST_SLOTS))


class Experts(nn.Module):
    """A mixture of experts in every n-th layer; the other layers have a dense feed-forward part.
    Experts have no biases, as in Mesh TensorFlow.

    The block calls dispatch, compute and combine. Between these calls it sends the tokens to the
    devices that hold their experts, and back.

    Attributes:
        num: number of experts.
        top_k: number of experts per token.
        capacity: slots of an expert, as a multiple of an even share of a row's choices. (Mesh
            TensorFlow counts tokens instead of choices: its 2.0 with two experts per token is 1.0
            here.)
        jitter: in training, the router's input is multiplied by random numbers within 1 ± jitter.
        balance: weight of the load-balancing loss (Fedus et al., 2022, eq. 4).
        every: period of the layers with experts: the last of every n layers has them.
        d_ff: width of an expert; 0: model.d_ff.
        kind: kind of each expert, and of the feed-forward parts in the other layers.
    """

    config: ModelDimensions
    num: Positive = 8
    top_k: Positive = 2
    capacity: Annotated[float, Range(0, 1024, open=True)] = 1.25
    jitter: Annotated[float, Range(0, 0.5)] = 0.01
    balance: Annotated[float, Range(0, 10)] = 0.01
    every: Positive = 1
    d_ff: NonNegative = 0
    kind: Literal["mlp", "gated_mlp"] = "mlp"
    splits = ("tensor", "expert")

    def setup(self) -> None:
        config, dtype = self.config, parameter_dtype(self.config)
        here, D, F = self.num // config.expert_parts, config.d_model, self._own_d_ff

        def parameter(name: str, init: Any, *shape: int, axes: tuple[str, ...]) -> Array:
            return self.param(name, with_axes(init, "experts", *axes), (here, *shape), dtype)

        # The router works in float32: "bfloat16 seems to reduce quality" (Mesh TensorFlow).
        precision = "float64" if config.dtype == "float64" else "float32"
        precise = replace(config, dtype=precision, bias=False)
        self.router = Dense(precise, self.num, ("embed", "classes"))
        into, back = kernel_init(config, D), kernel_init(config, F, writes_to_stream=True)
        self.wi = parameter("wi", into, D, F, axes=("embed", "mlp"))
        if self.kind == "gated_mlp":
            self.gate = parameter("gate", into, D, F, axes=("embed", "mlp"))
        self.wo = parameter("wo", back, F, D, axes=("mlp", "embed"))

    @property
    @nn.nowrap
    def _own_d_ff(self) -> int:
        """This device's part of an expert's width."""
        return self.d_ff // self.config.tensor_parts or self.config.d_ff

    @nn.nowrap
    def slots(self, length: int) -> int:
        """Return the number of slots per expert for a row of this length."""
        return slots_per_row(length, self.capacity * self.top_k, self.num)

    def dispatch(self, x_BTD: Float[Array, "B T D"], context: Any, drops: bool) -> Routed:
        """Choose the experts of each token, and sort the tokens by expert.

        Args:
            drops: False to give every choice a slot, as in generation.
        """
        is_real = context.segments > 0
        B, T, D = x_BTD.shape
        E, K, C = self.num, self.top_k, self.slots(T) if drops else T

        # Route each token to its K most probable experts. A single expert is weighted by its
        # probability, so that the router learns; the gates of several are normalised to sum to 1.
        logits = self.router(self._jittered(x_BTD.astype(wide_dtype(x_BTD.dtype)), context.noise))
        probabilities = jax.nn.softmax(logits) * is_real[..., None]
        gates, choices = jax.lax.top_k(probabilities, K)
        if K > 1:
            gates /= jnp.where(is_real[..., None], gates.sum(-1, keepdims=True), 1)

        # A choice's place in its expert's queue is the number of earlier choices of this expert in
        # the row. Choices from place C on are dropped: they get slot E · C.
        chosen_BTKE = jax.nn.one_hot(choices, E, dtype=jnp.int32) * is_real[..., None, None]
        queue = chosen_BTKE.reshape(B, T * K, E)
        places = ((queue.cumsum(1) - queue) * queue).sum(-1).reshape(B, T, K)
        fits = (places < C) & is_real[..., None]
        slots = jnp.where(fits, choices * C + places, E * C)

        # Invert the mapping: find the token in each slot of a row. Slot E · C does not exist and is
        # not written. Empty slots keep T, which is no token and which _rows_at reads as zeros.
        token_of_slot = jnp.full((B, E * C), T, jnp.int32)
        tokens = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32)[None, :, None], (B, T, K))
        rows = jnp.arange(B)[:, None]
        token_of_slot = token_of_slot.at[rows, slots.reshape(B, -1)].set(
            tokens.reshape(B, -1), mode="drop"
        )
        # Sort by expert. Slots are numbered in the whole batch, so that dropout is the same on any
        # mesh.
        in_slots = _rows_at(x_BTD, token_of_slot).reshape(B, E, C, D)
        of_row = context.noise.rows[None, :, None] * E
        numbers = (of_row + jnp.arange(E)[:, None, None]) * C
        return Routed(
            sent=Sent(
                tokens=in_slots.swapaxes(0, 1).reshape(E, B * C, D),
                numbers=(numbers + jnp.arange(C)).reshape(E, B * C),
            ),
            slots=slots,
            gates=jnp.where(fits, gates, 0),
            probabilities=probabilities,
            counts=chosen_BTKE.sum((0, 1, 2)).astype(gates.dtype),
            dropped=(is_real[..., None] & ~fits).mean(-1, dtype=gates.dtype),
        )

    def compute(self, sent: Sent, context: Any) -> Float[Array, "E S D"]:
        """Apply this device's experts to their tokens. The result is one term of a sum over
        `tensor`.
        """
        config = self.config
        x_ESD = sent.tokens.astype(config.dtype)
        x_ESF, gate_ESF = rounded(matmul(x_ESD, self.wi), config.dtype), 1.0
        if self.kind == "gated_mlp":
            gate_ESF = rounded(matmul(x_ESD, self.gate), config.dtype)
        x_ESF = activate(config.activation, x_ESF, gate_ESF)
        x_ESF = self._dropped_out(x_ESF, sent.numbers, context.noise)
        return rounded(matmul(x_ESF, self.wo), config.dtype)

    def _dropped_out(self, x_ESF: Array, numbers_ES: Int[Array, "E S"], noise: Any) -> Array:
        """Drop out features of each token, as Dropout does, keyed by the number of its slot."""
        rate, F = self.config.ff_dropout, x_ESF.shape[-1]
        if not rate or not noise.is_on:
            return x_ESF
        key = self.make_rng("dropout")

        def keep(number: Array) -> Array:
            # Draw for the features of all devices of `tensor`, and use this device's part.
            whole = (F * self.config.tensor_parts,)
            drawn = jax.random.bernoulli(jax.random.fold_in(key, number), 1 - rate, whole)
            return jax.lax.dynamic_slice_in_dim(drawn, noise.part * F, F)

        kept_ESF = jax.vmap(jax.vmap(keep))(numbers_ES)
        return jnp.where(kept_ESF, x_ESF / (1 - rate), 0)

    def combine(
        self, found_ESD: Float[Array, "E S D"], routed: Routed, counts: Float[Array, " E"]
    ) -> tuple[Float[Array, "B T D"], Auxiliary]:
        """Sum the outputs of each token's experts, weighted by its gates.

        Args:
            counts: number of choices of each expert in the whole batch.
        """
        B, T, K = routed.slots.shape
        E, _, D = found_ESD.shape
        # Go back from experts to rows, and from slots to tokens. A dropped choice reads zeros.
        by_row = found_ESD.reshape(E, B, -1, D).swapaxes(0, 1).reshape(B, -1, D)
        found = _rows_at(by_row, routed.slots.reshape(B, T * K)).reshape(B, T, K, D)
        y = (found.astype(routed.gates.dtype) * routed.gates[..., None]).sum(2)

        # The load-balancing loss makes busy experts less probable (Fedus et al., 2022, eq. 4). Its
        # gradient goes through the probabilities; counts are constants.
        busy = jax.lax.stop_gradient(counts / jnp.maximum(counts.sum(), 1))
        balance = self.balance * self.num * (routed.probabilities * busy).sum()
        dropped = Measured(routed.dropped.sum(), routed.counts.sum() / K)
        return y, {"balance": balance, "dropped": dropped}

    def _jittered(self, x_BTD: Float[Array, "B T D"], noise: Any) -> Float[Array, "B T D"]:
        if not self.jitter or not noise.is_on:
            return x_BTD
        # One key per row, so that the noise does not depend on how devices share the batch.
        draw = jax.vmap(
            lambda row: jax.random.uniform(
                jax.random.fold_in(key, row),
                x_BTD.shape[1:],
                minval=1 - self.jitter,
                maxval=1 + self.jitter,
            )
        )
        key = self.make_rng("dropout")
        return x_BTD * draw(noise.rows).astype(x_BTD.dtype)

    # What every part says about itself.

    @property
    @nn.nowrap
    def period(self) -> int:
        """Number of layers after which the kinds of layers repeat."""
        return self.every

    @nn.nowrap
    def in_layer(self, place: int) -> str:
        """Return the feed-forward setting of a layer, given its place within the period."""
        if place < self.every - 1:
            return self.kind
        # The setting is for a single layer, which always has experts: every=1.
        name = parse_call(self.config.feed_forward, "model.feed_forward").name
        return write_part({name: type(self)}, name, **(own_options(self) | {"every": 1}))

    @property
    @nn.nowrap
    def share_in_use(self) -> float:
        """Share of the experts' parameters that one token uses."""
        return self.top_k / self.num

    @nn.nowrap
    def flops(self, stack: StackShape) -> float:
        """Count the router and the matrices of a token's experts; see contract.Part."""
        D, F = self.config.d_model, self._own_d_ff
        matrices = 3 if self.kind == "gated_mlp" else 2
        return 2.0 * stack.positions * D * (self.num + self.top_k * matrices * F)

    @nn.nowrap
    def contradictions(self, setting: Setting) -> Iterator[str]:
        """Yield a message per setting that it cannot work with, as contract.Part says."""
        config, mesh = setting.config, setting.mesh
        key = f"model.feed_forward={config.feed_forward}"
        if self.top_k > self.num:
            yield f"{key}: top_k is {self.top_k}, of {self.num} experts; lower it"
        if self.num % mesh.expert:
            yield f"{key}: {self.num} experts, which mesh.expert = {mesh.expert} does not divide"
        width = self.d_ff or config.d_ff
        if width % mesh.tensor:
            yield f"{key}: d_ff is {width}, which mesh.tensor = {mesh.tensor} does not divide"


def _rows_at(x_BND: Array, places_BM: Int[Array, "B M"]) -> Array:
    """Gather rows of x by their places: [B, M, D]. A place past the last gives zeros."""
    return jnp.take_along_axis(x_BND, places_BM[..., None], 1, mode="fill", fill_value=0)
