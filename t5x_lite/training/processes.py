"""What the processes of a run tell each other beside what their devices compute: that all run the
same thing, and that each is still at work. It goes through the coordination service of jax, which
knows of every process, and needs no devices.
"""

import faulthandler
import itertools
import json
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from t5x_lite.errors import BAD_CONFIG, STUCK, UserError

_ARRIVE_WITHIN = 600  # seconds, from the first process to the last
_BEATS_BEFORE_THE_END = 10  # in the time that a run is given to finish a step
_STEPS = ("step", "data")  # what is timed; compiling, evaluating and saving may take long
_rounds = itertools.count()  # of check_same: every process counts the same


def _client() -> Any:
    """Of the coordination service; None: there is one process."""
    from jax._src import distributed  # as orbax does: it has no public name

    return distributed.global_state.client


def check_same(facts: dict[str, str]) -> None:
    """Refuse to start unless all processes of the run have the same facts.

    Raises:
        UserError: in every process, naming a fact and two processes that differ in it, or the
            processes that did not arrive.
    """
    if jax.process_count() == 1:
        return
    client, where = _client(), f"t5x_lite/facts/{next(_rounds)}"
    client.key_value_set(f"{where}/{jax.process_index()}", json.dumps(facts))
    of_first: dict[str, str] = {}
    for process in range(jax.process_count()):
        try:
            theirs = client.blocking_key_value_get(f"{where}/{process}", _ARRIVE_WITHIN * 1000)
            theirs = json.loads(theirs)
        except jax.errors.JaxRuntimeError as error:
            reason = f"process {process} did not arrive within {_ARRIVE_WITHIN} s"
            raise UserError(BAD_CONFIG, f"{reason}; see what it says, and start again") from error
        of_first = of_first or theirs
        for name in sorted({*theirs, *of_first}):
            one, other = of_first.get(name, "not there"), theirs.get(name, "not there")
            if one != other:
                reason = f"{name} is {one} in process 0, and {other} in process {process}"
                raise UserError(BAD_CONFIG, f"{reason}; start all with the same command")


class Heartbeat:
    """Ends a run that has stopped: where no step is finished for long, this process says which
    process does not move, writes where its own threads are, and exits with 142.

    Args:
        stacks: the file that these are written to.
        phase: what the run does now, a name of its Stopwatch.
        patience: seconds that a step may take, or 20 times the median step if that is longer; 0:
            any time.
    """

    def __init__(self, stacks: Path, phase: Callable[[], str], patience: float):
        self._stacks, self._phase, self._patience = stacks, phase, patience
        self._seconds: deque[float] = deque(maxlen=50)  # that the last steps took
        self._step, self._moved = 0, time.monotonic()
        self._last_phase = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="heartbeat")

    def __enter__(self) -> "Heartbeat":
        if self._patience:
            self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._over.set()

    def finished(self, step: int) -> None:
        """A step is done."""
        now = time.monotonic()
        self._seconds.append(now - self._moved)
        self._step, self._moved = step, now

    @property
    def limit(self) -> float:
        """Seconds that may pass from one finished step to the next."""
        median = statistics.median(self._seconds) if self._seconds else 0.0
        return max(self._patience, 20 * median)

    def _watch(self) -> None:
        period = min(self._patience / _BEATS_BEFORE_THE_END, 5.0)
        while not self._over.wait(period):
            self._last_phase = self._phase()
            if self._last_phase not in _STEPS:
                self._moved = time.monotonic()
            self._tell()
            idle = time.monotonic() - self._moved
            if idle > self.limit:
                self._end(idle, period)

    def _tell(self) -> None:
        """The others where this process is, and that it lives."""
        if jax.process_count() > 1:
            beat = json.dumps([self._step, self._last_phase, time.monotonic()])
            key = f"t5x_lite/beats/{jax.process_index()}"
            _client().key_value_set(key, beat, allow_overwrite=True)

    def _others(self) -> dict[int, list]:
        if jax.process_count() == 1:
            return {}
        beats = _client().key_value_dir_get("t5x_lite/beats/")
        found = {int(key.rsplit("/", 1)[1]): json.loads(beat) for key, beat in beats}
        return {process: beat for process, beat in found.items() if process != jax.process_index()}

    def _end(self, idle: float, period: float) -> None:
        before = self._others()
        # Those that live beat again meanwhile.
        if self._over.wait(3 * period):
            return
        after = self._others()
        culprits = [
            f"process {process} gives no sign of life"
            for process, beat in after.items()
            if beat == before.get(process)
        ]
        culprits += [
            f"process {process} is behind, at step {beat[0]} ({beat[1]})"
            for process, beat in after.items()
            if beat != before.get(process) and (beat[0] < self._step or beat[1] == "data")
        ]
        here = f"this process is at step {self._step} ({self._last_phase})"
        with open(self._stacks, "w") as file:
            faulthandler.dump_traceback(file)
        said = "; ".join([*culprits, here])
        allowed = f"no step was finished for {idle:.0f} s, and {self.limit:.0f} are allowed"
        fix = f"its threads are in {self._stacks}; the same command continues"
        print(f"t5x_lite: {allowed}: {said}; {fix}", file=sys.stderr, flush=True)
        os._exit(STUCK)  # the main thread may never come back
