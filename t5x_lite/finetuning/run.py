"""Fine-tune a model on a task by the recipe of its family, with one or several settings and seeds.

With a grid, every cell is trained with the first seed. The cell with the best validation score in
the task's first metric is chosen, and only that cell is trained with the other seeds.
"""

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import jax

from t5x_lite.config import RunConfig, Task
from t5x_lite.config.files import label_of, parse_grid
from t5x_lite.config.permission import grant
from t5x_lite.data.tasks.examples import with_labels_of
from t5x_lite.data.tasks.kinds.kind import Label
from t5x_lite.data.tasks.kinds.table import kind_of, metrics_of
from t5x_lite.data.tasks.metrics import judge
from t5x_lite.data.tasks.task_data import TaskData, TaskPlan, TaskSplit
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import IO_ERROR, NO_FILE, USAGE, UserError, user_errors
from t5x_lite.finetuning.recipe import config_of, with_schedule
from t5x_lite.finetuning.results import answers_of, curves_of, write
from t5x_lite.finetuning.scoring import (
    Scored,
    keep_predictions,
    kept_predictions,
    score_on_halves,
    score_run,
)
from t5x_lite.inference.predict import as_records, predict
from t5x_lite.model.check import plan_checked
from t5x_lite.model.transformer import count_parameters, parameter_shapes
from t5x_lite.model_address import ModelAddress
from t5x_lite.progress import say
from t5x_lite.resolve import resolve
from t5x_lite.training import loaded_model, loop, run_directory
from t5x_lite.training.adapt import parse_adaptation
from t5x_lite.training.best import PREFIX
from t5x_lite.training.check import check_training
from t5x_lite.training.loaded_model import LoadedModel
from t5x_lite.training.log import read_metrics


class Reached(NamedTuple):
    """Scores of one fine-tuning run."""

    best: dict[str, float]  # step and metrics of its best evaluation
    scored: Scored  # score on examples that did not select this evaluation
    validation: TaskSplit  # the examples that selected it


@dataclass(frozen=True)
class Trial:
    """One cell of a grid: a combination of settings, with the results of its seeds."""

    settings: dict[str, str]
    config: RunConfig
    reached: dict[int, "Reached"]  # by seed

    @property
    def name(self) -> str:
        """Name of the cell's directory; empty without a grid."""
        return label_of(self.settings)


def finetune(
    init: ModelAddress,
    task: Task,
    workdir: Path,
    overrides: Sequence[str] = (),
    seeds: int = 1,
    grid: Sequence[str] = (),
    from_scratch: bool = False,
    adapt: str = "full",
    on_log: Callable[[dict], None] | None = None,
    name: str = "",
) -> dict[str, Any]:
    """Train a model on a task. The same call continues a run that was stopped.

    Args:
        init: the model to start from.
        task: what to train on.
        workdir: where to write report.json and the run, or one directory per cell and seed.
        overrides: settings such as "optimizer.learning_rate=1e-4".
        seeds: number of seeds, counting up from the config's seed.
        grid: settings with several values each, such as "optimizer.learning_rate=1e-4,3e-4".
        from_scratch: take only the shape and the tokenizer of `init`, and draw random parameters.
        adapt: which parameters are trained; see training.adapt.
        on_log: called with each record of metrics.jsonl.
        name: the starting model's name in the results; empty: the name of its directory.

    Returns:
        the results, as in report.json.

    Raises:
        UserError: for wrong settings, before anything is trained.
    """
    if from_scratch and adapt != "full":
        raise UserError(USAGE, f"finetune: --adapt={adapt} needs a model; leave out --from-scratch")
    if seeds < 1:
        raise UserError(USAGE, f"finetune: --seeds={seeds}: expected at least 1")
    combinations = combinations_of(grid, overrides)
    directory = init.directory.resolve()
    resolved, tokenizer = run_directory.read(directory)
    base = _Base(name or directory.name, directory, resolved.config, tokenizer)
    init_from = "" if from_scratch else str(init)
    grant(places=[init_from])  # permitted, because it is an argument and not data
    cells = _cells(base, with_labels_of(task), combinations, overrides, adapt, init_from)
    return _train_cells(base, cells, workdir, seeds, overrides, on_log)


