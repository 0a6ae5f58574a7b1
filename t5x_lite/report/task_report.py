"""The report of finetune: the metrics of every run, the learning curves, the confusion matrix and
examples of predictions.
"""

from pathlib import Path

from t5x_lite.report import charts, page
from t5x_lite.report.page import Page, Part, Quote, Section, Table

_LONGEST = 400  # maximum number of characters shown of an example


def write(results: dict, directory: Path) -> None:
    """Write report.html and report.md into the directory."""
    page.write(report(results), directory)


def report(results: dict) -> Page:
    """Return the page of fine-tuning results."""
    runs, metric = results["curves"], results["metric"].replace("_", " ")
    seed = f"seed {results['seeds'][0]}"
    by_step = charts.curves(
        {},
        {name: run["metric_curve"] for name, run in runs.items()},
        y=metric,
        caption=f"{metric} on the validation examples",
    )
    losses = charts.curves(
        {name: run["curve"] for name, run in runs.items()},
        {name: run["validation_curve"] for name, run in runs.items()},
        y="loss",
        caption="Thin lines for training, thick lines for validation",
    )

    # Sections without any parts are left out below.
    sections = [
        Section("All runs", [_cells(results)]),
        Section("Learning curves", [*by_step, *losses]),
        Section(f"Confusion matrix, {seed}", _confusion(results)),
        *(
            Section(f"{heading}, {seed}", [Quote(_question(one), _answer(one)) for one in records])
            for heading, records in results["shown"].items()
        ),
    ]
    kept = [section for section in sections if section.parts]
    return Page(results["title"], _summary(results), kept)


def _cells(results: dict) -> Table:
    """Return the table of all runs, with the metrics of each."""
    names = list(results["reached"])
    rows = []
    for cell in results["cells"]:
        settings = ", ".join(f"{key}={value}" for key, value in cell["settings"].items())
        is_chosen = cell["settings"] == results["chosen"] and len(results["cells"]) > 1
        for seed, reached in cell["seeds"].items():
            shown = [f"{reached[name]:.4f}" for name in names]
            mark = f"{settings} (chosen)" if is_chosen else settings or "defaults"
            rows.append([mark, seed, *shown, f"{reached['step']:,}"])
    heading = ["settings", "seed", *(name.replace("_", " ") for name in names), "best step"]
    return Table(heading, rows)


def _summary(results: dict) -> str:
    """Return sentences with the score on examples that were not used for any choice, the validation
    metrics, and the number of parameters.
    """
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
    scored = results["scored"]
    metric = results["metric"].replace("_", " ")
    honest = f"{metric} {scored['mean']:.4f} on {scored['on']} ({scored['examples']:,} examples)"
    return (
        f"{honest[0].upper()}{honest[1:]}. Validation, at the best evaluation: "
        f"{', '.join(parts)}{of}. Trained: {trained}."
    )


def _confusion(results: dict) -> list[Part]:
    """Return the confusion matrix as a table; empty for tasks that have none."""
    confusion = results.get("confusion")
    if not confusion:
        return []
    rows = [[label, *map(str, counts)] for label, counts in confusion["of_label"].items()]
    return [Table(["label \\ prediction", *confusion["predicted"]], rows)]


def _question(record: dict) -> str:
    """Return the text of an example, shortened if it is long."""
    text = record["text"]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _answer(record: dict) -> str:
    """Return the prediction for an example next to its label."""
    return f"{record['prediction']}, labelled {record['label']}"
