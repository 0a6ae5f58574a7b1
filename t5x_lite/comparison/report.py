"""The report of a comparison or of a single run: first the scores and how certain they are, then
the curves, the cost of each cell, and examples of what each model does.
"""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5x_lite.comparison import scaling_report
from t5x_lite.errors import IO_ERROR, user_errors
from t5x_lite.report import charts, page
from t5x_lite.report.page import Bold, Page, Part, Quote, Section, Table, short

# Scores on each objective's own targets, which cannot be compared between objectives
_OWN = ("loss", "accuracy")
FROM_SCRATCH = ", from scratch"  # suffix of the scores of models with fresh parameters
Results = Mapping[str, Any]

_EQUAL = 0.01  # relative difference below which two amounts count as equal

# Score → heading, and True if lower is better
SCORES = {
    "span_bits_left": ("span bits per byte, text before", True),
    "span_bits_both": ("span bits per byte, text on both sides", True),
    "bits_per_byte": ("bits per byte, whole text", True),
    "loss": ("validation loss", True),
    "accuracy": ("accuracy", False),
}
_HEADINGS = {score: heading for score, (heading, _) in SCORES.items()}
UNITS = {
    "steps": "steps",
    "raw_tokens": "raw tokens",
    "model_tokens": "model tokens",
    "loss_tokens": "loss tokens",
    "flops": "FLOPs",
    "seconds": "seconds",
}


def write(results: Results, directory: Path) -> None:
    """Write report.json, report.html, report.md, report.csv and chart.svg into the directory."""
    shown, table = report(results), as_csv(results)
    with user_errors(IO_ERROR, f"{directory}: the report cannot be written"):
        (directory / "report.json").write_text(json.dumps(results, indent=1), "utf-8")
        (directory / "report.csv").write_text(table, "utf-8")
    page.write(shown, directory)


def report(results: Results) -> Page:
    """Return the page of a comparison's results."""
    sections = [
        Section("Scores", [score_table(results), *_reading_notes(results)]),
        Section("Scaling laws", scaling_report.parts(results["scaling"], _HEADINGS)),
        Section("How certain this is", [*_interval_charts(results), *_differences(results)]),
        Section("Each model under each objective", _other_objectives(results)),
        Section("Learning curves", _learning_curves(results)),
        Section("What each run cost", [parity_sheet(results), *_parity_notes(results)]),
        Section("Settings that differ", _recipes(results)),
        Section("What each model writes", _samples(results)),
        Section("Hardware and software", _environment(results)),
    ]
    kept = [section for section in sections if section.parts]
    return Page(results["title"], _answer(results), kept)


# The main results.


def _answer(results: Results) -> str:
    """Return the main results in a few sentences."""
    sentences = []
    cells = results["cells"]

    # The best cell on spans, then a trigram model for comparison.
    for name, given in (
        ("span_bits_left", "only the text before a gap"),
        ("span_bits_both", "the text on both sides of a gap"),
    ):
        if two := _best_two(results, name, " bits per byte"):
            sentences.append(f"Given {given}, {two[0]} predicts it best {two[1]}.")
    counted = results["counting"].get("Kneser-Ney trigram", {}).get("span_bits_left")
    if counted and sentences:
        sentence = f"A trigram model, which only counts, needs {counted:.3f} given the text before"
        scores = [of["scores"].get("span_bits_left") for of in cells.values()]
        means = [score["mean"] for score in scores if score]
        if means and counted < min(means):
            sentence += ", fewer than any of these models"
        sentences.append(f"{sentence}.")

    # The best cell on each task.
    for name in filter(_is_of_task, _score_names(results)):
        two = _best_two(results, name)
        if two and not name.endswith(FROM_SCRATCH):
            task, metric = name.split(": ")
            sentences.append(f"On {task}, {two[0]} has the best {metric} {two[1]}.")
    if sentences and results["seeds"] == 1:
        sentences.append("Each model has one seed, so luck is not ruled out.")
    sentences += scaling_report.sentences(results["scaling"])

    # Without any of these: the validation losses.
    if not sentences:
        for cell, of in cells.items():
            if "loss" in of["scores"]:
                loss = of["scores"]["loss"]["mean"]
                sentences.append(f"{cell} reached a validation loss of {loss:.3f} nats.")
    if failed := len(results["failed"]):
        sentences.append(f"{failed} {'run' if failed == 1 else 'runs'} failed: see below.")
    return " ".join(sentences)


