"""Averages of the parameters over the steps of a run.

A run with `optimizer.average` trains as it would without. But what it evaluates and what every
command reads, exports and starts from is the average. It is part of the optimizer's state, so it is
sharded, saved and renamed with that.

An average of your own needs no place here, only a config that names it by its module:
`optimizer.average=my_module.my_average`. It is a function like `ema`.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5x_lite.config import Optimizer
from t5x_lite.config.named import Named, find_named
from t5x_lite.config.ranges import Range
from t5x_lite.errors import BAD_CONFIG, UserError, user_errors
from t5x_lite.training.update_rule import UpdateRule

RULE, AVERAGE, UPDATES = "rule", "average", "updates"  # what the optimizer's state holds
PLACE_OF_AVERAGE = ("opt_state", AVERAGE)  # in the state of a run


class Moment(NamedTuple):
    """A moment in training, after an update.

    Attributes:
        updates: number of updates since the average began, at least 1.
        step: of the run, or of the stage, from 1.
        steps: of the run, or of the stage.
    """

    updates: Any
    step: Any
    steps: int


# Each of these returns the weight of the newest parameters in the average: 1 replaces it.


def ema(now: Moment, decay: Annotated[float, Range(0.0, 1.0)] = 0.999) -> jax.Array:
    """Exponential moving average: an update leaves `decay` of what was. The first updates leave
    less, (n − 1) / (n + 8) after n of them, so that the average soon forgets where it began.
    """
    return 1 - jnp.minimum(decay, (now.updates - 1.0) / (now.updates + 8.0))


def tail(now: Moment, share: Annotated[float, Range(0.0, 1.0)] = 0.2) -> jax.Array:
    """Mean over the last `share` of the steps (Kaddour, 2022, "Stop Wasting My Time!", averages
    some of them; Hägele et al., 2024, at a constant learning rate).
    """
    before = math.ceil((1 - share) * now.steps)
    return 1 / jnp.maximum(now.step - before, 1.0)


AVERAGES = {"ema": ema, "tail": tail}


def find_average(config: Optimizer) -> Named | None:
    """Find the function that `optimizer.average` names; None if it is empty.

    Raises:
        UserError: for an unknown name or option.
    """
    if not config.average:
        return None
    return find_named(config.average, AVERAGES, "optimizer.average", "average")


def averaged(
    rule: UpdateRule, weight: Callable[[Moment], jax.Array], before: int, steps: int
) -> UpdateRule:
    """Return the rule with an average of the parameters in its state.

    Args:
        weight: of the newest parameters in the average.
        before: updates of this state that stages before this one have made.
        steps: of this run or stage.
    """

    def init(params: optax.Params) -> optax.OptState:
        # A copy: the train step reuses the memory of parameters and average.
        average = jax.tree.map(jnp.copy, params)
        return {RULE: rule.init(params), AVERAGE: average, UPDATES: jnp.zeros((), jnp.int32)}

    def update(
        updates: optax.Updates, state: Any, params: Any = None
    ) -> tuple[optax.Updates, optax.OptState]:
        updates, of_rule = rule.update(updates, state[RULE], params)
        count = state[UPDATES] + 1
        share = weight(Moment(count, count - before, steps))

        def mix(old: jax.Array, new: jax.Array) -> jax.Array:
            # With a weight of 1, the result is exactly the new one.
            return ((1 - share) * old + share * new).astype(old.dtype)

        newest = optax.apply_updates(params, updates)
        average = jax.tree.map(mix, state[AVERAGE], newest)
        return updates, {RULE: of_rule, AVERAGE: average, UPDATES: count}

    return UpdateRule(init, update, rule.state_axes)


def check_average(config: Optimizer) -> None:
    """Reject an average that does not exist, and one of the user's that returns no weight."""
    named = find_average(config)
    if named is None or named.name in AVERAGES:
        return
    what = f"optimizer.average={named.name}"
    for step in range(1, 11):
        with user_errors(BAD_CONFIG, f"{what}: failed"):
            value = named(Moment(np.int32(step), np.int32(step), 10))
            is_weight = np.shape(value) == () and 0 <= float(value) <= 1
        if not is_weight:
            reason = f"returned {str(value)[:100]}, expected a number from 0 to 1"
            raise UserError(BAD_CONFIG, f"{what}: {reason}")


def average_or_newest(params: Any, opt_state: Any) -> Any:
    """Return the average of the parameters if the optimizer keeps one, or else the newest ones."""
    has_average = isinstance(opt_state, dict) and AVERAGE in opt_state
    return opt_state[AVERAGE] if has_average else params
