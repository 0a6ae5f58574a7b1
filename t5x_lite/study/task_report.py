"""report.html and report.md of what finetune reached: every cell and seed, how they learned, and
what the model takes for what.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from t5x_lite.config import Task
from t5x_lite.data.tasks.metrics import normalise_answer
from t5x_lite.errors import IO_ERROR, NO_FILE, user_errors
from t5x_lite.study import charts, page
from t5x_lite.study.page import Page, Part, Quote, Section, Table
from t5x_lite.training import metrics
from t5x_lite.training.best import PREFIX

_EXAMPLES = 4  # that are shown, of right and of wrong predictions each
_LONGEST = 400  # letters of an example that are shown
_MOST_LABELS = 20  # of a table of what is taken for what


def curves_of(workdir: Path, metric: str) -> dict[str, list]:
    """What a run recorded: the losses, and the metric of the validation examples, by step."""
    records = metrics.read(workdir / "metrics.jsonl")
    trained = [record for record in records if record["split"] == "train"]
    evaluated = [record for record in records if record["split"] == "validation"]
    return {
        "curve": [[record["step"], record["loss"]] for record in trained],
        "validation_curve": [[record["step"], record["loss"]] for record in evaluated],
        "metric_curve": [[record["step"], record[f"{PREFIX}{metric}"]] for record in evaluated],
    }


def answers_of(workdir: Path, task: Task) -> dict[str, Any]:
    """What a run predicted of the validation examples: some of them, and of labels how often each
    was taken for each.
    """
    path = workdir / "predictions/validation.jsonl"
    with user_errors(NO_FILE, f"{path}: cannot be read"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
    answers: dict[str, Any] = {"shown": _some(task, records)}
    if task.kind == "classify" and len(task.labels) <= _MOST_LABELS:
        names = [str(label) for label in task.labels]
        counts = Counter((record["label"], record["prediction"]) for record in records)
        columns = names + [None] * any(predicted is None for _, predicted in counts)
        answers["confusion"] = {
            "predicted": ["(no label)" if name is None else name for name in columns],
            "of_label": {label: [counts[label, name] for name in columns] for label in names},
        }
    return answers


def _some(task: Task, records: list[dict]) -> dict[str, list[dict]]:
    """Some of the predictions, by what they are."""
    if task.kind == "regress":
        errors = [abs((record["prediction"] or 0) - record["label"]) for record in records]
        order = sorted(range(len(records)), key=lambda number: -errors[number])
        return {"The largest errors": [records[number] for number in order[:_EXAMPLES]]}
    is_free = task.kind == "generate" and task.metrics[0] != "exact_match"
    if is_free:
        return {"Some of what it writes": records[:_EXAMPLES]}
    is_right = [_is_right(record) for record in records]
    shown = {}
    for name, value in (("wrong", False), ("right", True)):
        of_name = [r for r, right in zip(records, is_right, strict=True) if right == value]
        shown[f"Some that are {name}"] = of_name[:_EXAMPLES]
    return {heading: of_heading for heading, of_heading in shown.items() if of_heading}


def _is_right(record: dict) -> bool:
    """Whether a prediction is the label, or one of the right texts as SQuAD compares them."""
    prediction, label = record["prediction"], record["label"]
    labels = label if isinstance(label, list) else [label]
    if prediction in labels or not isinstance(prediction, str):
        return prediction in labels
    return normalise_answer(prediction) in map(normalise_answer, labels)


def write(results: dict, directory: Path) -> None:
    """Write report.json, report.html and report.md into the directory."""
    with user_errors(IO_ERROR, f"{directory}: the report cannot be written"):
        (directory / "report.json").write_text(json.dumps(results, indent=1), "utf-8")
    page.write(report(results), directory)


def report(results: dict) -> Page:
    """The results as a page."""
    runs, metric = results["curves"], results["metric"].replace("_", " ")
    seed = f"seed {results['seeds'][0]}"
    by_step = charts.curves(
        {},
        {name: run["metric_curve"] for name, run in runs.items()},
        y=metric,
        caption=f"{metric} of the validation examples",
    )
    losses = charts.curves(
        {name: run["curve"] for name, run in runs.items()},
        {name: run["validation_curve"] for name, run in runs.items()},
        y="loss",
        caption="Training thin, validation thick with dots",
    )
    sections = [
        Section("Every run", [_cells(results)]),
        Section("How it was learned", [*by_step, *losses]),
        Section(f"What it takes for what, {seed}", _confusion(results)),
        *(
            Section(f"{heading}, {seed}", [Quote(_question(one), _answer(one)) for one in records])
            for heading, records in results["shown"].items()
        ),
    ]
    kept = [section for section in sections if section.parts]
    return Page(results["title"], _summary(results), kept)


def _cells(results: dict) -> Table:
    """A row for each run."""
    names = list(results["reached"])
    rows = []
    for cell in results["cells"]:
        settings = ", ".join(f"{key}={value}" for key, value in cell["settings"].items())
        is_chosen = cell["settings"] == results["chosen"] and len(results["cells"]) > 1
        for seed, reached in cell["seeds"].items():
            shown = [f"{reached[name]:.4f}" for name in names]
            mark = f"{settings} (chosen)" if is_chosen else settings or "as they are"
            rows.append([mark, seed, *shown, f"{reached['step']:,}"])
    heading = ["settings", "seed", *(name.replace("_", " ") for name in names), "best step"]
    return Table(heading, rows)


def _summary(results: dict) -> str:
    """What was reached, in a sentence."""
    parts = []
    for name, value in results["reached"].items():
        spread = value["standard_deviation"]
        shown = f"{name.replace('_', ' ')} {value['mean']:.4f}"
        if spread is not None:
            shown += f" ± {spread:.4f}"
        parts.append(shown)
    seeds = len(results["seeds"])
    of = f" (mean and standard deviation of {seeds} seeds)" if seeds > 1 else ""
    trained = f"{results['trained_parameters']:,} of {results['parameters']:,} parameters"
    return f"Validation: {', '.join(parts)}{of}. Trained: {trained}."


def _confusion(results: dict) -> list[Part]:
    """How often each label was taken for each; nothing for tasks without labels."""
    confusion = results.get("confusion")
    if not confusion:
        return []
    rows = [[label, *map(str, counts)] for label, counts in confusion["of_label"].items()]
    return [Table(["label \\ prediction", *confusion["predicted"]], rows)]


def _question(record: dict) -> str:
    """The text of an example, in short."""
    text = record["text"]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _answer(record: dict) -> str:
    return f"{record['prediction']}, labelled {record['label']}"
