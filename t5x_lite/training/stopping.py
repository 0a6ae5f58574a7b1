"""Ending a run early: Ctrl-C and SIGTERM save first, and all processes agree on the step."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax.experimental import multihost_utils

from t5x_lite.errors import INTERRUPTED, TERMINATED


class StopSignal:
    """Ctrl-C and SIGTERM ask the run to save and end after the current step."""

    def __init__(self):
        self._code = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Install the handlers while the run goes on. With several processes jax owns SIGTERM."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = [signal.SIGINT]
        if jax.process_count() == 1:
            signals.append(signal.SIGTERM)
        previous = {number: signal.signal(number, self._handle) for number in signals}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _handle(self, number, frame):
        if number == signal.SIGTERM:
            self._code = TERMINATED
            return
        self._code = INTERRUPTED
        # A second Ctrl-C ends it at once.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Jax listens for SIGTERM alone, and tells the other processes.
        if jax.process_count() > 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def exit_code(self, step: int) -> int:
        """The exit code to end with after this step, 0 to go on. Every process must ask at every
        step.
        """
        if jax.process_count() == 1:
            return self._code
        if multihost_utils.reached_preemption_sync_point(step):
            return self._code or TERMINATED
        return 0
