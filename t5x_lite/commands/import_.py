"""Make a run directory from a Hugging Face model."""

import argparse
from pathlib import Path

from t5x_lite.commands.common import add_workdir, read_workdir

EXAMPLE = "t5x_lite import hf/bert-base-uncased --workdir=runs/bert_base"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    add_workdir(command)
    command.add_argument("--from", choices=["hf"], default="hf", help="format of the files")
    command.add_argument("--tokenizer", default="", help="the tokenizer's files, if elsewhere")
    help = "append the special ids that the tokenizer lacks, such as [MASK]"
    command.add_argument("--add-specials", action="store_true", help=help)
    command.add_argument("path", help="the directory of the model")


def run(args: argparse.Namespace) -> None:
    """Import a model, and write it as a run directory."""
    from t5x_lite.interop import convert

    workdir = read_workdir(args)
    convert.import_model(Path(args.path), workdir, args.tokenizer, args.add_specials)
