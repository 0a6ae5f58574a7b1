"""Export a trained model to Hugging Face's file formats."""

import argparse
import re
from pathlib import Path

from t5x_lite import storage
from t5x_lite.commands.common import (
    add_allow,
    add_mesh,
    add_verify,
    add_workdir,
    read_mesh,
    read_model_address,
)
from t5x_lite.errors import USAGE, UserError
from t5x_lite.model_address import ModelAddress, locate
from t5x_lite.progress import say

EXAMPLE = "t5x_lite export --workdir=runs/gpt exported/gpt"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    add_workdir(command)
    add_verify(command)
    add_allow(command)
    add_mesh(command)
    command.add_argument("--to", choices=["hf"], default="hf", help="format of the files")
    types = ("float32", "bfloat16", "float16")
    command.add_argument("--dtype", choices=types, default="float32", help="type of the tensors")
    updates = command.add_mutually_exclusive_group()
    help = "add LoRA's updates to the weights"
    updates.add_argument("--merge", dest="lora", action="store_const", const="merge", help=help)
    help = "write only LoRA's updates and the head of the task, for peft"
    updates.add_argument("--adapter", dest="lora", action="store_const", const="adapter", help=help)
    help = "of a decoder of masked_next_token: write a model that predicts masked tokens"
    command.add_argument("--masked", action="store_true", help=help)
    help = "write all kept checkpoints, to directories named as revisions: chck_10M, step4000"
    command.add_argument("--revisions", action="store_true", help=help)
    help = "name this licence in the model card, as the Hub writes it: apache-2.0"
    command.add_argument("--license", default="", help=help)
    help = "upload to this repository of the Hugging Face Hub, made private if it is new"
    command.add_argument("--push", default="", metavar="USER/NAME", help=help)
    command.add_argument("path", help="the directory to write")


def run(args: argparse.Namespace) -> None:
    """Write a model as files of Hugging Face, and upload them if asked."""
    address = read_model_address(args)
    if not re.fullmatch(r"[\w.+-]*", args.license):
        expected = "expected the name that the Hub has for it, such as apache-2.0"
        raise UserError(USAGE, f"export: --license: got {args.license!r}, {expected}")
    from t5x_lite.interop import convert, hub
    from t5x_lite.interop.model_card import Naming
    from t5x_lite.training import chosen_checkpoint

    if args.push:
        hub.check_repository(args.push)
    mesh, directory = read_mesh(args), storage.local_path(args.path)
    located = locate(address)
    form = {"dtype": args.dtype, "lora": args.lora, "masked": args.masked}

    def export(source: str, checkpoint: ModelAddress, path: Path, revision: str = "") -> None:
        """Write one checkpoint, unless it is already there, and upload it if asked."""
        if (args.revisions or args.push) and convert.is_exported(checkpoint, path, **form):
            say(f"{path} exists")
            hub.check_card(path, args.push, args.license)
        else:
            naming = Naming(args.push, args.license, revision if args.push else "")
            convert.export_model(source, path, mesh=mesh, naming=naming, **form)
            storage.push(directory)
        if args.push:
            hub.upload(path, args.push, revision)

    if not args.revisions:
        step = chosen_checkpoint.step_to_load(located) if args.push else 0
        export(address, located._replace(checkpoint=str(step)), directory)
        return
    if located.checkpoint:
        reason = f"got {located.checkpoint} after the @, but --revisions writes all checkpoints"
        raise UserError(USAGE, f"--workdir: {reason}; leave one out")
    path = directory
    for name, checkpoint in chosen_checkpoint.revisions(located.directory).items():
        path = directory / name
        export(str(checkpoint), checkpoint, path, revision=name)
    if args.push:  # the main branch, which is loaded by default, gets the last checkpoint
        hub.upload(path, args.push)
