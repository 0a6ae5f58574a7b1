"""Train runs that differ in some settings, on the same text under one budget, and write
report.html; the same command continues where it was stopped.
"""

import argparse

from t5x_lite import storage
from t5x_lite.commands.common import (
    add_allow,
    add_config,
    add_distributed,
    add_verify,
    add_workdir,
    config_name,
    number_type,
    read_workdir,
)
from t5x_lite.config import CompareConfig
from t5x_lite.progress import say

EXAMPLE = "t5x_lite compare --config=compare/quickstart --workdir=runs/quickstart --jobs=2"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    add_config(command)
    add_workdir(command)
    add_verify(command)
    add_allow(command)
    add = command.add_argument
    add("--seeds", type=number_type(1), help="number of seeds to train each cell with")
    help = "add seeds up to this number, until every difference to the baseline is decided"
    add("--max-seeds", type=number_type(1), help=help)
    help = "one cell for each value of a setting, KEY=VALUE,VALUE; may be repeated"
    add("--grid", action="append", default=[], metavar="KEY=VALUES", help=help)
    help = "let each cell choose among the values of a setting, KEY=VALUE,VALUE; may be repeated"
    add("--tune", action="append", default=[], metavar="KEY=VALUES", help=help)
    help = "train only these, NAME,NAME; the same command without it writes the report"
    add("--cells", default="", metavar="NAMES", help=help)
    help = "number of runs to train at once, each on its share of a CPU's cores"
    add("--jobs", type=number_type(1), default=1, help=help)
    help = "show what each cell costs and how long it will take, and train nothing"
    add("--dry-run", action="store_true", help=help)
    add_distributed(command)


def run(args: argparse.Namespace) -> None:
    """Train the cells of a comparison, and write its report."""
    from t5x_lite.config.grammar import parse_list

    workdir = read_workdir(args)
    config = comparison_of(args)
    from t5x_lite.comparison import cells, report, run, tune

    only = parse_list(args.cells, "--cells") if args.cells else ()
    if args.dry_run:
        planned, *_ = cells.plan_comparison(config, workdir, only, measured=True)
        tries = tune.plan_tries(config, planned, workdir)
        return say(cells.plan_in_words(config, planned, len(tries)))
    results = run.compare(config, workdir, only, args.jobs)
    storage.push_all()
    if results:
        say(report.summary(results))
        say(f"written: {workdir / 'report.html'}, and report.md, .tex, .bib, .csv and .json")


def comparison_of(args: argparse.Namespace) -> CompareConfig:
    """Read the config of the comparison, with the options of the command."""
    from t5x_lite.config.files import load_comparison, names_run
    from t5x_lite.data.tasks.load import load_own_tasks

    given = {"seeds": args.seeds, "max_seeds": args.max_seeds}
    seeds = [f"{name}={value}" for name, value in given.items() if value is not None]
    config = load_comparison(config_name(args), [*args.overrides, *seeds], args.grid, args.tune)
    if not names_run(config_name(args)):
        load_own_tasks(config.tasks)
    return config
