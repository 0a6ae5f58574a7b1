"""End a run early. On Ctrl-C, SIGTERM and SIGHUP the run saves first, and all processes stop after
the same step.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import jax
from jax.experimental import multihost_utils

from t5x_lite.errors import INTERRUPTED, TERMINATED
from t5x_lite.signals import CODES


class StopSignal:
    """Turn Ctrl-C, SIGTERM and SIGHUP into a request to save and stop after the current step."""

    def __init__(self):
        self._code = 0
        self._asked = 0  # calls of exit_code, which every process counts alike

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Install the handlers during a run. With several processes, jax handles SIGTERM."""
        # Python allows signal handlers in the main thread only.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = [signal.SIGINT]
        # Leave SIGHUP alone if it is ignored, as under nohup.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signals.append(signal.SIGHUP)
        if jax.process_count() == 1:
            signals.append(signal.SIGTERM)
        previous = {number: signal.signal(number, self._handle) for number in signals}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._code = CODES.get(signal.Signals(number), INTERRUPTED)
        if number == signal.SIGTERM:
            return
        # A second Ctrl-C ends the run at once.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Send SIGTERM: jax listens only for this signal, and then tells the other processes.
        if jax.process_count() > 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def exit_code(self) -> int:
        """Return the exit code to end with after this step, or 0 to continue. Every process must
        call this after every step.
        """
        self._asked += 1
        if jax.process_count() == 1:
            return self._code
        # True in all processes at the same step, after any of them got a signal.
        if multihost_utils.reached_preemption_sync_point(self._asked):
            return self._code or TERMINATED
        return 0
