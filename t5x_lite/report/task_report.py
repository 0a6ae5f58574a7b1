"""report.html and report.md of what finetune reached: every cell and seed, how they learned, and
what the model takes for what.
"""

from pathlib import Path

from t5x_lite.report import charts, page
from t5x_lite.report.page import Page, Part, Quote, Section, Table

_LONGEST = 400  # letters of an example that are shown


def write(results: dict, directory: Path) -> None:
    """Write report.html and report.md into the directory."""
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