def _best_two(results: Results, name: str, unit: str = "") -> tuple[str, str] | None:
    """Return the best and the second-best cell in a score, under the last budget.

    Args:
        unit: unit of the score, with a space before it.

    Returns:
        The name of the best cell; and in brackets its score, the second cell with its score, and
        the verdict on their difference unless it is resolved. None if fewer than two cells can be
        compared, or if some cells measure something else by that score.
    """
    cells = results["cells"]
    last = [*cells.values()][-1]["baseline"]
    scores = {
        cell: of["scores"][name]
        for cell, of in cells.items()
        if name in of["scores"] and of["baseline"] == last
    }
    best = [cell for cell, score in scores.items() if score["is_best"]]
    others = {cell: score for cell, score in scores.items() if "behind_best" in score}
    # Cells without a difference to the best measure something else by this score.
    if not best or len(others) < len(scores) - 1:
        return None
    lowest_or_highest = min if is_lower_better(name) else max
    second = lowest_or_highest(others, key=lambda cell: others[cell]["mean"])
    shown = {cell: _shown(name, scores[cell]["mean"]) for cell in (*best, second)}
    in_brackets = [f"{shown[best[0]]}{unit}", f"{second} {shown[second]}"]
    # If all runs have one seed, _answer says so once, for all scores.
    difference = others[second]["behind_best"]
    lacks_seeds = bool(difference) and len(difference["seeds"]) < min(2, results["seeds"])
    if not difference or lacks_seeds or _is_noise(difference):
        in_brackets.append(_verdict(difference))
    return best[0], f"({'; '.join(in_brackets)})"


# Scores.


def _score_names(results: Results) -> list[str]:
    """Return the names of all scores, with those on each objective's own targets last."""
    names = dict.fromkeys(name for of in results["cells"].values() for name in of["scores"])
    common = [name for name in SCORES if name in names and name not in _OWN]
    of_tasks = [name for name in names if _is_of_task(name)]
    return [*common, *of_tasks, *(name for name in _OWN if name in names)]


def _is_of_task(name: str) -> bool:
    """Return True if the score is a metric of a task."""
    return name not in SCORES


def _heading(name: str) -> str:
    return name if _is_of_task(name) else SCORES[name][0]


def is_lower_better(name: str) -> bool:
    """Return True if a lower value of the score is better."""
    return not _is_of_task(name) and SCORES[name][1]


def _shown(name: str, value: float) -> str:
    """Return a score as text: a percentage for accuracies, else three decimals."""
    return f"{value:.1%}" if "accuracy" in name else f"{value:.3f}"


def score_table(results: Results) -> Table:
    """Return the table of all scores of all cells.

    Among the cells that can be compared, the best one and those within the noise of it are marked.
    """
    cells = results["cells"]
    names = _score_names(results)

    # One row per cell, then one for each model that only counts n-grams.
    rows: list[list[str | Bold]] = []
    for cell, of in cells.items():
        row: list[str | Bold] = [cell]
        for name in names:
            row.append(_score_cell(results, cell, name) if name in of["scores"] else "–")
        rows.append([*row, of["objective"]])
    for model, counted in results["counting"].items():
        row = [model]
        for name in names:
            row.append(f"{counted[name]:.3f}" if name in counted else "–")
        rows.append([*row, "counting"])

    heading = ["model", *map(_heading, names), "objective"]
    seeds = results["seeds"]
    captions = []
    if seeds > 1 or results["spans"]["count"]:
        captions.append("mean ± half the width of the 95 % interval")
    if seeds > 1:
        captions.append(f"{seeds} seeds")
    if any(isinstance(cell, Bold) for row in rows for cell in row):
        captions.append("bold: the best score, and scores within the noise of it")
    caption = "; ".join(captions)
    return Table(heading, rows, caption[:1].upper() + caption[1:])


