"""Results of fine-tuning as data: report.json."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from t5x_lite import storage
from t5x_lite.config import Task
from t5x_lite.data.tasks.answers import normalise_answer
from t5x_lite.data.tasks.kinds.table import kind_of, metrics_of
from t5x_lite.errors import IO_ERROR, NO_FILE, user_errors
from t5x_lite.progress import columns
from t5x_lite.training.best import PREFIX
from t5x_lite.training.log import read_metrics

_EXAMPLES = 4  # number of examples shown under each heading
_MOST_LABELS = 20  # largest number of labels in a confusion matrix


def write(results: dict[str, Any], directory: Path) -> None:
    """Write the results as report.json into a directory."""
    with user_errors(IO_ERROR, f"{directory}: the report cannot be written"):
        storage.write_durably(directory / "report.json", json.dumps(results, indent=1))


def curves_of(workdir: Path, metric: str) -> dict[str, list]:
    """Read a run's training loss, validation loss and validation metric as [step, value] pairs."""
    records = read_metrics(workdir / "metrics.jsonl")
    trained = [record for record in records if record["split"] == "train"]
    evaluated = [record for record in records if record["split"] == "validation"]
    return {
        "curve": [[record["step"], record["loss"]] for record in trained],
        "validation_curve": [[record["step"], record["loss"]] for record in evaluated],
        "metric_curve": [[record["step"], record[f"{PREFIX}{metric}"]] for record in evaluated],
    }


def answers_of(workdir: Path, task: Task) -> dict[str, Any]:
    """Read a run's predictions for the validation examples.

    Returns:
        a selection of them under "shown" and, for tasks with few enough classes, a "confusion"
        matrix: how often each label was predicted as each.
    """
    path = workdir / "predictions/validation.jsonl"
    with user_errors(NO_FILE, f"{path}: cannot be read"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
    answers: dict[str, Any] = {"shown": _some(task, records)}
    kind = kind_of(task)
    is_of_classes = kind.asked_by == "options" and kind.names_labels
    if is_of_classes and len(task.labels) <= _MOST_LABELS:
        names = [str(label) for label in task.labels]
        counts = Counter((record["label"], record["prediction"]) for record in records)
        columns = names + [None] * any(predicted is None for _, predicted in counts)
        answers["confusion"] = {
            "predicted": ["(no label)" if name is None else name for name in columns],
            "of_label": {label: [counts[label, name] for name in columns] for label in names},
        }
    return answers


def _some(task: Task, records: list[dict]) -> dict[str, list[dict]]:
    """Select some predictions to show, grouped by heading."""
    shown = kind_of(task).shown
    if shown == "largest errors":
        errors = [abs((record["prediction"] or 0) - record["label"]) for record in records]
        order = sorted(range(len(records)), key=lambda number: -errors[number])
        return {"Largest errors": [records[number] for number in order[:_EXAMPLES]]}
    if shown == "any" and metrics_of(task)[0] != "exact_match":
        return {"Examples of predictions": records[:_EXAMPLES]}
    is_right = [_is_right(record) for record in records]
    by_heading = {}
    for name, value in (("wrong", False), ("right", True)):
        of_name = [r for r, right in zip(records, is_right, strict=True) if right == value]
        by_heading[f"Examples of {name} predictions"] = of_name[:_EXAMPLES]
    return {heading: of_heading for heading, of_heading in by_heading.items() if of_heading}


def _is_right(record: dict) -> bool:
    """Return True if a prediction is the label, or equals it under SQuAD's normalisation."""
    prediction, label = record["prediction"], record["label"]
    labels = label if isinstance(label, list) else [label]
    if prediction in labels or not isinstance(prediction, str):
        return prediction in labels
    return normalise_answer(prediction) in map(normalise_answer, labels)


def show(results: dict[str, Any]) -> str:
    """Show results as text: one line per cell of a grid, and the metrics of the chosen cell."""
    metric, cells, lines = results["metric"], [], []
    if len(results["cells"]) > 1:
        for cell in results["cells"]:
            settings = ", ".join(f"{key}={value}" for key, value in cell["settings"].items())
            first = next(iter(cell["seeds"].values()))
            mark = "  chosen" if cell["settings"] == results["chosen"] else ""
            cells.append((settings, f"{metric} {first[metric]:.4f}{mark}"))
        lines.append(columns(cells, "<<"))
    seeds = len(results["seeds"])
    for name, value in results["reached"].items():
        spread = value["standard_deviation"]
        shown = f"{value['mean']:.4f}"
        if spread is not None:
            shown += f" ± {spread:.4f} (standard deviation of {seeds} seeds)"
        lines.append(f"{results['task']}: {name.replace('_', ' ')} {shown}")
    scored = results["scored"]
    value = f"{metric.replace('_', ' ')} {scored['mean']:.4f}"
    lines.append(f"{results['task']}: {value} on {scored['on']}")
    return "\n".join(lines)
