"""Score a fine-tuned model on examples that were not used to select it.

Fine-tuning keeps the parameters of its best evaluation, and the best of several scores is too good
by luck. A run is therefore scored on its test split, if that has labels. Otherwise the validation
examples are divided into two halves, and each half is scored with the predictions of the evaluation
that is best on the other half. All examples count, and none helped to select the predictions that
it is scored with.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t5x_lite import storage
from t5x_lite.config import Task
from t5x_lite.data.tasks.kinds.kind import Example, Label
from t5x_lite.data.tasks.kinds.table import metrics_of
from t5x_lite.data.tasks.metrics import UnitScores, clusters_of, find_metric, unit_scores
from t5x_lite.data.tasks.task_data import TaskSplit
from t5x_lite.errors import IO_ERROR, NO_FILE, read_json, user_errors
from t5x_lite.training.log import read_metrics


class Scored(NamedTuple):
    """A task's first metric on examples that were not used to select the predictions."""

    split: str  # "test" or "validation"
    fingerprint: str  # of the examples of that split
    on: str  # which examples these are, in words
    examples: int
    units: UnitScores

    @property
    def value(self) -> float:
        """The metric: the mean over the units."""
        return sum(self.units.amounts) / len(self.units.amounts)


def keep_predictions(workdir: Path, step: int, predictions: Sequence[Label]) -> None:
    """Write the predictions for the validation examples at one evaluation of a run."""
    path = _path(workdir, step)
    with user_errors(IO_ERROR, f"{path}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        written = {"predictions": list(predictions)}
        text = json.dumps(written, default=lambda value: value.item())
        storage.write_durably(path, text)


def _path(workdir: Path, step: int) -> Path:
    return workdir / "predictions" / "evaluations" / f"{step}.json"


def kept_predictions(workdir: Path) -> dict[int, list[Label]]:
    """Read the predictions of each evaluation of a run: step → predictions."""
    steps = [
        record["step"]
        for record in read_metrics(workdir / "metrics.jsonl")
        if record["split"] == "validation"
    ]
    kept = {}
    for step in steps:
        path = _path(workdir, step)
        with user_errors(NO_FILE, f"{path}: cannot be read"):
            written = read_json(path, "run finetune in another --workdir")["predictions"]
        kept[step] = [tuple(one) if isinstance(one, list) else one for one in written]
    return kept


def score_run(
    workdir: Path,
    validation: TaskSplit,
    test: TaskSplit | None,
    of_test: Sequence[Label] | None,
) -> Scored:
    """Score a run on its test split, if that has labels, or else on halves of its validation split.

    Args:
        of_test: predictions of the best parameters for the test split, if there is one.
    """
    if test is None or of_test is None or not test.examples.has_labels:
        return score_on_halves([workdir], validation)
    examples = test.examples
    units = unit_scores(examples.task, examples.examples, of_test)
    on = f"{examples.split}, which chose nothing"
    return Scored("test", examples.fingerprint, on, len(examples), units)


def score_on_halves(workdirs: Sequence[Path], validation: TaskSplit) -> Scored:
    """Score each half of the validation examples with the predictions that are best on the other.

    The candidates are all evaluations of one run, or of several runs with different settings.
    """
    examples = validation.examples
    evaluations = {
        (number, step): predictions
        for number, workdir in enumerate(workdirs)
        for step, predictions in kept_predictions(workdir).items()
    }
    predictions = cross_fitted(examples.task, examples.examples, evaluations)
    best = "evaluation and settings" if len(workdirs) > 1 else "evaluation"
    on = f"halves of {examples.split}, each at the best {best} of the other half"
    if len(set(in_first_half(examples.examples))) < 2:
        on = f"{examples.split} at the last {best}, since it cannot be halved"
    units = unit_scores(examples.task, examples.examples, predictions)
    return Scored("validation", examples.fingerprint, on, len(examples), units)


def in_first_half(examples: Sequence[Example]) -> list[bool]:
    """Divide examples into two random halves, keeping examples of one text together."""
    return [
        hashlib.sha256(str(number).encode()).digest()[0] < 128 for number in clusters_of(examples)
    ]


def cross_fitted(
    task: Task, examples: Sequence[Example], evaluations: Mapping[Any, Sequence[Label]]
) -> list[Label]:
    """Return the predictions for each half of the examples from the evaluation that is best on the
    other half.

    Args:
        evaluations: step, or run and step → predictions for all examples.
    """
    metric = find_metric(task, metrics_of(task)[0])
    first = in_first_half(examples)
    predictions: list[Label] = list(evaluations[max(evaluations)])
    for is_first in (True, False):
        scored = [number for number, one in enumerate(first) if one == is_first]
        choosing = [number for number, one in enumerate(first) if one != is_first]
        if not choosing:
            continue  # nothing to choose by, so keep the last evaluation
        of_choosing = [examples[number] for number in choosing]
        best_step, best = max(evaluations), -float("inf")
        for step, of_step in evaluations.items():
            value = metric.score(task, of_choosing, [of_step[number] for number in choosing])
            if value is not None and value > best:
                best_step, best = step, value
        for number in scored:
            predictions[number] = evaluations[best_step][number]
    return predictions
