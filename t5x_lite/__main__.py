"""The commands: python -m t5x_lite COMMAND. Bad input is one sentence and an exit code, never a
traceback.
"""

import os
import sys
from collections.abc import Sequence

from t5x_lite import storage
from t5x_lite.commands import COMMANDS
from t5x_lite.commands.common import permitted_modules, share
from t5x_lite.commands.line import parse
from t5x_lite.config.permission import user_code
from t5x_lite.errors import INTERRUPTED, UserError, foreseen_errors
from t5x_lite.machine import check_platforms
from t5x_lite.manifest import Level, verification
from t5x_lite.signals import Stopped, stop_on_signals


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        with stop_on_signals(), foreseen_errors():
            args = parse(sys.argv[1:] if argv is None else argv)
            if args.command not in ("prepare", "plan", "doctor"):
                unused = check_platforms()
                if unused:
                    print(f"t5x_lite: {unused}", file=sys.stderr)
            if hasattr(args, "mesh") or args.command == "compare":
                share(args)
            level: Level = getattr(args, "verify", "full")
            with user_code(permitted_modules(args)), verification(level):
                COMMANDS[args.command].run(args)
            storage.push_all()
        return 0
    except UserError as error:
        code, message = error.code, storage.with_addresses(str(error))
    except Stopped as stopped:
        code, message = stopped.code, f"stopped by {stopped}; what was saved is kept"
    except KeyboardInterrupt:
        code, message = INTERRUPTED, "interrupted; what was saved is kept"
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # like a program that SIGPIPE ends
    print(f"t5x_lite: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
