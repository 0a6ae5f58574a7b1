"""Several runs under one budget, on the same text, and what came of them.

    config ─► plan: what a step of each cell costs, how many its budget buys
           ─► runs: each cell with each seed, an ordinary run in WORKDIR/NAME
           ─► scores: span bits per byte, validation loss, tasks, each with its interval
           ─► report.json, report.html, report.md, report.csv

The same command goes on where it was stopped, and finds finished what is finished.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from t5x_lite.config import CompareConfig, RunConfig, to_dict
from t5x_lite.config_files import flatten, load_run_config
from t5x_lite.data.rows.batches import TextData
from t5x_lite.data.rows.plan import RowPlan
from t5x_lite.data.rows.streams import TextStream
from t5x_lite.data.store.corpus import Corpus
from t5x_lite.data.store.prepare import prepare
from t5x_lite.errors import (
    BAD_CONFIG,
    INTERRUPTED,
    NO_FILE,
    TERMINATED,
    USAGE,
    UserError,
    foreseen_errors,
    nearest,
    read_json,
)
from t5x_lite.inference.fill import fill
from t5x_lite.inference.generate import continue_texts
from t5x_lite.resolve import Resolved, plan_objective, resolve, text_data
from t5x_lite.specs import NO_CODE, AllowedCode
from t5x_lite.study import report, task_report
from t5x_lite.study.budget import (
    StepCost,
    Timings,
    matmul_rate,
    spent,
    step_cost,
    steps_of_cells,
    with_budget,
)
from t5x_lite.study.environment import environment
from t5x_lite.study.jobs import run_jobs
from t5x_lite.study.ladder import laws_of
from t5x_lite.study.measure import Answers, Questions, check_tasks, measure
from t5x_lite.study.ngram import trigram_bits, unigram_bits
from t5x_lite.study.page import short
from t5x_lite.study.scores import Sample, Values, best_two, scores_of
from t5x_lite.study.span_bits import (
    Span,
    counted_bits,
    draw_spans,
    num_bytes,
    shortened,
    validation_documents,
)
from t5x_lite.training import metrics, run_directory
from t5x_lite.training.loop import train

Say = Callable[[str], None]

FROM_SCRATCH = ", from scratch"  # ends the names of scores of fresh parameters
# How the report's prompts are continued; the likeliest text of a small model repeats itself
SAMPLED = {"max_new_tokens": 48, "temperature": 0.8, "top_p": 0.9}


class Cell(NamedTuple):
    """One cell of a comparison, planned."""

    name: str
    resolved: Resolved  # of its first seed, with the steps that the budget buys
    data: TextData
    cost: StepCost  # of a step
    seconds: float  # that a step takes here, measured; or at least, if it is only to be told
    baseline: str  # the cell that it is compared with: the first of the same budget

    @property
    def corpus(self) -> Corpus:
        """The text that it reads."""
        return self.data.corpus

    @property
    def total(self) -> dict[str, float]:
        """What the whole run spends."""
        steps = self.resolved.config.training.steps
        return {unit: steps * amount for unit, amount in spent(self.cost, self.seconds).items()}


class SeededRun(NamedTuple):
    """A cell with one seed: an ordinary run."""

    cell: Cell
    seed: int
    directory: Path

    @property
    def name(self) -> str:
        """That of its directory."""
        return self.directory.name

    @property
    def resolved(self) -> Resolved:
        """Its config, with everything derived."""
        config = dataclasses.replace(self.cell.resolved.config, seed=self.seed)
        return dataclasses.replace(self.cell.resolved, config=config)

    @property
    def data(self) -> TextData:
        """What it reads, in the order of its seed."""
        return dataclasses.replace(self.cell.data, seed=self.seed)


# Planning.


def plan_cells(
    config: CompareConfig,
    workdir: Path,
    say: Say = print,
    allowed: AllowedCode = None,
    measured: bool = False,
) -> list[Cell]:
    """Every cell with its steps; what cannot be run is refused before anything is trained.

    Args:
        measured: whether a step of each is timed, which compiles it, though no step depends on it.
    """
    cells = with_shared_block(config.cells, allowed)
    seeds = {cell.seed for cell in cells.values()}
    if len(seeds) > 1:
        reason = f"cells differ in it ({sorted(seeds)}), and so in the order of their text"
        raise UserError(BAD_CONFIG, f"seed: {reason}; set the base's, and seeds for several")
    resolved, data, costs = {}, {}, {}
    for name, cell in cells.items():
        if cell.task.name:
            raise UserError(BAD_CONFIG, f"cells.{name}.task: cells learn objectives; leave it out")
        if cell.data.epochs:
            reason = "the budget says how long a cell is trained; leave it out"
            raise UserError(BAD_CONFIG, f"cells.{name}.data.epochs: {reason}")
        corpus = prepare(cell.data, say, allowed)
        resolved[name] = resolve(cell, corpus.tokenizer.vocabulary, allowed=allowed)
        data[name] = text_data(resolved[name], corpus)
        costs[name] = step_cost(resolved[name], data[name])
    _check_texts(config, resolved, data)

    timings = Timings(workdir / "seconds_per_step.json")
    seconds = {}
    for name in cells:
        if measured or config.match == "seconds":
            announce = partial(say, f"{name}: measuring a step")
            seconds[name] = timings.of(resolved[name], data[name], announce)
        else:
            seconds[name] = costs[name].flops / matmul_rate(resolved[name].model.dtype)
    spent_by_cell = {name: spent(costs[name], seconds[name]) for name in cells}
    planned = []
    for budget in config.budgets or (config.budget,):
        steps = steps_of_cells(config, budget, spent_by_cell)
        suffix = _suffix(config, budget)
        baseline = next(iter(cells)) + suffix
        for name, cell in cells.items():
            budgeted = with_budget(cell, steps[name], config.evaluations)
            of_cell = dataclasses.replace(resolved[name], config=budgeted, steps=steps[name])
            of_data = dataclasses.replace(data[name], data=budgeted.data)
            planned.append(
                Cell(name + suffix, of_cell, of_data, costs[name], seconds[name], baseline)
            )
    return planned


def names_of_cells(config: CompareConfig) -> list[str]:
    """The names of all cells, each under each budget."""
    budgets = config.budgets or (config.budget,)
    return [name + _suffix(config, budget) for budget in budgets for name in config.cells]


def _suffix(config: CompareConfig, budget: float) -> str:
    return f"-{short(budget).replace(' ', '')}" if config.budgets else ""


def plan_comparison(
    config: CompareConfig,
    workdir: Path,
    say: Say = print,
    allowed: AllowedCode = None,
    only: Sequence[str] = (),
    measured: bool = False,
) -> tuple[list[Cell], list["SeededRun"], Questions]:
    """All that is planned and refused before anything is trained; see plan_cells and compare."""
    cells = plan_cells(config, workdir, say, allowed, measured)
    runs = seeded_runs(config, cells, workdir)
    known = dict.fromkeys(name for run in runs for name in (run.cell.name, run.name))
    for name in only:
        if name not in known:
            raise UserError(USAGE, f"--cells={name}: no such cell; {nearest(name, known)}")
    for run in runs:
        _check_same_budget(run)
    questions = questions_of(config, cells)
    check_tasks(questions, {cell.name: cell.resolved.config for cell in cells}, say, allowed)
    return cells, runs, questions


def _check_same_budget(run: SeededRun) -> None:
    """Refuse a run that was begun with another number of steps: its schedule was another."""
    path = run.directory / "config.json"
    if not path.exists():
        return
    before, now = (config.training.steps for config in (load_run_config(path), run.resolved.config))
    if before != now:
        reason = f"it was planned for {before:,} steps, now for {now:,}"
        mend = "give the budget that it was begun with, or name another --workdir"
        raise UserError(BAD_CONFIG, f"budget: the run in {run.directory}: {reason}; {mend}")


def with_shared_block(
    cells: dict[str, RunConfig], allowed: AllowedCode = None
) -> dict[str, RunConfig]:
    """The cells with one data.block, that of the longest window, so that all read the same text in
    the same order, whatever their windows are.
    """
    plans = [plan_objective(cell, allowed) for cell in cells.values()]
    windows = {member.window for plan in plans for member in plan.members}
    block = max(windows) if len(windows) > 1 else 0
    shared = {}
    for name, cell in cells.items():
        data = dataclasses.replace(cell.data, block=cell.data.block or block)
        shared[name] = dataclasses.replace(cell, data=data)
    return shared


def _check_texts(
    config: CompareConfig, resolved: dict[str, Resolved], data: dict[str, TextData]
) -> None:
    """Refuse, before hours of training, texts that no model could answer."""
    for key in ("blanks", "spans", "prompts"):
        for text in getattr(config, key):
            needs_blank = key != "prompts"
            if not isinstance(text, str) or not text or (needs_blank and "___" not in text):
                expected = "a text with ___" if needs_blank else "a text"
                raise UserError(BAD_CONFIG, f"{key}: got {text!r}, expected {expected}")
            for name, of_cell in resolved.items():
                lengths = of_cell.config.data.lengths
                room = max(lengths.sequence_length, lengths.inputs)
                if len(data[name].tokenizer.encode(text)) + 4 > room:
                    reason = f"is longer than a row of {name}, {room} tokens"
                    raise UserError(BAD_CONFIG, f"{key}: {text!r} {reason}; shorten it")


def seeded_runs(config: CompareConfig, cells: Sequence[Cell], workdir: Path) -> list[SeededRun]:
    """Every cell with every seed: the first seed of all cells first."""
    runs = []
    for number in range(config.seeds):
        for cell in cells:
            seed = cell.resolved.config.seed + number
            name = f"{cell.name}-seed{seed}" if number else cell.name
            runs.append(SeededRun(cell, seed, workdir / name))
    names = [run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise UserError(BAD_CONFIG, f"cells: two runs would be called {name}; rename one")
    return runs


def order_of_text(cell: Cell) -> dict[str, Any]:
    """What decides which tokens a cell reads, in which order: alike in all cells, unless their axes
    are of the data.
    """
    batches = cell.data.batches("train")
    shares: dict[str, float] = {}
    blocks = set()
    for stream, share in zip(batches.streams, batches.shares.tolist(), strict=True):
        if isinstance(stream, TextStream):
            blocks.add(stream.block or 0)
            shares[stream.source] = round(shares.get(stream.source, 0.0) + share, 4)
    return {
        "tokenizer": cell.corpus.manifest["tokenizer"],
        "training text": cell.corpus.manifest["train"]["sha256"],
        "validation text": cell.corpus.manifest["validation"]["sha256"],
        "shares of the sources": shares,
        "data.block": sorted(blocks),
    }


def plan_in_words(config: CompareConfig, cells: Sequence[Cell], at_least: bool = False) -> str:
    """The parity sheet, with the time and the disk that all runs will take.

    Args:
        at_least: whether the time is that of the matrix products alone.
    """
    time = "time, at least" if at_least else "time"
    rows = [["cell", "parameters", "steps", "raw tokens", "model tokens", "FLOPs", "padding", time]]
    for cell in cells:
        total = cell.total
        spent = [short(total[unit]) for unit in ("raw_tokens", "model_tokens", "flops")]
        rows.append(
            [
                cell.name,
                short(cell.cost.parameters),
                f"{total['steps']:,.0f}",
                *spent,
                f"{cell.cost.padding:.1%}",
                _duration(total["seconds"]),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *others = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        lines.append("  ".join([first, *(text.strip().rjust(len(text)) for text in others)]))
    seconds = config.seeds * sum(cell.total["seconds"] for cell in cells)
    # A checkpoint is written beside the one before, which then goes.
    disk = config.seeds * sum(cell.cost.state_bytes for cell in cells)
    matched = f"matched by {config.match.replace('_', ' ')}"
    duration = f"at least {_duration(seconds)}" if at_least else _duration(seconds)
    lines.append(
        f"{matched}; {len(cells)} cells × {config.seeds} seeds: {duration} of training, "
        f"{disk / 1e6:,.0f} MB of checkpoints"
    )
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> _duration(42), _duration(600), _duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


# Running.


def compare(
    config: CompareConfig,
    workdir: Path,
    say: Say = print,
    allowed: AllowedCode = None,
    only: Sequence[str] = (),
    jobs: int = 1,
) -> dict[str, Any]:
    """Train every cell with every seed, on from where it is, and write the report.

    Args:
        only: cells, or single runs, that are trained here; empty: all.
        jobs: how many runs are trained at once, each on its share of the cores.

    Returns:
        what the report shows; nothing, where only some cells are trained.

    Raises:
        UserError: for what cannot be run, before anything is trained; and at the end where a run
            failed, which the others do not wait for.
    """
    cells, runs, questions = plan_comparison(config, workdir, say, allowed, only)
    say(plan_in_words(config, cells, at_least=config.match != "seconds"))
    chosen = [run for run in runs if not only or {run.name, run.cell.name} & set(only)]
    if jobs > 1:
        failed = run_jobs(
            {
                run.name: (train_run, (run.resolved.config, run.directory, questions, allowed))
                for run in chosen
            },
            jobs,
            workdir / "logs",
            say,
        )
    else:
        failed = train_in_turn(chosen, questions, say, allowed)
    finished = [run for run in chosen if run.name not in failed]
    results: dict[str, Any] = {}
    if only:
        say("no report yet: the same command without --cells trains what is left, and writes it")
    elif finished:
        results = results_of(config, cells, finished, failed, questions, allowed)
        report.write(results, workdir)
    if failed:
        name, error = next(iter(failed.items()))
        raise UserError(error.code, f"{len(failed)} of {len(chosen)} runs failed: {name}: {error}")
    return results


def train_in_turn(
    runs: Sequence[SeededRun], questions: Questions, say: Say, allowed: AllowedCode
) -> dict[str, UserError]:
    """Train one run after another; the errors of those that failed."""
    failed = {}
    for run in runs:
        say(f"{run.name}: training in {run.directory}")
        try:
            with foreseen_errors():
                train(run.resolved, run.data, run.directory)
                measure(run.directory, questions, say, allowed)
        except UserError as error:
            if error.code in (INTERRUPTED, TERMINATED):
                raise
            failed[run.name] = error
            say(f"{run.name}: {error}")
    return failed


def train_run(
    config: RunConfig, directory: Path, questions: Questions, allowed: AllowedCode
) -> None:
    """The same of one run in a process of its own."""
    corpus = prepare(config.data, print, allowed)
    resolved = resolve(config, corpus.tokenizer.vocabulary, allowed=allowed)
    with foreseen_errors():
        train(resolved, text_data(resolved, corpus), directory)
        measure(directory, questions, print, allowed)


# Scores.


def questions_of(config: CompareConfig, cells: Sequence[Cell]) -> Questions:
    """What all runs are asked."""
    objectives = dict.fromkeys(cell.resolved.config.objective for cell in cells)
    return Questions(
        spans=spans_of(config, cells),
        objectives=tuple(objectives) if config.other_objectives else (),
        tasks=config.tasks,
        settings=config.finetune,
        from_scratch=config.from_scratch,
    )


def spans_of(config: CompareConfig, cells: Sequence[Cell]) -> list[Span]:
    """The held-out spans that all models are asked for: of the validation text of the first cell,
    with as much around them as the rows of all have room for.
    """
    if not config.span_count:
        return []
    documents = validation_documents(cells[0].corpus)
    spans = draw_spans(documents, config.span_count, config.span_context)
    rows = {
        (cell.data.tokenizer, cell.resolved.config.data.lengths): None for cell in cells
    }  # most cells share theirs
    fitting = shortened(spans, list(rows))
    if not fitting:
        reason = "no span with some words before it fits the rows of all cells, or there is no text"
        raise UserError(BAD_CONFIG, f"span_count: {reason}; set longer rows, or span_count=0")
    return fitting


def results_of(
    config: CompareConfig,
    cells: Sequence[Cell],
    runs: Sequence[SeededRun],
    failed: dict[str, UserError],
    questions: Questions,
    allowed: AllowedCode = None,
) -> dict[str, Any]:
    """Everything that the report shows, as data."""
    corpus = cells[0].corpus
    spans = questions.spans
    sample = Sample(num_bytes(spans), np.array([span.passage for span in spans], int))
    summaries = {run.name: summarise(run) for run in runs}
    values: dict[str, dict[int, Values]] = {cell.name: {} for cell in cells}
    losses: dict[str, list[dict[str, float]]] = {cell.name: [] for cell in cells}
    for run in runs:
        answers = measure(run.directory, questions, allowed=allowed)
        losses[run.cell.name].append(answers.losses)
        of_spans = {f"span_bits_{context}": bits for context, bits in answers.span_bits.items()}
        of_validation = {
            key: summaries[run.name][key]
            for key in ("loss", "accuracy", "bits_per_byte")
            if key in summaries[run.name]
        }
        values[run.cell.name][run.seed] = {
            **{name: np.array(bits) for name, bits in of_spans.items()},
            **of_tasks(answers),
            **of_validation,
        }
    recipes = differing({cell.name: flatten(to_dict(cell.resolved.config)) for cell in cells})
    asked = {cell.name: questions_behind(cell) for cell in cells}
    baselines = {cell.name: cell.baseline for cell in cells}
    scores = scores_of(values, sample, asked, baselines)
    # With several budgets: of those with the last.
    rivals = {cell.name: values[cell.name] for cell in cells if cell.baseline == cells[-1].baseline}
    of_cells = {}
    for cell in cells:
        own = {run.name: summaries[run.name] for run in runs if run.cell is cell}
        of_cells[cell.name] = {**_spent_by(cell, own), "runs": own, "scores": scores[cell.name]}
    return {
        "title": config.title,
        "match": config.match,
        "seeds": config.seeds,
        "cells": of_cells,
        "failed": {name: str(error) for name, error in failed.items()},
        "recipes": recipes,
        "texts": differing({cell.name: order_of_text(cell) for cell in cells}),
        "best": {
            name: best_two(rivals, sample, name, lowest=report.is_lower_better(name))
            for name in dict.fromkeys(name for of in scores.values() for name in of)
            if len({of_cell.get(name) for of_cell in asked.values()}) == 1
            and not name.endswith(FROM_SCRATCH)
        },
        "other_objectives": {
            name: {objective: mean(run[objective] for run in of_runs) for objective in of_runs[0]}
            for name, of_runs in losses.items()
            if of_runs
        },
        "spans": {
            "count": len(spans),
            "bytes": int(sample.sizes.sum()),
            "passages": len(set(sample.passages.tolist())),
        },
        "counting": counting(config, corpus, spans),
        "corpus": {
            name: {key: corpus.manifest[name][key] for key in ("documents", "tokens", "bytes")}
            for name in ("train", "validation")
        },
        "lossless": corpus.manifest["lossless"],
        "examples": examples(config, runs, allowed),
        "environment": environment(),
        "scaling": laws_of(of_cells, recipes),
    }


def _spent_by(cell: Cell, summaries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What a cell is and costs, with the seconds that its runs took."""
    config = cell.resolved.config
    seconds = [summary["seconds"] for summary in summaries.values()]
    return {
        "objective": config.objective,
        "architecture": config.model.architecture,
        "question": questions_behind(cell),
        "baseline": cell.baseline,
        "parameters": cell.cost.parameters,
        "flops_per_sequence": cell.cost.flops_per_sequence,
        "padding": cell.cost.padding,
        "loss_tokens": config.training.steps * cell.cost.loss_tokens,
        **cell.total,
        "seconds": mean(seconds or [cell.total["seconds"]]),
    }