def _cells(
    base: "_Base",
    task: Task,
    combinations: Sequence[dict[str, str]],
    overrides: Sequence[str],
    adapt: str,
    init_from: str,
) -> list[Trial]:
    """Return the cells of a grid; reject wrong settings before any of them is trained."""
    cells = []
    for settings in combinations:
        values = [*overrides, *(f"{key}={value}" for key, value in settings.items())]
        config = config_of(base.config, task, values, adapt, init_from)
        plan_checked(config)
        check_training(config)
        cells.append(Trial(settings, config, {}))
    return cells


def _train_cells(
    base: "_Base",
    cells: list[Trial],
    workdir: Path,
    seeds: int,
    overrides: Sequence[str],
    on_log: Callable[[dict], None] | None,
) -> dict[str, Any]:
    """Train every cell with the first seed, then the best cell with the other seeds."""
    first_seed, task = cells[0].config.seed, cells[0].config.task
    is_single = len(cells) == 1 and seeds == 1

    def directory_of(cell: Trial, seed: int) -> Path:
        return workdir if is_single else workdir / cell.name / f"seed_{seed}"

    def train(cell: Trial, seed: int) -> None:
        directory = directory_of(cell, seed)
        if not is_single:
            say(f"training in {directory}")
        config = dataclasses.replace(cell.config, seed=seed)
        is_set = {text.partition("=")[0] for text in overrides} | set(cell.settings)
        cell.reached[seed] = _train(config, base, directory, is_set, on_log)

    for cell in cells:
        train(cell, first_seed)
    metric = metrics_of(task)[0]
    chosen = max(cells, key=lambda cell: cell.reached[first_seed].best[metric])
    for seed in range(first_seed + 1, first_seed + seeds):
        train(chosen, seed)

    reached = chosen.reached[first_seed]
    if len(cells) > 1 and seeds == 1 and reached.scored.split == "validation":
        # Examples that were used to choose the settings must not judge them, either.
        directories = [directory_of(cell, first_seed) for cell in cells]
        scored = score_on_halves(directories, reached.validation)
        chosen.reached[first_seed] = reached._replace(scored=scored)

    results = _results(base, task, cells, chosen)
    results["curves"] = {
        f"{cell.name} seed {seed}".strip(): curves_of(directory_of(cell, seed), metric)
        for cell in cells
        for seed in cell.reached
    }
    results |= answers_of(directory_of(chosen, first_seed), task)
    write(results, workdir)
    return results


def combinations_of(
    grid: Sequence[str], overrides: Sequence[str], option: str = "--grid"
) -> list[dict[str, str]]:
    """Return all combinations of the values of a grid, as settings by key.

    Raises:
        UserError: for a key that cannot be an axis, or that `overrides` sets too.
    """
    axes = parse_grid(grid, option)
    given = {text.partition("=")[0] for text in overrides}
    for key in axes:
        if key in ("seed", "adapt", "init_from") or key.startswith("task."):
            fix = "use --seeds, or a separate run for each value"
            raise UserError(USAGE, f"{option}={key}=…: {key} cannot be an axis of a grid; {fix}")
        if key in given:
            raise UserError(USAGE, f"{option}={key}=…: {key} is set twice; set it once")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


@dataclass(frozen=True)
class _Base:
    """The model that fine-tuning starts from."""

    name: str  # as the user calls it
    directory: Path
    config: RunConfig
    tokenizer: Tokenizer


def _train(
    config: RunConfig,
    base: _Base,
    workdir: Path,
    is_set: set[str],
    on_log: Callable[[dict], None] | None,
) -> "Reached":
    """Train one run and return its scores."""
    rows = plan_checked(config)
    assert isinstance(rows, TaskPlan)
    if config.adapt == "probe" and rows.format.head == "lm":
        reason = "a model that answers in words has no task head to train"
        raise UserError(USAGE, f"finetune: --adapt=probe: {reason}; use lora, or last(1)")
    data = TaskData(rows, base.tokenizer, config.data.batch_size, config.seed)
    config = with_schedule(config, data, is_set)
    data = dataclasses.replace(data, batch_size=config.data.batch_size)
    say(f"train {data.train}; validation {data.validation}")
    test = _test_split(data)
    resolved = resolve(config, base.tokenizer.vocabulary, rows)
    loop.train(
        resolved, data, workdir, on_log, judge=lambda loaded: judge_and_keep(loaded, data, workdir)
    )
    best = best_evaluation(workdir, config.task)
    # Predictions of the best parameters. Those for validation were saved at the evaluation.
    predictions = {"validation": kept_predictions(workdir)[int(best["step"])]}
    if test is not None:
        predictions["test"] = predict(loaded_model.load(workdir), test)
    write_predictions(workdir, data.validation, test, predictions)
    scored = score_run(workdir, data.validation, test, predictions.get("test"))
    return Reached(best, scored, data.validation)


