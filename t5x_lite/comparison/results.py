"""Results of a comparison as data: everything that its report shows."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from t5x_lite.comparison import report
from t5x_lite.comparison.adaptation import ADAPTED_RUN
from t5x_lite.comparison.cells import Cell, SeededRun, names_by_budget, order_of_text
from t5x_lite.comparison.decisions import decision_accuracy
from t5x_lite.comparison.effects import effects_of
from t5x_lite.comparison.evaluations import (
    Answers,
    Questions,
    ScoreCurves,
    TaskAnswer,
    is_learned,
    measure,
)
from t5x_lite.comparison.ladder import laws_of
from t5x_lite.comparison.ngram import trigram_bits, unigram_bits
from t5x_lite.comparison.scores import (
    ADAPTED,
    FROM_SCRATCH,
    in_order,
    is_lower_better,
    name_of_task_score,
    span_score,
)
from t5x_lite.comparison.span_bits import Span, counted_bits, num_bytes
from t5x_lite.comparison.statistics import (
    Rule,
    Sample,
    Values,
    scored_cells,
    scores_of,
)
from t5x_lite.config import CompareConfig, RunConfig, to_dict
from t5x_lite.config.files import flatten, label_of
from t5x_lite.config.schema import TUNING
from t5x_lite.config.stages import in_words
from t5x_lite.data.store.corpus import Corpus
from t5x_lite.data.tasks.baselines import counted_answers
from t5x_lite.data.tasks.examples import load_split, with_labels_of
from t5x_lite.data.tasks.kinds.table import metrics_of
from t5x_lite.data.tasks.load import load_task
from t5x_lite.data.tasks.metrics import UnitScores, unit_scores
from t5x_lite.errors import NO_FILE, UserError
from t5x_lite.hardware import chip_of
from t5x_lite.report.environment import environment
from t5x_lite.training.log import read_metrics
from t5x_lite.training.stages import Stage
from t5x_lite.training.whole_text import BOUND, EXACT, validation_text, whole_text_bits


def results_of(
    config: CompareConfig,
    cells: Sequence[Cell],
    runs: Sequence[SeededRun],
    failed: dict[str, UserError],
    questions: Questions,
    looks: int = 1,
    tuning: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return everything that the report shows, evaluating the runs where needed.

    Args:
        runs: the runs that finished.
        failed: the errors of the others, by run.
        questions: extra evaluations of every run.
        looks: number of times that the results may be looked at, with more seeds each time.
        tuning: how the cells were tuned, from tune.tuned_cells.
    """
    corpus, spans = cells[0].corpus, questions.spans
    sample = Sample(num_bytes(spans), np.array([span.passage for span in spans], int))
    summaries = {run.name: summarise(run) for run in runs}
    answers = {run.name: measure(run.directory, questions, run.trunks) for run in runs}
    for name, of_run in answers.items():
        _add_asked(summaries[name], of_run)
    values, samples, asked = _scores_of_runs(cells, runs, answers, summaries, sample)
    tasks = {name: one for of_run in answers.values() for name, one in of_tasks(of_run).items()}
    counted_units = counting_on_tasks(questions, tasks)

    # Compare the scores between cells, and list the settings in which the cells differ.
    recipes = differing({cell.name: _recipe(cell.config) for cell in cells})
    baselines = {cell.name: cell.baseline for cell in cells}
    rule = rule_of(config, values, asked, looks)
    scored = scored_cells(values, samples)
    scores = scores_of(values, samples, asked, baselines, is_lower_better, rule, counted_units)
    of_cells, of_runs = {}, {}
    for cell in cells:
        of_runs[cell.name] = [answers[run.name] for run in runs if run.cell is cell]
        own = {run.name: summaries[run.name] for run in runs if run.cell is cell}
        of_cells[cell.name] = {**_spent_by(cell, own), "runs": own, "scores": scores[cell.name]}
    return {
        "title": config.title,
        "match": config.match,
        "seeds": config.seeds,
        "rule": rule._asdict(),
        "cells": of_cells,
        # With several budgets, each has a table of its own.
        "effects": {} if config.budgets else effects_of(scored, asked, rule),
        "decisions": decision_accuracy(names_by_budget(config), scored, asked, rule),
        "failed": {name: str(error) for name, error in failed.items()},
        "recipes": recipes,
        "tuning": dict(tuning),
        "texts": differing({cell.name: order_of_text(cell) for cell in cells}),
        "other_objectives": {name: _mean_losses(of) for name, of in of_runs.items() if of},
        "spans": _sizes_of_spans(sample),
        "span_ends": {name: ends_of_spans(of, sample.sizes) for name, of in of_runs.items()},
        "adapt_tokens": config.adapt_tokens,
        "papers": list(config.papers),
        "counting": counting(config, corpus, spans) | by_model(counted_units),
        "finetune": list(config.finetune),
        "tasks": {name: _examples_of(name, answers) for name in tasks},
        "corpus": _sizes_of(corpus),
        "lossless": corpus.manifest["lossless"],
        "examples": {name: of[0].written for name, of in of_runs.items() if of},
        "date": datetime.now(UTC).date().isoformat(),
        "environment": environment(),
        "scaling": laws_of(of_cells, recipes, flatten(config.tune)),
    }


