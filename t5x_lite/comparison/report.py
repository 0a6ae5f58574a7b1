"""The report of a comparison or of a single run: first the scores and how certain they are, then
the curves, the cost of each cell, and examples of what each model does.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from t5x_lite import storage
from t5x_lite.comparison import scaling_report
from t5x_lite.comparison.scores import (
    ADAPTED,
    FROM_SCRATCH,
    OF_SPANS,
    SCORES,
    heading_of,
    in_order,
    is_lower_better,
    is_of_task,
    span_score,
)
from t5x_lite.data.objectives.mixture import members_of
from t5x_lite.data.tasks.baselines import BAG_OF_WORDS
from t5x_lite.errors import IO_ERROR, user_errors
from t5x_lite.report import charts, page, papers, tex
from t5x_lite.report.page import Bold, Page, Part, Quote, Section, Table, one_line, short
from t5x_lite.training.whole_text import BOUND, EXACT

Results = Mapping[str, Any]

_ONE_SEED = "one seed: how much luck matters is not known"
_MOST_LISTED = 4  # maximum number of cells that a sentence names
_EQUAL = 0.01  # relative difference below which two amounts count as equal


class TrainingCurve(NamedTuple):
    """How a metric is drawn over training.

    Attributes:
        title: title of the axis.
        unit: the size of the axis's unit in that of the metric.
        log: True for a logarithmic axis.
    """

    title: str
    unit: float = 1.0
    log: bool = False


# Metrics that are drawn besides the loss. CPUs do not report device_memory
TRAINING_CURVES = {
    "learning_rate": TrainingCurve("learning rate"),
    "gradient_norm": TrainingCurve("gradient norm", log=True),
    "tokens_per_second": TrainingCurve("model tokens per second"),
    "device_memory": TrainingCurve("peak memory of a device, GiB", unit=2.0**30),
}
UNITS = {
    "steps": "steps",
    "raw_tokens": "raw tokens",
    "model_tokens": "model tokens",
    "loss_tokens": "loss tokens",
    "flops": "FLOPs",
    "seconds": "seconds",
}


def write(results: Results, directory: Path) -> None:
    """Write report.json, .html, .md, .tex, .bib and .csv, and chart.svg, into the directory."""
    shown, table = report(results), as_csv(results)
    papers.check_papers(results.get("papers", []))
    with user_errors(IO_ERROR, f"{directory}: the report cannot be written"):
        storage.write_durably(directory / "report.json", json.dumps(results, indent=1))
        storage.write_durably(directory / "report.csv", table)
        storage.write_durably(directory / "report.tex", tex.tex(shown))
        storage.write_durably(directory / "report.bib", papers.bibtex(papers_of(results)))
    page.write(shown, directory)


def report(results: Results) -> Page:
    """Return the page of a comparison's results."""
    sections = [
        Section("Scores", [score_table(results), *_reading_notes(results)]),
        Section("Effects of each choice", _effects(results)),
        Section("Scaling laws", _scaling_laws(results)),
        Section("What smaller budgets would have decided", _decisions(results)),
        Section(
            "How certain this is",
            [*_interval_charts(results), *_difference_charts(results), *_differences(results)],
        ),
        Section("How each model was tuned", _tuning(results)),
        Section("Each model under each objective", _other_objectives(results)),
        Section("What knowing the end of a span is worth", _ends_of_spans(results)),
        Section("Learning curves", _learning_curves(results)),
        Section("What each run cost", [parity_sheet(results), *_parity_notes(results)]),
        Section("Settings that differ", _recipes(results)),
        Section("What each model writes", _written(results)),
        Section("Hardware and software", _environment(results)),
    ]
    kept = [section for section in sections if section.parts]
    return Page(results["title"], _answer(results), kept)


# The main results.


def _answer(results: Results) -> str:
    """Return the main results in a few sentences."""
    sentences = []

    # For each task, rank the cells, and name those that are not shown to beat counting.
    for name in filter(is_of_task, _score_names(results)):
        ranked = _ranked(results, name)
        if ranked and not name.endswith(FROM_SCRATCH):
            task, metric = name.split(": ")
            best = f"has the best {metric}"
            heads = results["tasks"].get(name, {}).get("heads", {})
            question = f"On {task}"
            if len({head == "lm" for head in heads.values()}) > 1:
                question += ", which not all answer in words"
            sentences.append(_ranking(results, name, ranked, question, best))
            sentences += _beaten_by_counting(results, name, ranked)
            sentences += _effects_in_words(results, name)

    # Bits per span once all cells are adapted to continue a text. Without tasks and adaptation,
    # each is scored in the way it was trained.
    sentences += _bits_in_words(results, ADAPTED)
    if not sentences:
        for name in OF_SPANS:
            sentences += _bits_in_words(results, name)
    if sentences and results["seeds"] == 1:
        sentences.insert(0, f"{_ONE_SEED[0].upper()}{_ONE_SEED[1:]}.")
    sentences += scaling_report.sentences(results["scaling"])

    # Without any of these, give the validation losses.
    if not sentences:
        for cell, of in results["cells"].items():
            if "loss" in of["scores"]:
                loss = of["scores"]["loss"]["mean"]
                sentences.append(f"{cell} reached a validation loss of {loss:.3f} nats.")
    if failed := len(results["failed"]):
        sentences.append(f"{failed} {'run' if failed == 1 else 'runs'} failed: see below.")
    return " ".join(sentences)


