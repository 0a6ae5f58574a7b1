"""Check that all processes of a run do the same thing, and that each is still at work. They
communicate through jax's coordination service, which reaches all processes and needs no devices.
"""

import faulthandler
import itertools
import json
import math
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax

from t5x_lite import storage
from t5x_lite.errors import BAD_CONFIG, STUCK, UserError
from t5x_lite.progress import to_stderr

_ARRIVE_WITHIN = 600  # seconds between the arrival of the first process and of the last
_BEATS_BEFORE_THE_END = 10  # heartbeats within the time limit of a step
_STEPS = ("step", "data")  # phases with a time limit
_PATIENCE_OTHERWISE = 10  # times the limit of a step, while a process compiles or saves
_rounds = itertools.count()  # calls of check_same, which every process counts alike


def _client() -> Any:
    """Return the client of the coordination service; None if there is only one process."""
    from jax._src import distributed  # there is no public name; orbax imports it in the same way

    return distributed.global_state.client


def devices_of_task(environment: Mapping[str, str]) -> list[int] | None:
    """Return the indices of the GPUs that this task of a Slurm job uses: its share of the GPUs that
    it sees. Return None to leave the choice to jax, which gives each task of a node one GPU.

    >>> node = {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}
    >>> devices_of_task(node | {"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    [0, 1, 2, 3]
    >>> devices_of_task(node | {"CUDA_VISIBLE_DEVICES": "0"}) is None
    True

    Raises:
        UserError: if the tasks of a node cannot share its GPUs evenly.
    """
    names = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID", "SLURM_LOCALID")
    if any(name not in environment for name in names):
        return None
    tasks_per_node, node, task = (environment[name] for name in names)
    tasks = _tasks_of_nodes(tasks_per_node)[int(node)]
    visible = environment.get("CUDA_VISIBLE_DEVICES") or environment.get("ROCR_VISIBLE_DEVICES")
    if visible:
        gpus = len(visible.split(","))
    else:
        gpus = int(environment.get("SLURM_GPUS_ON_NODE") or 0)
    # The task sees fewer GPUs than the job has on this node: Slurm has bound GPUs to each task.
    if visible and gpus < int(environment.get("SLURM_GPUS_ON_NODE") or 0):
        return list(range(gpus))
    if gpus <= tasks:
        return None
    if gpus % tasks:
        reason = f"{tasks} tasks of this node cannot share {gpus} GPUs evenly"
        fix = f"start one task a node, or {gpus} (--ntasks-per-node)"
        raise UserError(BAD_CONFIG, f"--distributed: {reason}; {fix}")
    share = gpus // tasks
    return list(range(int(task) * share, (int(task) + 1) * share))


def _tasks_of_nodes(text: str) -> list[int]:
    """Return the number of tasks on each node, given in Slurm's notation.

    >>> _tasks_of_nodes("8(x2),4")
    [8, 8, 4]
    """
    tasks: list[int] = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        tasks += [int(count)] * int(times.rstrip(")") or 1)
    return tasks


def check_same(facts: dict[str, str]) -> None:
    """Check that all processes of a run have the same facts. All of them must call this.

    Raises:
        UserError: in every process; it names a fact and two processes that differ in it, or a
            process that did not arrive.
    """
    # Each process publishes its facts, then compares the facts of all others with process 0's.
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
            raise UserError(BAD_CONFIG, f"{reason}; read its output and start again") from error
        of_first = of_first or theirs
        for name in sorted({*theirs, *of_first}):
            one, other = of_first.get(name, "missing"), theirs.get(name, "missing")
            if one != other:
                reason = f"{name} is {one} in process 0, but {other} in process {process}"
                raise UserError(BAD_CONFIG, f"{reason}; start all with the same command")


