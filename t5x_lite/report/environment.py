"""What something was measured on: Python, libraries, devices."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import jax

_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy")


def environment() -> dict[str, str]:
    """What a figure may depend on, in words."""
    devices = jax.devices()
    return {
        "t5x_lite": version("t5x_lite"),
        "Python": platform.python_version(),
        "libraries": ", ".join(f"{library} {version(library)}" for library in _LIBRARIES),
        "devices": f"{len(devices)} × {devices[0].device_kind}",
        "CPU": f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores",
    }


def _cpu_name() -> str:
    """As the kernel names it, with the units that matrix products may use."""
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