def _bits_in_words(results: Results, name: str) -> list[str]:
    """Return sentences about a score in bits per byte of spans: the cells, then a trigram model.

    Empty if the cells cannot be compared in it.
    """
    ranked = _ranked(results, name)
    if not ranked:
        return []
    question = SCORES[name].asked.format(tokens=short(results.get("adapt_tokens", 0)))
    sentences = [_ranking(results, name, ranked, question, "predicts it best")]
    trigram = results["counting"].get("Kneser-Ney trigram", {}).get(name)
    if trigram:
        sentence = f"A trigram model, which only counts, needs {trigram:.3f} given the text before"
        if trigram < min(score["mean"] for score in ranked.values()):
            sentence += ", fewer than any of these models"
        sentences.append(f"{sentence}.")
    return sentences


def _ranked(results: Results, name: str) -> dict[str, dict[str, Any]]:
    """Return the cells under the last budget with their score, the best mean first.

    Empty if fewer than two cells have the score, or if some measure something else by it.
    """
    cells = results["cells"]
    last = [*cells.values()][-1]["baseline"]
    scores = {
        cell: of["scores"][name]
        for cell, of in cells.items()
        if name in of["scores"] and of["baseline"] == last
    }
    if len(scores) < 2 or any(len(score["among"]) < len(scores) for score in scores.values()):
        return {}
    sign = 1 if is_lower_better(name) else -1
    return dict(sorted(scores.items(), key=lambda pair: sign * pair[1]["mean"]))


def _ranking(
    results: Results, name: str, ranked: dict[str, dict[str, Any]], question: str, best: str
) -> str:
    """Return a sentence that says which cell is best in a score, if that is resolved, with scores.

    Args:
        question: the beginning of the sentence.
        best: the predicate of a best cell, such as "predicts it best".
    """
    unit = " bits per byte" if name in OF_SPANS else ""
    shown = [f"{cell} {_shown(name, score['mean'])}" for cell, score in ranked.items()]
    listed = ", ".join(shown[:_MOST_LISTED]) + unit
    if len(shown) > _MOST_LISTED:
        listed += f", and {len(shown) - _MOST_LISTED} more"
    if any(score["may_be_best"] is None for score in ranked.values()):
        return f"{question}: {listed}."
    first = [cell for cell, score in ranked.items() if score["may_be_best"]]
    if len(first) == 1:
        return f"{question}, {first[0]} {best} ({listed})."
    which = _listed(first) if len(first) <= _MOST_LISTED else f"{len(first)} models"
    return f"{question}, the best is not resolved between {which} ({listed})."


def _beaten_by_counting(results: Results, name: str, ranked: Iterable[str]) -> list[str]:
    """Return a sentence that names the models not shown to beat the best counting model on a task.

    Empty if all beat it, or if nothing was counted. If this cannot be known, the sentence only
    gives the score of the counting model.
    """
    counted = {model: of[name] for model, of in results["counting"].items() if name in of}
    if not counted:
        return []
    bar = max(counted, key=counted.__getitem__)
    article = "a" if bar == BAG_OF_WORDS else "the"
    shown = f"{article} {bar}"
    beats = {cell: results["cells"][cell]["scores"][name]["beats"].get(bar) for cell in ranked}
    if None in beats.values():
        return [f"{shown[0].upper()}{shown[1:]} gets {_shown(name, counted[bar])}."]
    beaten = [cell for cell, is_better in beats.items() if not is_better]
    if not beaten:
        return []
    verb = "is" if len(beaten) == 1 else "are"
    of_all = f"{len(beaten)} of {len(beats)} models"
    models = of_all if len(beaten) > _MOST_LISTED else _listed(beaten)
    return [f"{models} {verb} not shown to beat {shown} ({_shown(name, counted[bar])})."]


