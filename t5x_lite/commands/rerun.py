"""Reproduce a comparison from its report.json, and say whether the scores are the same."""

import argparse

from t5x_lite import storage
from t5x_lite.commands.common import add_allow, add_workdir, number_type, read_workdir
from t5x_lite.progress import say

EXAMPLE = "t5x_lite rerun runs/quickstart/report.json --workdir=runs/again"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    command.add_argument("path", metavar="REPORT", help="the report.json that compare wrote")
    add_workdir(command)
    add_allow(command)
    help = "number of runs to train at once, each on its share of a CPU's cores; default: as then"
    command.add_argument("--jobs", type=number_type(1), default=0, help=help)


def run(args: argparse.Namespace) -> None:
    """Train again all runs of a report."""
    workdir = read_workdir(args)
    from t5x_lite.comparison import report
    from t5x_lite.comparison.rerun import rerun

    results, sentences = rerun(storage.local_path(args.path), workdir, args.jobs)
    storage.push_all()
    say(report.summary(results))
    for sentence in sentences:
        say(sentence)
