"""Export a trained model to Hugging Face's file formats."""

import argparse

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
from t5x_lite.model_address import locate
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
    command.add_argument("path", help="the directory to write")


def run(args: argparse.Namespace) -> None:
    """Write a model as files of Hugging Face."""
    address = read_model_address(args)
    from t5x_lite.interop import convert

    mesh = read_mesh(args)
    form = {"dtype": args.dtype, "lora": args.lora, "masked": args.masked}
    directory = storage.local_path(args.path)
    if not args.revisions:
        convert.export_model(address, directory, mesh=mesh, **form)
        storage.push(directory)
        return
    located = locate(address)
    if located.checkpoint:
        reason = f"got {located.checkpoint} after the @, but --revisions writes all checkpoints"
        raise UserError(USAGE, f"--workdir: {reason}; leave one out")
    from t5x_lite.training.run_directory import revisions

    for name, checkpoint in revisions(located.directory).items():
        path = directory / name
        if convert.is_exported(checkpoint, path, **form):
            say(f"{path} exists")
        else:
            convert.export_model(str(checkpoint), path, mesh=mesh, **form)
            storage.push(directory)
