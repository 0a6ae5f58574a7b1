"""Learning rate schedules: a linear warm-up to the peak, then one of SCHEDULES.

A schedule of your own needs no place here, only a config that names it by its module:
`optimizer.schedule=my_module.my_schedule`. It is a function like those below.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from t5x_lite.config import Optimizer
from t5x_lite.config.named import Named, find_named

Schedule = Callable[[Any], jax.Array]  # step (from 0) → learning rate


class Place(NamedTuple):
    """The place of a step in a run.

    Attributes:
        step: counted from 1.
        warmup: length of the warm-up in steps, at least 1.
        decayed: the share of the decay that is over: 0 at the end of the warm-up, 1 at
            `optimizer.decay_steps`, or at the end of the run.
    """

    step: Any
    warmup: float
    decayed: Any


# Each returns the learning rate after the warm-up, as a share of the peak.


def constant(place: Place, config: Optimizer) -> jax.Array:
    """The peak."""
    return jnp.ones(())


def linear(place: Place, config: Optimizer) -> jax.Array:
    """A line down to final_lr_ratio."""
    return 1 - (1 - config.final_lr_ratio) * place.decayed


def cosine(place: Place, config: Optimizer) -> jax.Array:
    """Half a cosine down to final_lr_ratio (Loshchilov and Hutter, 2017)."""
    final = config.final_lr_ratio
    return final + (1 - final) * 0.5 * (1 + jnp.cos(jnp.pi * place.decayed))


def inverse_square_root(place: Place, config: Optimizer) -> jax.Array:
    """The peak at the end of the warm-up, half of it at four times as many steps (T5)."""
    return jnp.sqrt(place.warmup / jnp.maximum(place.step, place.warmup))


SCHEDULES = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "inverse_square_root": inverse_square_root,
}


def find_schedule(config: Optimizer) -> Named:
    """Find the function that `optimizer.schedule` names.

    Raises:
        UserError: for an unknown name or option.
    """
    return find_named(config.schedule, SCHEDULES, "optimizer.schedule", "schedule")


def depends_on_end(config: Optimizer) -> bool:
    """Return True if the learning rates of a run depend on how long it is.

    >>> depends_on_end(Optimizer(schedule="cosine")), depends_on_end(Optimizer(schedule="constant"))
    (True, False)
    """
    if config.decay_steps:
        return False
    share = find_schedule(config)
    tenths = [share(Place(100, 10.0, tenth / 10), config) for tenth in range(11)]
    return len({float(value) for value in tenths}) > 1


def make_schedule(config: Optimizer, steps: int, raw_tokens_per_step: float) -> Schedule:
    """Return the learning rate of each step: a linear warm-up, then the schedule.

    The first step already has a rate just above initial_lr_ratio × peak, the last step of a decay
    exactly final_lr_ratio × peak.

    Args:
        steps: of the whole run; the decay ends with them where decay_steps is 0.
        raw_tokens_per_step: converts a warm-up and a decay that are given in tokens.
    """
    share = find_schedule(config)
    unit = raw_tokens_per_step if config.schedule_unit == "tokens" else 1
    warmup = config.warmup_steps / unit
    decay = config.decay_steps / unit if config.decay_steps else steps

    def schedule(step):
        n = step + 1.0
        warmed = jnp.minimum(n / max(warmup, 1.0), 1.0)
        during_warmup = config.initial_lr_ratio + (1 - config.initial_lr_ratio) * warmed
        decayed = jnp.clip((n - warmup) / max(decay - warmup, 1.0), 0.0, 1.0)
        after_warmup = share(Place(n, max(warmup, 1.0), decayed), config)
        return config.learning_rate * jnp.where(n < warmup, during_warmup, after_warmup)

    return schedule
