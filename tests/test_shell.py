"""Shell scripts, and those that launch/ writes, as shellcheck reads them."""

import json
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT

TRAIN = (
    "train",
    "--config=gpt_tiny",
    "--workdir=gs://bucket/it's one",
    "--config.data.document=line",
)


def check(script: str) -> None:
    """Raise AssertionError with what shellcheck finds."""
    # SC2016: a $ in single quotes is meant to stay one.
    command = [f"{sys.prefix}/bin/shellcheck", "--shell=bash", "--exclude=SC2016", "-"]
    found = subprocess.run(command, input=script, capture_output=True, text=True)
    assert found.returncode == 0, f"{script}\n{found.stdout}{found.stderr}"


def dry_run(name: str, *words: str) -> str:
    command = [sys.executable, ROOT / "launch" / name, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def here_document(printed: str) -> str:
    return printed.partition("<<'END'\n")[2].partition("END\n")[0]


def test_scripts_of_the_repository():
    listed = subprocess.run(
        ["git", "grep", "-lE", "^#!.*(bash|/sh)"], cwd=ROOT, capture_output=True, text=True
    )
    paths = listed.stdout.split() or [".ci/run"]  # without git
    assert ".ci/run" in paths
    for path in paths:
        if not path.endswith((".py", ".md")):
            check((ROOT / path).read_text())


@pytest.mark.parametrize("name", ["tpu_vm", "queued"])
def test_what_runs_on_a_tpu_vm(name):
    printed = dry_run(name, "vm", "--zone=z", "--dry-run", "--", *TRAIN)
    check(printed)  # what a reader may copy
    scripts = [
        word.removeprefix("--command=")
        for word in json.loads(_words_as_json(printed))
        if word.startswith("--command=")
    ]
    assert len(scripts) >= 4
    for script in scripts:
        check(script)


def _words_as_json(printed: str) -> str:
    """All words of printed commands, as bash divides them."""
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    lines = " ".join(line for line in printed.splitlines() if line.startswith("gcloud"))
    command = ["bash", "-c", f'{sys.executable} -c "$0" {lines}', code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_what_a_pod_runs():
    printed = dry_run("gke", "a", "--topology=v5e:4x4", "--image=i", "--dry-run", "--", *TRAIN)
    manifest = json.loads(here_document(printed))
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    check(job["template"]["spec"]["containers"][0]["command"][2])


def test_a_word_that_ends_a_here_document_does_not(tmp_path):
    """A dry run is pasted into a shell: nothing of a word may be run there."""
    mark = tmp_path / "was run"
    words = ["train", "--config=gpt_tiny", f"--workdir=a\nEND\ntouch '{mark}'\n"]
    printed = dry_run("slurm", "--dry-run", *words)
    script = f"sbatch() {{ cat > {shlex.quote(str(tmp_path / 'job'))}; }}\n{printed}"
    subprocess.run(["bash", "-c", script], check=True)
    assert not mark.exists()
    job = (tmp_path / "job").read_text()
    assert "touch" in job  # it is part of a quoted word there
    assert job.rstrip().endswith("exit $code")


def test_what_slurm_runs(tmp_path):
    check(here_document(dry_run("slurm", "--sbatch=--nodes=2", "--dry-run", *TRAIN)))
    printed = dry_run(
        "cells", "--sbatch=--gpus=1", "--dry-run", "compare",
        "--config=compare/objectives", f"--workdir={tmp_path}/a b",
    )  # fmt: skip
    for part in printed.split("\nEND\n"):
        check(here_document(f"{part}\nEND\n"))
