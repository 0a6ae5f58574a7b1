"""Detect this machine's accelerators, and whether the installed jax can use them, without importing
jax. Check and set the environment variables that jax reads when it starts.
"""

import importlib.util
import os
import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from t5x_lite.errors import NO_FILE, USAGE, UserError, install_line

_PLUGINS = {
    "cuda": ("jax_cuda12_plugin", "jax_cuda13_plugin"),
    "gpu": ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin"),
    "tpu": ("libtpu",),
    "cpu": (),
}
_INSTALL = {
    "cuda": f"{install_line('cuda12')}, or [cuda13] where the driver is 580 or newer",
    "tpu": install_line("tpu"),
}
_INSTALL["gpu"] = _INSTALL["cuda"]
_GOOGLE = "0x1ae0"  # Google's PCI vendor id
_PLATFORMS = ("cuda", "tpu")


def give_threads_to_simulated_devices(environment: MutableMapping[str, str] = os.environ) -> None:
    """Give XLA enough threads if XLA_FLAGS makes several devices out of one CPU.

    By default it has as many threads as there are processors or devices. In a collective a thread
    waits for all devices, and one device may be in several collectives at once. With only one
    thread per device, all of them can end up waiting, until XLA ends the process after 40 s. XLA
    reads the number of threads from NPROC.

    >>> environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    >>> give_threads_to_simulated_devices(environment)
    >>> environment["NPROC"]
    '32'
    """
    flag = r"--xla_force_host_platform_device_count=(\d+)"
    found = re.search(flag, environment.get("XLA_FLAGS", ""))
    if found and int(found[1]) > 1:
        environment.setdefault("NPROC", str(4 * int(found[1])))


def count_accelerators(
    platform: str, dev: Path = Path("/dev"), pci: Path = Path("/sys/bus/pci/devices")
) -> int:
    """Return the number of NVIDIA GPUs ("cuda") or TPU chips ("tpu") that the kernel shows.

    Args:
        platform: "cuda" or "tpu".
        dev: the directory of the device files.
        pci: the directory of the PCI devices.
    """
    if platform == "cuda":
        return len(list(dev.glob("nvidia[0-9]*")))
    if count := len(list(dev.glob("accel[0-9]*"))):
        return count
    # Newer TPUs appear as vfio devices. So does any device that is passed through to a virtual
    # machine, so vfio devices count only if one of the PCI devices is Google's.
    vendors = {path.read_text().strip() for path in pci.glob("*/vendor")}
    return len(list(dev.glob("vfio/[0-9]*"))) if _GOOGLE in vendors else 0


def can_use(platform: str) -> bool:
    """Return True if the installed jax can use devices of a platform, a key of _PLUGINS."""
    plugins = _PLUGINS[platform]
    return not plugins or any(importlib.util.find_spec(name) for name in plugins)


def check_platforms(
    environment: Mapping[str, str] = os.environ, dev: Path = Path("/dev")
) -> str | None:
    """Reject a JAX_PLATFORMS that names an unknown platform, or one whose plugin or GPU is missing.

    Args:
        environment: the environment variables.
        dev: the directory of the device files.

    Returns:
        a warning if JAX_PLATFORMS is not set and this machine has accelerators that jax cannot use;
        otherwise None.

    Raises:
        UserError: if JAX_PLATFORMS cannot be satisfied, with a fix.
    """
    named = [name for name in environment.get("JAX_PLATFORMS", "").split(",") if name]
    for name in named:
        platform = "cuda" if name == "gpu" else name
        if name not in _PLUGINS:
            known = ", ".join(_PLUGINS)
            if name in ("rocm", "METAL", "proxy"):
                continue
            raise UserError(USAGE, f"JAX_PLATFORMS={name}: no such platform; expected {known}")
        if not can_use(name):
            raise UserError(NO_FILE, f"JAX_PLATFORMS={name}: jax cannot use it; {_INSTALL[name]}")
        if name == "gpu" and not can_use("cuda"):
            continue  # a GPU of another maker
        if platform == "cuda" and not count_accelerators("cuda", dev):
            raise UserError(NO_FILE, f"JAX_PLATFORMS={name}: no GPU is here; unset it, or set cpu")
    if named:
        return None
    # No platform is named, so jax would silently fall back to the CPU.
    for platform in _PLATFORMS:
        count = count_accelerators(platform, dev)
        if count and not can_use(platform):
            kind = "GPUs" if platform == "cuda" else "TPU chips"
            return f"{count} {kind} are here, but this jax has only the CPU; {_INSTALL[platform]}"
    return None
