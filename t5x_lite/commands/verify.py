"""Check that runs, with their checkpoints, and exports are still what was written."""

import argparse

from t5x_lite import storage
from t5x_lite.commands.common import add_allow, add_verify
from t5x_lite.errors import NO_FILE, UserError
from t5x_lite.progress import say

EXAMPLE = "t5x_lite verify runs/gpt"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    add_verify(command)
    add_allow(command)
    help = "a run, an export, or a directory of them"
    command.add_argument("path", nargs="+", metavar="DIR", help=help)


def run(args: argparse.Namespace) -> None:
    """Print what was found about each part, and fail if one is damaged."""
    from t5x_lite.training.verify import verify

    checked, damaged = 0, []
    for address in args.path:
        directory = storage.local_path(address)
        if not directory.is_dir():
            raise UserError(NO_FILE, f"verify: {address}: no such directory; name one")
        for finding in verify(directory):
            checked += 1
            if finding.damage:
                damaged.append(finding.path)
                say(f"damaged  {finding.path}: {finding.damage}")
            else:
                say(f"whole    {finding.path}: {finding.what}")
    if not checked:
        reason = f"{', '.join(args.path)}: no run and no export is there"
        raise UserError(NO_FILE, f"verify: {reason}; name a directory that t5x_lite wrote")
    if damaged:
        reason = f"{len(damaged)} of {checked} parts are damaged"
        raise UserError(NO_FILE, f"verify: {reason}; bring them back from a copy")
    say(f"all {checked} parts are what was written")
