"""Check this machine, this installation, and the place to write to."""

import argparse

from t5x_lite.commands.common import add_workdir, number_type
from t5x_lite.errors import UNFIT, UserError
from t5x_lite.progress import say

EXAMPLE = "t5x_lite doctor"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    add_workdir(command)
    help = "number of processes that the run should have"
    command.add_argument("--processes", type=number_type(1), help=help)


def run(args: argparse.Namespace) -> None:
    """Check this machine, and print what was found."""
    from t5x_lite.planning.doctor import examine

    findings = []
    for finding in examine(args.workdir or "", args.processes):
        say(str(finding))
        findings.append(finding)
    wrong = sum(finding.is_fatal for finding in findings)
    if wrong:
        what = "one thing is" if wrong == 1 else f"{wrong} things are"
        raise UserError(UNFIT, f"doctor: {what} wrong, see above")
