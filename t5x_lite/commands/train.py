"""Pretrain a model; the same command continues where it was stopped."""

import argparse
from pathlib import Path

from t5x_lite.commands.common import (
    add_allow,
    add_config,
    add_distributed,
    add_verify,
    add_workdir,
    join_processes,
    planned_config,
    read_workdir,
)
from t5x_lite.config.permission import options_that_allow
from t5x_lite.data.rows.row_plan import RowPlan
from t5x_lite.progress import say

EXAMPLE = "t5x_lite train --config=gpt_tiny --workdir=runs/gpt"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    add_config(command)
    add_workdir(command)
    add_verify(command)
    add_allow(command)
    add_distributed(command)
    help = "use the directory of a run that has ended, if its lock cannot tell that it has"
    command.add_argument("--take-over", action="store_true", help=help)
    help = "let settings of the optimizer differ from here on from those that the run began with"
    command.add_argument("--change", action="store_true", help=help)


def run(args: argparse.Namespace) -> None:
    """Train in the run directory, starting from its newest checkpoint."""
    workdir = read_workdir(args)
    config, plans = planned_config(args)
    from t5x_lite.config.stages import each_stage
    from t5x_lite.data.store.prepare import prepare

    each_stage(config, lambda stage: prepare(stage.data))
    join_processes(args)
    import jax

    from t5x_lite.training.stages import train_config

    train_config(config, workdir, plans, take_over=args.take_over, change=args.change)
    if jax.process_index() == 0:
        say(f"next: {_next_command(plans[-1], workdir)}")


def _next_command(rows: RowPlan, workdir: Path) -> str:
    """Return a command that tries out the trained model."""
    allowed = options_that_allow()
    if rows.loss != "heads":  # such a model may not predict tokens
        return f't5x_lite embed --workdir={workdir}{allowed} "The house."'
    if rows.bounds_whole_text:
        return f't5x_lite generate --workdir={workdir}{allowed} "The"'
    if rows.masked or rows.uses_sentinels:
        return f't5x_lite fill --workdir={workdir}{allowed} "The ___ is in the house."'
    return f't5x_lite generate --workdir={workdir}{allowed} "The"'