def _listed(names: Sequence[str]) -> str:
    """Return names as a list in words.

    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


def _effects_in_words(results: Results, name: str) -> list[str]:
    """Return a sentence about the resolved effects on a task's score; empty if the cells are not
    crossed.
    """
    effects = {effect: of[name] for effect, of in results.get("effects", {}).items() if name in of}
    if not effects or any(found["p"] is None for found in effects.values()):
        return []
    resolved = [
        f"{effect} ({_signed(name, found['mean'])})"
        for effect, found in effects.items()
        if found["verdict"] == "different"
    ]
    if not resolved:
        return [f"No effect on {name} is resolved."]
    return [f"What changes {name}: {_listed(resolved)}."]


def _scaling_laws(results: Results) -> list[Part]:
    """Return the tables and charts of scaling laws."""
    headings = {name: score.heading for name, score in SCORES.items()}
    return scaling_report.parts(results["scaling"], headings)


def _decisions(results: Results) -> list[Part]:
    """Return the table of how often each smaller budget decides as the largest one does."""
    decisions = results.get("decisions", {})
    if not decisions:
        return []
    rows: list[list[str | Bold]] = []
    unit = UNITS[results["match"]]
    for score in in_order(decisions):
        for one in decisions[score]:
            budget = f"{short(one['budget'])} {unit} (×{one['budget'] / one['largest']:.2g})"
            alike = f"{one['accuracy']:.0%}"
            if len(one["seeds"]) > 1:
                alike += f" ({100 * min(one['seeds']):.0f} to {100 * max(one['seeds']):.0f})"
            of_different = one["accuracy_of_different"]
            shown = "–" if of_different is None else f"{of_different:.0%}"
            counts = str(one["pairs"]), str(one["different"])
            rows.append([heading_of(score), budget, alike, counts[0], shown, counts[1]])
    columns = ["score", "budget", "decided alike", "pairs", "of those that differ", "pairs"]
    largest = f"{short(next(iter(decisions.values()))[0]['largest'])} {unit}"
    note = (
        f"Decided alike: for how many pairs of models one seed under this budget names the better "
        f"one that all seeds under {largest} name (decision accuracy: Magnusson et al., 2025); "
        "the mean over seeds, and the lowest and the highest seed. Guessing gives 50 %. Of those "
        f"that differ: the same for the pairs whose difference under {largest} is significant, by "
        "Holm's method for all pairs of the score."
    )
    return [Table(columns, rows, f"Decisions under less than {largest}"), note]


# Scores.


def _score_names(results: Results) -> list[str]:
    """Return the names of all scores in the order of the report."""
    return in_order(name for of in results["cells"].values() for name in of["scores"])


def _shown(name: str, value: float) -> str:
    """Return a score as text: a percentage for accuracies, else three decimals."""
    return f"{value:.1%}" if "accuracy" in name else f"{value:.3f}"


def _signed(name: str, change: float) -> str:
    """Return a change of a score as text."""
    return f"{change:+.1%}" if "accuracy" in name else f"{change:+.3f}"


def _short_range(name: str, score: Mapping[str, Any]) -> str:
    """Return the interval of a task's score as short text: whole per cents, else two decimals.

    >>> _short_range("rte: accuracy", {"low": 0.721, "high": 0.866})
    '72 to 87'
    """
    low, high = score["low"], score["high"]
    if "accuracy" in name:
        return f"{100 * low:.0f} to {100 * high:.0f}"
    return f"{low:.2f} to {high:.2f}"


def score_table(results: Results) -> Table:
    """Return the table of all scores of all cells.

    Among cells that can be compared, those that may be the best are marked.
    """
    cells = results["cells"]
    names = _score_names(results)

    # One row per cell, then one for each model that only counts n-grams.
    rows: list[list[str | Bold]] = []
    for cell, of in cells.items():
        row: list[str | Bold] = [cell]
        for name in names:
            row.append(_score_cell(results, cell, name) if name in of["scores"] else "–")
        rows.append(row)
    for model, counted in results["counting"].items():
        row = [model]
        for name in names:
            row.append(_shown(name, counted[name]) if name in counted else "–")
        rows.append(row)

    heading = ["model", *map(heading_of, names)]
    seeds = results["seeds"]
    caption = f"{seeds} seed{'s' * (seeds > 1)}; intervals of 95 % over "
    caption += "seeds, spans and examples" if seeds > 1 else "spans and examples, not over seeds"
    if any(isinstance(cell, Bold) for row in rows for cell in row):
        caption += (
            "; bold: models that may be the best: in each column the best is one of them with "
            f"{1 - results['rule']['alpha']:.0%} probability"
        )
    return Table(heading, rows, caption)


def _score_cell(results: Results, cell: str, name: str) -> str | Bold:
    """Return a score with its interval, marked if it may be the best one."""
    score = results["cells"][cell]["scores"][name]
    text = _shown(name, score["mean"])
    if score["low"] is not None and is_of_task(name):
        text += f" ({_short_range(name, score)})"
    elif score["low"] is not None:
        text += f" ± {_shown(name, (score['high'] - score['low']) / 2)}"
    return Bold(text) if score["may_be_best"] else text


def _effects(results: Results) -> list[Part]:
    """Return the table of the main effects and interactions of crossed factors."""
    effects = results.get("effects", {})
    names = [
        name
        for name in _score_names(results)
        if any(name in of and of[name]["p"] is not None for of in effects.values())
    ]
    without_runs = [cell for cell, of in results["cells"].items() if not of["runs"]]
    if effects and without_runs:
        missing = _listed(without_runs)
        return [f"Effects need every cell, and no run of {missing} has finished."]
    if not names:  # the cells are not crossed, or there is one seed
        return []
    rows: list[list[str | Bold]] = []
    for effect, of in effects.items():
        row: list[str | Bold] = [effect]
        for name in names:
            found = of[name]
            text = _signed(name, found["mean"])
            if found["low"] is not None and is_of_task(name):
                text += f" ({_short_range(name, found)})"
            elif found["low"] is not None:
                text += f" ± {_shown(name, (found['high'] - found['low']) / 2)}"
            row.append(Bold(text) if found["verdict"] == "different" else text)
        rows.append(row)
    caption = "Main effects and interactions, with intervals of 95 %; bold: different from 0"
    note = (
        "A instead of B: the score with A minus the score with B, averaged over the other kinds of "
        "choices. A instead of B × C instead of D: what A changes with C minus what it changes "
        "with D; 0 if the two effects add up. Bold by p-values that are corrected by Holm's method "
        f"for this table, so that at most {results['rule']['alpha']:.1%} of such tables hold a "
        "false effect."
    )
    if results["rule"]["looks"] > 1:
        note += f" They count {results['rule']['looks']} looks at the results."
    return [Table(["effect", *map(heading_of, names)], rows, caption), note]


def _reading_notes(results: Results) -> list[Part]:
    """Return the paragraphs that explain the scores, and the errors of runs that failed."""
    spans, held_out = results["spans"], results["corpus"]["validation"]
    notes: list[Part] = []
    if spans["count"]:
        notes.append(
            "Span bits per byte: how many bits a model needs to predict a span of held-out text, "
            f"per byte. All models are asked for the same {spans['count']:,} spans "
            f"({spans['bytes']:,} bytes) of {spans['passages']:,} passages. The two columns ask "
            "different questions, so do not compare them. No model can end a span early: EOS and "
            "all sentinels are left out at each token. A masked model sees from its masks how many "
            "tokens are left; others do not."
        )
    if results.get("adapt_tokens"):
        notes.append(
            f"Bits per byte, adapted: each model then reads {short(results['adapt_tokens'])} raw "
            "tokens of the training text in another order, as a prefix language model with its own "
            "optimizer, and is asked for the same spans, given the text before. An encoder writes "
            "no text, and is left out."
        )
    notes.append(
        "Validation loss: nats per scored token. Each objective scores other tokens, so losses of "
        "different objectives cannot be compared. Bits per byte, whole text: all "
        f"{held_out['documents']:,} validation documents ({held_out['tokens']:,} tokens, "
        f"{held_out['bytes']:,} bytes), including the end of each document."
    )
    for name, of in results["tasks"].items():
        if not name.endswith(FROM_SCRATCH):
            examples = f"{name}: {of['examples']:,} examples, {of['on']}."
            notes.append(" ".join([examples, *_ways_to_answer(results, name)]))
    if results["tasks"]:
        settings = ", ".join(results["finetune"]) or "the recipe of each family"
        notes.append(f"Fine-tuning: {settings}.")
    if not results["lossless"]:
        notes.append(
            "The tokenizer is lossy: bits per byte cannot be compared with other tokenizers'."
        )
    for name, reason in results["failed"].items():
        notes.append(f"Failed: {name}: {reason}")
    return notes


def _ways_to_answer(results: Results, name: str) -> list[str]:
    """Return a sentence on which models answer a task in words; empty if none was fine-tuned."""
    heads = results["tasks"].get(name, {}).get("heads", {})
    cells = [cell for cell in results["cells"] if cell in heads]
    in_words = [cell for cell in cells if heads[cell] == "lm"]
    if not cells:
        return []
    if len(in_words) in (0, len(cells)):
        return [f"All models answer {'in words' if in_words else 'with a head'}."]
    others = [cell for cell in cells if cell not in in_words]
    return [
        f"{_listed(in_words)} {'answers' if len(in_words) == 1 else 'answer'} in words, and "
        f"{_listed(others)} with a head, so the way of answering differs, too."
    ]


def _interval_charts(results: Results) -> list[Part]:
    """Return charts of the span bits of each cell with their intervals."""
    parts: list[Part] = []
    for name in OF_SPANS:
        cells = {
            cell: of["scores"][name]
            for cell, of in results["cells"].items()
            if name in of["scores"]
        }
        if len(cells) < 2:
            continue
        counted = {model: of[name] for model, of in results["counting"].items() if name in of}
        parts += charts.intervals(
            cells, counted, heading_of(name), "Lower is better; bars are 95 % intervals"
        )
    return parts


def _difference_charts(results: Results) -> list[Part]:
    """Return a chart of the differences to the baseline in the first score that cells have in
    common. Difficulties that all models share, such as hard spans, cancel in a difference.
    """
    for name in _score_names(results):
        of_cells = {
            cell: score["difference"]
            for cell, of in results["cells"].items()
            if (score := of["scores"].get(name)) and score.get("difference")
        }
        if not of_cells or any(one["p"] is None for one in of_cells.values()):
            continue
        compared = [_baseline_of(results, cell, one) for cell, one in of_cells.items()]
        baselines = ", ".join(dict.fromkeys(compared))
        better = "below" if is_lower_better(name) else "above"
        caption = f"Difference to {baselines}; {better} 0 is better; bars are 95 % intervals"
        return list(charts.intervals(of_cells, {"": 0.0}, heading_of(name), caption))
    return []


def _differences(results: Results) -> list[Part]:
    """Return the table of each cell's difference to its baseline in each score."""
    differences = [
        (cell, _baseline_of(results, cell, score["difference"]), name, score["difference"])
        for cell, of in results["cells"].items()
        for name, score in of["scores"].items()
        if score.get("difference")
    ]
    if not differences:
        return []
    rule = results["rule"]
    heading = ["cell", "baseline", "score", "difference", "95 % interval"]
    caption = "Differences to the baseline, on the same spans and examples"
    if all(found["p"] is None for *_, found in differences):
        rows = [
            [*_difference_cells(*one), _interval(one[-1], "_over_units")] for one in differences
        ]
        note = "Intervals are over spans and examples only, and nothing is concluded: one seed."
        return [Table(heading, rows, caption), note]

    rows = [
        [
            *_difference_cells(cell, baseline, name, found),
            _interval(found, ""),
            _test(found),
            _interval(found, "_otherwise"),
            "–" if found["p_corrected"] is None else f"{found['p_corrected']:.2g}",
            _verdict(found, rule),
        ]
        for cell, baseline, name, found in differences
    ]
    note = (
        "Paired: seed by seed, where the seeds of all models correlate enough; otherwise Welch's "
        "test. p: corrected by Holm's method for all differences in this table together, so that "
        f"at most {rule['alpha']:.1%} of such tables hold a false verdict."
    )
    if rule["looks"] > 1:
        note += f" It counts {rule['looks']} looks at the results, with one more seed each."
    heading += ["test", "by the other test", "p", "verdict"]
    return [Table(heading, rows, caption), note]


