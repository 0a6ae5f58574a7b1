"""The one exception for problems that a user can fix, and the exit codes that scripts can rely
on.
"""

import importlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

USAGE = 2  # wrong command line, or a second run in one directory
BAD_DATA = 65  # a corpus, tokenizer or text that cannot be used
NO_FILE = 66  # no usable file or checkpoint
UNFIT = 69  # doctor found what a run would fail of
OUT_OF_MEMORY = 71  # of the host or of a device
IO_ERROR = 74  # writing failed: disk full, checkpoint not saved
NOT_FINITE = 76  # loss, gradients or parameters are not finite
BAD_CONFIG = 78  # a setting that is wrong, or contradicts another
INTERRUPTED = 130  # Ctrl-C; checkpoint saved
STUCK = 142  # no step was finished for long
TERMINATED = 143  # SIGTERM; checkpoint saved


class UserError(Exception):
    """A problem that the user can fix: one sentence that says what was got, what is expected and
    how to fix it.

    Attributes:
        code: the exit code of the command that meets it.
    """

    def __init__(self, code: int, message: str):
        super().__init__(code, message)  # both as args, so that it can be pickled between processes
        self.code = code

    def __str__(self) -> str:
        return self.args[1]


@contextmanager
def user_errors(code: int, what: str) -> Iterator[None]:
    """Turn whatever a library or a user's own function raises into a UserError: what could not be
    done, and why.

    >>> with user_errors(NO_FILE, "cannot read a.gz"):
    ...     raise EOFError("the file is truncated")
    Traceback (most recent call last):
    t5x_lite.errors.UserError: cannot read a.gz (EOFError: the file is truncated)
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except (Exception, SystemExit) as error:  # libraries share no base class of their own
        first_line = (str(error).strip().splitlines() or [""])[0][:200]
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {first_line}"
        raise UserError(code, f"{what} ({reason})") from error


@contextmanager
def foreseen_errors() -> Iterator[None]:
    """Errors of libraries that a user can do something about, as UserErrors: out of memory, and
    what a file system says.
    """
    out_of_memory = (
        "out of memory; lower data.batch_size, raise training.microbatches, or set model.remat=True"
    )
    try:
        yield
    except MemoryError as error:
        raise UserError(OUT_OF_MEMORY, out_of_memory) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = f"{error.filename or 'input or output'}: {error.strerror or error}"
        raise UserError(IO_ERROR, reason) from error
    except RuntimeError as error:  # jax.errors.JaxRuntimeError, without importing jax here
        if "RESOURCE_EXHAUSTED" not in str(error) and "out of memory" not in str(error).lower():
            raise
        raise UserError(OUT_OF_MEMORY, out_of_memory) from error


def optional_import(module: str, extra: str, what: str) -> ModuleType:
    """The module of an optional package; raises a UserError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        reason = f"{what}: needs the package {package}: {install_line(extra)}"
        raise UserError(NO_FILE, reason) from error


def install_line(extra: str) -> str:
    """The command that installs an extra.

    >>> install_line("tpu")
    "pip install -e '.[tpu]' in the checkout of t5x_lite"
    """
    return f"pip install -e '.[{extra}]' in the checkout of t5x_lite"


def read_json(path: Path, fix: str) -> dict:
    """The JSON object in a file; raises a UserError that ends in `fix` where there is none."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UserError(NO_FILE, f"{path}: no such file; {fix}") from error
    except (OSError, ValueError) as error:
        raise UserError(NO_FILE, f"{path}: cannot be read ({error}); {fix}") from error
    if not isinstance(value, dict):
        raise UserError(NO_FILE, f"{path}: holds {type(value).__name__}, expected an object; {fix}")
    return value


def nearest(name: object, names: Iterable[str]) -> str:
    """The half-sentence that says what was probably meant.

    >>> nearest("lerning_rate", ["learning_rate", "warmup_steps"])
    'did you mean learning_rate?'
    >>> nearest("zzz", ["learning_rate", "warmup_steps"])
    'expected one of learning_rate, warmup_steps'
    """
    names = list(names)
    close = get_close_matches(str(name), names, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return "expected one of " + ", ".join(names)
