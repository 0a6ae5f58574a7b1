"""Kill -9 at random moments, for each family: does the run end bitwise as one that was never killed?

    python benchmarks/kills.py [KILLS]      (20 for each of bert, t5 and gpt unless told)

The moments: uniformly random in the life of a run, among them, always, one right after the first save began and one
within an evaluation.
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

SETTINGS = {"steps": 60, "log_every": 1, "eval_every": 6, "checkpoint_every": 5}
TIMES = ("tokens_per_second", "seconds", "train_seconds", "mfu")


def command(family: str, workdir: Path) -> list[str]:
    """Train a tiny config, on narrow rows that make steps quick."""
    lengths = {"t5": ["inputs=58", "targets=14"]}.get(family, ["row=66"])
    more = [f"training.{k}={v}" for k, v in SETTINGS.items()] + [f"data.lengths.{length}" for length in lengths]
    more += ["model.dropout=0.1", "data.tokenizer=bytes", "data.validation_fraction=0.002"]
    return [
        *(sys.executable, "-m", "t5x_lite", "train", f"--config={family}_tiny", f"--workdir={workdir}"),
        *(f"--config.{setting}" for setting in more),
    ]


def end(workdir: Path):
    """All arrays of the last checkpoint as bytes, and the records, times aside."""
    path = workdir / f"checkpoints/{SETTINGS['steps']}/default"
    tree = ocp.StandardCheckpointer().restore(path.resolve())
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in record.items() if k not in TIMES} for record in records]
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)], kept


def killed(family: str, workdir: Path, moment) -> str:
    """Start a run, kill it at the moment (a function that waits), and say how far it was."""
    process = subprocess.Popen(command(family, workdir), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    moment(process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    lines = (workdir / "metrics.jsonl").read_text().count("\n") if (workdir / "metrics.jsonl").exists() else 0
    return f"{lines} records"


def after(seconds: float):
    """That long after the start."""
    return lambda process: time.sleep(seconds)


def at_first_save(workdir: Path):
    """As soon as anything of a checkpoint is on disk."""

    def wait(process):
        while process.poll() is None and not list(workdir.glob("checkpoints/*")):
            time.sleep(0.0005)

    return wait


def in_evaluation(workdir: Path):
    """Once the step before an evaluation is recorded, and before its result is."""

    def wait(process):
        path = workdir / "metrics.jsonl"
        while process.poll() is None and not (path.exists() and '"step": 6, "split": "train"' in path.read_text()):
            time.sleep(0.0005)

    return wait


def main(kills: int) -> int:
    """Run and print; 1 if any end differs."""
    pick, bad = random.Random(0), 0
    with tempfile.TemporaryDirectory() as directory:
        for family in ("bert", "t5", "gpt"):
            whole, workdir = Path(directory, family, "whole"), Path(directory, family, "killed")
            start = time.monotonic()
            subprocess.run(command(family, whole), check=True, stdout=subprocess.DEVNULL)
            whole_end, length = end(whole), time.monotonic() - start
            done = 0
            while done < kills:
                subprocess.run(["rm", "-rf", workdir], check=True)
                moments = [at_first_save(workdir), in_evaluation(workdir)]
                moments += [after(pick.uniform(0.5, length)) for _ in range(3)]
                for moment in moments[: kills - done]:
                    print(f"{family}: kill {done + 1} at {killed(family, workdir, moment)}", flush=True)
                    done += 1
                subprocess.run(command(family, workdir), check=True, stdout=subprocess.DEVNULL)
                same = end(workdir) == whole_end
                bad += not same
                print(f"{family}: ended {'bitwise the same' if same else 'DIFFERENTLY'}", flush=True)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
