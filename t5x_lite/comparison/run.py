"""Train several runs under one budget on the same text, and report the results.

    config ─► cells: the cost of a step, and how many steps the budget buys
           ─► runs: each cell with each seed, an ordinary run in WORKDIR/NAME
           ─► results: tasks, span bits per byte and validation loss, each with its interval
           ─► report.json, and pages and tables of it

The same command continues where it was stopped and does not repeat finished work.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from t5x_lite import storage
from t5x_lite.comparison import report
from t5x_lite.comparison.budget import step_cost
from t5x_lite.comparison.cells import (
    Cell,
    SeededRun,
    plan_comparison,
    plan_in_words,
    questions_of,
    seeded_runs,
)
from t5x_lite.comparison.evaluations import Questions, measure
from t5x_lite.comparison.jobs import Job, run_jobs
from t5x_lite.comparison.results import hours_spent, kilowatt_hours, results_of
from t5x_lite.comparison.tune import check_same_choices, plan_tries, run_tries, tuned_cells
from t5x_lite.config import CompareConfig, RunConfig, to_dict
from t5x_lite.config.provenance import names_in, remember
from t5x_lite.config.schema import LOGS
from t5x_lite.data.rows.row_plan import RowPlan
from t5x_lite.data.store.prepare import prepare
from t5x_lite.data.tasks.load import load_task
from t5x_lite.errors import (
    BAD_CONFIG,
    NO_FILE,
    STOPPED,
    USAGE,
    UserError,
    expected_errors,
    read_json,
)
from t5x_lite.progress import say
from t5x_lite.report import task_report
from t5x_lite.resolve import resolve, text_data
from t5x_lite.training import run_directory
from t5x_lite.training.computation import forget_programs
from t5x_lite.training.log import read_metrics
from t5x_lite.training.stages import Stage, train_stages


def compare(
    config: CompareConfig,
    workdir: Path,
    only: Sequence[str] = (),
    jobs: int = 1,
) -> dict[str, Any]:
    """Train every cell with every seed and write the report; unfinished runs continue.

    Args:
        only: names of the cells or runs to train; empty: all.
        jobs: number of runs to train at once, each on its share of the CPU's cores.

    Returns:
        The contents of the report. Empty if no report is written, because `only` is given or
        several processes train together.

    Raises:
        UserError: before anything is trained, for anything that cannot be run; or at the end, if a
            run failed. The other runs are trained all the same.
    """
    if jobs > 1 and jax.default_backend() != "cpu":
        reason = f"parallel runs need a CPU, but this backend is a {jax.default_backend()}"
        raise UserError(USAGE, f"--jobs={jobs}: {reason}; remove --jobs, or use launch/cells")
    if jobs > 1 and storage.durable_path(workdir) != workdir:
        reason = "parallel runs need a local --workdir, but it is in a bucket"
        raise UserError(USAGE, f"--jobs={jobs}: {reason}; remove --jobs")
    is_shared = jax.process_count() > 1
    if is_shared and (jobs > 1 or config.match == "seconds"):
        option = "--jobs" if jobs > 1 else "match=seconds"
        raise UserError(USAGE, f"{option}: is for one process, here are {jax.process_count()}")
    if config.tune and is_shared:
        reason = f"cells are tuned by one process, here are {jax.process_count()}"
        raise UserError(USAGE, f"tune: {reason}; tune first, and set the values that were found")
    if config.max_seeds and (only or is_shared):
        option = "--cells" if only else f"{jax.process_count()} processes"
        reason = "seeds are added by one process that trains all cells"
        raise UserError(USAGE, f"max_seeds={config.max_seeds}: got {option}, but {reason}")
    if config.max_seeds and not config.effect:
        say("max_seeds: without effect, a difference that is not there is never decided")

    # Train, and add a seed as long as a difference is open and the config allows another.
    looks = max(config.max_seeds - config.seeds, 0) + 1
    results: dict[str, Any] = {}
    for number in range(looks):
        of_look = dataclasses.replace(config, seeds=config.seeds + number)
        results = _train_and_report(of_look, workdir, only, jobs, looks)
        if not config.max_seeds:
            break
        open_cells = cells_to_decide(results)
        decided = f"still open: {', '.join(open_cells)}" if open_cells else "all is decided"
        say(f"{of_look.seeds} seeds, look {number + 1} of {looks}: {decided}")
        if not open_cells:
            break
    return results


def cells_to_decide(results: Mapping[str, Any]) -> list[str]:
    """Return the cells whose difference to the baseline is still open in the score that decides.

    A difference is open if it is neither shown to exist nor shown to be too small to matter.

    Raises:
        UserError: if no cell can be compared with its baseline in that score.
    """
    score = results["rule"]["score"]
    differences = {}
    for cell, of in results["cells"].items():
        found = of["scores"].get(score, {}).get("difference")
        if found:
            differences[cell] = found
    if not differences:
        reason = f"no cell can be compared with its baseline in {score}"
        raise UserError(BAD_CONFIG, f"decide_by: {reason}; name another score, or more cells")
    return [cell for cell, found in differences.items() if found["verdict"] == "open"]


def _train_and_report(
    config: CompareConfig, workdir: Path, only: Sequence[str], jobs: int, looks: int
) -> dict[str, Any]:
    """Train every cell with every seed, write the report and return its contents; see compare."""
    is_shared = jax.process_count() > 1
    cells, runs, questions = plan_comparison(config, workdir, only)
    tries = plan_tries(config, cells, workdir)
    say(plan_in_words(config, cells, len(tries), at_least=config.match != "seconds"))
    if jobs > 1:
        forget_programs()  # those of timed steps: other processes train everything

    # Tune the cells that are trained here, and plan their runs again with the chosen values.
    trained = {run.cell.name for run in _chosen(runs, only)}
    tries = [one for one in tries if one.cell in trained]
    untuned = run_tries(tries, jobs, workdir / LOGS)
    tries = [one for one in tries if one.cell not in untuned]
    cells, tuning, diverged = tuned_cells(cells, tries)
    untuned |= diverged
    runs = seeded_runs(config, cells, workdir)
    check_same_choices(config, [run for run in runs if run.cell.name in tuning])

    chosen = _chosen(runs, only)
    failed = {run.name: untuned[run.cell.name] for run in chosen if run.cell.name in untuned}
    trainable = [run for run in chosen if run.name not in failed]
    if jobs > 1:
        failed |= _train_trunks(trainable, jobs, workdir / LOGS)
        failed |= run_jobs(
            {
                run.name: Job(train_run, (configs_of(run.stages), questions), run.cell.name)
                for run in trainable
                if run.name not in failed
            },
            jobs,
            workdir / LOGS,
        )
    else:
        failed |= train_in_turn(trainable, None if is_shared else questions)

    # Write the report from the runs that finished, if this process has trained all of them.
    finished = [run for run in chosen if run.name not in failed]
    results: dict[str, Any] = {}
    if only:
        say("no report yet: run the same command without --cells to train the rest and write it")
    elif is_shared:
        say("no report yet: run the same command as one process to write it")
    elif finished:
        results = results_of(config, cells, finished, failed, questions, looks, tuning)
        asked = as_asked(config, looks)
        of_tasks = (names_in(load_task(task)).places for task in config.tasks)
        remember(asked, itertools.chain(*of_tasks))
        results["config"] = to_dict(asked)
        results["jobs"] = jobs
        results["hours"] = hours_spent(workdir)
        results["kilowatt_hours"] = kilowatt_hours(sum(results["hours"].values()))
        report.write(results, workdir)
    if failed:
        name, error = next(iter(failed.items()))
        raise UserError(error.code, f"{len(failed)} of {len(chosen)} runs failed: {name}: {error}")
    return results


def _chosen(runs: Sequence[SeededRun], only: Sequence[str]) -> list[SeededRun]:
    """Return the runs that are named in `only`, or whose cells are; all runs if it is empty."""
    return [run for run in runs if not only or run.name in only or run.cell.name in only]


def as_asked(config: CompareConfig, looks: int) -> CompareConfig:
    """Return the comparison as it was requested, before seeds were added. A rerun trains this.

    Args:
        looks: number of times that it may be looked at, with one more seed each time.
    """
    if not config.max_seeds:
        return config
    return dataclasses.replace(config, seeds=config.max_seeds - looks + 1)


def train_in_turn(runs: Sequence[SeededRun], questions: Questions | None) -> dict[str, UserError]:
    """Train one run after another, and return the errors of those that failed, by name.

    Args:
        questions: extra evaluations of each run once it is trained; None: leave them for later.
    """
    failed = {}
    for run in runs:
        say(f"{run.name}: training in {run.directory}")
        try:
            with expected_errors():
                train_stages(run.stages)
                if questions is not None:
                    measure(run.directory, questions, run.trunks)
        except UserError as error:
            if error.code in STOPPED:
                raise
            failed[run.name] = error
            say(f"{run.name}: {error}")
    return failed


# The config and directory of each stage of a run, in the form that is sent to another process
StageConfigs = list[tuple[RunConfig, Path]]


def configs_of(stages: Sequence[Stage]) -> StageConfigs:
    """Return the config and the directory of each stage."""
    return [(stage.resolved.config, stage.directory) for stage in stages]


def train_run(stages: StageConfigs, questions: Questions | None) -> None:
    """Train the stages of one run and evaluate it; run_jobs calls this in a separate process.

    Args:
        questions: extra evaluations of the run; None: none, as for a stage that other runs
            continue from.
    """
    trained = []
    for config, directory in stages:
        corpus = prepare(config.data)
        resolved = resolve(config, corpus.tokenizer.vocabulary)
        trained.append(Stage(resolved, text_data(resolved, corpus), directory))
    with expected_errors():
        train_stages(trained)
        if questions is not None:
            *before, last = (stage.directory for stage in trained)
            measure(last, questions, before)


def _train_trunks(runs: Sequence[SeededRun], jobs: int, logs: Path) -> dict[str, UserError]:
    """Train the stages that runs begin with, each only once, before the runs themselves.

    Returns:
        The errors of the runs that cannot be trained because one of their stages failed.
    """
    failed: dict[str, UserError] = {}
    most = max((len(run.trunks) for run in runs), default=0)
    for number in range(most):  # the first stages of all runs, then the second ones
        due = {
            run.trunks[number].name: Job(
                train_run, (configs_of(run.stages[: number + 1]), None), run.cell.name
            )
            for run in runs
            if number < len(run.trunks) and run.name not in failed
        }
        errors = run_jobs(due, jobs, logs)
        for run in runs:
            for place in run.trunks[number : number + 1]:
                if place.name in errors:
                    failed[run.name] = errors[place.name]
    return failed


# Reports of existing runs.


def write_report(workdir: Path, runs: Sequence[Path] = ()) -> None:
    """Write a report into `workdir` without training anything.

    Args:
        runs: directories of the runs to show side by side. Empty: report on what `workdir` holds,
            which is a comparison, a fine-tuning or a single run.

    Raises:
        UserError: if there is nothing to report, or its report.json cannot be used.
    """
    # If a comparison or fine-tuning has left its results, write the pages from them again.
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
    config, trained = existing_runs(runs or [workdir])
    cells = [run.cell for run in trained]
    questions = questions_of(config, cells)
    workdir.mkdir(parents=True, exist_ok=True)
    report.write(results_of(config, cells, trained, {}, questions), workdir)


def existing_runs(directories: Sequence[Path]) -> tuple[CompareConfig, list[SeededRun]]:
    """Return trained runs as the cells of a comparison, one cell per run.

    Raises:
        UserError: for fine-tuned runs, and for two runs with the same name.
    """
    runs = []
    for directory in directories:
        resolved, _ = run_directory.read(directory)
        if not isinstance(resolved.rows, RowPlan):
            reason = "has no report.json, which finetune writes to its --workdir at the end"
            raise UserError(USAGE, f"{directory}: {reason}; name that, or run finetune again")
        data = text_data(resolved, prepare(resolved.config.data))
        run_directory.check_same_text(directory, data)

        # The run's steps and seconds are those that it has recorded so far.
        trained = [
            record
            for record in read_metrics(directory / "metrics.jsonl")
            if record["split"] == "train"
        ]
        before = resolved.config.start.step
        steps = trained[-1]["step"] if trained else before + 1
        seconds = sum(record["train_seconds"] for record in trained) / (steps - before)
        training = dataclasses.replace(resolved.config.training, steps=steps)
        config = dataclasses.replace(resolved.config, training=training)
        resolved = dataclasses.replace(resolved, config=config)

        name = directory.resolve().name
        first = runs[0].cell.name if runs else name
        stages = (Stage(resolved, data, directory),)
        cell = Cell(name, config, stages, (step_cost(resolved, data),), (seconds,), first)
        if name in (run.cell.name for run in runs):
            reason = f"two runs are called {name}; rename one to tell them apart in the report"
            raise UserError(USAGE, f"{directory}: {reason}")
        runs.append(SeededRun(cell, config.seed, directory))
    title = ", ".join(run.name for run in runs)
    cells = {run.name: run.cell.resolved.config for run in runs}
    # A single run is not scored on spans, because there is nothing to compare it with.
    span_count = CompareConfig.span_count if len(runs) > 1 else 0
    return CompareConfig(title, cells, span_count=span_count), runs
