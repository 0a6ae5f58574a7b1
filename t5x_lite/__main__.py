"""The command line: python -m t5x_lite COMMAND. Bad input ends in a one-sentence error and an exit
code, never in a traceback.
"""

import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from t5x_lite import storage
from t5x_lite.commands import COMMANDS
from t5x_lite.commands.common import share
from t5x_lite.commands.line import parse
from t5x_lite.config.permission import allow, guarded
from t5x_lite.errors import INTERRUPTED, UserError, expected_errors, shortened
from t5x_lite.machine import check_platforms
from t5x_lite.manifest import Level, verification
from t5x_lite.signals import CODES, Stopped, stop_on_signals
from t5x_lite.terminal import visible, visible_output

# Imported and traced programs are a million objects that live on. By default, Python looks through
# them again and again while they are made, which takes a fifth of the time of tracing.
_COLLECT_AFTER = (100_000, 20, 100)
_JOIN_WITHIN = 5.0  # seconds that a failed command waits for its threads


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    with visible_output():
        return _main(sys.argv[1:] if argv is None else argv)


def _main(argv: Sequence[str]) -> int:
    try:
        with stop_on_signals(), expected_errors():
            args = parse(argv)
            if args.command not in ("prepare", "plan", "doctor"):
                unused = check_platforms()
                if unused:
                    print(f"t5x_lite: {unused}", file=sys.stderr)
            if hasattr(args, "mesh") or args.command == "compare":
                share(args)
            level: Level = getattr(args, "verify", "full")
            code = getattr(args, "allow_code", ())
            paths = getattr(args, "allow_path", ())
            with guarded(), allow(code, paths), verification(level):
                COMMANDS[args.command].run(args)
            storage.push_all()
        return 0
    except UserError as error:
        in_one_line = storage.with_addresses(str(error)).replace("\n", "\\n")
        code, message = error.code, shortened(visible(in_one_line))
    except Stopped as stopped:
        code, message = stopped.code, f"stopped by {stopped}; what was saved is kept"
    except KeyboardInterrupt:
        code, message = INTERRUPTED, "interrupted; what was saved is kept"
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as if SIGPIPE had ended the process
    print(f"t5x_lite: {message}", file=sys.stderr)
    return code


def script() -> NoReturn:
    """Run the command given to this process, and exit with its code.

    The process ends as soon as all threads have ended and all functions that libraries registered
    with atexit meanwhile have run. Python would then free a million objects one by one, which takes
    0.4 s, and during which a signal would replace the exit code of a command that is done.
    """
    gc.set_threshold(*_COLLECT_AFTER)
    code = 1  # of an error that is not caught

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # it may be closed, or None
                stream.flush()
        os._exit(code)

    atexit.register(leave)  # the first to be registered is the last to run
    try:
        code = main()
    except SystemExit as exit:  # argparse's
        code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        raise
    # The code is known: a signal ends the process with it, whatever libraries still had to do.
    for number in (signal.SIGINT, *CODES):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: leave())
    if code:
        _end_within(_JOIN_WITHIN)
    sys.exit(code)


def _end_within(seconds: float) -> None:
    """End the process even if threads of a library are still waiting. Orbax's threads, for example,
    wait for each other until they time out if a full disk keeps them from making a directory.
    """
    joined = threading.Event()
    atexit.register(joined.set)  # runs once all other threads have ended

    def end() -> None:
        if not joined.wait(seconds):
            atexit._run_exitfuncs()

    threading.Thread(target=end, daemon=True).start()


if __name__ == "__main__":
    script()