def _add_asked(summary: dict[str, Any], answers: Answers) -> None:
    """Add a run's scores of the whole text, and those of earlier checkpoints, to its summary."""
    summary |= answers.whole_text
    curves = summary["score_curves"]
    for score, points in answers.curves.items():  # from other stages than the points already there
        curves[score] = sorted([*curves.get(score, []), *points])


def _sizes_of(corpus: Corpus) -> dict[str, dict[str, Any]]:
    """Return the documents, tokens, bytes and hash of each split."""
    names = ("documents", "tokens", "bytes", "sha256")
    return {
        split: {key: corpus.manifest[split][key] for key in names}
        for split in ("train", "validation")
    }


def _sizes_of_spans(sample: Sample) -> dict[str, int]:
    """Return how many spans there are, their bytes, and the passages that they come from."""
    return {
        "count": len(sample.sizes),
        "bytes": int(sample.sizes.sum()),
        "passages": len(set(sample.clusters.tolist())),
    }


def _recipe(config: RunConfig) -> dict[str, Any]:
    """Return the settings of a cell by key, with its stages in words."""
    settings = flatten(to_dict(config))
    return settings | {"stages": " → ".join(in_words(config))} if config.stages else settings


def _scores_of_runs(
    cells: Sequence[Cell],
    runs: Sequence[SeededRun],
    answers: Mapping[str, Answers],
    summaries: Mapping[str, Mapping[str, Any]],
    of_spans: Sample,
) -> tuple[dict[str, dict[int, Values]], dict[str, dict[str, Sample]], dict[str, dict[str, str]]]:
    """Return the values of all scores, their samples, and what they measure, in the forms that
    statistics.scores_of takes.
    """
    values: dict[str, dict[int, Values]] = {cell.name: {} for cell in cells}
    samples: dict[str, dict[str, Sample]] = {cell.name: {} for cell in cells}
    asked = {cell.name: questions_behind(cell) for cell in cells}
    for run in runs:
        of_run, cell = answers[run.name], run.cell.name
        values[cell][run.seed] = _values_of(of_run, summaries[run.name])
        for context in of_run.span_bits:
            samples[cell][span_score(context)] = of_spans
        if of_run.adapted_bits:
            samples[cell][ADAPTED] = of_spans
        for name, answer in of_tasks(of_run).items():
            samples[cell][name] = sample_of(answer)
            asked[cell][name] = question_behind(answer)
    # An exact figure is also a bound, so models with one can be compared with models that only have
    # a bound.
    if any(BOUND in summary for summary in summaries.values()):
        for of_cell in values.values():
            for seed, of_run in of_cell.items():
                if EXACT in of_run:
                    known = (of_run[name] for name in (EXACT, BOUND) if name in of_run)
                    of_cell[seed] = {**of_run, BOUND: min(map(float, known))}
    return values, samples, asked


