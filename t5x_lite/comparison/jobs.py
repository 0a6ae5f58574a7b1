"""Run several jobs at once on one machine, in processes that have a share of the cores each."""

import contextlib
import copy
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import NamedTuple

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
        program_key: the same for jobs that compile the same programs.
    """

    function: Callable[..., object]
    arguments: tuple
    program_key: str = ""


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
    workers = [_Worker(share) for share in _equal_shares(at_once)]
    logs.mkdir(parents=True, exist_ok=True)
    waiting = dict(jobs)
    failed: dict[str, UserError] = {}
    with stop_on_signals():
        try:
            while waiting or any(worker.job_name for worker in workers):
                for worker in workers:
                    if waiting and not worker.job_name:
                        name = _next_job(waiting, worker, workers)
                        worker.start(name, waiting.pop(name), logs / f"{name}.txt")

                # Show what the jobs have printed, and collect the errors of those that ended.
                busy = [worker for worker in workers if worker.job_name]
                wait([worker.connection for worker in busy], timeout=_SECONDS_BETWEEN_LOOKS)
                for worker in busy:
                    is_done = worker.is_done
                    for line in worker.new_lines():
                        say(f"{worker.job_name}: {line}")
                    if is_done:
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
                worker.close()
            for worker in workers:
                worker.join()
    return failed


def _next_job(waiting: Mapping[str, Job], worker: "_Worker", workers: "Sequence[_Worker]") -> str:
    """Choose a job whose programs this worker has compiled, or else one whose programs no other
    worker has.
    """
    of_others = {other.program_key for other in workers if other is not worker}
    for is_fitting in (
        lambda job: job.program_key == worker.program_key,
        lambda job: job.program_key not in of_others,
    ):
        for name, job in waiting.items():
            if is_fitting(job):
                return name
    return next(iter(waiting))


def _equal_shares(count: int) -> list[list[int]]:
    """Divide the cores that this process may use into equal shares: results may depend on how many
    cores compute them. The shares are empty if the system cannot pin a process (macOS).
    """
    if not hasattr(os, "sched_getaffinity"):
        return [[] for _ in range(count)]
    cores = sorted(os.sched_getaffinity(0))
    size = max(len(cores) // count, 1)
    return [cores[number % len(cores) :: count][:size] for number in range(count)]


class _Worker:
    """A process that runs one job after another. It keeps what it has compiled (see
    training/computation.py) and ends after a job that failed.
    """

    connection: Connection
    _log: Path
    _shown: int  # bytes of the log

    def __init__(self, cores: list[int]):
        self._cores = cores
        self.program_key = ""  # of its last job
        self.job_name = ""  # the job that it runs now
        self._process: SpawnProcess | None = None

    def start(self, name: str, job: Job, log: Path) -> None:
        """Send a job to the process, which is started if there is none."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self.connection, childs_end = context.Pipe()
            arguments = (childs_end, self._cores, permission(), verification_level())
            process = context.Process(target=_work, args=arguments)
            process.start()
            self._process = process
            childs_end.close()
        log.write_text("")
        self.job_name, self.program_key = name, job.program_key
        self._log, self._shown = log, 0
        with contextlib.suppress(OSError):  # it has been killed, which finish reports
            self.connection.send((job, log))

    @property
    def is_done(self) -> bool:
        """True if the job, or the process, has ended."""
        assert self._process is not None, "no job was started"
        return self.connection.poll() or self._process.exitcode is not None

    def new_lines(self) -> list[str]:
        """Return the complete lines that the job has printed since the last call."""
        with open(self._log, "rb") as file:
            file.seek(self._shown)
            text, newline, _ = file.read().rpartition(b"\n")
        self._shown += len(text + newline)
        return text.decode(errors="replace").splitlines()

    def finish(self) -> UserError | None:
        """Return why a job that is done failed; None if it did not."""
        assert self._process is not None, "no job was started"
        self.job_name = ""
        try:
            if not self.connection.poll():  # a child of the dead process still has its end open
                raise EOFError
            error = self.connection.recv()
        except (EOFError, ConnectionResetError):  # it was killed, or ended with an unexpected error
            self._process.join()
            reason = f"the process ended with {self._process.exitcode}"
            error = UserError(IO_ERROR, f"{reason}; see {self._log}")
        if error:
            self.close()
            self.join()
        return error

    def terminate(self) -> None:
        """Tell the job to save its state and end."""
        if self._process is not None:
            self._process.terminate()

    def close(self) -> None:
        """Tell the process to end after its job, if it has one."""
        if self._process is not None:
            self.connection.close()

    def join(self) -> None:
        """Wait for the process to end."""
        if self._process is not None:
            self._process.join()
            self._process = None


def _work(jobs: Connection, cores: list[int], permitted: Permission, level: Level) -> None:
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
        with with_permission(copy.deepcopy(permitted)), verification(level):
            error = _error_of(job)
        with contextlib.suppress(OSError):  # the disk may be full
            if error:
                print(error)
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
        return UserError(error.code, str(error))  # other classes of errors may not be picklable
    except Stopped as stopped:
        return UserError(stopped.code, f"stopped by {stopped}")
    return None
