"""The environment of a measurement: commit, Python, libraries and devices."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import jax

_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy")


def environment() -> dict[str, str]:
    """Return the versions and devices on which measurements may depend, as text."""
    devices = jax.devices()
    return {
        "t5x_lite": f"{version('t5x_lite')}{_commit()}",
        "Python": platform.python_version(),
        "libraries": ", ".join(f"{library} {version(library)}" for library in _LIBRARIES),
        "devices": f"{len(devices)} × {devices[0].device_kind}",
        "CPU": f"{_cpu_name()}, {_cores()} cores",
    }


def _commit() -> str:
    """Return the commit of a checkout, and whether it has changes, as text; empty if unknown."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return ""
    found = []
    for command in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "t5x_lite"]):
        try:
            done = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True)
        except OSError:  # git is not installed
            return ""
        if done.returncode:
            return ""
        found.append(done.stdout.strip())
    commit, changes = found
    return f", commit {commit}{' with changes' if changes else ''}"


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str:
    """Return the name of the CPU, with its best known unit for matrix products if it has one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    name = facts.get("model name", platform.machine())
    units = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512-BF16", "avx2": "AVX2"}
    flags = facts.get("flags", "").split()
    found = [unit for flag, unit in units.items() if flag in flags]
    return f"{name} ({found[0]})" if found else name
