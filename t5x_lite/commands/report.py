"""Write report.html and report.md for a run, for several runs side by side, or for the results of
compare or finetune.
"""

import argparse

from t5x_lite import storage
from t5x_lite.commands.common import add_allow, add_workdir, read_workdir
from t5x_lite.progress import say

EXAMPLE = "t5x_lite report runs/gpt"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    add_workdir(command)
    add_allow(command)
    help = "runs to show side by side; default: what is in --workdir"
    command.add_argument("runs", nargs="*", metavar="RUN", help=help)


def run(args: argparse.Namespace) -> None:
    """Write the report of one or several runs."""
    workdir = read_workdir(args)
    from t5x_lite.comparison import run

    runs = [storage.local_path(run) for run in args.runs]
    run.write_report(workdir, runs)
    storage.push_all()
    say(f"written: {workdir / 'report.html'} and report.md")
