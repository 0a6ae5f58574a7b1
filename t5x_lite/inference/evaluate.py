"""Evaluate a model on a task, whether or not it was trained on that task."""

from dataclasses import replace
from typing import Any

from t5x_lite.config import Task
from t5x_lite.config.roles import FORMAT, settings_with
from t5x_lite.data.tasks.kinds.table import kind_of
from t5x_lite.data.tasks.metrics import by_group, check_metrics, judge
from t5x_lite.data.tasks.records import has_splits
from t5x_lite.data.tasks.task_data import TaskData, TaskPlan
from t5x_lite.errors import USAGE, UserError
from t5x_lite.inference.predict import as_records, predict
from t5x_lite.inference.zero_shot import Asking, Evaluated, ask
from t5x_lite.training.loaded_model import LoadedModel


def evaluate_task(loaded: LoadedModel, task: Task, asking: Asking) -> dict[str, Any]:
    """Evaluate a model on a task.

    A model that was trained on this task answers as in training, unless shots are requested. So
    does a model that was trained on conversations, for any task of conversations. In all other
    cases the model is asked as in inference.zero_shot.

    Returns:
        a dict with task, split, method, examples (their number), metrics, chance (the accuracy of
        guessing, or None), groups and predictions (one record per example).

    Raises:
        UserError: if the model was trained on another task and has no language model head.
    """
    trained_on = loaded.rows.task if isinstance(loaded.rows, TaskPlan) else None
    learned = trained_on.name if trained_on else ""
    if learned and learned != task.name and not loaded.model.lm_head:
        reason = f"this model has only learned {learned}, not {task.name}"
        fix = f"for a file of your own, use --task='{learned}(FILE)'"
        raise UserError(USAGE, f"evaluate: {reason}; {fix}")
    both_reply = trained_on is not None and all(kind_of(of).replies for of in (trained_on, task))
    if (learned == task.name or both_reply) and not asking.shots:
        evaluated = _evaluate_learned(loaded, task, asking)
    else:
        evaluated = ask(loaded, task, asking)
    return {
        "task": task.name,
        "split": evaluated.examples.split,
        "method": "; ".join(filter(None, (evaluated.method, evaluated.further))),
        "examples": len(evaluated.examples),
        "metrics": evaluated.metrics,
        "chance": kind_of(evaluated.examples.task).chance(
            evaluated.examples.task, evaluated.examples.examples
        ),
        "groups": evaluated.groups,
        "predictions": as_records(evaluated.examples, evaluated.predictions),
    }


def _evaluate_learned(loaded: LoadedModel, task: Task, asking: Asking) -> Evaluated:
    """Answer the requested examples, formatted as the model was trained to read them."""
    if asking.direction == "channel":
        raise UserError(USAGE, f"evaluate: this model has learned {task.name}; leave --channel out")
    rows = loaded.rows
    assert isinstance(rows, TaskPlan)
    # Training fixed how examples are read and answered; `task` only says where to find them.
    fixed = {name: getattr(rows.task, name) for name in settings_with(Task, FORMAT)}
    learned = replace(task, **fixed)
    if not has_splits(task.source) and task.source != rows.task.source:
        learned = replace(learned, train="")  # a different file: none of it was trained on
    check_metrics(learned)
    config = loaded.config
    data = TaskData(
        replace(rows, task=learned), loaded.tokenizer, config.data.batch_size, config.seed
    )
    split = data.split(asking.split, asking.limit)
    predictions = predict(loaded, split)
    metrics, groups = {}, {}
    if split.examples.has_labels:
        metrics = judge(learned, split.examples.examples, predictions)
        groups = by_group(learned, split.examples.examples, predictions)
    method = f"as trained on {rows.task.name}"
    return Evaluated(method, metrics, groups, split.examples, predictions)
