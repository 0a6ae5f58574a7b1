"""Show what a model will read: the first rows of a config and the run's ledger, the first examples
of a task, or the contents of a token store.
"""

import argparse

from t5x_lite.commands.common import (
    add_allow,
    add_config,
    number_type,
    planned_config,
    read_config,
    read_task,
)
from t5x_lite.errors import USAGE, UserError
from t5x_lite.progress import say

EXAMPLE = "t5x_lite inspect --config=t5_tiny"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    add_config(command)
    add_allow(command)
    command.add_argument(
        "--examples", type=number_type(0), default=3, help="number of rows or examples to show"
    )
    command.add_argument("--task", help="show this task as the model would read it; see finetune")
    command.add_argument("--store", help="a token store that prepare made, instead of a config")


def run(args: argparse.Namespace) -> None:
    """Print what a config, a task or a token store holds."""
    if args.store and args.config:
        raise UserError(USAGE, "inspect: got --store and --config; give one of them")
    if args.task:
        from t5x_lite import api

        config = read_config(args)
        shown = api.inspect_task(config, read_task(args), "train", args.examples)
        return say(shown)
    if args.store:
        from t5x_lite.data.inspection import show_store
        from t5x_lite.data.store.corpus import open_store

        return say(show_store(open_store(args.store, check_again=True), args.examples))
    config, _ = planned_config(args)
    from t5x_lite import api

    say(str(api.inspect(config, args.examples)))
