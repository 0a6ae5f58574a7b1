"""Run several jobs at once on one machine, each in its own process with its share of the cores."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing import connection
from pathlib import Path

from t5x_lite.config.permission import Permission, permission, with_permission
from t5x_lite.errors import IO_ERROR, UserError
from t5x_lite.manifest import Level, verification, verification_level
from t5x_lite.progress import say
from t5x_lite.signals import Stopped, stop_on_signals
from t5x_lite.workers import end_with_parent

_SECONDS_BETWEEN_LOOKS = 0.5  # how often the output of the jobs is read

Job = tuple[Callable[..., object], tuple]  # a module-level function, and its arguments


def run_jobs(jobs: Mapping[str, Job], at_once: int, logs: Path) -> dict[str, UserError]:
    """Run all jobs, `at_once` at a time; write the output of each to LOGS/NAME.txt and show it.

    A job that fails does not stop the others. If this process is interrupted, the jobs are told to
    save their state. If it is killed, they end.

    Returns:
        The errors of the jobs that failed, by name.

    Raises:
        Stopped: on SIGTERM and SIGHUP, once all jobs have ended.
    """
    cores = _cores()
    free = [cores[number::at_once] or cores for number in range(at_once)]
    logs.mkdir(parents=True, exist_ok=True)
    waiting = list(jobs.items())
    running: dict[int, _Running] = {}
    shares: dict[int, list[int]] = {}  # cores of each running job, by its process sentinel
    failed: dict[str, UserError] = {}
    with stop_on_signals():
        try:
            while waiting or running:
                # Start a job on each free share of the cores.
                while waiting and free:
                    name, job = waiting.pop(0)
                    share = free.pop(0)
                    # The last job gets all cores, because the others will end soon.
                    used = share if waiting or len(jobs) <= at_once else cores
                    started = _Running(name, job, used, logs / f"{name}.txt")
                    running[started.process.sentinel] = started
                    shares[started.process.sentinel] = share

                # Show what the jobs have printed, and collect the errors of those that ended.
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
    """Return the cores that this process may use; empty if the system cannot pin them (macOS)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class _Running:
    """A job that runs in its own process."""

    def __init__(self, name: str, job: Job, cores: list[int], log: Path):
        context = multiprocessing.get_context("spawn")
        log.write_text("")
        self.name = name
        self._log, self._shown = log, 0
        self._receiver, sender = context.Pipe(duplex=False)
        arguments = (job, cores, log, sender, permission(), verification_level())
        self.process = context.Process(target=_run_job, args=arguments)
        self.process.start()
        sender.close()

    def new_lines(self) -> list[str]:
        """Return the complete lines that the job has printed since the last call."""
        with open(self._log, "rb") as file:
            file.seek(self._shown)
            text, newline, _ = file.read().rpartition(b"\n")
        self._shown += len(text + newline)
        return text.decode(errors="replace").splitlines()

    def error(self) -> UserError | None:
        """Wait for the process to end, and return why it failed; None if it did not."""
        self.process.join()
        try:
            return self._receiver.recv()
        except EOFError:  # the process was killed, or ended with an unexpected error
            reason = f"the process ended with {self.process.exitcode}"
            return UserError(IO_ERROR, f"{reason}; see {self._log}")


def _run_job(
    job: Job,
    cores: list[int],
    log: Path,
    sender: connection.Connection,
    permitted: Permission,
    level: Level,
) -> None:
    """Run a job in this process, and send its error, or None, to the parent."""
    os.setpgid(0, 0)  # Ctrl-C goes only to the parent, which then terminates the jobs
    if cores:
        os.sched_setaffinity(0, cores)
    end_with_parent()
    with open(log, "w") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
        function, arguments = job
        try:
            with stop_on_signals(), with_permission(permitted), verification(level):
                function(*arguments)
            sender.send(None)
        except UserError as error:
            print(error)
            sender.send(error)
        except Stopped as stopped:
            sender.send(UserError(stopped.code, f"stopped by {stopped}"))
