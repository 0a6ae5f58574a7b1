"""Run several jobs at once on one machine, in processes that have a share of the cores each."""

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import NamedTuple, cast

from t5x_lite.config.permission import Permission, permission, with_permission
from t5x_lite.errors import IO_ERROR, UserError
from t5x_lite.manifest import Level, verification, verification_level
from t5x_lite.progress import say
from t5x_lite.signals import Stopped, stop_on_signals
from t5x_lite.workers import end_with_parent

_SECONDS_BETWEEN_LOOKS = 0.5  # how often the output of the jobs is read


class Job(NamedTuple):
    """A call of a module-level function.

    Attributes:
        alike: the same for jobs that compile the same programs.
    """

    function: Callable[..., object]
    arguments: tuple
    alike: str = ""


def run_jobs(jobs: Mapping[str, Job], at_once: int, logs: Path) -> dict[str, UserError]:
    """Run all jobs, `at_once` at a time; write the output of each to LOGS/NAME.txt and show it.

    Each of `at_once` processes runs one job after another. A job that fails does not stop the
    others. If this process is interrupted, the jobs are told to save their state. If it is killed,
    they end.

    Returns:
        The errors of the jobs that failed, by name.

    Raises:
        Stopped: on SIGTERM and SIGHUP, once all jobs have ended.
    """
    cores = _cores()
    workers = [_Worker(cores[number::at_once] or cores) for number in range(at_once)]
    logs.mkdir(parents=True, exist_ok=True)
    waiting = dict(jobs)
    failed: dict[str, UserError] = {}
    with stop_on_signals():
        try:
            while waiting or any(worker.job_name for worker in workers):
                for worker in workers:
                    if waiting and not worker.job_name:
                        name = _next_job(waiting, worker, workers)
                        job = waiting.pop(name)
                        # The last job gets all cores, because the others will end soon.
                        is_last = not waiting and len(jobs) > at_once
                        used = cores if is_last else worker.share
                        worker.start(name, job, used, logs / f"{name}.txt")

                # Show what the jobs have printed, and collect the errors of those that ended.
                busy = {worker.connection: worker for worker in workers if worker.job_name}
                ended = connection.wait(list(busy), timeout=_SECONDS_BETWEEN_LOOKS)
                for worker in busy.values():
                    for line in worker.new_lines():
                        say(f"{worker.job_name}: {line}")
                for one in ended:
                    worker = busy[cast(connection.Connection, one)]
                    name, error = worker.job_name, worker.finish()
                    if error:
                        failed[name] = error
                        say(f"{name}: {error}")
        except BaseException:
            for worker in workers:
                worker.terminate()
            raise
        finally:
            for worker in workers:
                worker.end()
    return failed


def _next_job(waiting: Mapping[str, Job], worker: "_Worker", workers: "Sequence[_Worker]") -> str:
    """Choose a job that is like those of this worker, or else one that is like no other worker's:
    its programs are then compiled in one process only.
    """
    of_others = {other.alike for other in workers if other is not worker}
    for is_fitting in (
        lambda job: job.alike == worker.alike,
        lambda job: job.alike not in of_others,
    ):
        for name, job in waiting.items():
            if is_fitting(job):
                return name
    return next(iter(waiting))


def _cores() -> list[int]:
    """Return the cores that this process may use; empty if the system cannot pin them (macOS)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class _Worker:
    """A process that runs one job after another. It keeps what it has compiled (see
    training/computation.py) and ends after a job that failed.
    """

    def __init__(self, cores: list[int]):
        self.share = cores
        self.alike = ""  # Job.alike of its jobs
        self.job_name = ""  # the job that it runs now
        self._process: SpawnProcess | None = None

    def start(self, name: str, job: Job, cores: list[int], log: Path) -> None:
        """Start a job on these cores."""
        if self._process is not None and cores != self._cores:
            self.end()  # its threads were made for other cores
        if self._process is None:
            self._cores = cores
            context = multiprocessing.get_context("spawn")
            self.connection, theirs = context.Pipe()
            arguments = (theirs, cores, permission(), verification_level())
            self._process = context.Process(target=_work, args=arguments)
            self._process.start()
            theirs.close()
        log.write_text("")
        self.job_name, self.alike = name, job.alike
        self._log, self._shown = log, 0
        self.connection.send((job, log))

    def new_lines(self) -> list[str]:
        """Return the complete lines that the job has printed since the last call."""
        with open(self._log, "rb") as file:
            file.seek(self._shown)
            text, newline, _ = file.read().rpartition(b"\n")
        self._shown += len(text + newline)
        return text.decode(errors="replace").splitlines()

    def finish(self) -> UserError | None:
        """Wait for the job to end, and return why it failed; None if it did not."""
        assert self._process is not None, "no job was started"
        try:
            error = self.connection.recv()
        except (EOFError, ConnectionResetError):  # it was killed, or ended with an unexpected error
            self._process.join()
            reason = f"the process ended with {self._process.exitcode}"
            error = UserError(IO_ERROR, f"{reason}; see {self._log}")
        self.job_name = ""
        if error:
            self.end()
        return error

    def terminate(self) -> None:
        """Tell the job to save its state and end."""
        if self._process is not None:
            self._process.terminate()

    def end(self) -> None:
        """Wait for the process to end, after its job if it has one."""
        if self._process is not None:
            self.connection.close()
            self._process.join()
            self._process = None


def _work(
    jobs: connection.Connection, cores: list[int], permitted: Permission, level: Level
) -> None:
    """Run the jobs that the parent sends, and send back the error of each, or None. End when the
    parent closes the connection, and after a job that failed.
    """
    os.setpgid(0, 0)  # Ctrl-C goes only to the parent, which then terminates the jobs
    if cores:
        os.sched_setaffinity(0, cores)
    end_with_parent()
    error = None
    while error is None:
        try:
            job, log = jobs.recv()
        except (EOFError, ConnectionResetError):
            return
        _print_to(log)
        with with_permission(permitted), verification(level):
            error = _error_of(job)
        sys.stdout.flush()
        with contextlib.suppress(OSError):  # the parent may have been interrupted
            jobs.send(error)


def _print_to(log: Path) -> None:
    """Write what this process prints to a file."""
    with open(log, "w") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())


def _error_of(job: Job) -> UserError | None:
    """Run a job, and return why it failed; None if it did not."""
    try:
        with stop_on_signals():
            job.function(*job.arguments)
    except UserError as error:
        print(error)
        return error
    except Stopped as stopped:
        return UserError(stopped.code, f"stopped by {stopped}")
    return None
