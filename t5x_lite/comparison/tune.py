"""Tune each cell of a comparison: train it with every combination of the values that
CompareConfig.tune gives to some settings, and keep the combination with the lowest loss.

    cell ─► tries ─► loss of each on text held out from training ─► the cell with the best values

The text, the seeds and the examples that are reported choose nothing. Tries are ordinary runs in
WORKDIR/tuning, each with a file of its loss beside it, so the same command repeats none of them.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t5x_lite.comparison.budget import step_cost, with_budget
from t5x_lite.comparison.cells import Cell
from t5x_lite.comparison.evaluations import kept_answer
from t5x_lite.comparison.jobs import run_jobs
from t5x_lite.config import CompareConfig, RunConfig, to_dict
from t5x_lite.config.files import build, flatten, merge, nested
from t5x_lite.config.schema import TUNING
from t5x_lite.data.store.corpus import hold_out
from t5x_lite.data.store.prepare import prepare
from t5x_lite.errors import BAD_CONFIG, NOT_FINITE, UserError, foreseen_errors
from t5x_lite.progress import say
from t5x_lite.resolve import Resolved, resolve, text_data
from t5x_lite.training.log import read_metrics
from t5x_lite.training.loop import train

# Between the values of a try in its name, as in those of fine-tuning
_SEPARATOR = ","


class Try(NamedTuple):
    """A cell with one combination of values.

    Attributes:
        cell: its name.
        label: the values as text, such as "learning_rate=0.001".
        values: setting, by its dotted key → value.
        tuned: the cell with these values.
        config: the run that tries them.
        directory: of that run.
    """

    cell: str
    label: str
    values: dict[str, Any]
    tuned: Resolved
    config: RunConfig
    directory: Path


def label_of(values: Mapping[str, Any]) -> str:
    """Return the values of some settings as text.

    >>> label_of({"optimizer.learning_rate": 0.001, "optimizer.beta2": 0.95})
    'learning_rate=0.001,beta2=0.95'
    """
    return _SEPARATOR.join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())


def combinations(tune: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all combinations of the values of CompareConfig.tune; none if it is empty.

    >>> combinations({"optimizer": {"learning_rate": (1, 2), "beta1": (0.9,)}})
    ... # doctest: +NORMALIZE_WHITESPACE
    [{'optimizer.learning_rate': 1, 'optimizer.beta1': 0.9},
     {'optimizer.learning_rate': 2, 'optimizer.beta1': 0.9}]
    """
    axes = flatten(tune)
    for key, values in axes.items():
        if not isinstance(values, tuple | list) or not values or len(set(values)) < len(values):
            reason = f"got {values!r}, expected different values, such as (1e-3, 3e-3)"
            raise UserError(BAD_CONFIG, f"tune.{key}: {reason}")
    if not axes:
        return []
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def steps_of_try(config: CompareConfig, cell: Cell) -> int:
    """Return the number of steps of each try of a cell."""
    return max(round(cell.resolved.steps * config.tune_budget), 1)


def plan_tries(config: CompareConfig, cells: Sequence[Cell], workdir: Path) -> list[Try]:
    """Return all tries of the cells.

    Raises:
        UserError: for settings that do not exist or that change more than how a cell is trained,
            and for wrong values.
    """
    return [
        _plan_try(config, cell, values, workdir)
        for cell in cells
        for values in combinations(config.tune)
    ]


def _plan_try(config: CompareConfig, cell: Cell, values: dict[str, Any], workdir: Path) -> Try:
    settings = merge(to_dict(cell.resolved.config), nested(values))
    tuned = build(RunConfig, settings, "tune.")

    # The losses of tries can be compared, and the budget buys as many steps, only if the rows and
    # the cost of a step stay as they are.
    resolved = resolve(tuned, cell.data.tokenizer.vocabulary)
    data = text_data(resolved, cell.corpus)
    is_same = resolved.rows == cell.resolved.rows and step_cost(resolved, data) == cell.cost
    fixed = {"seed", "init_from", "training.steps"} & set(values)
    if not is_same or fixed:
        reason = "changes what a cell is, not only how it is trained"
        keys = ", ".join(sorted(fixed) or values)
        raise UserError(BAD_CONFIG, f"tune.{keys}: {reason}; make cells of its values (--grid)")

    shorter = with_budget(tuned, steps_of_try(config, cell), evaluations=1)
    run = dataclasses.replace(shorter, seed=config.tune_seed)
    label, checked = label_of(values), flatten(to_dict(tuned))
    directory = workdir / TUNING / f"{cell.name}{_SEPARATOR}{label}".replace("/", "_")
    return Try(cell.name, label, {key: checked[key] for key in values}, resolved, run, directory)


