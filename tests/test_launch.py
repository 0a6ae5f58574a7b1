"""launch/cells and launch/slurm, with an sbatch that writes down what it is given."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from t5x_lite.errors import BAD_CONFIG, NO_FILE

SBATCH = """#!{python}
import json, pathlib, sys
directory = pathlib.Path({directory!r})
number = len(list(directory.glob("*.json")))
given = {{"options": sys.argv[1:], "script": sys.stdin.read()}}
if "--gpus=99" in sys.argv:
    sys.exit("sbatch: error: invalid number of GPUs")
(directory / f"{{number}}.json").write_text(json.dumps(given))
print(f"10{{number}};cluster")
"""
CONFIG = """
import t5x_lite
from t5x_lite.config import CompareConfig, default

def get_config():
    config = default(CompareConfig)
    config.base = t5x_lite.get_config("gpt_tiny")
    config.cells = {"it's one": {}, "two": {"model": {"num_layers": 2}}}
    return config
"""


@pytest.fixture
def launch(tmp_path, run_script):
    """A function that runs launch/cells where sbatch and a comparison are."""
    directory = tmp_path / "given"
    directory.mkdir()
    sbatch = tmp_path / "bin/sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(SBATCH.format(python=sys.executable, directory=str(directory)))
    sbatch.chmod(0o755)
    (tmp_path / "question.py").write_text(CONFIG)

    def run(*words: str, path: str = f"{sbatch.parent}:{os.environ['PATH']}", name: str = "cells"):
        return run_script(name, *words, cwd=tmp_path, path=path)

    run.given = directory
    return run


COMPARE = ("compare", "--config=question.py", "--workdir=runs of mine", "--seeds=2")


def words_of(line: str) -> list[str]:
    """The arguments of a printed command, after `python -m t5x_lite`."""
    return shlex.split(line)[3:]


def test_a_command_for_each_cell_and_one_for_the_report(launch):
    plan, *cells, report = launch(*COMPARE).stdout.splitlines()
    assert words_of(plan) == [*COMPARE, "--dry-run"]
    assert [words_of(line) for line in cells] == [
        [*COMPARE, "--cells=it's one"],
        [*COMPARE, "--cells=two"],
    ]
    assert words_of(report) == list(COMPARE)


def test_budgets_are_cells_of_their_own(launch):
    lines = launch(*COMPARE, "--config.budgets=(1e5,2e5)").stdout.splitlines()
    assert [words_of(line)[-1] for line in lines[1:-1]] == [
        "--cells=it's one-100k",
        "--cells=two-100k",
        "--cells=it's one-200k",
        "--cells=two-200k",
    ]


def test_three_jobs_of_slurm_wait_for_each_other(launch, tmp_path):
    done = launch("--sbatch=--gpus=1 --comment='a b'", *COMPARE)
    assert done.stdout == "plan: job 100\ncells: job 101\nreport: job 102\n"
    jobs = [json.loads(path.read_text()) for path in sorted(launch.given.glob("*.json"))]
    for job in jobs:
        assert job["options"][-2:] == ["--gpus=1", "--comment=a b"]
    assert "--dependency=afterok:100" in jobs[1]["options"]
    assert "--dependency=afterany:101" in jobs[2]["options"]
    assert "--array=0-1" in jobs[1]["options"]

    def arguments(job, number="") -> list[str]:
        """What the script runs, of each job of the array, printed line by line."""
        script = job["script"].replace(f"exec {sys.executable}", "exec printf '%s\\n'")
        env = os.environ | {"SLURM_ARRAY_TASK_ID": number}
        run = subprocess.run(["bash"], input=script, capture_output=True, text=True, env=env)
        assert run.returncode == 0
        return run.stdout.splitlines()[2:]

    assert arguments(jobs[0]) == [*COMPARE, "--dry-run"]
    assert arguments(jobs[1], "0") == [*COMPARE, "--cells=it's one"]
    assert arguments(jobs[1], "1") == [*COMPARE, "--cells=two"]
    assert arguments(jobs[2]) == list(COMPARE)
    assert all(f"cd {shlex.quote(str(tmp_path))} ||" in job["script"] for job in jobs)


def test_what_would_be_submitted_is_printed(launch):
    done = launch("--sbatch=--gpus=1", "--dry-run", *COMPARE)
    assert "--dependency=afterok:NUMBER_OF_PLAN" in done.stdout
    assert not list(launch.given.iterdir())


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ((), 2, "expected the command of a comparison"),
        (("train", "--config=gpt_tiny"), 2, "expected the command of a comparison"),
        ((*COMPARE, "--cells=two"), 2, "have --cells and --dry-run themselves; leave them out"),
        (
            ("--sbatch=--gpus=99", *COMPARE),
            2,
            "refused the job plan: sbatch: error: invalid number",
        ),
        (("compare", "--config=questoin.py", "--workdir=a"), NO_FILE, "questoin.py"),
        (
            ("compare", "--config=gpt_tiny", "--workdir=a"),
            BAD_CONFIG,
            "is one run, not a comparison",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_launched_is_one_sentence(launch, words, code, reason):
    done = launch(*words)
    assert done.returncode == code
    assert done.stderr.startswith("launch/cells: ")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(launch.given.iterdir())


def test_without_slurm(launch):
    done = launch("--sbatch=", *COMPARE, path="/nowhere")
    assert done.returncode == 2
    assert "there is no sbatch here; leave --sbatch out" in done.stderr


TRAIN = ("train", "--config=gpt_tiny", "--workdir=runs of mine", "--config.objective=it's one")


# Slurm's, as far as a job needs it: it starts a task for each code, and has the highest of theirs.
SRUN = """#!/bin/bash
shift  # --kill-on-bad-exit=0
highest=0
for code in $CODES
do
  CODE=$code "$@"
  ended=$?
  ((ended > highest)) && highest=$ended