def _baseline_of(results: Results, cell: str, difference: Mapping[str, Any]) -> str:
    """Return the cell that a difference is to; older reports only name a baseline per cell."""
    return difference.get("baseline", results["cells"][cell]["baseline"])


def _difference_cells(cell: str, baseline: str, name: str, found: Mapping[str, Any]) -> list[str]:
    return [cell, baseline, heading_of(name), f"{found['mean']:+.4f}"]


def _interval(difference: Mapping[str, Any], suffix: str) -> str:
    low, high = difference[f"low{suffix}"], difference[f"high{suffix}"]
    return "unknown" if low is None else f"{low:+.4f} to {high:+.4f}"


def _test(difference: Mapping[str, Any]) -> str:
    """Return the name of a difference's test, with the correlation of the seeds if it is known."""
    if difference["p"] is None:
        return "none"
    test = "paired" if difference["is_paired"] else "Welch"
    correlation = difference["correlation"]
    return test if correlation is None else f"{test}, r = {correlation:.2f}"


def _verdict(difference: Mapping[str, Any], rule: Mapping[str, Any]) -> str:
    """Return in words what can be concluded from a difference."""
    if difference["p_corrected"] is None:
        is_of_seeds = min(difference["seeds"]) < 2
        return _ONE_SEED if is_of_seeds else "the spread of its spans or examples is not known"
    is_small = difference.get("p_equivalent_corrected", 1.0) < rule["alpha"]
    if difference["verdict"] == "different":
        return f"different, by less than {rule['effect']:g}" if is_small else "different"
    return f"equivalent within {rule['effect']:g}" if is_small else "not resolved"


