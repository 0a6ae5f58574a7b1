"""What a model makes of a task, whether it has learned it or not."""

from dataclasses import replace
from typing import Any

from t5x_lite.config import Task
from t5x_lite.config.grammar import AllowedCode
from t5x_lite.data.tasks.metrics import by_group, check_metrics, judge
from t5x_lite.data.tasks.records import has_splits
from t5x_lite.data.tasks.task_data import TaskData, TaskPlan
from t5x_lite.errors import USAGE, UserError
from t5x_lite.inference.predict import as_records, predict
from t5x_lite.inference.zero_shot import Asking, Evaluated, ask
from t5x_lite.training.run_directory import LoadedModel

# What of a task a model has learned: its examples may be others.
_LEARNED = ("kind", "labels", "prompt", "label_words", "number_step")


def evaluate_task(
    loaded: LoadedModel, task: Task, asking: Asking, allowed: AllowedCode = None
) -> dict[str, Any]:
    """Evaluate a model on a task: one that it has learned in the way that it learned it, any other
    as inference.zero_shot has it.

    Returns:
        task, split, method, examples (how many), metrics, groups, predictions (a record for each).
    """
    learned = loaded.rows.task.name if isinstance(loaded.rows, TaskPlan) else ""
    if learned and learned != task.name and not loaded.model.lm_head:
        reason = f"this model has learned {learned} alone, and not {task.name}"
        raise UserError(USAGE, f"evaluate: {reason}; of a file of yours --task='{learned}(FILE)'")
    if learned == task.name and not asking.shots:
        evaluated = _evaluate_learned(loaded, task, asking, allowed)
    else:
        evaluated = ask(loaded, task, asking, allowed)
    return {
        "task": task.name,
        "split": evaluated.examples.split,
        "method": evaluated.method,
        "examples": len(evaluated.examples),
        "metrics": evaluated.metrics,
        "groups": evaluated.groups,
        "predictions": as_records(evaluated.examples, evaluated.predictions),
    }


def _evaluate_learned(
    loaded: LoadedModel, task: Task, asking: Asking, allowed: AllowedCode
) -> Evaluated:
    """What it reads and answers is as it was learned; the examples are those that are asked for."""
    if asking.direction == "channel":
        raise UserError(USAGE, f"evaluate: this model has learned {task.name}; leave --channel out")
    rows = loaded.rows
    assert isinstance(rows, TaskPlan)
    learned = replace(task, **{name: getattr(rows.task, name) for name in _LEARNED})
    if not has_splits(task.source) and task.source != rows.task.source:
        learned = replace(learned, train="")  # another file: none of it was learned
    check_metrics(learned)
    config = loaded.config
    data = TaskData(
        replace(rows, task=learned), loaded.tokenizer, config.data.batch_size, config.seed, allowed
    )
    split = data.split(asking.split, asking.limit)
    predictions = predict(loaded, split)
    metrics, groups = {}, {}
    if split.examples.has_labels:
        metrics = judge(learned, split.examples.examples, predictions)
        groups = by_group(learned, split.examples.examples, predictions)
    method = f"what it has learned of {task.name}"
    return Evaluated(method, metrics, groups, split.examples, predictions)
