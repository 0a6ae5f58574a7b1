"""The state of a run, and its train step: a pure function of a state and a batch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from t5x_lite.config import ModelDimensions
from t5x_lite.model.heads import Params, Row
from t5x_lite.model.transformer import parameter_shapes, split_axes
from t5x_lite.parallel import placement
from t5x_lite.parallel.mesh import DeviceMesh
from t5x_lite.training.adapt import FULL, Adaptation
from t5x_lite.training.loss import Loss
from t5x_lite.training.schedules import Schedule
from t5x_lite.training.update_rule import UpdateRule, names_of_state


class TrainState(struct.PyTreeNode):
    """The state of a run, data only: number of steps done, parameters, optimizer state."""

    step: Any
    params: Any
    opt_state: Any


def first_state(trained: Params, optimizer: UpdateRule) -> TrainState:
    """Return the state before the first step."""
    return TrainState(jnp.zeros((), jnp.int32), trained, optimizer.init(trained))


def state_shapes(
    model: ModelDimensions,
    optimizer: UpdateRule,
    adaptation: Adaptation = FULL,
) -> TrainState:
    """Return the state as shapes, without allocating anything."""
    trained, _ = adaptation.split_shapes(parameter_shapes(model))
    return jax.eval_shape(partial(first_state, optimizer=optimizer), trained)


def state_shardings(
    model: ModelDimensions,
    optimizer: UpdateRule,
    mesh: DeviceMesh,
    adaptation: Adaptation = FULL,
) -> tuple[TrainState, TrainState]:
    """Return the state's shapes and shardings, without allocating anything."""
    shapes = state_shapes(model, optimizer, adaptation)
    params = adaptation.trained_part(parameter_shardings(model, mesh))
    # Optimizer state is sharded by the axis names of the parameter it belongs to.
    axes = adaptation.trained_part(split_axes(model))
    names_of = names_of_state(optimizer, shapes.params, axes)
    opt_state = placement.optimizer_shardings(shapes.opt_state, names_of, model.num_kv_heads, mesh)
    return shapes, TrainState(placement.replicated(mesh), params, opt_state)


def parameter_shardings(model: ModelDimensions, mesh: DeviceMesh) -> Any:
    """Return the sharding of each parameter of a model."""
    return placement.parameter_shardings(split_axes(model), model.num_kv_heads, mesh)


def make_train_step(
    loss: Loss,
    update_rule: Callable[[Schedule], UpdateRule],
    adaptation: Adaptation = FULL,
) -> Callable[..., tuple[TrainState, dict]]:
    """Return the train step, a function (state, batch, seed, rate, frozen, limits) →
    (state, metrics).

    The metrics are the sums of the loss, the learning rate, and the norms of gradient and
    parameters. `rate` is the learning rate, and `frozen` holds the parameters that are not trained.

    With `limits`, the largest loss and gradient norm, a step beyond them or not finite leaves
    parameters and optimizer state as they are; the metric `skipped` is then 1.
    """

    def train_step(
        state: TrainState,
        batch: Row,
        seed: int | jax.Array,
        rate: jax.Array,
        frozen: Params | None = None,
        limits: tuple[jax.Array, jax.Array] | None = None,
    ) -> tuple[TrainState, dict]:
        # The key is a function of (seed, step), so a continued run draws the same numbers.
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        grads, sums = loss.gradient(state.params, batch, key, frozen, adaptation.merge)
        # Frozen parameters have no gradient and no optimizer state.
        optimizer = update_rule(lambda count: rate)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        norm = optax.tree.norm(grads)
        # Leave a bad update out, moments included: the state is as if the batch had not been read.
        skipped = {}
        if limits is not None:
            loss_value = _total_loss(sums)
            is_good = jnp.isfinite(loss_value) & jnp.isfinite(norm)
            is_good &= (loss_value <= limits[0]) & (norm <= limits[1])
            old = state.params, state.opt_state
            params, opt_state = jax.tree.map(partial(jnp.where, is_good), (params, opt_state), old)
            skipped = {"skipped": 1 - is_good.astype(jnp.int32)}
        step_metrics = {
            "sums": sums,
            "gradient_norm": norm,
            "parameter_norm": optax.tree.norm(params),
            "learning_rate": rate,
            **skipped,
        }
        return TrainState(state.step + 1, params, opt_state), step_metrics

    return train_step


def _total_loss(sums: dict) -> jax.Array:
    """Return the value that is minimised: of each head, its sum divided by its weight."""
    total = jnp.zeros(())
    for term in sums.values():
        if "total_loss" in term:
            total += term["total_loss"] / jnp.maximum(term["weight"], 1.0)
    return total
