"""Train a model on a task; the same command continues where it was stopped."""

import argparse
from pathlib import Path

from t5x_lite import storage
from t5x_lite.commands.common import (
    add_allow,
    add_verify,
    add_workdir,
    number_type,
    read_task,
    read_workdir,
)
from t5x_lite.errors import USAGE, UserError
from t5x_lite.model_address import locate
from t5x_lite.progress import say

EXAMPLE = "t5x_lite finetune --init=runs/bert --task=which_module --workdir=runs/modules"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    add_workdir(command)
    add_verify(command)
    add_allow(command)
    add = command.add_argument
    add("--init", help="run directory, or directory of Hugging Face files, to start from")
    add(
        "--task",
        help="one that ships, such as sst2; my_tasks.py:mine; or 'classify(file.tsv, text=…)'",
    )
    add("--seeds", type=number_type(1), default=1, help="number of seeds to train with")
    help = "values of a setting to choose the best from, KEY=VALUE,VALUE; may be repeated"
    add("--grid", action="append", default=[], metavar="KEY=VALUES", help=help)
    help = "start from random parameters, to see what the task alone teaches such a model"
    add("--from-scratch", action="store_true", help=help)
    help = "full, lora(rank=8), prefix(20), prompt(20), adapter(64), bitfit, probe or last(2)"
    add("--adapt", default="full", metavar="WAY", help=help)
    command.set_defaults(config=None)


def run(args: argparse.Namespace) -> None:
    """Fine-tune a model on a task, and print the scores that it reached."""
    from t5x_lite.config.files import check_is_run
    from t5x_lite.config.provenance import settings_written_here

    workdir = read_workdir(args)
    if not args.init or not args.task:
        missing = "init=DIR" if not args.init else "task=NAME"
        example = "finetune --init=runs/bert --task=which_module --workdir=runs/modules"
        raise UserError(USAGE, f"finetune: --{missing} is missing; for example, {example}")
    task, init = read_task(args), locate(args.init)
    check_is_run(init.directory)
    settings_written_here([*args.overrides, *args.grid])
    from t5x_lite.finetuning.results import show
    from t5x_lite.finetuning.run import finetune
    from t5x_lite.interop.convert import as_run
    from t5x_lite.report import task_report

    results = finetune(
        as_run(init, workdir / "imported"),
        task,
        workdir,
        args.overrides,
        args.seeds,
        args.grid,
        args.from_scratch,
        args.adapt,
        name=Path(args.init).resolve().name,
    )
    task_report.write(results, workdir)
    storage.push_all()
    say(show(results))
    say(f"written: {workdir / 'report.html'}, report.md and report.json")