def _tuning(results: Results) -> list[Part]:
    """Return the table of what each cell tried and chose, with its cost, and the settings that runs
    chose for tasks.
    """
    tuning, cells = results.get("tuning", {}), results["cells"]
    of_tasks: list[Part] = [
        f"For {task}, settings of fine-tuning chosen by validation examples: "
        f"{'; '.join(f'{run} {label}' for run, label in of['chosen'].items())}."
        for task, of in results["tasks"].items()
        if of.get("chosen")
    ]
    if not tuning:
        return of_tasks
    labels = list(dict.fromkeys(label for of in tuning.values() for label in of["losses"]))
    rows: list[list[str | Bold]] = []
    for cell, of in tuning.items():
        row: list[str | Bold] = [cell]
        for label in labels:
            loss = of["losses"].get(label)
            text = "diverged" if loss is None else f"{loss:.3f}"
            row.append(Bold(text) if label == of["chosen"] else text)
        rows.append(row)
    caption = "Loss in nats on text held out from training; bold: chosen"
    spent = sum(of["share"] * cells[cell]["flops"] for cell, of in tuning.items())
    judged = sum(cells[cell]["flops"] * len(cells[cell]["runs"]) for cell in tuning)
    note = (
        f"Each model was trained once with every value, for {_tried_steps(results)}, with a seed "
        "that is not reported, and judged on the end of the training text, which it did not read. "
        f"Losses of one row can be compared. This took {short(spent)} FLOPs, beside the "
        f"{short(judged)} of the runs that are reported."
    )
    notes: list[Part] = [note]
    for cell, of in tuning.items():
        if of["at_end"]:
            keys = _listed(of["at_end"])
            notes.append(
                f"{cell} chose the smallest or the largest value of {keys}; values beyond it may "
                "be better."
            )
    return [Table(["model", *labels], rows, caption), *notes, *_close_choices(results), *of_tasks]