def _score_cell(results: Results, cell: str, name: str) -> str | Bold:
    """Return a score with half of its interval, marked if it is the best or within its noise."""
    score = results["cells"][cell]["scores"][name]
    text = _shown(name, score["mean"])
    if score["high"] is not None:
        text += f" ± {_shown(name, score['high'] - score['mean'])}"
    behind = score.get("behind_best")
    return Bold(text) if score["is_best"] or (behind and _is_noise(behind)) else text


def _reading_notes(results: Results) -> list[Part]:
    """Return the paragraphs that explain the scores, and the errors of runs that failed."""
    spans, held_out = results["spans"], results["corpus"]["validation"]
    notes: list[Part] = []
    if spans["count"]:
        notes.append(
            "Span bits per byte: how many bits a model needs to predict a span of held-out text, "
            f"per byte. All models are asked for the same {spans['count']:,} spans "
            f"({spans['bytes']:,} bytes) of {spans['passages']:,} passages. The two columns ask "
            "different questions, so do not compare them. A masked model sees from its masks how "
            "many tokens a span has. Other models do not, but the end of a span is not counted."
        )
    notes.append(
        "Validation loss: nats per scored token. Each objective scores other tokens, so losses of "
        "different objectives cannot be compared. Bits per byte, whole text: all "
        f"{held_out['documents']:,} validation documents ({held_out['tokens']:,} tokens, "
        f"{held_out['bytes']:,} bytes), including the end of each document."
    )
    if not results["lossless"]:
        notes.append(
            "The tokenizer is lossy: bits per byte cannot be compared with other tokenizers'."
        )
    for name, reason in results["failed"].items():
        notes.append(f"Failed: {name}: {reason}")
    return notes


def _interval_charts(results: Results) -> list[Part]:
    """Return charts of the span bits of each cell with their intervals."""
    parts: list[Part] = []
    for name in ("span_bits_left", "span_bits_both"):
        cells = {
            cell: of["scores"][name]
            for cell, of in results["cells"].items()
            if name in of["scores"]
        }
        if len(cells) < 2:
            continue
        counted = {model: of[name] for model, of in results["counting"].items() if name in of}
        parts += charts.intervals(
            cells, counted, SCORES[name][0], "Lower is better; bars are 95 % intervals"
        )
    return parts


def _differences(results: Results) -> list[Part]:
    """Return the table of each cell's difference to its baseline in each score."""
    rows: list[list[str | Bold]] = []
    for cell, of in results["cells"].items():
        for name, score in of["scores"].items():
            difference = score.get("difference")
            if not difference:
                continue
            rows.append(
                [
                    cell,
                    of["baseline"],
                    _heading(name),
                    f"{difference['mean']:+.4f}",
                    _interval(difference),
                    _verdict(difference),
                ]
            )
    if not rows:
        return []
    heading = ["cell", "baseline", "score", "difference", "95 % interval", "verdict"]
    caption = "Differences to the baseline, seed by seed, on the same text and spans"
    return [Table(heading, rows, caption)]


def _interval(difference: Mapping[str, Any]) -> str:
    low, high = difference["low"], difference["high"]
    return "unknown" if low is None else f"{low:+.4f} to {high:+.4f}"


def _is_noise(difference: Mapping[str, Any]) -> bool:
    """Return True if the interval of the difference is known and contains 0."""
    low, high = difference["low"], difference["high"]
    return low is not None and low <= 0 <= high


