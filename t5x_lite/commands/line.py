"""Parse the command line, including settings (--config.KEY=VALUE), and suggest fixes for typos."""

import argparse
import textwrap
from collections.abc import Sequence
from typing import NoReturn

from t5x_lite.commands import COMMANDS
from t5x_lite.errors import USAGE, UserError, nearest
from t5x_lite.version import VERSION


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one sentence, like all errors of t5x_lite."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError. Argparse itself would print all options in front of its message."""
        _, *command = self.prog.split()
        what = ": ".join([*command, message.removeprefix("argument ")])
        raise UserError(USAGE, f"{what}; see {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    description = "Pretrain BERT, T5 and GPT from one codebase, and compare."
    main = Parser("t5x_lite", description=description)
    main.add_argument("--version", action="version", version=VERSION)
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        help = " ".join((module.__doc__ or "").split()).rstrip(".")
        command = commands.add_parser(
            name,
            help=help,
            description=textwrap.fill(help, 79),
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_options(command)
        note = f"{textwrap.fill(command.epilog, 79)}\n\n" if command.epilog else ""
        command.epilog = f"{note}example:\n  {module.EXAMPLE}"
    return main


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments. Collect the --config.KEY=VALUE overrides among them, in order."""
    overrides, rest = [], []
    words = iter(argv)
    for word in words:
        if not word.startswith("--config."):
            rest.append(word)
            continue
        override = word.removeprefix("--config.")
        if "=" not in override:
            value = next(words, "--")
            if value.startswith("--"):
                raise UserError(USAGE, f"{word}: got no value, expected {word}=VALUE")
            override += f"={value}"
        overrides.append(override)
    if rest and not rest[0].startswith("-") and rest[0] not in COMMANDS:
        raise UserError(USAGE, f"{rest[0]}: no such command; {nearest(rest[0], COMMANDS)}")
    main = parser()
    args, unknown = main.parse_known_args(rest)
    if unknown:
        raise UserError(
            USAGE, f"{args.command}: got {unknown[0]}, {_suggest_option(args, unknown[0])}"
        )
    args.parser, args.overrides = main, overrides
    if overrides and not hasattr(args, "config"):
        raise UserError(USAGE, f"{args.command}: takes no --config settings")
    return args


def _suggest_option(args: argparse.Namespace, option: str) -> str:
    """Suggest a setting that was given without --config and its section, or a similar option."""
    from t5x_lite.config.files import find_setting

    name, equals, value = option.partition("=")
    setting = find_setting(name.lstrip("-").replace("-", "_"))
    if setting and hasattr(args, "config"):
        return f"did you mean --config.{setting}{equals}{value}?"
    options = [
        f"--{known.replace('_', '-')}"
        for known in vars(args)
        if known not in ("command", "text", "path")
    ]
    return "which is no option; " + nearest(name, options)
