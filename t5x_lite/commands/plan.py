"""Estimate the memory, time and money that a run, or each cell of a comparison, needs on other
devices; this needs no text.
"""

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from t5x_lite.commands.common import (
    add_allow,
    add_config,
    add_workdir,
    checked_rows,
    config_name,
    number_type,
    read_workdir,
)
from t5x_lite.config import CompareConfig, RunConfig
from t5x_lite.config.files import load_run_or_comparison
from t5x_lite.errors import USAGE, UserError
from t5x_lite.progress import messages_to, say, to_stderr

if TYPE_CHECKING:
    from t5x_lite.hardware import Topology
    from t5x_lite.planning.plan import Assumptions

EXAMPLE = "t5x_lite plan --config=t5_base --topology=v5e:4x4"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    add_config(command)
    add_workdir(command)
    add_allow(command)
    add = command.add_argument
    help = "the devices: v5e:4x4, v5p:8x8x8, 2*v6e:16x16 (slices), h100:8x8 (nodes of 8), cpu:8"
    add("--topology", default="cpu:1", help=help)
    add("--json", action="store_true", help="print one line of JSON, with each parameter's split")
    add("--search", action="store_true", help="rank all meshes, with remat and without")
    help = "weak scaling on 8 to 4,096 devices; with --workdir, also write a page with a chart"
    add("--scale", action="store_true", help=help)
    add("--splits", action="store_true", help="also show how each parameter is split")
    help = "only estimate for TPUs, even if libtpu is installed"
    add("--no-compile", action="store_true", help=help)
    add("--mfu", type=number_type(1e-6, 1.0), help="the MFU you expect; default: the roofline's")
    add("--dollars", type=number_type(0.0), help="price of one device for one hour")
    add("--watts", type=number_type(0.0), help="power of one device")
    add("--tflops", type=number_type(1e-3), help="peak of one device, in 10¹² FLOP/s")


def run(args: argparse.Namespace) -> None:
    """Print what a run will need on the given devices."""
    from t5x_lite.hardware import parse_topology

    # Planning needs no accelerator: do not occupy those that this machine may have.
    os.environ["JAX_PLATFORMS"] = "cpu"
    config = load_run_or_comparison(config_name(args), args.overrides)
    topology = parse_topology(args.topology)
    if isinstance(config, CompareConfig):
        return _plan_comparison(args, config, topology)
    checked_rows(args.command, config)
    from t5x_lite.config.stages import as_run, stages_of

    if args.scale and (args.search or args.splits):
        option = "--search" if args.search else "--splits"
        raise UserError(USAGE, f"plan: --scale plans one arrangement; leave {option} out")
    if args.workdir and not args.scale:
        raise UserError(USAGE, "plan: --workdir is for the page of --scale; leave it out")
    assumed = _assumptions(args)
    stages = stages_of(config)
    for number, stage in enumerate(stages, 1):
        if len(stages) > 1:
            head = f"stage {number} of {len(stages)}: {stage.objective}"
            print(head, file=sys.stderr if args.json else sys.stdout)
        _plan(args, as_run(stage), topology, assumed)


def _assumptions(args: argparse.Namespace) -> "Assumptions":
    """Return what the user assumes about the devices."""
    from t5x_lite.planning.plan import Assumptions

    return Assumptions(args.mfu, args.dollars, args.watts, args.tflops)


def _plan_comparison(args: argparse.Namespace, config: CompareConfig, topology: "Topology") -> None:
    """Print what all cells of a comparison need."""
    for option in ("search", "scale", "splits", "workdir"):
        if getattr(args, option):
            reason = f"--config={args.config} is a comparison, for which there is no --{option}"
            raise UserError(USAGE, f"plan: {reason}; leave it out")
    from t5x_lite.comparison.estimate import estimate, in_words

    found = estimate(config, topology, _assumptions(args))
    say(json.dumps(found.as_json()) if args.json else in_words(found))


def _plan(
    args: argparse.Namespace, config: RunConfig, topology: "Topology", assumed: "Assumptions"
) -> None:
    """Print what one stage needs."""
    from t5x_lite.planning import report as plan_report
    from t5x_lite.planning import search as plan_search
    from t5x_lite.planning.plan import make_plan
    from t5x_lite.planning.traffic import by_axis

    if args.scale:
        plans = plan_search.weak_scaling(config, topology, assumed)
        if args.workdir:
            from t5x_lite.report import page

            workdir = read_workdir(args)
            workdir.mkdir(parents=True, exist_ok=True)
            page.write(plan_report.scaling_page(args.config, plans), workdir)
        shown: Any = [plan.as_json() for plan in plans] if args.json else None
        return say(json.dumps(shown) if shown else plan_report.show_scaling(plans))
    if args.search:
        with messages_to(to_stderr):
            found = plan_search.search(config, topology, assumed)
        if args.json:
            return say(json.dumps([plan.as_json() for plan in found]))
        say(plan_report.show_found(found) + "\n")
        planned = found[0]
    else:
        planned = make_plan(config, topology, assumed)

    compiled = _compiled(args, planned)
    if compiled and compiled.fits:
        planned = planned.with_sent(by_axis(list(compiled.sent)))
    if args.json:
        record = planned.as_json()
        if compiled:
            record["compiled"] = compiled.as_json()
        return say(json.dumps(record))
    say(plan_report.show(args.config, planned, compiled))
    if args.splits:
        say("\n" + plan_report.show_splits(planned))


def _compiled(args: argparse.Namespace, planned: Any) -> Any:
    """Compile a plan for TPUs, if libtpu is installed and the user wants it."""
    from t5x_lite.planning import compiler as tpu_compiler

    if args.no_compile or not planned.topology.chip.is_tpu:
        return None
    if not tpu_compiler.is_installed():
        print("plan: libtpu is not installed: showing only estimates", file=sys.stderr)
        return None
    from t5x_lite.resolve import resolve_without_text

    print("plan: compiling the step with libtpu", file=sys.stderr)
    raw_tokens = planned.tokens.raw * planned.rows
    return tpu_compiler.compile_step(
        resolve_without_text(planned.config), raw_tokens, planned.topology
    )
