"""The exception for problems that a user can fix, and the exit codes that scripts can rely on."""

import errno
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
UNFIT = 69  # doctor found a problem that would make a run fail
OUT_OF_MEMORY = 71  # the host or a device ran out of memory
IO_ERROR = 74  # writing failed: disk full, checkpoint not saved
NOT_FINITE = 76  # loss, gradients or parameters are not finite
BAD_CONFIG = 78  # a setting is wrong, or contradicts another
HUNG_UP = 129  # SIGHUP, as when a terminal is closed; checkpoint saved
INTERRUPTED = 130  # Ctrl-C; checkpoint saved
STUCK = 142  # no step finished for a long time
TERMINATED = 143  # SIGTERM; checkpoint saved
STOPPED = (HUNG_UP, INTERRUPTED, TERMINATED)  # by the user or the system; nothing went wrong
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS}


class UserError(Exception):
    """A problem that the user can fix. Its message is one sentence that says what was given, what
    was expected and how to fix it.

    Attributes:
        code: the exit code of a command that ends with this error.
    """

    def __init__(self, code: int, message: str):
        super().__init__(code, message)  # both are in args, so that the error can be pickled
        self.code = code

    def __str__(self) -> str:
        return self.args[1]


@contextmanager
def user_errors(code: int, what: str) -> Iterator[None]:
    """Turn any error from a library or user code into a UserError that says what failed and why.

    MemoryError and UserError pass through unchanged.

    Args:
        code: the exit code of the UserError, unless the disk is full or fails: then it is IO_ERROR.
        what: what could not be done; begins the message.

    >>> with user_errors(NO_FILE, "cannot read a.gz"):
    ...     raise EOFError("the file is truncated")
    Traceback (most recent call last):
    t5x_lite.errors.UserError: cannot read a.gz (EOFError: the file is truncated)
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except (Exception, SystemExit) as error:  # libraries' errors share no other base class
        first_line = (str(error).strip().splitlines() or [""])[0][:200]
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {first_line}"
        if getattr(error, "errno", None) in _DISK_ERRORS:
            code = IO_ERROR
        raise UserError(code, f"{what} ({reason})") from error


@contextmanager
def expected_errors() -> Iterator[None]:
    """Turn library errors that a user can act on into UserErrors: out of memory, and errors of the
    file system.
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
    """Import a module of an optional package.

    Args:
        module: the full name of the module.
        extra: the extra of t5x_lite that installs the package.
        what: what needs the package; begins the error message.

    Raises:
        UserError: if the package is missing, with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        interrupt = interrupt_behind(error)
        if interrupt is not None:
            raise interrupt from None
        package = module.split(".")[0]
        reason = f"{what}: needs the package {package}: {install_line(extra)}"
        raise UserError(NO_FILE, reason) from error


def interrupt_behind(error: ImportError) -> KeyboardInterrupt | None:
    """Return the signal, or Ctrl-C, that a library in C++ has turned into this error; else None."""
    cause = error.__cause__
    return cause if isinstance(cause, KeyboardInterrupt) else None


def install_line(extra: str) -> str:
    """Return the command that installs an extra.

    >>> install_line("tpu")
    "pip install -e '.[tpu]' in the checkout of t5x_lite"
    """
    return f"pip install -e '.[{extra}]' in the checkout of t5x_lite"


def read_json(path: Path, fix: str) -> dict:
    """Read the JSON object in a file.

    Raises:
        UserError: if the file is missing, cannot be read, or does not hold an object. The message
            ends in `fix`.
    """
    try:
        if path.exists() and not path.is_file():
            raise UserError(NO_FILE, f"{path}: is no file; {fix}")
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UserError(NO_FILE, f"{path}: no such file; {fix}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(NO_FILE, f"{path}: cannot be read ({error}); {fix}") from error
    if not isinstance(value, dict):
        raise UserError(NO_FILE, f"{path}: holds {type(value).__name__}, expected an object; {fix}")
    return value


def shortened(message: str, at_most: int = 1500) -> str:
    """Cut out the middle of a message that is too long to read, for example because it quotes a
    setting that holds a book. Keep the end, which says what to do.

    >>> shortened(f"a={'x' * 90}: expected b", at_most=40)
    'a=xxxxxxxxxxxxxxxxxxxxxxx… (64 characters) …xxx: expected b'
    """
    excess = len(message) - at_most
    if excess <= 0:
        return message
    head = at_most * 5 // 8
    return f"{message[:head]}… ({excess} characters) …{message[head + excess :]}"


def nearest(name: object, names: Iterable[str]) -> str:
    """Return the end of an error message: the name that was probably meant, or all names.

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
