"""Try models on a local page: they write, fill in and score side by side."""

import argparse
import webbrowser

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
    from t5x_lite.pages.server import short_names
    from t5x_lite.training.loop import setup_jax

    addresses = [first, *args.beside]
    located = [locate(address) for address in addresses]
    for one in located:
        check_is_run(one.directory)
        if list(map(str, located)).count(str(one)) > 1:
            raise UserError(USAGE, f"play: {one} is given twice; name each run once")
    models = {}
    # Open the port first, so that one in use is rejected before models are loaded.
    with play_server(models, args.port) as server:
        setup_jax()
        for name, address in zip(short_names(addresses), addresses, strict=True):
            models[name] = api.load_model(address)
        say(f"{server.address} (Ctrl-C ends it)")
        if args.open:
            webbrowser.open(server.address)
        server.serve_forever()
