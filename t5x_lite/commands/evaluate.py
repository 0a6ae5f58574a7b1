"""Evaluate a trained model on its whole validation split, or on a task."""

import argparse
import json
from pathlib import Path

from t5x_lite.commands.common import (
    add_allow,
    add_mesh,
    add_verify,
    add_workdir,
    load_model,
    number_type,
    read_mesh,
    read_model_address,
    read_task,
)
from t5x_lite.errors import USAGE, UserError
from t5x_lite.progress import columns, messages_to, say, to_stderr

EXAMPLE = "t5x_lite evaluate --workdir=runs/gpt"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    add_workdir(command)
    add_verify(command)
    add_allow(command)
    add_mesh(command)
    add = command.add_argument
    add("--json", action="store_true", help="print one line of JSON")
    add("--task", default="", help="a task instead of the validation text, such as blimp")
    add("--split", default="validation", choices=["train", "validation", "test"])
    add("--shots", type=number_type(0), default=0, help="number of solved examples in the prompt")
    add("--seed", type=number_type(0, 2**31 - 1), default=0, help="draws the solved examples")
    add("--limit", type=number_type(0), default=0, help="evaluate only this many examples; 0: all")
    help = "score the question given each answer, not the answer given the question"
    add("--channel", action="store_true", help=help)
    add("--predictions", default="", help="a file to write, one line of JSON per example")


def run(args: argparse.Namespace) -> None:
    """Evaluate a model, and print its metrics."""
    address = read_model_address(args)
    if args.task:
        return _evaluate_task(args)
    if args.shots or args.limit or args.channel or args.predictions:
        raise UserError(
            USAGE, "evaluate: --shots, --limit, --channel and --predictions need --task"
        )
    from t5x_lite import api

    with messages_to(to_stderr):
        metrics = api.evaluate(address, read_mesh(args))
    if args.json:
        return say(json.dumps(metrics))
    rows = []
    for name, value in metrics.items():
        if isinstance(value, float):
            shown = f"{value:,.0f}" if value.is_integer() else f"{value:,.4f}"
        else:
            shown = str(value)
        rows.append((name.replace("_", " "), shown))
    say(columns(rows, "<>"))


def _evaluate_task(args: argparse.Namespace) -> None:
    """Evaluate a model on a task, whether it was trained on it or not."""
    task = read_task(args)
    model = load_model(args)
    results = model.evaluate_task(
        task, args.split, args.shots, args.seed, "channel" if args.channel else "direct", args.limit
    )
    if args.predictions:
        lines = [json.dumps(record, ensure_ascii=False) for record in results.pop("predictions")]
        Path(args.predictions).write_text("\n".join(lines) + "\n", "utf-8")
    results.pop("predictions", None)
    if args.json:
        return say(json.dumps(results))
    say(f"{task.name}, {results['split']}: {results['examples']:,} examples")
    say(f"by {results['method']}")
    rows = [(f"  {name}", f"{value:.4f}", "") for name, value in results["groups"].items()]
    for name, value in results["metrics"].items():
        of_chance = ""
        if name == "accuracy" and results["chance"] is not None:
            of_chance = f"(guessing: {results['chance']:.4f})"
        rows.append((name.replace("_", " "), f"{value:.4f}", of_chance))
    say(columns(rows, "<><"))
