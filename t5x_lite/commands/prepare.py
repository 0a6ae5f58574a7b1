"""Make the tokenizer and the token store of a config, ahead of training."""

import argparse

from t5x_lite.commands.common import add_allow, add_config, planned_config
from t5x_lite.errors import USAGE, UserError
from t5x_lite.progress import say

EXAMPLE = "t5x_lite prepare --config=gpt_tiny"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    add_config(command)
    add_allow(command)
    help = "read and encode on Apache Beam workers, with Beam's OPTIONS; '': on this machine"
    command.add_argument("--beam", metavar="OPTIONS", help=help)


def run(args: argparse.Namespace) -> None:
    """Prepare the token store of each stage, and print where it is."""
    config, _ = planned_config(args)
    import shlex

    from t5x_lite.data.store.prepare import prepare

    try:
        beam_options = None if args.beam is None else shlex.split(args.beam)
    except ValueError as error:
        raise UserError(USAGE, f"--beam={args.beam}: {str(error).lower()}; close it") from error
    from t5x_lite.config.stages import stages_of

    stores = [prepare(stage.data, beam_options).path for stage in stages_of(config)]
    for path in dict.fromkeys(stores):
        say(f"store: {path}")
