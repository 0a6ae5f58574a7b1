"""Compare the time of a training step of BERT, T5 and GPT with `transformers` + torch. Both sides
take turns, and the result is the median of the rounds' ratios.

    python benchmarks/step_time.py PEER_PYTHON [ROUNDS] [tiny|base|gpu]

tiny: the three tiny configs, 8 rows; base: BERT base, T5 base and GPT-2 small, 4 rows of 512
positions (T5: 512 inputs, 114 targets); gpu: the same on an NVIDIA GPU, 32 rows, GPT-2 with 1,024
positions.

PEER_PYTHON: the python of a separate environment with torch and transformers. The peer runs eager
and compiled, in float32, bfloat16 autocast and pure bfloat16; ours runs in float32 and bfloat16.
The fastest variants of the two sides are compared. All variants are in memory at once, so at base
size the far slower ones, float32 and eager, are left out. On a GPU the peer runs in autocast, and
ours with and without a scan over layers. Each side has the memory settings that suit it: ours has
launch/cpu.env, the peer has huge pages (with a single arena it is slower).
"""

import json
import math
import os
import statistics
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

from record import keep

HERE = Path(__file__).parent
Variant = tuple[str, str]  # ours or peer, and what distinguishes it
# Steps per turn; their median counts. The first step may be slow, because others may have taken the
# memory of a waiting process.
STEPS = 5
OURS = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # all processes share a GPU's memory
OURS |= dict(
    line.split("=", 1)
    for line in (HERE.parent / "launch/cpu.env").read_text().splitlines()
    if line[0] != "#"
)
FAMILIES = ("bert", "t5", "gpt")
# Variants of each side by size; ours are settings.
MODES = {
    "tiny": {
        "ours": ("model.dtype=float32", "model.dtype=bfloat16"),
        "how": ("eager", "compiled"),
        "kind": ("float32", "autocast", "bfloat16"),
    },
    "base": {
        "ours": ("model.dtype=bfloat16",),
        "how": ("compiled",),
        "kind": ("autocast", "bfloat16"),
    },
    "gpu": {
        "ours": ("model.dtype=bfloat16", "model.dtype=bfloat16 model.scan=True"),
        "how": ("compiled",),
        "kind": ("autocast",),
    },
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


def ask(process: subprocess.Popen, steps: int = STEPS) -> dict[str, Any]:
    """Let a worker run its next steps, and return its answer: the seconds of each step and, from
    ours, the tokens per second and the MFU. The seconds are infinite if the process failed.
    """
    assert process.stdin, "a worker reads from a pipe"
    assert process.stdout, "a worker writes to a pipe"
    try:
        process.stdin.write(f"{steps}\n")
        process.stdin.flush()
        # Skip a worker's other messages, such as that another one is making the corpus.
        return json.loads(next(line for line in process.stdout if line.startswith("{")))
    except (BrokenPipeError, StopIteration, ValueError):
        return {"seconds": [math.inf]}


def start(peer: str, family: str, size: str) -> dict[Variant, subprocess.Popen]:
    """Start a worker for each variant of both sides."""
    modes = MODES[size]
    workers = {}
    for settings in modes["ours"]:
        workers["ours", settings] = worker(
            sys.executable, "our_step.py", OURS, family, size, *settings.split()
        )
    for how, kind in product(modes["how"], modes["kind"]):
        workers["peer", f"{how} {kind}"] = worker(
            peer, "peer_step.py", PEERS, family, size, how, kind
        )
    return workers


def measure(
    workers: dict[Variant, subprocess.Popen], rounds: int
) -> tuple[dict[Variant, list[float]], dict[Variant, str]]:
    """Let the workers take turns, then end them. Return the milliseconds of each variant's steps by
    round, and as text the tokens per second and MFU of ours if the device's peak is known.
    """
    for process in workers.values():
        ask(process, 1)  # wait until it has started
    times: dict[Variant, list[float]] = {variant: [] for variant in workers}
    rates = dict.fromkeys(workers, "")
    for _ in range(rounds):
        for variant, process in workers.items():
            answer = ask(process)
            times[variant].append(1000 * statistics.median(answer["seconds"]))
            if answer.get("mfu"):
                rate, mfu = answer["tokens_per_second"], answer["mfu"]
                rates[variant] = f", {rate:,.0f} tokens/s, MFU {mfu:.3f}"
    for process in workers.values():
        process.kill()
        process.communicate()
    return times, rates


def report(family: str, times: dict[Variant, list[float]], rates: dict[Variant, str]) -> None:
    """Print the milliseconds of each variant, and how much faster ours is."""
    for (whose, mode), found in times.items():
        median = statistics.median(found)
        print(f"{family}: {whose} {mode} {median:.1f} ms{rates[whose, mode]}", flush=True)
    ours, theirs = (
        min(
            (found for variant, found in times.items() if variant[0] == whose),
            key=statistics.median,
        )
        for whose in ("ours", "peer")
    )
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    print(f"{family}: ours is {ratio:.2f} × as fast", flush=True)


def main(peer: str, rounds: int, size: str) -> None:
    """Measure and report each family, and keep the numbers."""
    results = {}
    for family in FAMILIES:
        times, rates = measure(start(peer, family, size), rounds)
        report(family, times, rates)
        results[family] = {" ".join(variant): found for variant, found in times.items()}
    keep(f"step_time_{size}", {"milliseconds_a_step": results}, peer)


if __name__ == "__main__":
    peer, *given = sys.argv[1:]
    main(peer, int(given[0]) if given else 9, given[1] if len(given) > 1 else "tiny")
