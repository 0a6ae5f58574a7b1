"""A mixture of experts in place of a feed-forward part (Shazeer et al., 2017; GShard: Lepikhin et
al., 2021; with top_k=1 Switch Transformers: Fedus et al., 2022).

A router sends each token to the experts that it finds likeliest. An expert has slots for some
tokens of each row; those that come too late pass by on the residual stream. Slots are given out
from the first position on, so that no position depends on a later one, and row by row, so that
which tokens are dropped does not depend on how devices share the batch.

Shapes: B rows, T positions, D d_model, F d_ff of an expert, E experts, K experts of a token, C
slots of an expert for one row, S slots of an expert for all rows that it serves.
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

_FEWEST_SLOTS = 4  # of an expert for a row, as in Mesh TensorFlow: short rows are rarely even


class Sent(NamedTuple):
    """Inputs of the experts, row by row.

    Attributes:
        tokens: 0 in slots that nobody takes.
        numbers: of the slots, in the whole batch.
    """

    tokens: Float[Array, "E S D"]
    numbers: Int[Array, "E S"]


class Routed(NamedTuple):
    """Decisions of the router for the tokens of a device.

    Attributes:
        slots: of the choices of each token, among the E · C of its row; E · C: it was dropped.
        gates: by which the outputs of a token's experts are added up.
        probabilities: of the router; 0 for padding.
        counts: how many choices fell on each expert.
        dropped: share of its choices that each token has lost.
    """

    sent: Sent
    slots: Int[Array, "B T K"]
    gates: Float[Array, "B T K"]
    probabilities: Float[Array, "B T E"]
    counts: Float[Array, " E"]
    dropped: Float[Array, "B T"]


def slots_per_row(length: int, places: float, experts: int) -> int:
    """Return how many tokens of a row each expert has room for, where there are so many places in
    all for each token; at least 4.

    >>> slots_per_row(512, 1.25 * 2, 8), slots_per_row(8, 1.25 * 2, 8), slots_per_row(2, 1.0, 1)
    (160, 4, 2)
    """
    return min(length, max(math.ceil(places * length / experts), _FEWEST_SLOTS))


class Experts(nn.Module):
    """The mixture, in one of every so many layers; the others have a feed-forward part as always.
    Experts have no biases, as in Mesh TensorFlow.

    The block calls dispatch, compute and combine. Between them it sends the tokens to the devices
    that have their experts, and back.

    Attributes:
        num: number of experts.
        top_k: experts of each token.
        capacity: slots of an expert, as a multiple of an even share of a row's choices. (Mesh
            TensorFlow's is one of a row's tokens: 2.0 with two experts a token is 1.0 here.)
        jitter: in training, what the router reads is multiplied by numbers within 1 ± jitter.
        balance: weight of the loss that keeps experts equally busy (Fedus et al., 2022, eq. 4).
        every: one layer of so many has experts, the last of them.
        d_ff: width of an expert; 0: model.d_ff.
        kind: of each expert, and of the feed-forward parts of the other layers.
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
        precise = replace(config, dtype=jnp.dtype(dtype).name, bias=False)
        self.router = Dense(precise, self.num, ("embed", "classes"))
        into, back = kernel_init(config, D), kernel_init(config, F, writes_to_stream=True)
        self.wi = parameter("wi", into, D, F, axes=("embed", "mlp"))
        if self.kind == "gated_mlp":
            self.gate = parameter("gate", into, D, F, axes=("embed", "mlp"))
        self.wo = parameter("wo", back, F, D, axes=("mlp", "embed"))

    @property
    @nn.nowrap
    def _own_d_ff(self) -> int:
        """Width of an expert that this device has."""
        return self.d_ff // self.config.tensor_parts or self.config.d_ff

    @nn.nowrap
    def slots(self, length: int) -> int:
        """Return the slots of an expert for a row of this length."""
        return slots_per_row(length, self.capacity * self.top_k, self.num)

    def dispatch(self, x_BTD: Float[Array, "B T D"], context: Any, drops: bool) -> Routed:
        """Choose the experts of each token, and put the tokens in order for them.

        Args:
            drops: False if every token finds a slot, as where text is generated.
        """
        is_real = context.segments > 0
        B, T, D = x_BTD.shape
        E, K, C = self.num, self.top_k, self.slots(T) if drops else T

        # The router, and the experts that it finds likeliest. One expert alone is weighed by its
        # probability, so that the router learns; several share 1.
        logits = self.router(self._jittered(x_BTD.astype(wide_dtype(x_BTD.dtype)), context.noise))
        probabilities = jax.nn.softmax(logits) * is_real[..., None]
        gates, choices = jax.lax.top_k(probabilities, K)
        if K > 1:
            gates /= jnp.where(is_real[..., None], gates.sum(-1, keepdims=True), 1)

        # The place of a choice in its expert's queue is the number of choices of this expert before
        # it in the row. From place C on, choices are dropped: they get slot E · C.
        chosen_BTKE = jax.nn.one_hot(choices, E, dtype=jnp.int32) * is_real[..., None, None]
        queue = chosen_BTKE.reshape(B, T * K, E)
        places = ((queue.cumsum(1) - queue) * queue).sum(-1).reshape(B, T, K)
        fits = (places < C) & is_real[..., None]
        slots = jnp.where(fits, choices * C + places, E * C)

        # The token in each slot of a row: slot E · C does not exist and is not written. T stands
        # for no token, which _rows_at reads as 0.
        token_of_slot = jnp.full((B, E * C), T, jnp.int32)
        tokens = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32)[None, :, None], (B, T, K))
        rows = jnp.arange(B)[:, None]
        token_of_slot = token_of_slot.at[rows, slots.reshape(B, -1)].set(
            tokens.reshape(B, -1), mode="drop"
        )
        # Sort by expert. Numbers in the whole batch tell dropout which slot is which on any mesh.
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
        """Apply each expert that is here to its tokens: a term of a sum over `tensor`."""
        config = self.config
        x_ESD = sent.tokens.astype(config.dtype)
        x_ESF, gate_ESF = rounded(matmul(x_ESD, self.wi), config.dtype), 1.0
        if self.kind == "gated_mlp":
            gate_ESF = rounded(matmul(x_ESD, self.gate), config.dtype)
        x_ESF = activate(config.activation, x_ESF, gate_ESF)
        x_ESF = self._dropped_out(x_ESF, sent.numbers, context.noise)
        return rounded(matmul(x_ESF, self.wo), config.dtype)

    def _dropped_out(self, x_ESF: Array, numbers_ES: Int[Array, "E S"], noise: Any) -> Array:
        """Drop out features of each token, as Dropout does, by the number of its slot."""
        rate, F = self.config.ff_dropout, x_ESF.shape[-1]
        if not rate or not noise.is_on:
            return x_ESF
        key = self.make_rng("dropout")

        def keep(number: Array) -> Array:
            # Draw for the features of all devices of `tensor`, and keep this device's.
            whole = (F * self.config.tensor_parts,)
            drawn = jax.random.bernoulli(jax.random.fold_in(key, number), 1 - rate, whole)
            return jax.lax.dynamic_slice_in_dim(drawn, noise.part * F, F)

        kept_ESF = jax.vmap(jax.vmap(keep))(numbers_ES)
        return jnp.where(kept_ESF, x_ESF / (1 - rate), 0)

    def combine(
        self, found_ESD: Float[Array, "E S D"], routed: Routed, counts: Float[Array, " E"]
    ) -> tuple[Float[Array, "B T D"], Auxiliary]:
        """Add up what the experts of each token have found, weighed by its gates.

        Args:
            counts: how many choices of the whole batch fell on each expert.
        """
        B, T, K = routed.slots.shape
        E, _, D = found_ESD.shape
        # Back from experts to rows, and from slots to tokens; a dropped choice reads 0.
        by_row = found_ESD.reshape(E, B, -1, D).swapaxes(0, 1).reshape(B, -1, D)
        found = _rows_at(by_row, routed.slots.reshape(B, T * K)).reshape(B, T, K, D)
        y = (found.astype(routed.gates.dtype) * routed.gates[..., None]).sum(2)

        # Busy experts are to become less likely (Fedus et al., 2022, eq. 4): the gradient reaches
        # their probabilities, and counts are constants.
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

    # What a part states of itself.

    @property
    @nn.nowrap
    def period(self) -> int:
        """Number of layers after which they repeat."""
        return self.every

    @nn.nowrap
    def in_layer(self, place: int) -> str:
        """Return the feed-forward part of a layer, by its place among those that repeat."""
        if place < self.every - 1:
            return self.kind
        # The setting of one layer, which is its own period.
        name = parse_call(self.config.feed_forward, "model.feed_forward").name
        return write_part({name: type(self)}, name, **(own_options(self) | {"every": 1}))

    @property
    @nn.nowrap
    def share_in_use(self) -> float:
        """Share of the experts' parameters that one token uses."""
        return self.top_k / self.num

    @nn.nowrap
    def flops(self, stack: StackShape) -> float:
        """Count the router, and the matrices of a token's experts; see contract.Part."""
        D, F = self.config.d_model, self._own_d_ff
        matrices = 3 if self.kind == "gated_mlp" else 2
        return 2.0 * stack.positions * D * (self.num + self.top_k * matrices * F)

    @nn.nowrap
    def contradictions(self, setting: Setting) -> Iterator[str]:
        """See contract.Part."""
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
    """Return rows of x by their places: [B, M, D]; 0 for a place past the last."""
    return jnp.take_along_axis(x_BND, places_BM[..., None], 1, mode="fill", fill_value=0)
