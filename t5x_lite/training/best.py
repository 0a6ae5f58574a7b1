"""The best evaluation of a task so far: its parameters are kept beside the newest checkpoint, and
a run ends when nothing better has come for a while.
"""

from pathlib import Path
from typing import Any

from t5x_lite.training.checkpoint import Checkpoints
from t5x_lite.training.log import read_metrics

PREFIX = "task_"  # of a task's metrics among those of a run


def best_directory(workdir: Path) -> Path:
    """Where the parameters of the best evaluation are."""
    return workdir / "best"


class Best:
    """The parameters of the best evaluation, by a metric of which more is better.

    Args:
        metric: its name in metrics.jsonl.
        first: the step that the run goes on from; what was evaluated later is forgotten.
        patience: evaluations without anything better after which the run is over; 0: it goes on.
    """

    def __init__(self, workdir: Path, settings: dict, metric: str, first: int, patience: int):
        self._metric = metric
        self._patience = patience
        self._checkpoints = Checkpoints(best_directory(workdir), settings)
        self._checkpoints.remove_after(first)
        self._values = []  # one for each evaluation
        for record in read_metrics(workdir / "metrics.jsonl"):
            if record["split"] == "validation" and record["step"] <= first:
                self._values.append(record[metric])

    @property
    def is_over(self) -> bool:
        """Whether the last evaluations brought nothing better."""
        if not self._patience or not self._values:
            return False
        best = self._values.index(max(self._values))
        return len(self._values) - 1 - best >= self._patience

    def meet(self, step: int, evaluated: dict[str, float], params: Any) -> None:
        """One more evaluation: where it is the best so far, its parameters are kept."""
        value = evaluated[self._metric]
        if not self._values or value > max(self._values):
            self._checkpoints.save(step, {"params": params})
            # On disk before the state that a run would go on from.
            self._checkpoints.wait()
        self._values.append(value)

    def close(self) -> None:
        """Until what was begun is on disk."""
        try:
            self._checkpoints.wait()
        finally:
            self._checkpoints.close()
