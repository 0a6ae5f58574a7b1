"""Compare the time of a training step of BERT, T5 and GPT on CPU with `transformers` + torch. Both
sides take turns, and the result is the median of the rounds' ratios.

    python benchmarks/step_time.py PEER_PYTHON [ROUNDS] [tiny|base]

tiny: the three tiny configs, 8 rows; base: BERT base, T5 base and GPT-2 small, 4 rows of 512
positions (T5: 512 inputs, 114 targets).

PEER_PYTHON: the python of an environment of its own with torch and transformers. The peer runs
eager and compiled, in float32, bfloat16 autocast and pure bfloat16; ours runs in float32 and
bfloat16. The fastest variant of each side is compared. At base size the far slower variants,
float32 and eager, are left out, because all variants are in memory at once. Each side has the
memory settings that suit it: ours has launch/cpu.env, the peer has huge pages (with one arena it is
slower).
"""

import json
import os
import statistics
import subprocess
import sys
from itertools import product
from pathlib import Path

from record import keep

HERE = Path(__file__).parent
# Steps per turn, of which the median is taken. The first may be slow, because the memory of a
# waiting process may have been given to others.
STEPS = 5
OURS = dict(
    line.split("=", 1)
    for line in (HERE.parent / "launch/cpu.env").read_text().splitlines()
    if line[0] != "#"
)
MODES = {
    "tiny": {
        "ours": ("float32", "bfloat16"),
        "how": ("eager", "compiled"),
        "kind": ("float32", "autocast", "bfloat16"),
    },
    "base": {"ours": ("bfloat16",), "how": ("compiled",), "kind": ("autocast", "bfloat16")},
}
PEERS = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def worker(python: str, script: str, environment: dict, *args: str) -> subprocess.Popen:
    """Start a worker process. For each line with a number it times that many steps, and answers
    with their seconds as JSON.

    Args:
        python: the python to run it with.
        script: the name of the worker's file in this directory.
        environment: more environment variables.
        args: arguments of the worker.
    """
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
        "text": True,
    }
    return subprocess.Popen([python, HERE / script, *args], env=os.environ | environment, **pipes)


def ask(process: subprocess.Popen, steps: int = STEPS) -> float:
    """Return the milliseconds of a step, as the median of a few; infinity if the process failed."""
    try:
        process.stdin.write(f"{steps}\n")
        process.stdin.flush()
        return statistics.median(json.loads(process.stdout.readline())) * 1000
    except (BrokenPipeError, ValueError):
        return float("inf")


def main(peer: str, rounds: int, size: str) -> None:
    """Print the milliseconds of each variant, and the ratio for each family."""
    results = {}
    for family in ("bert", "t5", "gpt"):
        workers = {
            ("ours", dtype): worker(
                sys.executable, "our_step.py", OURS, family, size, f"model.dtype={dtype}"
            )
            for dtype in MODES[size]["ours"]
        }
        for how, kind in product(MODES[size]["how"], MODES[size]["kind"]):
            workers["peer", f"{how} {kind}"] = worker(
                peer, "peer_step.py", PEERS, family, size, how, kind
            )
        for process in workers.values():
            ask(process, 1)  # wait until it has started
        times = {mode: [] for mode in workers}
        for _ in range(rounds):
            for mode, process in workers.items():
                times[mode].append(ask(process))
        for process in workers.values():
            process.kill()
            process.communicate()
        for (whose, mode), found in times.items():
            print(f"{family}: {whose} {mode} {statistics.median(found):.1f} ms", flush=True)
        ours, theirs = (
            min((t for m, t in times.items() if m[0] == w), key=statistics.median)
            for w in ("ours", "peer")
        )
        ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
        print(f"{family}: ours is {ratio:.2f} × as fast", flush=True)
        results[family] = {" ".join(mode): found for mode, found in times.items()}
    keep(f"step_time_{size}", {"milliseconds_a_step": results}, peer)


if __name__ == "__main__":
    peer, *given = sys.argv[1:]
    main(peer, int(given[0]) if given else 9, given[1] if len(given) > 1 else "tiny")