def judge_and_keep(loaded: LoadedModel, data: TaskData, workdir: Path) -> dict[str, float]:
    """Return the metrics on the validation examples, and save the predictions."""
    predictions = predict(loaded, data.validation)
    keep_predictions(workdir, loaded.step, predictions)
    examples = data.validation.examples
    return judge(examples.task, examples.examples, predictions)


def _test_split(data: TaskData) -> TaskSplit | None:
    """Load the test split before anything is trained; return None if it does not exist."""
    task = data.plan.task
    if not task.test:
        return None
    try:
        return data.split("test")
    except UserError as error:
        if error.code != NO_FILE:
            raise
        say(f"no predictions for a test split: {error}")
        return None


def best_evaluation(workdir: Path, task: Task) -> dict[str, float]:
    """Return the step and the metrics of a run's best evaluation, by the task's first metric."""
    evaluated = [
        record
        for record in read_metrics(workdir / "metrics.jsonl")
        if record["split"] == "validation"
    ]
    names = metrics_of(task)
    best = max(evaluated, key=lambda record: record[f"{PREFIX}{names[0]}"])
    return {"step": best["step"]} | {name: best[f"{PREFIX}{name}"] for name in names}


def write_predictions(
    workdir: Path,
    validation: TaskSplit,
    test: TaskSplit | None,
    predictions: Mapping[str, Sequence[Label]],
) -> None:
    """Write predictions on the validation and test splits as JSON lines.

    For a benchmark, also write the test predictions in the file that it expects.

    Args:
        predictions: split → predictions for its examples.
    """
    task = validation.examples.task
    kind = kind_of(task)
    splits = {"validation": validation}
    if test is not None:
        splits["test"] = test
    directory = workdir / "predictions"
    with user_errors(IO_ERROR, f"{directory}: cannot be written"):
        directory.mkdir(exist_ok=True)
        for name, split in splits.items():
            records = as_records(split.examples, predictions[name])
            lines = [json.dumps(record) for record in records]
            (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
            if name == "test" and task.submission:
                rows = ["index\tprediction"]
                pairs = zip(split.examples.examples, predictions[name], strict=True)
                for example, prediction in pairs:
                    rows.append(f"{example.id}\t{kind.submitted(task, prediction, example)}")
                (directory / task.submission).write_text("\n".join(rows) + "\n")
    say(f"written: {directory}")


def _results(base: _Base, task: Task, cells: list[Trial], chosen: Trial) -> dict[str, Any]:
    """Return the part of report.json that describes the cells and the chosen one."""
    resolved = resolve(chosen.config, base.tokenizer.vocabulary)
    model, rows = resolved.model, resolved.rows
    assert isinstance(rows, TaskPlan)
    adaptation = parse_adaptation(chosen.config.adapt)
    parameters = trained = count_parameters(model)
    if not adaptation.is_full:
        shapes, _ = adaptation.split_shapes(parameter_shapes(model))
        trained = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    begins = f"from {base.name}" if chosen.config.init_from else "from scratch"
    summary = {}
    for name in metrics_of(task):
        values = [reached.best[name] for reached in chosen.reached.values()]
        summary[name] = _mean_and_deviation(values)
    scored = [reached.scored for reached in chosen.reached.values()]
    on = scored[0].on
    if len(cells) > 1 and len(scored) > 1 and scored[0].split == "validation":
        on += ", all of which chose the settings of the grid"
    return {
        "title": f"{task.name}, {begins}: {chosen.config.adapt}",
        "task": task.name,
        "metric": metrics_of(task)[0],
        "head": rows.format.head,
        "parameters": parameters,
        "trained_parameters": trained,
        "chosen": chosen.settings,
        "seeds": list(chosen.reached),
        "reached": summary,
        "scored": {
            "split": scored[0].split,
            "fingerprint": scored[0].fingerprint,
            "on": on,
            "examples": scored[0].examples,
            **_mean_and_deviation([one.value for one in scored]),
            "units": scored[0].units._asdict(),  # of the first seed
        },
        "cells": [
            {
                "settings": cell.settings,
                "seeds": {str(seed): reached.best for seed, reached in cell.reached.items()},
            }
            for cell in cells
        ],
    }


def _mean_and_deviation(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and the standard deviation over seeds."""
    spread = stdev(values) if len(values) > 1 else None
    return {"mean": mean(values), "standard_deviation": spread}
