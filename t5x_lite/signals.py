"""Make SIGTERM and SIGHUP end a command the way Ctrl-C does, with exit codes of their own."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from t5x_lite.errors import HUNG_UP, TERMINATED, interrupt_behind

_SECONDS = 0.05  # until a signal that was lost is sent again
CODES = {signal.SIGTERM: TERMINATED, signal.SIGHUP: HUNG_UP}


class Stopped(KeyboardInterrupt):
    """A signal asked this process to end. Code that handles Ctrl-C handles this exception too.

    Attributes:
        code: the exit code.
    """

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.code = CODES[signal.Signals(number)]


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Inside the block, raise Stopped on SIGTERM and SIGHUP. A signal that is ignored, as SIGHUP is
    under nohup, stays ignored.

    Python drops an exception that is raised in a destructor or a callback of the garbage collector,
    such as jax's. A signal that arrives at such a moment, Ctrl-C included, is sent again. A library
    in C++ that is being imported turns the exception into an ImportError.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python allows signal handlers in the main thread only
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    def send_again(dropped: "sys.UnraisableHookArgs") -> None:
        error = dropped.exc_value
        if not isinstance(error, KeyboardInterrupt):
            return of_others(dropped)
        number = error.number if isinstance(error, Stopped) else signal.SIGINT
        timer = threading.Timer(_SECONDS, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()

    of_others, sys.unraisablehook = sys.unraisablehook, send_again
    heeded = [number for number in CODES if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heeded}
    try:
        yield
    except ImportError as error:
        interrupt = interrupt_behind(error)
        if interrupt is None:
            raise
        raise interrupt from None
    finally:
        sys.unraisablehook = of_others
        for number, handler in before.items():
            signal.signal(number, handler)
