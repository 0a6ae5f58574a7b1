"""Record the results of a benchmark as results/NAME.json: the raw numbers, and the machine and
versions that they were measured with.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy")
PEER_LIBRARIES = ("torch", "transformers", "tensorflow", "seqio", "t5")


def keep(name: str, results: Any, peer: str = "") -> None:
    """Write results/NAME.json.

    Args:
        name: the name of the file, without its ending.
        results: the numbers of every round, with units in the names.
        peer: the python of the peer's environment, whose versions are recorded too; empty: none.
    """
    record: dict[str, Any] = {
        "command": _command(),
        "date": date.today().isoformat(),
        "commit": _commit(),
        "cpu": _cpu(),
        "python": platform.python_version(),
        "versions": {library: version(library) for library in LIBRARIES},
    }
    if gpus := _gpus():
        record["gpus"] = gpus
    if peer:
        record["peer_versions"] = _peer_versions(peer)
    record["results"] = results
    path = HERE / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def _command() -> str:
    """Return the command line, with paths cut to their last part and PEER_PYTHON for the peer's
    python.
    """
    shown = []
    for word in sys.argv[1:]:
        last = word.rsplit("/", 1)[-1]
        shown.append("PEER_PYTHON" if last.startswith("python") and "/" in word else last)
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *shown])


def _commit() -> str:
    """Return the current commit, followed by + if the package, configs or launch were changed
    since.
    """

    def git(*words: str) -> str:
        """Run a git command and return its output."""
        return subprocess.run(
            ["git", *words], cwd=HERE.parent, check=True, capture_output=True, text=True
        ).stdout.strip()

    changed = git("status", "--porcelain", "--", "t5x_lite", "configs", "launch")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def _cpu() -> dict[str, Any]:
    """Return the CPU's name, the number of cores this process may use, and its bfloat16 units."""
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    units = [flag for flag in ("amx_bf16", "avx512_bf16") if flag in facts["flags"].split()]
    family = f"{facts['vendor_id']} family {facts['cpu family']} model {facts['model']}"
    return {
        "name": f"{facts['model name']} ({family})",
        "cores": len(os.sched_getaffinity(0)),
        "bfloat16": units,
    }


def _gpus() -> list[str]:
    """Return the names of NVIDIA's GPUs; empty if there are none."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(query, check=True, capture_output=True, text=True)
    return done.stdout.split("\n")[:-1]


def _peer_versions(python: str) -> dict[str, str]:
    """Return the versions of those PEER_LIBRARIES that the peer's environment has."""
    code = f"""
import importlib.metadata as metadata, json
found = {{}}
for name in {PEER_LIBRARIES}:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)
