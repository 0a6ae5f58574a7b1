"""Kill runs of each family with `kill -9` at random moments, and check that they end bitwise equal
to a run that was never killed.

    python benchmarks/kills.py [KILLS]      (20 for each of bert, t5 and gpt unless told)

Most kills come up to a fifth of a second after a random metrics record was written. Each killed run
is also killed once right after its first save began, and once within an evaluation. If the run is
over before the moment comes, the kill does not count.
"""

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from record import keep

SETTINGS = {"steps": 60, "log_every": 1, "eval_every": 6, "checkpoint_every": 5}
LAST = SETTINGS["steps"] + SETTINGS["steps"] // SETTINGS["eval_every"]  # records of a whole run
# Fields of a record that differ from run to run.
TIMES = ("tokens_per_second", "seconds", "train_seconds", "mfu")


def command(family: str, workdir: Path) -> list[str]:
    """Return the command that trains a tiny config, on short rows that make steps quick."""
    lengths = {"t5": ["inputs=58", "targets=14"]}.get(family, ["sequence_length=66"])
    more = [f"training.{k}={v}" for k, v in SETTINGS.items()] + [
        f"data.lengths.{length}" for length in lengths
    ]
    more += ["model.dropout=0.1", "data.tokenizer=bytes", "data.validation_fraction=0.002"]
    return [
        *(
            sys.executable,
            "-m",
            "t5x_lite",
            "train",
            f"--config={family}_tiny",
            f"--workdir={workdir}",
        ),
        *(f"--config.{setting}" for setting in more),
    ]


def end(workdir: Path):
    """Return all arrays of the last checkpoint as bytes, and the metrics records without times."""
    path = workdir / f"checkpoints/{SETTINGS['steps']}"
    tree = ocp.StandardCheckpointer().restore(path.resolve())
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in record.items() if k not in TIMES} for record in records]
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)], kept


def records(workdir: Path) -> int:
    """Return the number of metrics records that the run has written."""
    path = workdir / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def killed(family: str, workdir: Path, moment) -> bool:
    """Start a run and kill it at a moment.

    Args:
        family: bert, t5 or gpt.
        workdir: the directory of the run.
        moment: a function that waits, given the process.

    Returns:
        False if the run was over before the moment came.
    """
    process = subprocess.Popen(
        command(family, workdir), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    moment(process)
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return alive


def wait(process: subprocess.Popen, condition) -> None:
    """Wait until the condition holds or the process is over. It looks every half millisecond,
    because the moments are short.
    """
    while process.poll() is None and not condition():
        time.sleep(0.0005)


def at_record(workdir: Path, pick: random.Random):
    """Return a moment up to a fifth of a second after a random record that is still to come.

    A resumed run first cuts the records past its checkpoint, and writes them again.
    """

    def moment(process):
        have = records(workdir)
        number = pick.randint(min(have + 1, LAST - 1), LAST - 1)
        wait(process, lambda: records(workdir) >= number)
        time.sleep(pick.uniform(0, 0.2))

    return moment


def at_first_save(workdir: Path):
    """Return the moment when anything of a checkpoint is on disk."""
    return lambda process: wait(process, lambda: list(workdir.glob("checkpoints/*")))


def in_evaluation(workdir: Path):
    """Return a moment within an evaluation, after its training step is recorded."""
    path = workdir / "metrics.jsonl"
    return lambda process: wait(
        process, lambda: path.exists() and '"step": 6, "split": "train"' in path.read_text()
    )


def main(kills: int) -> int:
    """Run and print all; return 1 if any run ends differently."""
    pick, results = random.Random(0), {}
    with tempfile.TemporaryDirectory() as directory:
        for family in ("bert", "t5", "gpt"):
            whole, workdir = Path(directory, family, "whole"), Path(directory, family, "killed")
            subprocess.run(command(family, whole), check=True, stdout=subprocess.DEVNULL)
            whole_end = end(whole)
            killed_at, ends = [], []  # records at each kill; for each run: same end?
            # Kill a fresh run several times, resuming it each time, and then let it finish.
            while len(killed_at) < kills:
                subprocess.run(["rm", "-rf", workdir], check=True)
                moments = [
                    at_first_save(workdir),
                    in_evaluation(workdir),
                    *[at_record(workdir, pick)] * 3,
                ]
                for moment in moments[: kills - len(killed_at)]:
                    if killed(family, workdir, moment):
                        killed_at.append(records(workdir))
                        print(
                            f"{family}: kill {len(killed_at)} at {killed_at[-1]} of {LAST} records",
                            flush=True,
                        )
                subprocess.run(command(family, workdir), check=True, stdout=subprocess.DEVNULL)
                ends.append(end(workdir) == whole_end)
                print(
                    f"{family}: ended {'bitwise the same' if ends[-1] else 'DIFFERENTLY'}",
                    flush=True,
                )
            results[family] = {"killed_at_record": killed_at, "ended_bitwise_the_same": ends}
    keep("kills", results)
    return not all(all(found["ended_bitwise_the_same"]) for found in results.values())


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
