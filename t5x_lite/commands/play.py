"""Try models on a local page: they write, fill in and score side by side."""

import argparse
import webbrowser
from collections.abc import Sequence

from t5x_lite.commands.common import (
    add_allow,
    add_verify,
    add_workdir,
    number_type,
    read_model_address,
)
from t5x_lite.errors import USAGE, UserError
from t5x_lite.progress import say

EXAMPLE = "t5x_lite play --workdir=runs/gpt --beside=runs/bert"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    add_workdir(command)
    help = "another run, to be shown beside it; may be repeated"
    command.add_argument("--beside", action="append", default=[], metavar="DIR", help=help)
    help = "port of the page, which only this machine can reach; 0: any that is free"
    command.add_argument("--port", type=number_type(0, 65535), default=8000, help=help)
    command.add_argument("--open", action="store_true", help="open the page in a browser")
    add_verify(command)
    add_allow(command)


def run(args: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C."""
    first = read_model_address(args)
    from t5x_lite import api
    from t5x_lite.config.files import check_is_run
    from t5x_lite.model_address import locate
    from t5x_lite.pages.play import play_server
    from t5x_lite.training.loop import setup_jax

    addresses = [first, *args.beside]
    for address in addresses:
        check_is_run(locate(address).directory)
    names = [str(locate(address)) for address in addresses]
    for name in names:
        if names.count(name) > 1:
            raise UserError(USAGE, f"play: {name} is given twice; name each run once")
    models = {}
    with play_server(models, args.port) as server:
        setup_jax()
        for name, address in zip(_short_names(addresses), addresses, strict=True):
            models[name] = api.load_model(address)
        say(f"{server.address} (Ctrl-C ends it)")
        if args.open:
            webbrowser.open(server.address)
        server.serve_forever()


def _short_names(addresses: Sequence[str]) -> list[str]:
    """Name runs by their directories, or by whole addresses if two of these are equal.

    >>> _short_names(["runs/gpt", "runs/bert"]), _short_names(["a/gpt", "b/gpt"])
    (['gpt', 'bert'], ['a/gpt', 'b/gpt'])
    """
    names = [address.rstrip("/").rpartition("/")[2] for address in addresses]
    return names if len(set(names)) == len(names) else list(addresses)
