"""A training step of the three tiny configs against `transformers` + torch on CPU, side by side, as medians of ratios.

    python benchmarks/step_time.py PEER_PYTHON [ROUNDS]

PEER_PYTHON: the python of an environment of its own with torch and transformers. Its fastest of eager and compiled,
float32, bfloat16 autocast and pure bfloat16 is found first, and our faster of float32 and bfloat16; then the two take
turns.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FAMILIES = ("bert", "t5", "gpt")


def worker(python: str, script: str, *args: str) -> subprocess.Popen:
    """A process that times one step for each line it is sent, and answers with the seconds."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    return subprocess.Popen([python, HERE / script, *args], **pipes)


def ask(process: subprocess.Popen, steps: int) -> float:
    """Seconds of a step, the median of so many."""
    process.stdin.write(f"{steps}\n")
    process.stdin.flush()
    return statistics.median(json.loads(process.stdout.readline()))


def fastest(whose: str, family: str, modes: list[tuple[str, ...]]) -> tuple[str, ...]:
    """The python, script and arguments whose step takes least."""
    found = []
    for python, script, *args in modes:
        process = worker(python, script, family, *args)
        try:
            found.append((ask(process, 9), (python, script, family, *args)))
            print(f"{family}: {whose} {' '.join(args)} {found[-1][0] * 1000:.0f} ms", flush=True)
        except ValueError:
            print(f"{family}: {whose} {' '.join(args)} failed", flush=True)
        finally:
            process.kill()
    return min(found)[1]


def main(peer: str, rounds: int) -> None:
    """Print a table row for each family."""
    kinds = [(how, kind) for how in ("eager", "compiled") for kind in ("float32", "autocast", "bfloat16")]
    for family in FAMILIES:
        theirs = fastest("peer", family, [(peer, "peer_step.py", *kind) for kind in kinds])
        types = [f"model.dtype={dtype}" for dtype in ("float32", "bfloat16")]
        ours = fastest("ours", family, [(sys.executable, "our_step.py", kind) for kind in types])
        workers = worker(*ours), worker(*theirs)
        pairs = [tuple(ask(process, 5) for process in workers) for _ in range(rounds)]
        for process in workers:
            process.kill()
        a, b = (statistics.median(column) * 1000 for column in zip(*pairs, strict=True))
        ratio = statistics.median(theirs / ours for ours, theirs in pairs)
        names = " ".join(ours[3:]), " ".join(theirs[3:])
        print(
            f"{family}: ours ({names[0]}) {a:.1f} ms, peer's ({names[1]}) {b:.1f} ms: {ratio:.2f} × as fast", flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9)
