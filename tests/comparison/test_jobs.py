"""Jobs that share processes."""

import pytest

from t5x_lite.comparison.jobs import Job, _next_job, _Worker, run_jobs
from t5x_lite.errors import IO_ERROR

SAY_PROCESS = "import os; print(os.getpid())"


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
        "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "last": SAY_PROCESS,
    }
    failed = run_jobs({name: Job(exec, (text,)) for name, text in programs.items()}, 1, tmp_path)
    logs = {name: (tmp_path / f"{name}.txt").read_text() for name in programs}
    assert {name: str(error) for name, error in failed.items()} == {
        "bad": "no text",
        "killed": f"the process ended with -9; see {tmp_path}/killed.txt",
        "faulty": f"the process ended with 1; see {tmp_path}/faulty.txt",
        "stopped": "stopped by SIGTERM",
    }
    assert failed["bad"].code == 65
    assert failed["killed"].code == failed["faulty"].code == IO_ERROR
    assert "OSError: of a library" in logs["faulty"]
    assert logs["first"] == logs["second"]
    processes = {logs[name] for name in programs if name not in failed}
    assert len(processes) == 5


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
    [("gpt", "t5", "gpt 1"), ("", "bert", "t5 1"), ("bert", "t5", "gpt 1"), ("x", "gpt", "t5 1")],
)
def test_a_process_takes_jobs_of_programs_that_it_has(last, of_other, expected):
    waiting = {name: Job(exec, (), name.split()[0]) for name in ("t5 1", "t5 2", "gpt 1", "t5 3")}
    worker, other = _Worker([]), _Worker([])
    worker.alike, other.alike = last, of_other
    assert _next_job(waiting, worker, [worker, other]) == expected


def test_a_process_helps_with_programs_of_another():
    worker, other = _Worker([]), _Worker([])
    worker.alike, other.alike = "gpt", "t5"
    assert _next_job({"t5 2": Job(exec, (), "t5")}, worker, [worker, other]) == "t5 2"
