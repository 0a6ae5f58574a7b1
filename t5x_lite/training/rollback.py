"""Take a run that has diverged back to its last healthy checkpoint, or end it with advice."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5x_lite.config import RunConfig
from t5x_lite.data.rows.batches import Batches
from t5x_lite.errors import NOT_FINITE, UserError
from t5x_lite.progress import say
from t5x_lite.training import run_history
from t5x_lite.training.checkpoint import Checkpoints


class Diverged(UserError):
    """A run has diverged: a figure is not finite, or is far above its earlier values.

    Attributes:
        step: the step that was found unhealthy.
    """

    def __init__(self, step: int, message: str):
        super().__init__(NOT_FINITE, message)
        self.step = step

    def __reduce__(self):
        return Diverged, (self.step, str(self))


def go_back(
    config: RunConfig,
    batches: Batches,
    checkpoints: Checkpoints,
    workdir: Path,
    events: list[dict[str, Any]],
    diverged: Diverged,
) -> dict[str, Any]:
    """Go back to the last healthy checkpoint, and skip the batches that were read after it.

    Args:
        events: the history of the run.

    Returns:
        the event that was added to the history.

    Raises:
        Diverged: if training.rollback allows no further rollback, or there is no such checkpoint.
    """
    # Rollbacks that have happened count, also after the run was stopped and continued.
    rollbacks = [event for event in events if event["event"] == "rollback"]
    step = None
    if len(rollbacks) < config.training.rollback:
        checkpoints.wait()
        step = checkpoints.go_back([event["to"] for event in rollbacks])
    if step is None:
        number = run_history.batch_number(events, diverged.step)
        fix = remedy(config, batches, diverged.step, number, len(rollbacks))
        raise Diverged(diverged.step, f"{diverged}; {fix}")
    # Continue after the batch that diverged: that one and those since the checkpoint are skipped.
    next_batch = run_history.batch_number(events, diverged.step) + 1
    event = {
        "event": "rollback",
        "from": diverged.step,
        "to": step,
        "next_batch": next_batch,
        "reason": str(diverged),
    }
    if jax.process_index() == 0:
        run_history.add(workdir, event)
        say(f"{diverged}")
        say(f"back to step {step}; the batches of steps {step + 1} to {diverged.step} are skipped")
    return event


def remedy(config: RunConfig, batches: Batches, step: int, number: int, rollbacks: int) -> str:
    """Return advice on a step that diverged, for the likeliest cause.

    Args:
        number: number of the batch that the step read.
        rollbacks: number of times that the run has gone back.
    """
    # Bad data: weights or other numbers of the batch that are not finite.
    batch = batches.batch_at(number - config.start.step)
    for key, values in batch.items():
        if values.dtype.kind == "f":
            is_finite = np.isfinite(values.reshape(len(values), -1))
            bad = np.flatnonzero(~is_finite.all(axis=1))
            if len(bad):
                rows = ", ".join(map(str, bad[:5]))
                fix = f"correct objective={config.objective}, which makes them"
                return f"{key} of the rows {rows} of its batch is not finite; {fix}"
    # A bad start: the very first loss is not finite.
    if step <= 1 + config.start.step:
        return "no update was made before it; lower model.init_stddev, or use another model.dtype"
    # Otherwise the updates are too large.
    lower = "lower optimizer.learning_rate or set optimizer.grad_clip_norm"
    if config.task.name:
        return f"{lower}, in another --workdir"
    fix = f"the same command continues if you add --change and {lower}"
    if not config.training.rollback:
        return f"{fix}; training.rollback=1 skips the batches since the last checkpoint"
    if rollbacks >= config.training.rollback:
        return f"the run has gone back {rollbacks} times, as often as training.rollback says; {fix}"
    return f"there is no healthy checkpoint to go back to; {fix}"
