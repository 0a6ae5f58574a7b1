"""What a process compiles for a run: its train step and its first state, its evaluation, and its
learning rate.

Train step and first state follow from a `Computation` and from nothing else. Seed and learning rate
are arguments of the compiled functions. So the seeds of a comparison, and its tries of a learning
rate, compile once: see `shared`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from t5x_lite.config import ModelDimensions, Optimizer
from t5x_lite.config.permission import named_code
from t5x_lite.config.roles import RATE, settings_with
from t5x_lite.model.transformer import parameter_axes
from t5x_lite.parallel.mesh import DeviceMesh, use_mesh
from t5x_lite.parallel.placement import replicated
from t5x_lite.training.adapt import Adaptation, parse_adaptation
from t5x_lite.training.loss import Loss
from t5x_lite.training.optimizer import make_optimizer
from t5x_lite.training.schedules import Schedule, make_schedule
from t5x_lite.training.step import (
    TrainState,
    first_state,
    make_train_step,
    state_shardings,
)
from t5x_lite.training.update_rule import UpdateRule

# Computations whose programs a process keeps: enough for the cells of most comparisons.
_CACHE_SIZE = 8


@dataclass(frozen=True)
class Computation:
    """All that decides what a run compiles, except for the shapes of its batches.

    Attributes:
        optimizer: its update rule. Rules of this package do not read the settings of the learning
            rate, which `shared` sets to their defaults.
        adapt: the setting, which says what is trained.
        mesh: the devices.
        average_steps, updates_before: for an average of the parameters: `steps` and
            `before` of make_optimizer; 0 without an average.
    """

    loss: Loss
    optimizer: Optimizer
    adapt: str
    mesh: DeviceMesh
    average_steps: int = 0
    updates_before: int = 0

    @property
    def model(self) -> ModelDimensions:
        """The model, its vocabulary padded for the mesh."""
        return self.loss.model

    @contextmanager
    def within(self) -> Iterator[None]:
        """Use the mesh and the sharding rules under which everything is traced."""
        with use_mesh(self.mesh, self.model):
            yield

    @cached_property
    def adaptation(self) -> Adaptation:
        """The choice of trained parameters."""
        return parse_adaptation(self.adapt)

    def update_rule(self, schedule: Schedule) -> UpdateRule:
        """Make the update rule of the trained parameters."""
        axes = self.adaptation.trained_part(parameter_axes(self.model))
        return make_optimizer(
            self.optimizer, schedule, axes, self.average_steps, self.updates_before
        )

    @cached_property
    def any_rule(self) -> UpdateRule:
        """The update rule with a learning rate of 0, for the shapes of its state."""
        return self.update_rule(lambda count: jnp.zeros(()))

    @cached_property
    def _state(self) -> tuple[TrainState, TrainState]:
        # Stages are checked before their run enables 64 bits.
        with self.within(), jax.enable_x64(self.model.dtype == "float64"):
            return state_shardings(self.model, self.any_rule, self.mesh, self.adaptation)

    @property
    def shapes(self) -> TrainState:
        """The state as shapes, without allocating anything."""
        return self._state[0]

    @property
    def shardings(self) -> TrainState:
        """Sharding of each array of the state."""
        return self._state[1]

    @cached_property
    def train_step(self) -> Callable[..., tuple[TrainState, dict]]:
        """Compiled: (state, batch, seed, rate, frozen, limits) → (state, metrics). The input state
        is donated: the new state reuses its memory. See make_train_step.
        """
        return jax.jit(
            make_train_step(self.loss, self.update_rule, self.adaptation),
            donate_argnums=0,
            out_shardings=(self.shardings, replicated(self.mesh)),
        )

    @cached_property
    def first_state(self) -> Callable[[Any, jax.Array], TrainState]:
        """Compiled: (trained parameters, first learning rate) → the state before the first step,
        which reuses the memory of the parameters.
        """

        # A rule may keep the learning rate in its state, as optax.inject_hyperparams does.
        def first(trained: Any, rate: jax.Array) -> TrainState:
            return first_state(trained, self.update_rule(lambda count: rate))

        return jax.jit(first, donate_argnums=0, out_shardings=self.shardings)


def make_evaluation(loss: Loss, mesh: DeviceMesh) -> Callable[..., dict]:
    """Return a compiled function: (parameters, batch) → sums of the loss."""
    return jax.jit(loss.evaluate, out_shardings=replicated(mesh))


def make_rate(
    optimizer: Optimizer, end: int, raw_tokens: float, begin: int, mesh: DeviceMesh
) -> Callable[[jax.Array], jax.Array]:
    """Return a compiled function: step → learning rate. See make_schedule for the arguments."""
    schedule = make_schedule(optimizer, end, raw_tokens, begin)

    def rate(step: jax.Array) -> jax.Array:
        value = schedule(step)
        return jnp.asarray(value, value.dtype)  # of one type for all schedules

    return jax.jit(rate, out_shardings=replicated(mesh))


def shared(computation: Computation) -> Computation:
    """Return the equal computation that this process has compiled before, if it is one of the last
    few. Code of the user's own is never shared, as it may change while the process runs.
    """
    # Runs that differ only in their learning rate are equal here: it is an argument of the step.
    without_rate = replace(computation, optimizer=_without_rate(computation.optimizer))
    return computation if _has_own_code(without_rate) else _cached(without_rate)


def shared_evaluation(loss: Loss, mesh: DeviceMesh) -> Callable[..., dict]:
    """Return the function of make_evaluation, compiled before if `shared` would share it. It does
    not depend on the optimizer, so more runs share it.
    """
    return make_evaluation(loss, mesh) if _has_own_code(loss) else _cached_evaluation(loss, mesh)


def shared_rate(
    optimizer: Optimizer, end: int, raw_tokens: float, begin: int, mesh: DeviceMesh
) -> Callable[[jax.Array], jax.Array]:
    """Return the function of make_rate, compiled before if `shared` would share it."""
    make = make_rate if _has_own_code(optimizer) else _cached_rate
    return make(optimizer, end, raw_tokens, begin, mesh)


# The first of several equal computations, with the programs that it holds
_cached = lru_cache(_CACHE_SIZE)(lambda computation: computation)
_cached_evaluation = lru_cache(_CACHE_SIZE)(make_evaluation)
_cached_rate = lru_cache(_CACHE_SIZE)(make_rate)


def forget_programs() -> None:
    """Forget all programs: nothing else is trained here, or the code they came from changed."""
    _cached.cache_clear()
    _cached_evaluation.cache_clear()
    _cached_rate.cache_clear()


def _has_own_code(value: Any) -> bool:
    """Return True if a dataclass of settings names code of the user's own."""
    return bool(named_code(*_texts(value)))


def _without_rate(optimizer: Optimizer) -> Optimizer:
    """Return the settings of an update rule, with those of its learning rate at their defaults."""
    # A setting declares its role, so a new setting of the rate is found here, too.
    default = Optimizer()
    names = settings_with(Optimizer, RATE)
    return replace(optimizer, **{name: getattr(default, name) for name in names})


def _texts(value: Any) -> Iterator[str]:
    """Yield all strings in a dataclass, its nested dataclasses and tuples."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for member in value:
            yield from _texts(member)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _texts(getattr(value, field.name))
