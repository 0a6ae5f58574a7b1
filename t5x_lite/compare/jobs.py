"""Several runs at once on one machine, each in a process of its own with its share of the cores."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import connection
from pathlib import Path
from typing import Any

from t5x_lite.errors import IO_ERROR, TERMINATED, UserError

_SECONDS_BETWEEN_LOOKS = 0.5  # at what the jobs have printed

Job = tuple[Callable[..., None], tuple]  # a function of a module, and its arguments


def run_jobs(
    jobs: Mapping[str, Job], at_once: int, logs: Path, say: Callable[[str], None] = print
) -> dict[str, UserError]:
    """Run all jobs, so many at once; what each prints goes to LOGS/NAME.txt, and is shown.

    A job that fails does not stop the others. When this process is interrupted, the jobs are told
    to save what they have; when it is killed, they end.

    Returns:
        the errors of those that failed.

    Raises:
        UserError: after Ctrl-C and SIGTERM, when all jobs have ended.
    """
    cores = _cores()
    free = [cores[number::at_once] or cores for number in range(at_once)]
    logs.mkdir(parents=True, exist_ok=True)
    waiting = list(jobs.items())
    running: dict[int, _Running] = {}
    shares: dict[int, list[int]] = {}  # of the cores
    failed: dict[str, UserError] = {}
    with _stopped_by_signals():
        try:
            while waiting or running:
                while waiting and free:
                    name, job = waiting.pop(0)
                    share = free.pop(0)
                    # The last one soon has nobody to share with.
                    used = share if waiting or len(jobs) <= at_once else cores
                    started = _Running(name, job, used, logs / f"{name}.txt")
                    running[started.process.sentinel] = started
                    shares[started.process.sentinel] = share
                ended: list = connection.wait(list(running), timeout=_SECONDS_BETWEEN_LOOKS)
                for one in running.values():
                    for line in one.new_lines():
                        say(f"{one.name}: {line}")
                for sentinel in ended:
                    one = running.pop(sentinel)
                    free.append(shares.pop(sentinel))
                    error = one.error()
                    if error:
                        failed[one.name] = error
                        say(f"{one.name}: {error}")
        finally:
            for one in running.values():
                one.process.terminate()
            for one in running.values():
                one.process.join()
    return failed


def _cores() -> list[int]:
    """Those that this process may use; none where the system gives no process a share (macOS)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class _Running:
    """A job in its process."""

    def __init__(self, name: str, job: Job, cores: list[int], log: Path):
        context = multiprocessing.get_context("spawn")
        log.write_text("")
        self.name = name
        self._log, self._shown = log, 0
        self._receiver, sender = context.Pipe(duplex=False)
        arguments = (job, cores, log, os.getpid(), sender)
        self.process = context.Process(target=_run_job, args=arguments)
        self.process.start()
        sender.close()

    def new_lines(self) -> list[str]:
        """What it has printed since it was last asked, whole lines alone."""
        with open(self._log, "rb") as file:
            file.seek(self._shown)
            text, newline, _ = file.read().rpartition(b"\n")
        self._shown += len(text + newline)
        return text.decode(errors="replace").splitlines()

    def error(self) -> UserError | None:
        """Why it failed, once it has ended."""
        self.process.join()
        try:
            return self._receiver.recv()
        except EOFError:  # it was killed, or ended by something that nobody foresaw
            reason = f"the process ended with {self.process.exitcode}"
            return UserError(IO_ERROR, f"{reason}; see {self._log}")


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """SIGTERM ends what is done here as Ctrl-C does."""

    def stop(number: int, frame: Any) -> None:
        raise UserError(TERMINATED, "stopped; the same command continues")

    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if is_main else None
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)


def _run_job(
    job: Job, cores: list[int], log: Path, parent: int, sender: connection.Connection
) -> None:
    """In the process of the job."""
    os.setpgid(0, 0)  # Ctrl-C is for the parent, which passes it on
    if cores:
        os.sched_setaffinity(0, cores)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with open(log, "w") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
        function, arguments = job
        try:
            function(*arguments)
            sender.send(None)
        except UserError as error:
            print(error)
            sender.send(error)


def _end_with(parent: int) -> None:
    """End this process soon after its parent."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
