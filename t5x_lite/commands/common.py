"""Options that several commands share, and functions that read them.

Other parts of the package are imported inside functions, so that --help and typos get an answer at
once.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from t5x_lite import storage
from t5x_lite.config import Mesh, RunConfig
from t5x_lite.errors import USAGE, UserError, user_errors
from t5x_lite.manifest import LEVELS
from t5x_lite.model_address import locate

if TYPE_CHECKING:
    from t5x_lite.api import LanguageModel
    from t5x_lite.config import Task
    from t5x_lite.data.rows.row_plan import RowPlan


# Adding options.


def number_type(low: float, high: float = float("inf")) -> Callable[[str], float]:
    """Return a function that converts text to a number in a range, of the type of `low`."""

    def convert(text: str) -> float:
        value = type(low)(text)
        if not low <= value <= high or value == float("inf"):
            expected = f"at least {low}" if high == float("inf") else f"from {low} to {high}"
            raise argparse.ArgumentTypeError(f"got {text}, expected a number {expected}")
        return value

    convert.__name__ = type(low).__name__  # argparse shows it if the text is not a number
    return convert


def add_config(command: argparse.ArgumentParser) -> None:
    """Add --config, and with it --config.KEY=VALUE."""
    help = "a config file, or the name of one that ships, such as gpt_tiny"
    command.add_argument("--config", help=help)
    command.epilog = (
        "Any setting can be given as --config.KEY=VALUE, such as --config.training.steps=100."
    )


def add_workdir(command: argparse.ArgumentParser) -> None:
    """Add the option that names a run directory."""
    command.add_argument("--workdir", help="the directory of the run")


def add_verify(command: argparse.ArgumentParser) -> None:
    """Add the option that says how thoroughly checkpoints are checked."""
    help = (
        "compare checkpoints with their manifest: files and arrays (full), only files, or nothing"
    )
    command.add_argument("--verify", choices=LEVELS, default="full", help=help)


def add_allow(command: argparse.ArgumentParser) -> None:
    """Add the options that permit what a config.json or a report.json names."""
    help = "a module of your own that the run's config may import; may be repeated"
    command.add_argument("--allow-code", action="append", default=[], metavar="MODULE", help=help)
    help = "a file, directory or address that the run's config may open; may be repeated"
    command.add_argument("--allow-path", action="append", default=[], metavar="PATH", help=help)


def add_distributed(command: argparse.ArgumentParser) -> None:
    """Add the option for a run with several processes."""
    help = "this is one of several processes; find the others through the cluster"
    command.add_argument("--distributed", action="store_true", help=help)


def add_mesh(command: argparse.ArgumentParser) -> None:
    """Add --mesh and --distributed, for commands that use a trained model."""
    help = "shard the model over all devices, such as fsdp=4,tensor=2; left out: use one device"
    command.add_argument("--mesh", default="", help=help)
    add_distributed(command)


def add_texts(command: argparse.ArgumentParser) -> None:
    """Add one or more texts as arguments."""
    command.add_argument("text", nargs="+", help="one or several texts")


def add_json(command: argparse.ArgumentParser) -> None:
    """Add the option that prints JSON."""
    command.add_argument("--json", action="store_true", help="print one line of JSON per text")


# Reading options.


def config_name(args: argparse.Namespace) -> str:
    """Return --config, which must be given."""
    if not args.config:
        raise UserError(
            USAGE, f"{args.command}: --config=FILE is missing; try --config=gpt_tiny, which ships"
        )
    return args.config


def read_config(args: argparse.Namespace) -> RunConfig:
    """Read and check the config."""
    from t5x_lite.config.files import load

    return load(config_name(args), args.overrides)


def planned_config(args: argparse.Namespace) -> tuple[RunConfig, list["RowPlan"]]:
    """Read the config of a run on text, and plan the rows of its stages: see checked_rows."""
    config = read_config(args)
    return config, checked_rows(args.command, config)


def checked_rows(command: str, config: RunConfig) -> list["RowPlan"]:
    """Plan the rows of the stages of a run on text. Objectives that cannot be laid out are rejected
    before jax is imported, and contradictions in the model before text is prepared.
    """
    from t5x_lite.resolve import plan_objective

    if config.task.name:
        raise UserError(USAGE, f"{command}: this run learned a task; continue with finetune")
    from t5x_lite.config.stages import each_stage, naming_stage, stages_of

    plans = each_stage(config, plan_objective)
    from t5x_lite.model.check import check_settings as check_model_settings
    from t5x_lite.training.check import check_training

    for number, (stage, rows) in enumerate(zip(stages_of(config), plans, strict=True)):
        with naming_stage(config, number):
            check_model_settings(stage.model, rows.shape)
            check_training(stage)
    return plans


def check_settings(args: argparse.Namespace) -> None:
    """Reject settings that cannot be trained, before anything is started."""
    planned_config(args)


def read_workdir(args: argparse.Namespace) -> Path:
    """Return --workdir, which must be given. An address in a bucket becomes its local mirror."""
    return storage.local_path(_given_workdir(args))


def _given_workdir(args: argparse.Namespace) -> str:
    if not args.workdir:
        raise UserError(
            USAGE, f"{args.command}: --workdir=DIR is missing; name the directory of the run"
        )
    return args.workdir


def read_model_address(args: argparse.Namespace) -> str:
    """Return --workdir, which must hold a run; it may name a checkpoint, as RUN@STEP."""
    from t5x_lite.config.files import check_is_run

    address = _given_workdir(args)
    check_is_run(locate(address).directory)
    return address


def read_mesh(args: argparse.Namespace) -> Mesh | None:
    """Read --mesh=fsdp=4,tensor=2; None if it is not given."""
    from t5x_lite.config.files import build

    if not args.mesh:
        return None
    sizes = {}
    for part in args.mesh.split(","):
        axis, equals, size = part.partition("=")
        if not equals or not size.lstrip("-").isdigit():
            raise UserError(
                USAGE, f"--mesh={args.mesh}: expected AXIS=SIZE,…, such as fsdp=4,tensor=2"
            )
        sizes[axis] = size
    return build(Mesh, sizes, "mesh.")


def read_task(args: argparse.Namespace) -> "Task":
    """Read --task. What it names is permitted, since the user wrote it."""
    from t5x_lite.data.tasks.load import load_own_task

    return load_own_task(args.task)


def load_model(args: argparse.Namespace) -> "LanguageModel":
    """Load the model in --workdir, sharded over --mesh."""
    workdir = read_model_address(args)
    from t5x_lite import api
    from t5x_lite.training.loop import setup_jax

    setup_jax()
    return api.load_model(workdir, read_mesh(args))


# Several processes.


def join_processes(args: argparse.Namespace) -> None:
    """Join the other processes of the run, if launch/local or the cluster has started several."""
    import jax

    count = os.environ.get("T5X_LITE_PROCESSES")
    if count:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        process = int(os.environ["T5X_LITE_PROCESS"])
        jax.distributed.initialize(os.environ["T5X_LITE_COORDINATOR"], int(count), process)
    elif args.distributed:
        from t5x_lite.training.processes import devices_of_task

        with user_errors(USAGE, "--distributed: jax finds no cluster here; leave it out"):
            jax.distributed.initialize(local_device_ids=devices_of_task(os.environ))


def share(args: argparse.Namespace) -> None:
    """Join the other processes, if there are any, to run the command together. Only the first
    process prints the result.
    """
    if not args.distributed and "T5X_LITE_PROCESSES" not in os.environ:
        return
    join_processes(args)
    import jax

    if jax.process_count() > 1 and args.command != "compare" and not args.mesh:
        reason = f"{jax.process_count()} processes must share the model over a mesh"
        raise UserError(USAGE, f"{args.command}: {reason}; add --mesh, such as --mesh=fsdp=4")
    if jax.process_index() > 0:
        sys.stdout = open(os.devnull, "w")
