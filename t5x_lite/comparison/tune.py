"""Tune each cell of a comparison: train it with every combination of the values that
CompareConfig.tune gives to some settings, and keep the combination with the lowest loss.

    cell ─► tries ─► loss of each on text held out from training ─► the cell with the best values

The choice uses nothing that is reported: no seed, no text, no example. Tries are ordinary runs in
WORKDIR/tuning. A file beside each of them holds its loss, so the same command does not repeat it.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t5x_lite.comparison.budget import step_cost, with_budget
from t5x_lite.comparison.cells import Cell, SeededRun
from t5x_lite.comparison.evaluations import kept_answer
from t5x_lite.comparison.jobs import Job, run_jobs
from t5x_lite.comparison.side_runs import train_side_run
from t5x_lite.config import CompareConfig, Data, RunConfig, to_dict
from t5x_lite.config.files import build, flatten, label_of, merge, nested
from t5x_lite.config.roles import BUDGET, LOCAL, PATH, RESUMABLE, SIZE, settings_with
from t5x_lite.config.schema import TUNING
from t5x_lite.data.store.corpus import Corpus, hold_out
from t5x_lite.data.store.prepare import prepare
from t5x_lite.errors import (
    BAD_CONFIG,
    NOT_FINITE,
    STOPPED,
    UserError,
    read_json,
)
from t5x_lite.progress import say
from t5x_lite.training.log import read_metrics
from t5x_lite.training.stages import directories_of, plan_stages

# Settings that cannot be tuned, in addition to those of the text
_FIXED = {"seed", "init_from"} | settings_with(RunConfig, RESUMABLE, LOCAL, BUDGET, PATH, SIZE)


class Try(NamedTuple):
    """A cell with one combination of values.

    Attributes:
        cell: name of the cell.
        label: the values as text, such as "learning_rate=0.001".
        values: value of each setting, by its dotted key.
        tuned: the settings of the cell with these values.
        config: settings of the run that tries these values.
        directory: directory of that run.
    """

    cell: str
    label: str
    values: dict[str, Any]
    tuned: RunConfig
    config: RunConfig
    directory: Path


def combinations(tune: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all combinations of the values in CompareConfig.tune; empty if it has none.

    >>> combinations({"optimizer": {"learning_rate": (1, 2), "beta1": (0.9,)}})
    ... # doctest: +NORMALIZE_WHITESPACE
    [{'optimizer.learning_rate': 1, 'optimizer.beta1': 0.9},
     {'optimizer.learning_rate': 2, 'optimizer.beta1': 0.9}]
    """
    axes = flatten(tune)
    for key, values in axes.items():
        are_listed = isinstance(values, tuple | list) and values
        if not are_listed or len(set(map(repr, values))) < len(values):
            reason = f"got {values!r}, expected different values, such as (1e-3, 3e-3)"
            raise UserError(BAD_CONFIG, f"tune.{key}: {reason}")
    if not axes:
        return []
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def plan_tries(config: CompareConfig, cells: Sequence[Cell], workdir: Path) -> list[Try]:
    """Return all tries of the cells.

    Raises:
        UserError: for settings that do not exist or that change more than how a cell is trained,
            and for wrong values.
    """
    for key in flatten(config.tune):
        own = {repr(flatten(to_dict(cell.config)).get(key)) for cell in cells}
        if len(own) > 1:
            reason = "cells have different values of it, which tuning would replace"
            raise UserError(BAD_CONFIG, f"tune.{key}: {reason}; tune another setting")
        if any(key in flatten(stage) for cell in cells for stage in cell.config.stages):
            reason = "a stage has a value of its own, which tuning would not replace"
            raise UserError(BAD_CONFIG, f"tune.{key}: {reason}; tune another setting")
    return [
        _plan_try(config, cell, values, workdir)
        for cell in cells
        for values in combinations(config.tune)
    ]


def _plan_try(config: CompareConfig, cell: Cell, values: dict[str, Any], workdir: Path) -> Try:
    settings = merge(to_dict(cell.config), nested(values))
    tuned = build(RunConfig, settings, "tune.")

    # The losses of tries can be compared, and the budget buys the same number of steps, only if the
    # text, the rows and the cost of a step stay the same.
    fixed = {key for key in values if key in _FIXED or key.startswith(("data.", "start."))}
    if fixed or not _costs_the_same(tuned, cell):
        reason = "changes what a cell is, not only how it is trained"
        keys = ", ".join(sorted(fixed) or values)
        raise UserError(BAD_CONFIG, f"tune.{keys}: {reason}; make cells of its values (--grid)")

    steps = [max(round(stage.steps * config.tune_budget), 1) for stage in cell.stages]
    shorter = with_budget(tuned, steps, evaluations=1)
    run = dataclasses.replace(shorter, seed=config.tune_seed)
    label, checked = label_of(values), flatten(to_dict(tuned))
    directory = workdir / TUNING / f"{cell.name},{label}"
    return Try(cell.name, label, {key: checked[key] for key in values}, tuned, run, directory)


