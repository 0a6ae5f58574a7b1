"""Measure what users wait for: the seconds from the `train` command to its first finished step,
with an empty and with a full compilation cache, and the seconds of short commands, to their end.

python benchmarks/cold_start.py [ROUNDS]      (medians; the token store is prepared beforehand)
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import keep

PYTHON = [sys.executable, "-m", "t5x_lite"]


def first_step(family: str, directory: Path) -> float:
    """Return the seconds until a run of a family's tiny config prints the line of step 1."""
    workdir = directory / "run"
    shutil.rmtree(workdir, ignore_errors=True)
    more = ["--config.training.log_every=1", f"--workdir={workdir}"]
    start = time.perf_counter()
    process = subprocess.Popen(
        [*PYTHON, "train", f"--config={family}_tiny", *more], stdout=subprocess.PIPE, text=True
    )
    for line in process.stdout or ():
        if line.startswith("step 1/"):
            break
    seconds = time.perf_counter() - start
    process.kill()
    process.wait()
    return seconds


def whole(*words: str) -> float:
    """Return the seconds that a command takes, until its process has ended."""
    start = time.perf_counter()
    subprocess.run([*PYTHON, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main(rounds: int) -> None:
    """Measure all families and commands, and print the medians."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        os.environ["T5X_LITE_CACHE"] = directory
        subprocess.run(
            [*PYTHON, "prepare", "--config=gpt_tiny"], check=True, stdout=subprocess.DEVNULL
        )
        for family in ("bert", "t5", "gpt"):
            empty, full = [], []
            for _ in range(rounds):
                shutil.rmtree(Path(directory, "xla"), ignore_errors=True)
                empty.append(first_step(family, Path(directory)))
                full.append(first_step(family, Path(directory)))
            print(
                f"{family}: empty cache {statistics.median(empty):.1f} s, full "
                f"{statistics.median(full):.1f} s",
                flush=True,
            )
            results[family] = {"empty_cache_seconds": empty, "full_cache_seconds": full}
        run = f"--workdir={directory}/one_step"
        whole("train", "--config=gpt_tiny", "--config.training.steps=1", run)
        commands = {
            "--help": ["--help"],
            "inspect": ["inspect", "--config=gpt_tiny", "--examples=1"],
            "evaluate": ["evaluate", run],
            "generate": ["generate", run, "Return a", "--max-new-tokens=5"],
        }
        for name, words in commands.items():
            whole(*words)  # fills the caches
            seconds = [whole(*words) for _ in range(rounds)]
            print(f"{name}: {statistics.median(seconds):.2f} s", flush=True)
            results[name] = seconds
    keep("cold_start", results)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