def _close_choices(results: Results) -> list[str]:
    """Return a sentence for each model whose two best tries differ by no more than chance: by less
    than twice the standard error of the difference between two seeds.
    """
    tuning, sentences, is_known = results["tuning"], [], False
    for cell, of in tuning.items():
        losses = {label: loss for label, loss in of["losses"].items() if loss is not None}
        deviation = results["cells"][cell]["scores"].get("loss", {}).get("deviation")
        is_known |= deviation is not None
        if len(losses) < 2 or deviation is None:
            continue
        chosen, second = sorted(losses, key=losses.__getitem__)[:2]
        lead = losses[second] - losses[chosen]
        if lead < 2 * math.sqrt(2) * deviation:
            others = [name for name in tuning if tuning[name]["chosen"] == second]
            as_others = f", the choice of {_listed(others)}," if others else ""
            sentences.append(
                f"{cell} chose {chosen} by {lead:.2g} nats over {second}{as_others} and might "
                "choose otherwise with another seed: over its seeds, the loss has a standard "
                f"deviation of {deviation:.2g}."
            )
    if not is_known:
        return ["One seed does not tell whether another one would make the same choices."]
    return sentences


def _tried_steps(results: Results) -> str:
    """Return how long a try was, in words."""
    shares = {
        round(of["steps"] / results["cells"][cell]["steps"], 2)
        for cell, of in results["tuning"].items()
    }
    if shares == {1.0}:
        return "as many steps as here"
    return f"{' or '.join(f'{share:g}' for share in sorted(shares))} of the steps here"


def _other_objectives(results: Results) -> list[Part]:
    """Return the table of each model's validation loss under each objective it can express."""
    others, cells = results["other_objectives"], results["cells"]
    if not any(others.values()):
        return []
    members = {cell: members_of(of["objective"]) for cell, of in cells.items()}
    objectives = list(dict.fromkeys(chain.from_iterable(members.values())))
    rows: list[list[str | Bold]] = []
    for cell, of in cells.items():
        row: list[str | Bold] = [cell]
        for objective in objectives:
            loss, remark = others.get(cell, {}).get(objective), ""
            if [objective] == members[cell]:
                loss, remark = of["scores"].get("loss", {}).get("mean"), ", its own"
            row.append("–" if loss is None else f"{loss:.3f}{remark}")
        rows.append(row)
    caption = "Validation loss in nats; –: the model cannot be asked under this objective"
    note = (
        "Losses in a column can be compared if the models have rows of the same length. A model "
        "that has never seen a sentinel or a mask does badly for that reason."
    )
    return [Table(["model", *objectives], rows, caption), note]


def _ends_of_spans(results: Results) -> list[Part]:
    """Return the table of span bits with and without predicting the end of a span."""
    kinds = {
        "without_end": "it cannot end early",
        "beginning": "it can end early",
        "with_end": "and it ends there",
    }
    rows = [
        [cell, heading_of(span_score(context)), *(f"{of[kind]:.3f}" for kind in kinds)]
        for cell, contexts in results.get("span_ends", {}).items()
        for context, of in contexts.items()
    ]
    if not rows:
        return []
    note = (
        "Bits per byte of a span, for models that end what they fill in. The first column is that "
        "of the scores: EOS and all sentinels are left out at each token of the span. In the "
        "second, the model must also know that the span goes on, and in the third, that it ends "
        "where it does."
    )
    return [Table(["model", "score", *kinds.values()], rows), note]


# Curves.