def _verdict(difference: Mapping[str, Any] | None) -> str:
    """Return in words what can be concluded from a difference.

    Args:
        difference: None if the two cells have no seed in common.
    """
    if difference is None:
        return "not comparable: no seed in common"
    seeds, needed = len(difference["seeds"]), difference["seeds_to_resolve"]
    if difference["low"] is None:
        return "one seed, so the noise is not known"
    if not _is_noise(difference):
        return "resolved" if seeds > 1 else "resolved over spans, but only one seed"
    if seeds == 1:
        return "within the noise"
    if needed:
        return f"within the noise; {needed} seeds would resolve it"
    return "within the noise; even 1,000 seeds would not resolve it"


def _other_objectives(results: Results) -> list[Part]:
    """Return the table of each model's validation loss under each objective it can express."""
    others, cells = results["other_objectives"], results["cells"]
    if not any(others.values()):
        return []
    objectives = list(dict.fromkeys(of["objective"] for of in cells.values()))
    rows: list[list[str | Bold]] = []
    for cell, of in cells.items():
        row: list[str | Bold] = [cell]
        for objective in objectives:
            loss, remark = others.get(cell, {}).get(objective), ""
            if objective == of["objective"]:
                loss, remark = of["scores"].get("loss", {}).get("mean"), ", its own"
            row.append("–" if loss is None else f"{loss:.3f}{remark}")
        rows.append(row)
    caption = "Validation loss in nats; –: the model cannot be asked under this objective"
    note = (
        "Losses in a column can be compared if the models have rows of the same length. A model "
        "that has never seen a sentinel or a mask does badly for that reason."
    )
    return [Table(["model", *objectives], rows, caption), note]


# Curves.


def _learning_curves(results: Results) -> list[Part]:
    """Return charts of the loss, one per objective, and of learning rates and gradient norms.

    The x-axis is the unit that the cells are matched by; others can be chosen in a browser.
    """
    # For each unit and run, how much one step spends: it scales steps to that unit.
    units = dict.fromkeys([results["match"], *UNITS])
    axes: dict[str, dict[str, float]] = {UNITS[unit]: {} for unit in units}
    groups = {}
    by_objective: dict[str, dict[str, Any]] = {}
    for cell, of in results["cells"].items():
        for name, run in of["runs"].items():
            groups[name] = cell
            by_objective.setdefault(of["objective"], {})[name] = run
            for unit in units:
                axes[UNITS[unit]][name] = of[unit] / of["steps"]

    parts: list[Part] = []
    for objective, runs in by_objective.items():
        parts += charts.curves(
            {name: run["curve"]["loss"] for name, run in runs.items()},
            {name: run["validation_curve"]["loss"] for name, run in runs.items()},
            y="loss, nats",
            axes=axes,
            groups=groups,
            caption=f"{objective}: thin lines for training, thick lines for validation",
        )
    for key in ("learning_rate", "gradient_norm"):
        parts += charts.curves(
            {
                name: run["curve"][key]
                for runs in by_objective.values()
                for name, run in runs.items()
            },
            {},
            y=key.replace("_", " "),
            axes=axes,
            groups=groups,
            log=key == "gradient_norm",
        )
    return parts


# What was equal.


def parity_sheet(results: Results) -> Table:
    """Return the table of each cell's size and spending, compared with its baseline."""
    cells = results["cells"]
    rows: list[list[str | Bold]] = []
    for cell, of in cells.items():
        size, active = of["parameters"], of.get("active_parameters", of["parameters"])
        shown = short(size) if active == size else f"{short(size)} ({short(active)} per token)"
        row: list[str | Bold] = [cell, shown, short(of["flops_per_sequence"])]
        for unit in UNITS:
            against = cells[of["baseline"]][unit]
            ratio = of[unit] / against if against else 1.0
            is_equal = abs(ratio - 1) < _EQUAL
            row.append(short(of[unit]) if is_equal else f"{short(of[unit])} (×{ratio:.2f})")
        rows.append([*row, f"{of['padding']:.1%}", f"{of.get('rows_cut', 0.0):.0%}"])
    matched = results["match"]
    names = [f"{name} (matched)" if unit == matched else name for unit, name in UNITS.items()]
    heading = ["cell", "parameters", "FLOPs per sequence", *names, "padding", "rows cut"]
    baselines = ", ".join(dict.fromkeys(of["baseline"] for of in cells.values()))
    return Table(heading, rows, f"Per run; (×…) is the ratio to {baselines} where they differ")