def _examples_of(name: str, answers: Mapping[str, Answers]) -> dict[str, Any]:
    """Return the examples that a task's score is measured on, the settings that each run chose for
    the task, and the head that each run answers with.
    """
    found: dict[str, Any] = {"chosen": {}, "heads": {}}
    for run, of_run in answers.items():
        answer = of_tasks(of_run).get(name)
        if answer is None:
            continue
        found |= {"on": answer["on"], "examples": answer["examples"]}
        if chosen := answer.get("chosen"):
            found["chosen"][run] = label_of(chosen)
        if head := answer.get("head"):
            found["heads"][run] = head
    return found


def _mean_losses(answers: Sequence[Answers]) -> dict[str, float]:
    """Return the mean loss under each objective over the seeds of a cell."""
    return {name: mean(one.losses[name] for one in answers) for name in answers[0].losses}


def ends_of_spans(answers: Sequence[Answers], num_bytes: np.ndarray) -> dict[str, dict[str, float]]:
    """Return the bits per byte of spans with and without their ends, for models that end what they
    fill in: context → fields of span_bits.SpanBits → mean over seeds.

    Args:
        answers: the answers of a cell's runs.
        num_bytes: [spans], the size of each span.
    """
    found: dict[str, dict[str, float]] = {}
    for context, kinds in (answers[0].span_bits if answers else {}).items():
        if "with_end" not in kinds:
            continue
        found[context] = {}
        for kind in kinds:
            bits = mean(sum(one.span_bits[context][kind]) for one in answers)
            found[context][kind] = float(bits / num_bytes.sum())
    return found


def question_behind(answer: TaskAnswer) -> str:
    """Return what a task's score measures; see questions_behind."""
    return ", ".join((answer["method"], answer["split"], answer["fingerprint"]))


def sample_of(answer: TaskAnswer) -> Sample:
    """Return the examples, or groups of them, that a task's score is a mean over."""
    units = UnitScores(**answer["units"])
    bounds = None if units.bounds is None else (units.bounds[0], units.bounds[1])
    return Sample(np.ones(len(units.amounts)), np.array(units.clusters), bounds, units.count)


def by_model(counted: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, dict[str, float]]:
    """Return the scores on tasks of models that only count: model → score → value.

    >>> by_model({"rte: accuracy": {"bag of words": np.array([0.0, 1.0])}})
    {'bag of words': {'rte: accuracy': 0.5}}
    """
    values: dict[str, dict[str, float]] = {}
    for name, of_models in counted.items():
        for model, amounts in of_models.items():
            values.setdefault(model, {})[name] = float(amounts.mean())
    return values


def rule_of(
    config: CompareConfig,
    values: Mapping[str, Mapping[int, Values]],
    asked: Mapping[str, Mapping[str, str]],
    looks: int,
) -> Rule:
    """Return the rule by which the comparison reaches its verdicts.

    If the config names no score to decide by, it is the first score of the report in which two
    cells can be compared.
    """
    names = in_order(
        name for of_cell in values.values() for of_run in of_cell.values() for name in of_run
    )
    compared = ""
    for name in names:
        having = [cell for cell in values if any(name in run for run in values[cell].values())]
        questions = [asked[cell].get(name) for cell in having]
        if len(questions) > len(set(questions)):
            compared = name
            break
    return Rule(config.alpha, looks, config.effect, config.decide_by or compared)


def _values_of(answers: Answers, summary: Mapping[str, Any]) -> Values:
    """Collect the scores of one run: of spans, of tasks, and of its validation split."""
    of_spans = {
        span_score(context): kinds["without_end"] for context, kinds in answers.span_bits.items()
    }
    if answers.adapted_bits:
        of_spans[ADAPTED] = answers.adapted_bits
    of_validation = ("loss", "accuracy", EXACT, BOUND)
    return {
        **{name: np.array(bits) for name, bits in of_spans.items()},
        **{name: np.array(one["units"]["amounts"]) for name, one in of_tasks(answers).items()},
        **{key: summary[key] for key in of_validation if key in summary},
    }


