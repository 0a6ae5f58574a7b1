"""What the processes of a run tell each other beside what their devices compute: that all run the
same thing, and that each is still at work. It goes through the coordination service of jax, which
knows of every process, and needs no devices.
"""

import faulthandler
import itertools
import json
import math
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax

from t5x_lite import storage
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
    """Refuse to start unless all processes of the run, of which there are several, have the same
    facts.

    Raises:
        UserError: in every process, naming a fact and two processes that differ in it, or the
            processes that did not arrive.
    """
    client, where = _client(), f"t5x_lite/facts/{next(_rounds)}"
    client.key_value_set(f"{where}/{jax.process_index()}", json.dumps(facts))
    of_first: dict[str, str] = {}
    for process in range(jax.process_count()):
        try:
            theirs = client.blocking_key_value_get(f"{where}/{process}", _ARRIVE_WITHIN * 1000)
            theirs = json.loads(theirs)
        except jax.errors.JaxRuntimeError as error:
            reason = f"process {process} did not arrive within {_ARRIVE_WITHIN} s"
            if "DEADLINE_EXCEEDED" not in str(error):
                reason = "process 0, which coordinates the others, has ended"
            raise UserError(BAD_CONFIG, f"{reason}; see what it says, and start again") from error
        of_first = of_first or theirs
        for name in sorted({*theirs, *of_first}):
            one, other = of_first.get(name, "not there"), theirs.get(name, "not there")
            if one != other:
                reason = f"{name} is {one} in process 0, and {other} in process {process}"
                raise UserError(BAD_CONFIG, f"{reason}; start all with the same command")


class Heartbeat:
    """Ends a run of several processes that has stopped: where no step is finished for long, each
    that still lives says which does not move, writes where its own threads are, and exits with 142.

    Args:
        stacks: the file that these are written to.
        phase: what the run does now, a name of its Stopwatch. What is no step may take long.
        patience: seconds that a step may take, or 20 times the median step if that is longer; 0:
            any time.
    """

    def __init__(self, stacks: Path, phase: Callable[[], str], patience: float):
        self._stacks, self._phase, self._patience = stacks, phase, patience
        self._period = min(patience / _BEATS_BEFORE_THE_END, 5.0)
        self._seconds: deque[float] = deque(maxlen=50)  # that the last steps took
        self._step, self._moved = 0, time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="heartbeat")

    def __enter__(self) -> "Heartbeat":
        if self._patience and jax.process_count() > 1:
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
        """Seconds that may pass from one finished step to the next; how long a step takes is known
        after two.
        """
        if len(self._seconds) < 2:
            return math.inf
        return max(self._patience, 20 * statistics.median(self._seconds))

    def _watch(self) -> None:
        while not self._over.wait(self._period):
            if self._phase() not in _STEPS:
                self._moved = time.monotonic()
            self._tell()
            if time.monotonic() - self._moved > self.limit:
                self._end_unless_it_moves()

    def _tell(self) -> None:
        """The others where this process is, and that it lives."""
        beat = json.dumps([self._step, self._phase(), time.monotonic()])
        key = f"t5x_lite/beats/{jax.process_index()}"
        _answer(lambda: _client().key_value_set(key, beat, allow_overwrite=True), self._period)

    def _others(self) -> dict[int, list] | None:
        """What the others told last; None where process 0, which keeps it, does not answer."""
        beats = _answer(lambda: _client().key_value_dir_get("t5x_lite/beats/"), self._period)
        if beats is None:
            return None
        found = {int(key.rsplit("/", 1)[1]): json.loads(beat) for key, beat in beats}
        return {process: beat for process, beat in found.items() if process != jax.process_index()}

    def _end_unless_it_moves(self) -> None:
        moved, before = self._moved, self._others()
        # Those that live beat again meanwhile, and so does this one.
        for _ in range(3):
            if self._over.wait(self._period):
                return
            self._tell()
        after = self._others()
        if self._moved != moved or self._phase() not in _STEPS:
            return
        said = [*_culprits(before, after, self._step)]
        said.append(f"this process is at step {self._step} ({self._phase()})")
        with open(self._stacks, "w") as file:
            faulthandler.dump_traceback(file)
        _answer(lambda: storage.push(self._stacks.parent), 2 * self._period)
        idle = time.monotonic() - moved
        late = f"no step was finished for {idle:.0f} s, where {self.limit:.0f} s are allowed"
        fix = f"its threads are in {self._stacks}; the same command continues"
        print(f"t5x_lite: {late}: {'; '.join(said)}; {fix}", file=sys.stderr, flush=True)
        # Without process 0 jax would abort the others before they have spoken.
        for _ in range(4 if jax.process_index() == 0 else 0):
            time.sleep(self._period)
            self._tell()
        os._exit(STUCK)  # the main thread may never come back


def _answer(call: Callable[[], Any], patience: float) -> Any:
    """What a call returns; None where it fails or does not return in time."""
    answers: list[Any] = []

    def ask() -> None:
        with suppress(Exception):
            answers.append(call())

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(patience)
    return answers[0] if answers else None


def _culprits(
    before: dict[int, list] | None, after: dict[int, list] | None, step: int
) -> Iterator[str]:
    """Which processes do not move, from what all told at two times, each [step, phase, time]."""
    if before is None or after is None:
        yield "process 0, which coordinates the others, gives no sign of life"
        return
    for process, beat in after.items():
        if beat == before.get(process):
            yield f"process {process} gives no sign of life"
        elif beat[0] < step or beat[1] == "data":
            yield f"process {process} is at step {beat[0]} ({beat[1]})"