def _learning_curves(results: Results) -> list[Part]:
    """Return charts of the scores of earlier checkpoints, of the loss (one per objective), and of
    TRAINING_CURVES.

    The x-axis is the unit that the cells are matched by; others can be chosen in a browser.
    """
    # For each unit and run, the amount that one step spends, which scales steps to that unit.
    units = dict.fromkeys([results["match"], *UNITS])
    axes: dict[str, dict[str, float]] = {UNITS[unit]: {} for unit in units}
    groups, all_runs = {}, {}
    by_objective: dict[str, dict[str, Any]] = {}
    for cell, of in results["cells"].items():
        for name, run in of["runs"].items():
            groups[name], all_runs[name] = cell, run
            by_objective.setdefault(of["objective"], {})[name] = run
            for unit in units:
                axes[UNITS[unit]][name] = of[unit] / of["steps"]
    draw = partial(charts.curves, axes=axes, groups=groups)

    parts: list[Part] = []
    for name, curves in _curves_by_score(all_runs).items():
        parts += draw({}, curves, y=heading_of(name))
    for objective, runs in by_objective.items():
        parts += draw(
            {name: run["curve"]["loss"] for name, run in runs.items()},
            {name: run["validation_curve"]["loss"] for name, run in runs.items()},
            y="loss, nats",
            caption=f"{objective}: thin lines for training, thick lines for validation",
        )
    for key, (title, unit, log) in TRAINING_CURVES.items():
        curves = {
            name: [(step, value / unit) for step, value in run["curve"].get(key, [])]
            for name, run in all_runs.items()
        }
        parts += draw(curves, {}, y=title, log=log)
    return parts


def _curves_by_score(runs: dict[str, Any]) -> dict[str, dict[str, list[list[float]]]]:
    """Return the curves of each score measured during training: score → run → curve.

    If some runs have an upper bound, exact figures are drawn among the bounds.
    """
    of_runs = {name: run.get("score_curves", {}) for name, run in runs.items()}
    names = in_order(score for curves in of_runs.values() for score in curves)
    if BOUND in names:
        names = [name for name in names if name != EXACT]
    found: dict[str, dict[str, list[list[float]]]] = {}
    for score in names:
        found[score] = {}
        for name, curves in of_runs.items():
            points = list(curves.get(score, []))
            if score == BOUND:
                points += curves.get(EXACT, [])
            smallest: dict[float, float] = {}
            for step, value in points:
                smallest[step] = min(value, smallest.get(step, value))
            found[score][name] = [[step, smallest[step]] for step in sorted(smallest)]
    return found


# What was equal for all cells.


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
        epochs = f"{of['epochs']:.1f}" if "epochs" in of else "–"  # results of an older version
        rows.append([*row, epochs, f"{of['padding']:.1%}", f"{of['rows_cut']:.0%}"])
    matched = results["match"]
    names = [f"{name} (matched)" if unit == matched else name for unit, name in UNITS.items()]
    heading = ["cell", "parameters", "FLOPs per sequence", *names, "epochs"]
    heading += ["padding", "rows cut"]
    if any(of.get("inherited") for of in cells.values()):
        heading.append(f"inherited {UNITS[matched]}")
        for row, of in zip(rows, cells.values(), strict=True):
            row.append(short(of["inherited"].get(matched, 0)))
    baselines = ", ".join(dict.fromkeys(of["baseline"] for of in cells.values()))
    return Table(heading, rows, f"Per run; (×…) is the ratio to {baselines} where they differ")


def _parity_notes(results: Results) -> list[Part]:
    """Return the paragraphs that define the units and say whether the cells read different text."""
    notes: list[Part] = [
        "Raw tokens: tokens of the text that was read. Model tokens: positions of encoder and "
        "decoder. Loss tokens: tokens that were predicted. FLOPs: matrix products that the "
        "mathematics needs, forward and backward. Epochs: how often the training text was read; "
        "after several texts, the last one."
    ]
    if any(of.get("inherited") for of in results["cells"].values()):
        notes.append(
            "Inherited: what was spent on the model that a cell starts from. What a cell has "
            "inherited beyond the others is part of its budget. Training elsewhere is not counted."
        )
    if any(of["rows_cut"] for of in results["cells"].values()):
        notes.append(
            "Rows cut: rows that run from one shuffled block of the text into another, and lose "
            "context by it. Cells with different shares cannot be compared fairly; equal windows "
            "(equal_windows=True) have none, unless data.block cuts them."
        )
    if results["texts"]:
        listed = ", ".join(results["texts"])
        notes.append(f"The cells do not read the same text: they differ in {listed}.")
        if "training text" in results["texts"] and results["counting"]:
            notes.append(f"The counted models have read that of {next(iter(results['cells']))}.")
        if "validation text" in results["texts"]:
            notes.append(
                "Spans come from the validation text of the first cell. Another cell may have been "
                "trained on some of it."
            )
    elif len(results["cells"]) > 1:
        notes.append("With the same seed, all cells read the same text in the same order.")
    if len(results["cells"]) > 1 and not _tuning(results):
        notes.append(
            "No setting was tuned for each cell: another learning rate, for example, may change "
            "which cell is best."
        )
    return notes