def _parity_notes(results: Results) -> list[Part]:
    """Return the paragraphs that define the units, and say if the cells read different text."""
    notes: list[Part] = [
        "Raw tokens: tokens of the text that was read. Model tokens: positions of encoder and "
        "decoder. Loss tokens: tokens that were predicted. FLOPs: matrix products that the "
        "mathematics needs, forward and backward."
    ]
    if any(of.get("rows_cut") for of in results["cells"].values()):
        notes.append(
            "Rows cut: rows that run from one shuffled block of the text into another, and lose "
            "context by it. Cells with different shares cannot be compared fairly; equal windows "
            "(equal_windows=True) have none."
        )
    if results["texts"]:
        listed = ", ".join(results["texts"])
        notes.append(f"The cells do not read the same text: they differ in {listed}.")
        if "validation text" in results["texts"]:
            notes.append(
                "Spans come from the validation text of the first cell. Another cell may have been "
                "trained on some of it."
            )
    elif len(results["cells"]) > 1:
        notes.append("With the same seed, all cells read the same text in the same order.")
    return notes


def _recipes(results: Results) -> list[Part]:
    """Return the table of the settings that differ between cells."""
    recipes, cells = results["recipes"], list(results["cells"])
    if not recipes:
        return []
    rows = [[key, *(str(of[cell]) for cell in cells)] for key, of in recipes.items()]
    return [Table(["setting", *cells], rows, "All other settings are the same")]


# Samples and environment.


def _samples(results: Results) -> list[Part]:
    """Return quotes of what each model fills in or writes."""
    parts: list[Part] = []
    for cell, examples in results["examples"].items():
        for example in examples:
            title = f"{cell}: {example['text']}"
            if "words" in example:
                lines = [
                    ", ".join(f"{word} {probability:.1%}" for word, probability in words)
                    for words in example["words"]
                ]
                answer = "\n".join(lines)
            elif "spans" in example:
                answer = " | ".join(span.strip() or "(nothing)" for span in example["spans"])
            else:
                answer = example["continuation"]
                title += f" (temperature {example['temperature']}, top_p {example['top_p']})"
            parts.append(Quote(title, answer))
    return parts


def _environment(results: Results) -> list[Part]:
    rows = [[key, str(value)] for key, value in results["environment"].items()]
    return [Table(["", ""], rows)] if rows else []


# Other formats.


def as_csv(results: Results) -> str:
    """Return CSV with one line per run: its cell, seed, spending and scores."""
    names = _score_names(results)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["cell", "run", "seed", *UNITS, "parameters", *names])
    for cell, of in results["cells"].items():
        for run, summary in of["runs"].items():
            scores = []
            for name in names:
                score = of["scores"].get(name, {"seed_numbers": [], "seeds": []})
                of_seed = dict(zip(score["seed_numbers"], score["seeds"], strict=True))
                scores.append(of_seed.get(summary["seed"], ""))
            spent = [of[unit] for unit in UNITS]
            writer.writerow([cell, run, summary["seed"], *spent, of["parameters"], *scores])
    return text.getvalue()


def summary(results: Results) -> str:
    """Return the main results and the table of scores as Markdown, for a terminal."""
    first = Page(results["title"], _answer(results), [Section("Scores", [score_table(results)])])
    return page.markdown(first)