def _costs_the_same(config: RunConfig, cell: Cell) -> bool:
    """Return True if each stage has the same rows and the same cost per step as in the cell."""
    stages = cell.with_config(config).stages
    return all(
        stage.resolved.rows == before.resolved.rows
        and step_cost(stage.resolved, stage.data) == cost
        for stage, before, cost in zip(stages, cell.stages, cell.costs, strict=True)
    )


def run_tries(tries: Sequence[Try], jobs: int, logs: Path) -> dict[str, UserError]:
    """Train the tries that have no loss yet, `jobs` at a time.

    Returns:
        The error of each cell with a try that failed for any reason except divergence.
    """
    of_tries = {
        one.directory.name: Job(loss_of_try, (one.config, one.directory), one.cell) for one in tries
    }
    if jobs > 1:
        failed = run_jobs(of_tries, jobs, logs)
    else:
        failed = {}
        for name, job in of_tries.items():
            try:
                job.function(*job.arguments)
            except UserError as error:
                if error.code in STOPPED:
                    raise
                say(f"{name}: {error}")
                failed[name] = error
    return {
        one.cell: UserError(error.code, f"{TUNING}/{name}: {error}")
        for one in tries
        for name, error in failed.items()
        if name == one.directory.name
    }


def tuned_cells(
    cells: Sequence[Cell], tries: Sequence[Try]
) -> tuple[list[Cell], dict[str, Any], dict[str, UserError]]:
    """Give each cell its best values, according to tries that are trained.

    Returns:
        The cells, what the report shows about their tuning, and the errors of cells whose tries all
        diverged. These cells and those without tries are unchanged.
    """
    tuned, shown, failed = [], {}, {}
    for cell in cells:
        own = {one.label: one for one in tries if one.cell == cell.name}
        losses = {label: loss_of_try(one.config, one.directory) for label, one in own.items()}
        finite = {label: loss for label, loss in losses.items() if loss is not None}
        if own and not finite:
            reason = f"all tries of {cell.name} diverged ({'; '.join(losses)})"
            fix = "try lower learning rates"
            failed[cell.name] = UserError(NOT_FINITE, f"tune: {reason}; {fix}")
        if not finite:
            tuned.append(cell)
            continue
        chosen = min(finite, key=finite.__getitem__)
        say(f"{cell.name}: tuned to {chosen}")
        best = own[chosen]
        tuned.append(cell.with_config(best.tuned))
        steps = best.config.training.steps
        shown[cell.name] = {
            "losses": losses,
            "chosen": chosen,
            "at_end": keys_at_end(best.values, [one.values for one in own.values()]),
            "steps": steps,
            "share": len(own) * steps / cell.config.training.steps,
        }
    return tuned, shown, failed


def check_same_choices(config: CompareConfig, runs: Sequence[SeededRun]) -> None:
    """Reject runs that were trained with other values than their cells choose now.

    Raises:
        UserError: if there is such a run, for example after a change of CompareConfig.tune.
    """
    for run in runs:
        path = run.directory / "config.json"
        before = flatten(read_json(path, "remove it")) if path.is_file() else {}
        now = flatten(to_dict(run.resolved.config))
        for key in flatten(config.tune):
            if before and before.get(key) != now[key]:
                reason = f"{run.cell.name} chooses {key}={now[key]} now, and was trained with"
                fix = f"remove {run.directory}, or name another --workdir"
                raise UserError(BAD_CONFIG, f"tune: {reason} {before.get(key)}; {fix}")


def keys_at_end(chosen: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings whose chosen value is the smallest or the largest of several numbers.

    >>> keys_at_end({"a": 3, "b": 2}, [{"a": a, "b": b} for a in (1, 2, 3) for b in (1, 2, 3)])
    ['a']
    """
    found = []
    for key, value in chosen.items():
        values = {one[key] for one in tried}
        are_numbers = all(
            isinstance(one, int | float) and not isinstance(one, bool) for one in values
        )
        if are_numbers and len(values) > 1 and value in (min(values), max(values)):
            found.append(key)
    return found


def loss_of_try(config: RunConfig, directory: Path) -> float | None:
    """Train a try, or read its result from a file.

    Returns:
        the loss on text held out from training; None if the try diverged.
    """
    corpus = prepare(config.data)
    text = {key: corpus.manifest[key] for key in ("tokenizer", "train", "validation")}
    return kept_answer(
        directory.with_name(f"{directory.name}.json"),
        {"config": to_dict(config), "text": text},
        lambda: _train(config, directory),
    )


def _without_its_end(data: Data) -> Corpus:
    """Prepare a text with its end held out; see store.corpus.hold_out."""
    return hold_out(prepare(data))


def _train(config: RunConfig, directory: Path) -> float | None:
    directories = directories_of(directory, max(len(config.stages), 1))
    stages = plan_stages(config, directories, corpus_of=_without_its_end)
    if not train_side_run(directory.name, stages):
        return None
    records = read_metrics(directory / "metrics.jsonl")
    return [record["loss"] for record in records if record["split"] == "validation"][-1]
