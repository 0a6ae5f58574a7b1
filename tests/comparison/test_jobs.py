"""Jobs that share processes."""

import os
import signal
import threading
import time

import pytest

from t5x_lite.comparison.jobs import Job, _equal_shares, _next_job, _Worker, run_jobs
from t5x_lite.errors import IO_ERROR
from t5x_lite.signals import Stopped

SAY_PROCESS = "import os; print(os.getpid())"
# An error whose class cannot be sent to another process
UNPICKLABLE = """
from t5x_lite.errors import UserError
class Held(UserError):
    def __init__(self, what, owner): super().__init__(74, f"{what} is held by {owner}")
raise Held("it", "another run")
"""
# A child that outlives its parent and keeps its end of the connection open
DEAD_WITH_A_CHILD = """
import os, signal, time
child = os.fork()
if not child: time.sleep(600)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_runs_jobs_until_one_fails(tmp_path):
    programs = {
        "first": SAY_PROCESS,
        "second": SAY_PROCESS,
        "bad": "from t5x_lite.errors import UserError; raise UserError(65, 'no text')",
        "after bad": SAY_PROCESS,
        "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "after killed": SAY_PROCESS,
        "faulty": "raise OSError('of a library')",
        "after faulty": SAY_PROCESS,
        "held": UNPICKLABLE,
        "after held": SAY_PROCESS,
        "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "last": SAY_PROCESS,
    }
    failed = run_jobs({name: Job(exec, (text,)) for name, text in programs.items()}, 1, tmp_path)
    logs = {name: (tmp_path / f"{name}.txt").read_text() for name in programs}
    assert {name: str(error) for name, error in failed.items()} == {
        "bad": "no text",
        "killed": f"the process ended with -9; see {tmp_path}/killed.txt",
        "faulty": f"the process ended with 1; see {tmp_path}/faulty.txt",
        "held": "it is held by another run",
        "stopped": "stopped by SIGTERM",
    }
    assert failed["bad"].code == 65
    assert failed["killed"].code == failed["faulty"].code == IO_ERROR
    assert "OSError: of a library" in logs["faulty"]
    assert logs["first"] == logs["second"]
    processes = {logs[name] for name in programs if name not in failed}
    assert len(processes) == 6


def test_jobs_at_once_are_in_several_processes(tmp_path):
    """Each waits for the file of the other."""
    meet = (
        "import os, pathlib, time\n"
        "pathlib.Path({own!r}).touch()\n"
        "while not os.path.exists({other!r}): time.sleep(0.01)"
    )
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    jobs = {
        "a": Job(exec, (meet.format(own=a, other=b),)),
        "b": Job(exec, (meet.format(own=b, other=a),)),
    }
    assert not run_jobs(jobs, 2, tmp_path)


@pytest.mark.parametrize(
    ("last", "of_other", "expected"),
    [
        ("gpt", "t5", "gpt 1"),
        ("", "bert", "t5 1"),
        ("bert", "t5", "gpt 1"),
        ("x", "gpt", "t5 1"),
    ],
)
def test_a_process_takes_jobs_of_programs_that_it_has(last, of_other, expected):
    waiting = {name: Job(exec, (), name.split()[0]) for name in ("t5 1", "t5 2", "gpt 1", "t5 3")}
    worker, other = _Worker([]), _Worker([])
    worker.program_key, other.program_key = last, of_other
    assert _next_job(waiting, worker, [worker, other]) == expected


def test_a_process_helps_with_programs_of_another():
    worker, other = _Worker([]), _Worker([])
    worker.program_key, other.program_key = "gpt", "t5"
    assert _next_job({"t5 2": Job(exec, (), "t5")}, worker, [worker, other]) == "t5 2"


def test_a_dead_process_is_noticed_while_its_child_lives(tmp_path):
    failed = run_jobs({"dead": Job(exec, (DEAD_WITH_A_CHILD,))}, 1, tmp_path)
    os.kill(int((tmp_path / "dead.txt").read_text()), signal.SIGKILL)  # it was still alive
    assert "the process ended with -9" in str(failed["dead"])


def test_a_signal_tells_every_job_to_save(tmp_path):
    """One that has begun saves and ends; one that waits is not begun."""
    save = (
        "import pathlib, time\n"
        "try:\n"
        "    pathlib.Path({path!r} + '.begun').touch()\n"
        "    time.sleep(60)\n"
        "finally:\n"
        "    pathlib.Path({path!r} + '.saved').touch()"
    )
    jobs = {name: Job(exec, (save.format(path=str(tmp_path / name)),)) for name in "abc"}

    def stop() -> None:
        while len(list(tmp_path.glob("*.begun"))) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(Stopped):
        run_jobs(jobs, 2, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.saved")) == ["a.saved", "b.saved"]
    assert not (tmp_path / "c.begun").exists()


@pytest.mark.parametrize(
    ("cores", "at_once", "expected"),
    [
        ({0, 1}, 1, [[0, 1]]),
        ({0, 1}, 2, [[0], [1]]),
        ({0, 1}, 3, [[0], [1], [0]]),
        ({0, 1, 2, 3}, 2, [[0, 2], [1, 3]]),
        ({4, 5, 6, 7}, 3, [[4], [5], [6]]),
    ],
)
def test_all_jobs_have_equally_many_cores(monkeypatch, cores, at_once, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores, raising=False)
    assert _equal_shares(at_once) == expected