def _spent_by(cell: Cell, summaries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the description and cost of a cell, with the mean duration of its runs in seconds."""
    config = cell.resolved.config
    seconds = [summary["seconds"] for summary in summaries.values()]
    return {
        "objective": config.objective,
        "architecture": config.model.architecture,
        "question": questions_behind(cell),
        "baseline": cell.baseline,
        "parameters": cell.cost.parameters,
        "active_parameters": cell.cost.active_parameters,
        "flops_per_sequence": cell.cost.flops_per_sequence,
        "padding": cell.cost.padding,
        "rows_cut": cell.cost.rows_cut,
        "epochs": cell.epochs,
        "loss_tokens": cell.loss_tokens,
        **cell.total,
        "inherited": dict(cell.inherited),
        "seconds": mean(seconds or [cell.total["seconds"]]),
    }


def of_tasks(answers: Answers) -> dict[str, TaskAnswer]:
    """Return a run's answers to tasks, by the names of their scores in the report."""
    reached = {}
    for suffix, of_all in (("", answers.tasks), (FROM_SCRATCH, answers.from_scratch)):
        for task, answer in of_all.items():
            reached[name_of_task_score(task, answer["metric"]) + suffix] = answer
    return reached


def counting_on_tasks(
    questions: Questions, answers: Mapping[str, TaskAnswer]
) -> dict[str, dict[str, np.ndarray]]:
    """Score models that only count words or answers on the same examples: score → model → amounts
    of the units.
    """
    counted: dict[str, dict[str, np.ndarray]] = {}
    for task in map(load_task, questions.tasks):
        name = name_of_task_score(task.name, metrics_of(task)[0])
        names = [one for one in (name, name + FROM_SCRATCH) if one in answers]
        if not names or not is_learned(task):
            continue
        labelled = with_labels_of(task)
        train = load_split(labelled, "train").examples
        asked = load_split(labelled, answers[names[0]]["split"]).examples
        for model, predictions in counted_answers(labelled, train, asked).items():
            amounts = np.array(unit_scores(labelled, asked, predictions).amounts)
            for one in names:
                counted.setdefault(one, {})[model] = amounts
    return counted


def differing(of_cells: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the entries that differ between cells: key → cell → value, or None for a cell without
    the entry.

    >>> differing({"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3, "z": 4}})
    {'y': {'a': 2, 'b': 3}, 'z': {'a': None, 'b': 4}}
    """
    keys = dict.fromkeys(key for values in of_cells.values() for key in values)
    rows = {key: {name: values.get(key) for name, values in of_cells.items()} for key in keys}
    return {
        key: row
        for key, row in rows.items()
        if any(value != next(iter(row.values())) for value in row.values())
    }


def questions_behind(cell: Cell) -> dict[str, str]:
    """Return what each score measures, if cells may differ in it: score → key.

    Scores with different keys cannot be compared: losses depend on the objective, the tokenizer
    and the text, and bits per byte on the text.
    """
    text = cell.corpus.manifest["validation"]["sha256"]
    own = f"{cell.resolved.rows}, tokenizer {cell.corpus.manifest['tokenizer']}, text {text}"
    return {"loss": own, "accuracy": own, EXACT: text, BOUND: text}


def summarise(run: SeededRun) -> dict[str, Any]:
    """Return what a run recorded: its last evaluation, its curves and its speed.

    Raises:
        UserError: if the run has not been evaluated yet.
    """
    records = read_metrics(run.directory / "metrics.jsonl")
    trained = [record for record in records if record["split"] == "train"]
    evaluated = [record for record in records if record["split"] == "validation"]
    if not trained or not evaluated:
        reason = "the run has not been evaluated yet"
        raise UserError(
            NO_FILE, f"{run.directory}: {reason}; let it go on, or set training.eval_every"
        )
    last = evaluated[-1]
    seconds = sum(record["train_seconds"] for record in trained)
    rate = run.stages[-1].steps * run.cell.cost.model_tokens / seconds
    # Earlier stages took time, too. Those with the last stage's objective are part of its curves.
    goes_on, curves = True, _whole_text_curves(run.stages[-1], evaluated)
    for stage in reversed(run.stages[:-1]):
        before = read_metrics(stage.directory / "metrics.jsonl")
        of_training = [record for record in before if record["split"] == "train"]
        seconds += sum(record["train_seconds"] for record in of_training)
        texts = (one.data.corpus.manifest for one in (stage, run.cell))
        if len(set(map(validation_text, texts))) == 1:
            for name, curve in _whole_text_curves(stage, before).items():
                curves[name] = curve + curves.get(name, [])
        goes_on = goes_on and stage.resolved.rows == run.cell.resolved.rows
        if goes_on:
            trained = of_training + trained
            evaluated = [one for one in before if one["split"] == "validation"] + evaluated
    summary = {
        "seed": run.seed,
        "steps": trained[-1]["step"],
        "seconds": seconds,
        "tokens_per_second": rate,
        "loss": last["loss"],
        "accuracy": last["accuracy"],
        "curve": {name: _curve(trained, name) for name in ("loss", *report.TRAINING_CURVES)},
        "validation_curve": {"loss": _curve(evaluated, "loss")},
        "score_curves": curves,
    }
    return summary | whole_text_bits(last, run.cell.resolved.rows, run.cell.corpus.manifest)


def _whole_text_curves(stage: Stage, records: Sequence[dict[str, Any]]) -> ScoreCurves:
    """Return the bits per byte of the validation text at each evaluation that read all of it."""
    curves: ScoreCurves = {}
    for record in (one for one in records if one["split"] == "validation"):
        bits = whole_text_bits(record, stage.resolved.rows, stage.data.corpus.manifest)
        for name, value in bits.items():
            curves.setdefault(name, []).append([record["step"], value])
    return curves


def hours_spent(workdir: Path) -> dict[str, float]:
    """Return the hours that the runs in a comparison's directory took, including compilation and
    evaluation: the reported runs, their tasks, their adaptation, and tuning.
    """
    hours = {"runs": 0.0, "tasks": 0.0, "adaptation": 0.0, "tuning": 0.0}
    for path in workdir.glob("**/metrics.jsonl"):
        parts = path.relative_to(workdir).parts
        if parts[0] == TUNING:
            part = "tuning"
        elif "tasks" in parts[1:]:
            part = "tasks"
        else:
            part = "adaptation" if ADAPTED_RUN in parts[1:] else "runs"
        hours[part] += _seconds_of(read_metrics(path)) / 3600
    return hours


def kilowatt_hours(hours: float) -> float | None:
    """Return the energy that all devices use in this time, at the power given in hardware.CHIPS;
    None if that is not known.
    """
    devices = jax.devices()
    chip = chip_of(devices[0].device_kind)
    if chip is None or chip.watts is None:
        return None
    return hours * len(devices) * chip.watts / 1000


def _seconds_of(records: Sequence[dict]) -> float:
    """Return the seconds that a run took. Each record has the seconds since the run last started.

    >>> _seconds_of([{"seconds": {"step": n, "compile": 1}} for n in (2, 4, 1, 3)])
    9.0
    """
    ended = last = 0.0
    for record in records:
        seconds = sum(record.get("seconds", {}).values())
        if seconds < last:  # the run was started again
            ended += last
        last = seconds
    return ended + last


def _curve(records: list[dict], name: str) -> list[list[float]]:
    """Return a metric as pairs [step, value], without the records that do not have it."""
    return [[one["step"], one[name]] for one in records if one.get(name) is not None]


def counting(
    config: CompareConfig, corpus: Corpus, spans: Sequence[Span]
) -> dict[str, dict[str, float]]:
    """Return the bits per byte of n-gram models that are trained on the same tokens.

    Returns:
        model → score → bits per byte, on the whole validation text (with EOS) and on the spans.
        Empty if config.ngram is False.
    """
    if not config.ngram:
        return {}
    train_tokens, held_out = corpus.tokens("train"), corpus.tokens("validation")
    vocab_size = corpus.tokenizer.vocabulary.size
    whole = corpus.manifest["validation"]["bytes"]
    counted = {
        "unigram": {EXACT: unigram_bits(train_tokens, held_out, vocab_size) / whole},
        "Kneser-Ney trigram": {EXACT: trigram_bits(train_tokens, held_out, vocab_size) / whole},
    }
    if spans:
        for name, bits in counted_bits(corpus, spans).items():
            per_byte = float(bits.sum() / num_bytes(spans).sum())
            counted[name][span_score("left")] = per_byte
            if config.adapt_tokens:
                counted[name][ADAPTED] = per_byte
    return counted
