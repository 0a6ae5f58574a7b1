"""Continue texts."""

import argparse
import json
from pathlib import Path
from typing import Any

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
from t5x_lite.errors import USAGE, UserError
from t5x_lite.progress import say

EXAMPLE = 't5x_lite generate --workdir=runs/gpt "The cat"'


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    add_workdir(command)
    add_verify(command)
    add_allow(command)
    add_mesh(command)
    add_texts(command)
    add_json(command)
    add = command.add_argument
    add("--max-new-tokens", type=number_type(1), default=64, help="most tokens to write")
    add("--temperature", type=number_type(0.0), default=0.0, help="0: always the likeliest token")
    add("--top-k", type=number_type(0), default=0, help="sample from the k likeliest; 0: all")
    add(
        "--top-p",
        type=number_type(1e-6),
        default=1.0,
        help="sample from the likeliest tokens that together have this probability",
    )
    add("--seed", type=number_type(0, 2**31 - 1), default=0)
    add(
        "--num-beams", type=number_type(1), default=1, help="above 1: beam search for the best text"
    )
    add("--length-penalty", type=number_type(0.0), default=0.6, help="for beam search; 0: none")
    add(
        "--stop",
        action="append",
        default=[],
        help="stop before this string; may be repeated",
    )
    help = "of masked_diffusion: in how many steps the masks are replaced; 0: one token a step"
    add("--unmask-steps", type=number_type(0), default=0, help=help)
    help = "of masked_diffusion: which predictions a step keeps"
    add("--unmask-order", choices=["confidence", "random"], default="confidence", help=help)
    help = "of masked_diffusion: tokens that are finished before the next begin; 0: all at once"
    add("--unmask-block", type=number_type(0), default=0, help=help)
    help = "names of special tokens in a prompt, such as <extra_id_0>, stand for them, not for text"
    add("--special-tokens", action="store_true", help=help)
    add("--examples", help='solved examples for the prompt: JSON lines {"input": …, "target": …}')
    add("--shots", type=number_type(0), help="number of examples, drawn by --seed; default: all")
    add("--template", help="text of an example; default: '{input} => {target}\\n'")


def run(args: argparse.Namespace) -> None:
    """Print what a model writes after each prompt."""
    names = (
        "max_new_tokens",
        "temperature",
        "top_k",
        "top_p",
        "seed",
        "num_beams",
        "length_penalty",
        "special_tokens",
        "unmask_steps",
        "unmask_order",
        "unmask_block",
    )
    options: dict[str, Any] = {name: getattr(args, name) for name in names}
    options["stop"] = tuple(map(_unescaped, args.stop))
    texts = args.text
    if not args.examples and (args.shots is not None or args.template):
        raise UserError(
            USAGE,
            "generate: --shots and --template need examples; name their file with --examples",
        )
    if args.examples:
        texts = _few_shot_prompts(args)
        options["stop"] = options["stop"] or ("\n",)
    model = load_model(args)
    if len(texts) == 1 and not args.json:
        pieces = model.stream(texts[0], **options)
        first = next(pieces, "")  # raise any error before the prompt is shown
        print(args.text[0], first, sep="", end="", flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
        return say("")
    for text, continuation in zip(args.text, model.generate(texts, **options), strict=True):
        if args.json:
            say(json.dumps({"text": text, "continuation": continuation}, ensure_ascii=False))
        else:
            say(text + continuation)


def _few_shot_prompts(args: argparse.Namespace) -> list[str]:
    from t5x_lite.inference import few_shot

    examples = few_shot.read_examples(Path(args.examples))
    template = _unescaped(args.template or few_shot.TEMPLATE)
    shots = len(examples) if args.shots is None else args.shots
    return [
        few_shot.few_shot_prompt(examples, text, shots, args.seed, template) for text in args.text
    ]


def _unescaped(text: str) -> str:
    """Turn the two characters \\n, as typed in a shell, into a line end."""
    return text.replace("\\n", "\n")
