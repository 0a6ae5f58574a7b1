"""Score texts by log-probability and bits per byte, or choices given a context."""

import argparse
import json
from typing import TYPE_CHECKING

from t5x_lite.commands.common import (
    add_allow,
    add_json,
    add_mesh,
    add_texts,
    add_verify,
    add_workdir,
    load_model,
)
from t5x_lite.progress import columns, say

if TYPE_CHECKING:
    from t5x_lite.api import LanguageModel

EXAMPLE = 't5x_lite score --workdir=runs/gpt "The cat sat."'


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    add_workdir(command)
    add_verify(command)
    add_allow(command)
    add_mesh(command)
    add_texts(command)
    add_json(command)
    help = "the text before the texts; for an encoder or T5, a text with one blank, ___, to fill"
    command.add_argument("--context", default="", help=help)
    help = "show the probability of each token, and what is likelier"
    command.add_argument("--tokens", action="store_true", help=help)


def run(args: argparse.Namespace) -> None:
    """Print the score of each text."""
    model = load_model(args)
    if args.tokens:
        return _show_tokens(model, args)
    scores = model.score(args.text, args.context)
    if args.json:
        for one in scores:
            say(json.dumps(one._asdict(), ensure_ascii=False))
        return
    lossy = "" if model.tokenizer.lossless else " (lossy tokenizer: not comparable)"
    say(f"{scores[0].kind.replace('_', ' ')} in nats, tokens, bits per byte{lossy}, text")
    for one in scores:
        say(f"{one.nats:10.3f}  {one.tokens:5d}  {one.bits_per_byte:6.3f}  {one.text}")
    if args.context and len(scores) > 1:
        likeliest = max(scores, key=lambda one: one.nats)
        by_byte = min(scores, key=lambda one: one.bits_per_byte)
        say(f"likeliest: {likeliest.text!r}; by byte: {by_byte.text!r}")


def _show_tokens(model: "LanguageModel", args: argparse.Namespace) -> None:
    """Print the probability of each token of each text, and the likeliest tokens there."""
    for text in args.text:
        tokens = model.predict_tokens(text, args.context)
        if args.json:
            records = [token._asdict() for token in tokens]
            say(json.dumps({"text": text, "tokens": records}, ensure_ascii=False))
            continue
        say(f"probability, token, likeliest tokens of {text!r}")
        rows = []
        for token in tokens:
            likeliest = ", ".join(f"{word} {share:.1%}" for word, share in token.likeliest)
            rows.append((f"{token.probability:.1%}", repr(token.text), likeliest))
        say(columns(rows, "><<"))