class Heartbeat:
    """End a run of several processes that is stuck. If no step or batch of an evaluation finishes
    for too long, each process that is still alive says which process is stuck, writes the stacks of
    its own threads to a file, and exits with 142.

    While this process compiles or saves, which may take long, the run ends only if another process
    does not respond. Processes that respond but keep this one waiting are only reported.

    Args:
        stacks: the file for the stacks.
        phase: returns what the run is doing, as a name of its Stopwatch.
        patience: seconds that a step may take, or 20 times the median step if that is longer; 0: no
            limit.
    """

    def __init__(self, stacks: Path, phase: Callable[[], str], patience: float):
        self._stacks, self._phase, self._patience = stacks, phase, patience
        self._period = min(patience / _BEATS_BEFORE_THE_END, 5.0)
        self._seconds: deque[float] = deque(maxlen=50)  # durations of the last steps
        self._step, self._batch = 0, 0  # last finished step, and batch of the evaluation after it
        self._moved = time.monotonic()  # when that step or batch finished
        self._reported = self._moved  # when the processes that keep this one waiting were reported
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="heartbeat")

    def __enter__(self) -> "Heartbeat":
        if self._patience and jax.process_count() > 1:
            self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._over.set()

    def finished(self, step: int) -> None:
        """Record that a step has finished."""
        now = time.monotonic()
        self._seconds.append(now - self._moved)
        self._step, self._batch, self._moved = step, 0, now

    def evaluated(self, batch: int) -> None:
        """Record that a batch of an evaluation has finished, counted from 1; 0: it is over."""
        self._batch, self._moved = batch, time.monotonic()

    @property
    def limit(self) -> float:
        """Seconds that may pass from one finished step to the next; infinite until two steps have
        been timed.
        """
        if len(self._seconds) < 2:
            return math.inf
        return max(self._patience, 20 * statistics.median(self._seconds))

    @property
    def _is_timed(self) -> bool:
        """True in a step, and in an evaluation whose program has been compiled."""
        return self._phase() in _STEPS or self._batch > 1

    def _watch(self) -> None:
        was_timed = True
        while not self._over.wait(self._period):
            # After compiling or saving, the time of the next step starts afresh.
            if self._is_timed and not was_timed:
                self._moved = time.monotonic()
            was_timed = self._is_timed
            self._tell()
            if time.monotonic() - self._moved > self.limit:
                self._end_unless_it_moves()

    def _tell(self) -> None:
        """Tell the other processes where this one is, and that it is alive."""
        beat = json.dumps([self._step, self._phase(), self._is_timed, time.monotonic()])
        key = f"t5x_lite/beats/{jax.process_index()}"
        _answer(lambda: _client().key_value_set(key, beat, allow_overwrite=True), self._period)

    def _others(self) -> dict[int, "Beat"] | None:
        """Return the last heartbeat of each other process; None if process 0, which stores them,
        does not answer.
        """
        beats = _answer(lambda: _client().key_value_dir_get("t5x_lite/beats/"), self._period)
        if beats is None:
            return None
        found = [Beat(int(key.rsplit("/", 1)[1]), *json.loads(beat)) for key, beat in beats]
        return {beat.process: beat for beat in found if beat.process != jax.process_index()}

    def _end_unless_it_moves(self) -> None:
        moved, answers = self._moved, [self._others()]
        # Meanwhile processes that are alive send another heartbeat, even if late while compiling.
        for _ in range(3 if self._is_timed else _BEATS_BEFORE_THE_END):
            if self._over.wait(self._period):
                return
            self._tell()
            answers.append(self._others())
        if self._moved != moved:  # a step or batch has finished after all
            return
        idle = time.monotonic() - moved
        silent = _silent(answers)
        late = [one for one in _late(answers, self._step) if one.process not in silent]
        is_busy = not self._is_timed or not all(one.is_timed for one in late)
        said = [f"{who} does not respond" for who in silent.values()]
        said += [f"process {one.process} is at step {one.step} ({one.phase})" for one in late]
        said.append(f"this process is at step {self._step} ({self._phase()})")
        if is_busy and not silent:
            self._report_wait(idle, said)
            return
        # Write the stacks, and push them where the run directory is mirrored.
        with open(self._stacks, "w") as file:
            faulthandler.dump_traceback(file)
        _answer(lambda: storage.push(self._stacks.parent), 2 * self._period)
        reason = f"no step has finished for {idle:.0f} s (limit: {self.limit:.0f} s)"
        fix = f"{self._stacks} shows where its threads are; the same command continues"
        to_stderr(f"t5x_lite: {reason}: {'; '.join(said)}; {fix}")
        # When process 0 ends, jax aborts the others: give them time to print their message.
        for _ in range(4 if jax.process_index() == 0 else 0):
            time.sleep(self._period)
            self._tell()
        os._exit(STUCK)  # the main thread may never return

    def _report_wait(self, idle: float, said: list[str]) -> None:
        """Print, from time to time, which processes keep this one waiting. All of them respond."""
        patience = _PATIENCE_OTHERWISE * self.limit
        if idle > patience and time.monotonic() - self._reported > patience:
            self._reported = time.monotonic()
            reason = f"no step has finished for {idle:.0f} s"
            to_stderr(f"t5x_lite: {reason}: {'; '.join(said)}; all respond")


def _answer(call: Callable[[], Any], patience: float) -> Any:
    """Return the result of a call; None if it fails or does not return in time."""
    answers: list[Any] = []

    def ask() -> None:
        with suppress(Exception):
            answers.append(call())

    # A thread that never returns must not keep the process alive.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(patience)
    return answers[0] if answers else None


class Beat(NamedTuple):
    """A heartbeat, which tells the other processes that one is alive and where it is."""

    process: int
    step: int  # the last finished step
    phase: str
    is_timed: bool  # False while it compiles or saves, which may take long
    time: float  # by its own clock


def _silent(answers: Sequence[dict[int, Beat] | None]) -> dict[int, str]:
    """Return the names of the processes that sent no heartbeat between the first answer and the
    last, by number.

    Args:
        answers: the heartbeats of the others, read several times; None: process 0, which stores
            them, did not answer.
    """
    if all(answer is None for answer in answers[1:]):
        return {0: "process 0, which coordinates the others,"}
    given = [answer for answer in answers if answer is not None]
    if len(given) == 1:  # nothing to compare it with
        return {}
    return {
        process: f"process {process}"
        for process, beat in given[-1].items()
        if beat == given[0].get(process)
    }


def _late(answers: Sequence[dict[int, Beat] | None], step: int) -> Iterator[Beat]:
    """Yield the last heartbeat of each process that holds the others up: it has done fewer steps,
    waits for data, or does something other than steps.
    """
    last = next((answer for answer in reversed(answers) if answer is not None), {})
    for beat in last.values():
        if beat.step < step or beat.phase != "step":
            yield beat
