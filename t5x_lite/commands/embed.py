"""Turn texts into vectors: the hidden states of a model, averaged unless told otherwise."""

import argparse
import json
from pathlib import Path

from t5x_lite.commands.common import (
    add_allow,
    add_mesh,
    add_texts,
    add_verify,
    add_workdir,
    load_model,
)
from t5x_lite.errors import USAGE, UserError
from t5x_lite.progress import say

EXAMPLE = 't5x_lite embed --workdir=runs/bert "The cat sat." "A dog ran."'


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    add_workdir(command)
    add_verify(command)
    add_allow(command)
    add_mesh(command)
    add_texts(command)
    help = "mean: over all positions; cls: first position of an encoder; none: all positions"
    command.add_argument("--pooling", choices=["mean", "cls", "none"], default="mean", help=help)
    help = "a .npy file for the array [texts, d_model], instead of one line of JSON per text"
    command.add_argument("--out", default="", help=help)


def run(args: argparse.Namespace) -> None:
    """Print or write the vector of each text."""
    if args.out and Path(args.out).suffix != ".npy":
        raise UserError(USAGE, f"--out={args.out}: expected a name that ends in .npy")
    vectors = load_model(args).embed(args.text, args.pooling)
    if args.out:
        from t5x_lite.inference.embed import save

        save(Path(args.out), vectors)
        return say(f"written: {args.out}")
    key = "hidden_states" if args.pooling == "none" else "vector"
    for text, vector in zip(args.text, vectors, strict=True):
        say(json.dumps({"text": text, key: vector.tolist()}, ensure_ascii=False))
