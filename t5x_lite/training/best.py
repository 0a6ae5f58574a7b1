"""Keep the parameters of the best evaluation of a task beside the newest checkpoint, and end a run
that has stopped improving.
"""

import math
from pathlib import Path
from typing import Any

from t5x_lite.training.checkpoint import Checkpoints
from t5x_lite.training.log import read_metrics

PREFIX = "task_"  # marks a task's metrics among the metrics of a run


def best_directory(workdir: Path) -> Path:
    """Return the directory that holds the parameters of the best evaluation."""
    return workdir / "best"


class BestCheckpoint:
    """The parameters of the best evaluation, by a metric where higher is better.

    Args:
        origin: settings, identity and text of the run, as Checkpoints takes them.
        metric: name of the metric in metrics.jsonl.
        first: step that the run continues from; later evaluations are forgotten.
        patience: evaluations without improvement after which the run ends; 0: no limit.
    """

    def __init__(self, workdir: Path, origin: tuple, metric: str, first: int, patience: int):
        self._metric = metric
        self._patience = patience
        # Keep two checkpoints, since a run may go back to a step before the newest one.
        self._checkpoints = Checkpoints(best_directory(workdir), *origin, keep=2)
        self._checkpoints.remove_after(first)
        # Read back the earlier evaluations, so that a continued run counts its patience from them.
        self._values = []  # one for each evaluation
        self._best = -math.inf  # best value of an evaluation whose parameters are kept
        kept = self._checkpoints.steps
        for record in read_metrics(workdir / "metrics.jsonl"):
            if record["split"] == "validation" and record["step"] <= first:
                self._values.append(record[metric])
                if record["step"] in kept:
                    self._best = max(self._best, record[metric])

    @property
    def is_over(self) -> bool:
        """True if the last `patience` evaluations did not improve on the best one."""
        if not self._patience or not self._values:
            return False
        best = self._values.index(max(self._values))
        return len(self._values) - 1 - best >= self._patience

    def record(self, step: int, evaluated: dict[str, float], params: Any) -> None:
        """Record an evaluation. If it is the best so far, save its parameters."""
        value = evaluated[self._metric]
        if value > self._best:
            self._best = value
            self._checkpoints.save(step, {"params": params})
            # It must be on disk before the checkpoint that the run would continue from.
            self._checkpoints.wait()
        self._values.append(value)

    def close(self) -> None:
        """Wait until everything is on disk, then stop the background threads."""
        try:
            self._checkpoints.wait()
        finally:
            self._checkpoints.close()
