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
        step: number of updates of the run, or of the stage, at least 1. Steps whose update was left
            out (training.skip_step) do not count.
        steps: steps of the run, or of the stage.
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
    some of them; Hägele et al., 2024, at a constant learning rate). A run that goes on to more
    steps after its tail has begun has averaged other ones: name the number at the start.
    """
    before = now.steps - math.floor(share * now.steps + 1e-6)
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


def check_average(config: Optimizer, steps: int) -> None:
    """Reject an average of the user's that fails, or that returns no weight. It computes with jax,
    so this must come after the processes of a run have found each other.
    """
    named = find_average(config)
    if named is None or named.name in AVERAGES:
        return
    what = f"optimizer.average={named.name}"
    for step in sorted({1, 2, (steps + 1) // 2, steps}):
        with user_errors(BAD_CONFIG, f"{what}: failed"):
            # In the train step, numbers are traced: the function may not branch on them.
            count = jnp.int32(step)
            weight = jax.jit(lambda count: jnp.asarray(named(Moment(count, count, steps))))(count)
            is_weight = weight.shape == () and 0 <= float(weight) <= 1
        if not is_weight:
            reason = f"returned {str(weight)[:100]} at step {step}, expected a number from 0 to 1"
            raise UserError(BAD_CONFIG, f"{what}: {reason}")


def restarted(params: Any, opt_state: Any) -> Any:
    """Return an optimizer's state whose average, if it keeps one, begins with these parameters."""
    if not _has_average(opt_state):
        return opt_state
    return opt_state | {AVERAGE: jax.tree.map(jnp.copy, params)}


def average_or_newest(params: Any, opt_state: Any) -> Any:
    """Return the average of the parameters if the optimizer keeps one, or else the newest ones."""
    return opt_state[AVERAGE] if _has_average(opt_state) else params


def _has_average(opt_state: Any) -> bool:
    return isinstance(opt_state, dict) and AVERAGE in opt_state
