"""Follow runs on a local page while they train: curves, speed, time left."""

import argparse

from t5x_lite import storage
from t5x_lite.commands.common import number_type
from t5x_lite.progress import say

EXAMPLE = "t5x_lite watch runs/gpt"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    help = "runs, or directories that hold runs, such as that of a comparison"
    command.add_argument("runs", nargs="+", metavar="RUN", help=help)
    help = "port of the page, which only this machine can reach; 0: any that is free"
    command.add_argument("--port", type=number_type(0, 65535), default=8001, help=help)


def run(args: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C."""
    from t5x_lite.pages.watch import watch_server

    with watch_server([storage.local_path(run) for run in args.runs], args.port) as server:
        say(f"{server.address} (Ctrl-C ends it)")
        server.serve_forever()