done
exit $highest
"""


@pytest.mark.parametrize(
    ("codes", "restarts", "queued_again"),
    [
        ("0 0", "0", False),
        ("143 143", "0", True),
        ("142 142", "3", True),
        ("143 143", "5", False),
        ("76 76", "0", False),
        ("142 1", "0", False),  # one has failed, the other was stuck without it
        ("142 137", "0", False),  # so where it was killed for its memory
        ("143 1", "0", True),  # one has failed where all were to end
    ],
)
def test_a_job_is_queued_again_where_it_has_saved(launch, tmp_path, codes, restarts, queued_again):
    done = launch("--sbatch=--nodes=2 --comment='a b'", "--retries=5", *TRAIN, name="slurm")
    assert done.stdout == "train: job 100\n"
    (path,) = launch.given.glob("*.json")
    job = json.loads(path.read_text())
    assert {"--requeue", "--signal=TERM@120"} <= set(job["options"])
    assert job["options"][-2:] == ["--nodes=2", "--comment=a b"]
    # Its script, with programs that write down what they are given.
    writes = f'printf "%s\\n" "$@" > {tmp_path}/${{0##*/}}'
    programs = {
        "srun": SRUN,
        "scontrol": f"#!/bin/bash\n{writes}\n",
        "python": f"#!/bin/bash\n{writes}\nexit $CODE\n",
    }
    for name, content in programs.items():
        program = tmp_path / "bin" / name
        program.write_text(content)
        program.chmod(0o755)
    env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    env |= {"SLURM_RESTART_COUNT": restarts, "CODES": codes}
    script, replaced = re.subn(r"\S+ (?=-m t5x_lite)", f"{tmp_path}/bin/python ", job["script"])
    assert replaced == 1
    ended = subprocess.run(["bash"], input=script, text=True, env=env)
    assert ended.returncode == max(map(int, codes.split()))
    words = (tmp_path / "python").read_text().splitlines()
    assert words == ["-m", "t5x_lite", *TRAIN, "--distributed"]
    assert (tmp_path / "scontrol").exists() == queued_again
    if queued_again:
        assert (tmp_path / "scontrol").read_text() == "requeue\n7\n"


def test_a_job_that_cannot_be_launched_is_one_sentence(launch):
    for words, reason in (
        ((), "expected a run"),
        (("train", "--config=gpt_tiny"), "no --workdir"),
        (("--sbatch=--comment='x", *TRAIN), "--sbatch=--comment='x: no closing quotation"),
        (("--sbatch=--signal=USR1@60", *TRAIN), "only SIGTERM lets a run save"),
        (("--sbatch=--gpus=99", *TRAIN), "sbatch refused the job: sbatch: error: invalid number"),
    ):
        done = launch(*words, name="slurm")
        assert done.returncode == 2
        assert reason in done.stderr
        assert done.stderr.count("\n") == 1
    done = launch(*TRAIN, name="slurm", path="/usr/bin:/bin")
    assert "there is no sbatch here" in done.stderr
    done = launch("--dry-run", *TRAIN, name="slurm", path="/usr/bin:/bin")
    assert done.returncode == 0
    assert done.stdout.startswith("sbatch --parsable")
