"""Fill the blanks (___) of texts."""

import argparse
import json

from t5x_lite.commands.common import (
    add_allow,
    add_json,
    add_mesh,
    add_texts,
    add_verify,
    add_workdir,
    load_model,
    number_type,
)
from t5x_lite.progress import say

EXAMPLE = 't5x_lite fill --workdir=runs/bert "The ___ is in the house."'


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    add_workdir(command)
    add_verify(command)
    add_allow(command)
    add_mesh(command)
    add_texts(command)
    add_json(command)
    command.add_argument(
        "--top", type=number_type(1), default=5, help="number of words to show per blank"
    )


def run(args: argparse.Namespace) -> None:
    """Print the likeliest words for each blank."""
    model = load_model(args)
    for text in args.text:
        answers = model.fill(text, args.top)
        if args.json:
            say(json.dumps({"text": text, "blanks": answers}, ensure_ascii=False))
            continue
        say(text)
        for number, answer in enumerate(answers, 1):
            if not isinstance(answer, str):
                answer = ", ".join(f"{word} {probability:.1%}" for word, probability in answer)
            say(f"  {number}. {answer}")
