"""Print a script with which a shell completes commands, options and settings."""

import argparse

from t5x_lite.config import RunConfig
from t5x_lite.config.roles import roles
from t5x_lite.errors import optional_import
from t5x_lite.progress import say

EXAMPLE = "t5x_lite completion bash"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    help = 'the shell; for bash, put eval "$(t5x_lite completion bash)" into ~/.bashrc'
    command.add_argument("shell", choices=["bash", "zsh", "tcsh"], help=help)


def run(args: argparse.Namespace) -> None:
    """Print the completion script of a shell."""
    shtab = optional_import("shtab", "completion", "completion")
    (commands,) = (found.choices for found in args.parser._actions if found.dest == "command")
    # Settings are not options of argparse, since they would flood --help. Add them here.
    for command in commands.values():
        if "--config" in command.format_usage():
            for setting in roles(RunConfig):
                command.add_argument(f"--config.{setting}")
    say(shtab.complete(args.parser, args.shell))