def _recipes(results: Results) -> list[Part]:
    """Return the table of the settings that differ between cells."""
    recipes, cells = results["recipes"], list(results["cells"])
    if not recipes:
        return []
    rows = []
    for key, of_cells in recipes.items():
        rows.append([key, *(str(of_cells[cell]) for cell in cells)])
    return [Table(["setting", *cells], rows, "All other settings are the same")]


# What was written, and environment.


# Kind of what a model has written → heading of its column
_KINDS = {"words": "likeliest words", "spans": "fills in", "continuation": "continues with"}


def _written(results: Results) -> list[Part]:
    """Return what the first run of each cell makes of each text: a quote of the trained model, or a
    table if earlier checkpoints were asked, too.
    """
    parts: list[Part] = []
    for cell, written in results["examples"].items():
        # A cell whose stages trained several kinds of models may read one text in several ways.
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for one in written:
            (kind,) = one.keys() & _KINDS.keys()
            groups.setdefault((one["text"], kind), []).append(one)
        last = results["cells"][cell]["steps"]
        for (text, kind), of_steps in groups.items():
            title = f"{cell}: {text}"
            if kind == "continuation":
                options = f"temperature {of_steps[0]['temperature']}, top_p {of_steps[0]['top_p']}"
                title += f" ({options})"
            # Reports of versions before score_curves have no step.
            if [one.get("step", last) for one in of_steps] == [last]:
                parts.append(Quote(title, _in_words(of_steps[0])))
            else:
                answers = [_in_words(one).replace("\n", " / ") for one in of_steps]
                steps = [f"{one['step']:,}" for one in of_steps]
                rows = list(zip(steps, answers, strict=True))
                parts.append(Table(["step", _KINDS[kind]], rows, one_line(title), texts=(1,)))
    return parts


def _in_words(written: Mapping[str, Any]) -> str:
    """Return what a model has written, with one line for each blank that it fills with words.

    >>> _in_words({"step": 9, "text": "a ___ b", "words": [[("cat", 0.5), ("dog", 0.25)]]})
    'cat 50.0%, dog 25.0%'
    >>> _in_words({"step": 9, "text": "a ___ b ___", "spans": [" cat", ""]})
    'cat | (nothing)'
    """
    if "continuation" in written:
        return written["continuation"]
    if "spans" in written:
        return " | ".join(span.strip() or "(nothing)" for span in written["spans"])
    lines = []
    for words in written["words"]:
        lines.append(", ".join(f"{word} {probability:.1%}" for word, probability in words))
    return "\n".join(lines)


def _environment(results: Results) -> list[Part]:
    rows = [["date", results["date"]]] if "date" in results else []
    rows += [[key, str(value)] for key, value in results["environment"].items()]
    hours = results.get("hours", {})
    if hours:
        shown = [f"{name} {_hours(amount)}" for name, amount in hours.items() if amount]
        rows.append(["hours", ", ".join([f"{_hours(sum(hours.values()))} in all", *shown])])
        if results["kilowatt_hours"]:
            energy = f"{_hours(results['kilowatt_hours'])} kWh"
            rows.append(["energy", f"{energy}, had all run on these devices at their rated power"])
    parts: list[Part] = [Table(["", ""], rows)] if rows else []
    if "config" in results:
        parts.append(
            "report.json has the whole config: t5x_lite rerun report.json --workdir=DIR reproduces "
            "this, to the last digit on the same machine with the same text and versions."
        )
    return parts


def _hours(hours: float) -> str:
    """Return hours as text: three digits.

    >>> _hours(0.0034), _hours(1.234), _hours(123.4)
    ('0.0034', '1.23', '123')
    """
    return f"{hours:.3g}"


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


def papers_of(results: Results) -> list[str]:
    """Return the keys in report.papers of the papers on the comparison's subject and methods."""
    methods = []
    if results["spans"]["count"]:
        methods.append("joshi2020")  # the lengths of spans
    if results.get("adapt_tokens"):
        methods.append("lester2021")
    if results["scaling"]:
        methods += ["hoffmann2022", "kaplan2020"]
        objectives = [of.get("objectives", {}) for of in results["scaling"].values()]
        if any(one.get("repeats") for of in objectives for one in of.values()):
            methods.append("muennighoff2023")
    if results.get("decisions"):
        methods.append("magnusson2025")
    return list(dict.fromkeys([*results.get("papers", []), *methods]))


def summary(results: Results) -> str:
    """Return the main results and the table of scores as Markdown, for a terminal."""
    first = Page(results["title"], _answer(results), [Section("Scores", [score_table(results)])])
    return page.markdown(first)
