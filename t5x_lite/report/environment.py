"""The environment of a measurement: Python, libraries and devices."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import jax

_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy")


def environment() -> dict[str, str]:
    """Return the versions and devices on which figures may depend, as text."""
    devices = jax.devices()
    return {
        "t5x_lite": version("t5x_lite"),
        "Python": platform.python_version(),
        "libraries": ", ".join(f"{library} {version(library)}" for library in _LIBRARIES),
        "devices": f"{len(devices)} × {devices[0].device_kind}",
        "CPU": f"{_cpu_name()}, {_cores()} cores",
    }


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str:
    """Return the name of the CPU, with its best unit for matrix products if it has one we know."""
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
