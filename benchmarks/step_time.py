"""A training step of the three tiny configs against `transformers` + torch on CPU, side by side, as medians of ratios.

    python benchmarks/step_time.py PEER_PYTHON [ROUNDS]

PEER_PYTHON: the python of an environment of its own with torch and transformers. Its fastest of eager and compiled,
float32, bfloat16 autocast and pure bfloat16 is found first; then ours and it take turns.
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


def main(peer: str, rounds: int) -> None:
    """Print a table row for each family."""
    for family in FAMILIES:
        modes = [(how, kind) for how in ("eager", "compiled") for kind in ("float32", "autocast", "bfloat16")]
        best = None
        for how, kind in modes:
            process = worker(peer, "peer_step.py", family, how, kind)
            try:
                seconds = ask(process, 5)
            except ValueError:
                print(f"{family}: peer {how} {kind} failed", flush=True)
                continue
            finally:
                process.kill()
            print(f"{family}: peer {how} {kind} {seconds * 1000:.0f} ms", flush=True)
            best = min(best or (seconds, how, kind), (seconds, how, kind))
        theirs, ours = worker(peer, "peer_step.py", family, *best[1:]), worker(sys.executable, "our_step.py", family)
        pairs = [(ask(ours, 3), ask(theirs, 3)) for _ in range(rounds)]
        theirs.kill()
        ours.kill()
        a, b = (statistics.median(column) * 1000 for column in zip(*pairs, strict=True))
        ratio = statistics.median(theirs / ours for ours, theirs in pairs)
        print(f"{family}: ours {a:.0f} ms, peer's best ({best[1]} {best[2]}) {b:.0f} ms: {ratio:.2f} × as fast")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9)