def of_tasks(answers: Answers) -> dict[str, float]:
    """What a run reached on tasks, by the first metric of each: the scores of a report.

    >>> learned, fresh = {"cb": {"accuracy": 0.7, "f1": 0.5}}, {"cb": {"accuracy": 0.6, "f1": 0.4}}
    >>> of_tasks(Answers({}, {}, learned, fresh))
    {'cb: accuracy': 0.7, 'cb: accuracy, from scratch': 0.6}
    """
    reached = {}
    for suffix, of_all in (("", answers.tasks), (FROM_SCRATCH, answers.from_scratch)):
        for task, of_task in of_all.items():
            metric, value = next(iter(of_task.items()))
            reached[f"{task}: {metric.replace('_', ' ')}{suffix}"] = value
    return reached


def differing(of_cells: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What is not the same in all cells: key → cell → value.

    >>> differing({"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}})
    {'y': {'a': 2, 'b': 3}}
    """
    keys = next(iter(of_cells.values()))
    rows = {key: {name: values[key] for name, values in of_cells.items()} for key in keys}
    return {
        key: row
        for key, row in rows.items()
        if any(value != next(iter(row.values())) for value in row.values())
    }


def questions_behind(cell: Cell) -> dict[str, str]:
    """Score → what it is of, where that may differ from cell to cell: losses of another objective,
    of other tokens or of another text do not compare.
    """
    text = cell.corpus.manifest["validation"]["sha256"]
    own = f"{cell.resolved.rows}, tokenizer {cell.corpus.manifest['tokenizer']}, text {text}"
    return {"loss": own, "accuracy": own, "bits_per_byte": text}


def summarise(run: SeededRun) -> dict[str, Any]:
    """What a run recorded: its last evaluation, its curves, how fast it was."""
    records = metrics.read(run.directory / "metrics.jsonl")
    trained = [record for record in records if record["split"] == "train"]
    evaluated = [record for record in records if record["split"] == "validation"]
    if not trained or not evaluated:
        reason = "the run has not been evaluated yet"
        raise UserError(
            NO_FILE, f"{run.directory}: {reason}; let it go on, or set training.eval_every"
        )
    last = evaluated[-1]
    seconds = sum(record["train_seconds"] for record in trained)
    curves = ("loss", "learning_rate", "gradient_norm")
    summary = {
        "seed": run.seed,
        "steps": trained[-1]["step"],
        "seconds": seconds,
        "tokens_per_second": trained[-1]["step"] * run.cell.cost.model_tokens / seconds,
        "loss": last["loss"],
        "accuracy": last["accuracy"],
        "curve": {name: _curve(trained, name) for name in curves},
        "validation_curve": {"loss": _curve(evaluated, "loss")},
    }
    if run.cell.resolved.rows.scores_whole_text:
        summary["bits_per_byte"] = bits_per_byte(last, run.cell.corpus)
    return summary


def _curve(records: list[dict], name: str) -> list[list[float]]:
    return [[record["step"], record[name]] for record in records if name in record]


def bits_per_byte(evaluated: dict, corpus: Corpus) -> float:
    """Of a causal model's validation metrics: bits for all tokens, EOS counted, by bytes of the
    text.
    """
    bits = evaluated["loss"] * evaluated["loss_tokens"] / math.log(2)
    return bits / corpus.manifest["validation"]["bytes"]


def counting(
    config: CompareConfig, corpus: Corpus, spans: Sequence[Span]
) -> dict[str, dict[str, float]]:
    """Bits per byte by the classical models of the same tokens: of the whole validation text, EOS
    counted, and of the spans.
    """
    if not config.ngram:
        return {}
    train_tokens, held_out = corpus.tokens["train"], corpus.tokens["validation"]
    vocab_size = corpus.tokenizer.vocabulary.size
    whole = corpus.manifest["validation"]["bytes"]
    counted = {
        "unigram": {"bits_per_byte": unigram_bits(train_tokens, held_out, vocab_size) / whole},
        "Kneser-Ney trigram": {
            "bits_per_byte": trigram_bits(train_tokens, held_out, vocab_size) / whole
        },
    }
    if spans:
        for name, bits in counted_bits(corpus, spans).items():
            counted[name]["span_bits_left"] = float(bits.sum() / num_bytes(spans).sum())
    return counted


def examples(
    config: CompareConfig,
    runs: Sequence[SeededRun],
    allowed: AllowedCode = NO_CODE,
) -> dict[str, list[dict]]:
    """What each cell, with its first seed, does with the config's texts."""
    answers = {}
    for run in runs:
        if run.cell.name in answers:
            continue
        loaded = run_directory.load(run.directory, allowed=allowed)
        if loaded.rows.masked:
            of_cell = [{"text": text, "words": fill(loaded, text)} for text in config.blanks]
        elif loaded.rows.uses_sentinels:
            of_cell = [{"text": text, "spans": fill(loaded, text)} for text in config.spans]
        else:
            continued = continue_texts(loaded, list(config.prompts), **SAMPLED)
            pairs = zip(config.prompts, continued, strict=True)
            of_cell = [{"text": text, "continuation": more, **SAMPLED} for text, more in pairs]
        answers[run.cell.name] = of_cell
    return answers


# Reports of what is there already.


def write_report(
    workdir: Path, runs: Sequence[Path] = (), say: Say = print, allowed: AllowedCode = NO_CODE
) -> None:
    """Write a report into `workdir`: of runs side by side; or, where none are named, what a
    comparison or fine-tuning left there once more, or of the one run that it holds.
    """
    path = workdir / "report.json"
    if path.is_file() and not runs:
        results = read_json(path, "run the command that wrote it again")
        is_task = "task" in results
        try:
            (task_report if is_task else report).write(results, workdir)
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            command = "finetune" if is_task else "compare"
            lacks = f", which lacks {error}" if isinstance(error, KeyError) else f" ({error})"
            reason = f"is not the report of {command}{lacks}"
            raise UserError(NO_FILE, f"{path}: {reason}; run {command} again") from error
        return
    config, trained = existing_runs(runs or [workdir], say, allowed)
    cells = [run.cell for run in trained]
    questions = questions_of(config, cells)
    workdir.mkdir(parents=True, exist_ok=True)
    report.write(results_of(config, cells, trained, {}, questions, allowed), workdir)


def existing_runs(
    directories: Sequence[Path], say: Say = print, allowed: AllowedCode = NO_CODE
) -> tuple[CompareConfig, list[SeededRun]]:
    """Trained runs as the cells of a comparison, whatever they were trained for."""
    runs = []
    for directory in directories:
        resolved, _ = run_directory.read(directory, allowed)
        if not isinstance(resolved.rows, RowPlan):
            reason = "has no report.json, which finetune leaves in its --workdir at the end"
            raise UserError(USAGE, f"{directory}: {reason}: name that, or run the same again")
        data = text_data(resolved, prepare(resolved.config.data, say, allowed))
        run_directory.check_same_text(directory, data)
        trained = [
            record
            for record in metrics.read(directory / "metrics.jsonl")
            if record["split"] == "train"
        ]
        steps = trained[-1]["step"] if trained else 1
        seconds = sum(record["train_seconds"] for record in trained) / steps
        training = dataclasses.replace(resolved.config.training, steps=steps)
        config = dataclasses.replace(resolved.config, training=training)
        resolved = dataclasses.replace(resolved, config=config)
        name = directory.resolve().name
        first = runs[0].cell.name if runs else name
        cell = Cell(name, resolved, data, step_cost(resolved, data), seconds, first)
        if name in (run.cell.name for run in runs):
            reason = f"two runs are called {name}, and would be one in the report; rename one"
            raise UserError(USAGE, f"{directory}: {reason}")
        runs.append(SeededRun(cell, config.seed, directory))
    title = ", ".join(run.name for run in runs)
    cells = {run.name: run.cell.resolved.config for run in runs}
    # One run alone has nothing that its spans would be compared with.
    span_count = CompareConfig.span_count if len(runs) > 1 else 0
    return CompareConfig(title, cells, span_count=span_count), runs
