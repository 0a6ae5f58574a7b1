"""Learning rate schedules: a linear warm-up to the peak, then one of SCHEDULES.

A schedule of your own needs no place here, only a config that names it by its module:
`optimizer.schedule=my_module.my_schedule`. It is a function like those below.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.config import Optimizer
from t5x_lite.config.named import Named, find_named
from t5x_lite.errors import BAD_CONFIG, UserError, user_errors

Schedule = Callable[[Any], jax.Array]  # step (from 0) → learning rate


class Place(NamedTuple):
    """The place of a step in a run.

    Attributes:
        step: counted from 1.
        warmup: length of the warm-up in steps, at least 1.
        decayed: fraction of the decay that is done: 0 at the end of the warm-up, 1 at
            `optimizer.decay_steps` or, without that, at the end of the run.
    """

    step: Any
    warmup: float
    decayed: Any


# Each of these returns the learning rate after the warm-up, as a fraction of the peak.


def constant(place: Place, config: Optimizer) -> jax.Array:
    """Stay at the peak."""
    return jnp.ones(())


def linear(place: Place, config: Optimizer) -> jax.Array:
    """Decay along a line to final_lr_ratio."""
    return 1 - (1 - config.final_lr_ratio) * place.decayed


def cosine(place: Place, config: Optimizer) -> jax.Array:
    """Decay along half a cosine to final_lr_ratio (Loshchilov and Hutter, 2017)."""
    final = config.final_lr_ratio
    return final + (1 - final) * 0.5 * (1 + jnp.cos(jnp.pi * place.decayed))


def inverse_square_root(place: Place, config: Optimizer) -> jax.Array:
    """Decay as 1/√step (T5): half the peak after four times as many steps as the warm-up."""
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


def _check_own(share: Named, config: Optimizer) -> None:
    """Reject a schedule of the user's that fails, or that returns no finite number. It computes
    with jax, so this must come after the processes of a run have found each other.
    """
    what = f"optimizer.schedule={share.name}"
    for tenth in range(11):
        with user_errors(BAD_CONFIG, f"{what}: failed"):
            value = share(Place(100, 10.0, tenth / 10), config)
            is_number = np.shape(value) == () and math.isfinite(float(value))
        if not is_number:
            reason = f"returned {str(value)[:100]}, expected a finite number"
            raise UserError(BAD_CONFIG, f"{what}: {reason}")


def depends_on_end(config: Optimizer) -> bool:
    """Return True if the learning rates of a run depend on how long it is.

    >>> depends_on_end(Optimizer(schedule="cosine")), depends_on_end(Optimizer(schedule="constant"))
    (True, False)
    """
    if config.decay_steps:
        return False
    share = find_schedule(config)
    # A schedule that does not change over the decay does not depend on where the decay ends.
    tenths = [share(Place(100, 10.0, tenth / 10), config) for tenth in range(11)]
    return len({float(value) for value in tenths}) > 1


def make_schedule(
    config: Optimizer, steps: int, raw_tokens_per_step: float, start: int = 0
) -> Schedule:
    """Return the learning rate of each step: a linear warm-up, then the schedule.

    The rate of the first step is just above initial_lr_ratio × peak; the rate of the last step of a
    decay is exactly final_lr_ratio × peak.

    Args:
        steps: the step where the decay ends if decay_steps is 0: that of the whole run.
        raw_tokens_per_step: converts a warm-up and a decay in tokens to steps.
        start: the step after which the schedule begins.
    """
    share = find_schedule(config)
    if share.name not in SCHEDULES:
        _check_own(share, config)
    # Convert tokens to steps; the result may be a fraction of a step.
    unit = raw_tokens_per_step if config.schedule_unit == "tokens" else 1
    warmup = config.warmup_steps / unit
    decay = config.decay_steps / unit if config.decay_steps else steps - start

    def schedule(step: Any) -> jax.Array:
        # Counted from 1, so the first step of a warm-up from 0 has a rate above 0.
        n = step - start + 1.0
        warmed = jnp.minimum(n / max(warmup, 1.0), 1.0)
        during_warmup = config.initial_lr_ratio + (1 - config.initial_lr_ratio) * warmed
        decayed = jnp.clip((n - warmup) / max(decay - warmup, 1.0), 0.0, 1.0)
        after_warmup = share(Place(n, max(warmup, 1.0), decayed), config)
        return config.learning_rate * jnp.where(n < warmup, during_warmup, after_warmup)

    return schedule