def run_tries(tries: Sequence[Try], jobs: int, logs: Path) -> None:
    """Train the tries that have no loss yet, `jobs` at a time.

    Raises:
        UserError: if one fails otherwise than by diverging.
    """
    if jobs == 1:
        for one in tries:
            loss_of_try(one.config, one.directory)
        return
    failed = run_jobs(
        {one.directory.name: (loss_of_try, (one.config, one.directory)) for one in tries},
        jobs,
        logs,
    )
    if failed:
        name, error = next(iter(failed.items()))
        raise UserError(error.code, f"{TUNING}/{name}: {error}")


def tuned_cells(cells: Sequence[Cell], tries: Sequence[Try]) -> tuple[list[Cell], dict[str, Any]]:
    """Return the cells with the best values of each, from tries that are trained.

    Returns:
        The cells, and what the report shows of their tuning. A cell without tries stays as it is.

    Raises:
        UserError: if all tries of a cell diverged.
    """
    tuned, shown = [], {}
    for cell in cells:
        own = {one.label: one for one in tries if one.cell == cell.name}
        if not own:
            tuned.append(cell)
            continue
        losses = {label: loss_of_try(one.config, one.directory) for label, one in own.items()}
        finite = {label: loss for label, loss in losses.items() if loss is not None}
        if not finite:
            reason = f"all tries of {cell.name} diverged ({'; '.join(losses)})"
            raise UserError(NOT_FINITE, f"tune: {reason}; try lower learning rates")
        chosen = min(finite, key=finite.__getitem__)
        say(f"{cell.name}: tuned to {chosen}")
        best = own[chosen]
        of_data = dataclasses.replace(cell.data, data=best.tuned.config.data)
        tuned.append(cell._replace(resolved=best.tuned, data=of_data))
        steps = best.config.training.steps
        shown[cell.name] = {
            "losses": losses,
            "chosen": chosen,
            "at_end": keys_at_end(best.values, [one.values for one in own.values()]),
            "share": len(own) * steps / cell.resolved.steps,
        }
    return tuned, shown


def keys_at_end(chosen: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings whose chosen value is the smallest or the largest number of several.

    >>> keys_at_end({"a": 3, "b": 2}, [{"a": a, "b": b} for a in (1, 2, 3) for b in (1, 2, 3)])
    ['a']
    """
    found = []
    for key, value in chosen.items():
        values = {one[key] for one in tried}
        are_numbers = all(isinstance(one, int | float) for one in values)
        if are_numbers and len(values) > 1 and value in (min(values), max(values)):
            found.append(key)
    return found


def loss_of_try(config: RunConfig, directory: Path) -> float | None:
    """Train a try, or read what it has reached: its loss on text held out from training; None if it
    diverged.
    """
    return kept_answer(
        directory.with_name(f"{directory.name}.json"),
        {"config": to_dict(config)},
        lambda: _train(config, directory),
    )


def _train(config: RunConfig, directory: Path) -> float | None:
    say(f"{directory.name}: training in {directory}")
    corpus = hold_out(prepare(config.data))
    resolved = resolve(config, corpus.tokenizer.vocabulary)
    try:
        with foreseen_errors():
            train(resolved, text_data(resolved, corpus), directory)
    except UserError as error:
        if error.code != NOT_FINITE:
            raise
        say(f"{directory.name}: {error}")
        return None
    records = read_metrics(directory / "metrics.jsonl")
    return [record["loss"] for record in records if record["split"] == "validation"][-1]
