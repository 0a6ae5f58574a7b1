"""Check this machine, this installation and a directory to write to. Each check looks at one thing
and says how to fix what it finds.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from t5x_lite import storage
from t5x_lite.errors import UserError, install_line
from t5x_lite.machine import check_platforms, count_accelerators

_MB = 1 << 20
_PROBE_BYTES = 16 * _MB
_SLOWEST = 20.0  # MB/s; below this, checkpoints take longer than steps
_MOST_SKEW = 30.0  # seconds
_LEAST_FREE = 5  # GB
_REPORTED = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "libtpu")
_REPORTED += ("jax-cuda12-plugin", "jax-cuda13-plugin")


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        what: the check, and what it found.
        fix: what to do; empty if all is well.
        is_fatal: True if a run would fail because of it.
    """

    what: str
    fix: str = ""
    is_fatal: bool = False

    def __str__(self) -> str:
        if not self.fix:
            return f"ok     {self.what}"
        mark = "wrong" if self.is_fatal else "note "
        return f"{mark}  {self.what}; {self.fix}"


Version = Callable[[str], str]


def versions(version: Version = metadata.version) -> Iterator[Finding]:
    """Check that jaxlib, libtpu and the CUDA plugins have the versions that this jax needs.

    Args:
        version: the function that looks up the version of a package.
    """
    found = {}
    for name in _REPORTED:
        try:
            found[name] = version(name)
        except metadata.PackageNotFoundError:
            continue
    shown = ", ".join(f"{name} {number}" for name, number in found.items())
    # Check jax's requirements for jaxlib and, in its extra "tpu", for libtpu.
    misfits = []
    for line in metadata.requires("jax") or []:
        needed = Requirement(line)
        if needed.name not in ("jaxlib", "libtpu") or needed.name not in found:
            continue
        extra = {"extra": "tpu"}
        is_meant = needed.marker is None or needed.marker.evaluate(extra)
        if is_meant and not needed.specifier.contains(found[needed.name], prereleases=True):
            misfits.append(f"{needed.name} {found[needed.name]}, jax needs {needed.specifier}")
    # A CUDA plugin must have the same version as jaxlib.
    for plugin in ("jax-cuda12-plugin", "jax-cuda13-plugin"):
        if plugin in found and found[plugin] != found.get("jaxlib"):
            misfits.append(f"{plugin} {found[plugin]}, jaxlib is {found.get('jaxlib')}")
    if misfits:
        extras = {"libtpu": "tpu", "jax-cuda12-plugin": "cuda12", "jax-cuda13-plugin": "cuda13"}
        named = [extra for package, extra in extras.items() if package in found]
        fix = "pip install --upgrade --force-reinstall jax"
        if named:
            fix += f", then {install_line(','.join(named))}"
        yield Finding(f"versions: {'; '.join(misfits)}", fix, is_fatal=True)
    else:
        yield Finding(f"versions: {shown}")


def devices(
    environment: Mapping[str, str] = os.environ,
    dev: Path = Path("/dev"),
    seen: Callable[[], tuple[str, int]] | None = None,
) -> Iterator[Finding]:
    """Check that jax can use every accelerator of this host, and sees all of them.

    Args:
        environment: the environment variables.
        dev: the directory of the device files.
        seen: a function that returns jax's platform and the number of its devices on this host;
            None: ask jax.
    """
    try:
        unused = check_platforms(environment, dev)
    except UserError as error:
        what, _, fix = str(error).rpartition("; ")
        yield Finding(f"devices: {what}", fix, is_fatal=True)
        return
    if unused:
        what, _, fix = unused.partition("; ")
        yield Finding(f"devices: {what}", fix, is_fatal=True)
        return
    try:
        platform, count = (seen or _devices_of_jax)()
    except RuntimeError as error:  # raised by jax when it cannot open a device
        reason = (str(error).strip().splitlines() or ["no reason given"])[0]
        fix = "end the process that may hold it, or set JAX_PLATFORMS=cpu"
        yield Finding(f"devices: jax cannot open them ({reason[:160]})", fix, is_fatal=True)
        return
    # Compare the devices that jax sees with those that the kernel shows and the environment allows.
    kind = {"gpu": "cuda", "tpu": "tpu"}.get(platform)
    here = count_accelerators(kind, dev) if kind else count
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if kind == "cuda" and visible is not None:
        here = min(here, len([name for name in visible.split(",") if name]))
    if count < here:
        fix = "another process may hold the others, or the driver has lost them: see dmesg"
        yield Finding(f"devices: jax sees {count} {platform}, this host has {here}", fix, True)
    else:
        yield Finding(f"devices: {count} × {platform}")


def _devices_of_jax() -> tuple[str, int]:
    """Return jax's platform and the number of its devices on this host."""
    import jax

    return jax.default_backend(), jax.local_device_count()


def libtpu_lock(
    path: Path = Path("/tmp/libtpu_lockfile"), has_tpu: bool | None = None
) -> Iterator[Finding]:
    """Check libtpu's lock file, which another process may hold or another user may have left.

    Without a TPU, the check finds nothing: only the compiler uses the lock then, and it does no
    harm.
    """
    if has_tpu is None:
        has_tpu = count_accelerators("tpu") > 0
    if not path.exists() or not has_tpu:
        return
    try:
        with open(path, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except PermissionError:
        what = f"libtpu: {path} belongs to another user"
        yield Finding(what, f"if no process uses the TPU: sudo rm {path}", is_fatal=True)
    except BlockingIOError:
        what = f"libtpu: another process uses the TPU ({path})"
        yield Finding(what, f"end it: sudo lsof {path}", is_fatal=True)
    else:
        yield Finding(f"libtpu: {path} is left over, no process holds it", f"rm {path}")


def processes(
    environment: Mapping[str, str] = os.environ, expected: int | None = None
) -> Iterator[Finding]:
    """Check the number of processes that the launcher announces in the environment.

    Args:
        environment: the environment variables.
        expected: the expected number; None: any.
    """
    counts = {}
    for name in ("T5X_LITE_PROCESSES", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"):
        if environment.get(name, "").isdigit():
            counts[name] = int(environment[name])
    if environment.get("TPU_WORKER_HOSTNAMES"):
        counts["TPU_WORKER_HOSTNAMES"] = len(environment["TPU_WORKER_HOSTNAMES"].split(","))
    for name, count in counts.items():
        if expected is not None and count != expected:
            fix = "start one on each host, with the same command"
            yield Finding(f"processes: {name} says {count}, expected {expected}", fix, True)
            return
    # The number of this process must be below the count.
    number = environment.get("T5X_LITE_PROCESS", "0")
    if "T5X_LITE_PROCESSES" in counts and not (
        number.isdigit() and int(number) < counts["T5X_LITE_PROCESSES"]
    ):
        what = f"processes: T5X_LITE_PROCESS is {number} of {counts['T5X_LITE_PROCESSES']}"
        yield Finding(what, "number them from 0", is_fatal=True)
        return
    if counts:
        yield Finding("processes: " + ", ".join(f"{n} {count}" for n, count in counts.items()))


def place(
    workdir: str,
    clock: Callable[[], float] = time.time,
    timer: Callable[[], float] = time.perf_counter,
) -> Iterator[Finding]:
    """Check that a directory, local or in a bucket, can be written, is fast enough, and has the
    same clock as this machine. The check writes a probe file.

    Args:
        workdir: the path or address of the directory.
        clock: the wall clock, in seconds.
        timer: the timer that measures the write, in seconds.
    """
    address = f"{workdir.rstrip('/')}/.doctor-{os.getpid()}"
    # Write a probe file, read its metadata and remove it.
    try:
        files, path = storage.file_system(address)
        files.makedirs(os.path.dirname(path), exist_ok=True)
        start, written_at = timer(), clock()
        files.pipe_file(path, os.urandom(_PROBE_BYTES))
        seconds = timer() - start
        files.invalidate_cache()
        info = files.info(path)
        files.rm_file(path)
    except Exception as error:  # every file system has its own errors
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        what = f"{workdir}: cannot be written ({reason[:160]})"
        fix = "check that it exists (its bucket too) and that you may write there"
        yield Finding(what, fix, is_fatal=True)
        return
    rate = _PROBE_BYTES / _MB / max(seconds, 1e-9)
    if rate < _SLOWEST:
        fix = "use a disk or a bucket closer to these machines, or save less often"
        yield Finding(f"{workdir}: {rate:.1f} MB/s", fix)
    else:
        yield Finding(f"{workdir}: can be written, {rate:,.0f} MB/s")
    # By this machine's clock, the file was written about halfway through the measured write.
    skew = abs(_modified(info) - written_at - seconds / 2)
    if skew > _MOST_SKEW:
        fix = "set the clock of this machine: sudo chronyc makestep"
        yield Finding(f"clock: differs from the clock of {workdir} by {skew:,.0f} s", fix)
    else:
        yield Finding("clock: agrees with the place it writes to")


def _modified(info: dict[str, Any]) -> float:
    """Return the time of a file's last write by the clock of its file system, in seconds since the
    epoch; the current time if the file system does not say.
    """
    value = info.get("mtime") or info.get("updated") or info.get("LastModified") or time.time()
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    return value.timestamp() if isinstance(value, datetime) else value


def disk(workdir: str, free: Callable[[str], int] | None = None) -> Iterator[Finding]:
    """Check the free space on the disk of a directory; buckets are not checked.

    Args:
        workdir: the path or address of the directory.
        free: a function that returns the free bytes at a path; None: ask the system.
    """
    if storage.is_remote(workdir):
        return
    # The directory may not exist yet, so take its nearest parent that does.
    existing = Path(workdir).resolve()
    while not existing.exists():
        existing = existing.parent
    gigabytes = (free or (lambda path: shutil.disk_usage(path).free))(str(existing)) / 1e9
    what = f"disk: {gigabytes:,.1f} GB free at {existing}"
    if gigabytes < _LEAST_FREE:
        yield Finding(what, "make room: while one checkpoint is written, two are on the disk")
    else:
        yield Finding(what)


def huge_pages(
    setting: Path = Path("/sys/kernel/mm/transparent_hugepage/enabled"),
    environment: Mapping[str, str] = os.environ,
    has_tpu: bool | None = None,
) -> Iterator[Finding]:
    """Check that memory can use huge pages: small pages cost time on CPUs and on TPU hosts.

    Args:
        setting: the kernel's file for transparent huge pages.
        environment: the environment variables.
        has_tpu: True if this host has TPUs; None: look for them.
    """
    if not setting.exists():
        return
    # The file lists all modes, the active one in brackets: "always [madvise] never".
    mode = setting.read_text().partition("[")[2].partition("]")[0]
    if has_tpu is None:
        has_tpu = count_accelerators("tpu") > 0
    if mode == "never" or (has_tpu and mode != "always"):
        wanted = "always" if has_tpu else "madvise"
        fix = f"sudo sh -c 'echo {wanted} > {setting}'"
        yield Finding(f"huge pages: {mode}", fix)
    elif not has_tpu and "hugetlb" not in environment.get("GLIBC_TUNABLES", ""):
        yield Finding(f"huge pages: {mode}, unused on a CPU", "set -a; . launch/cpu.env")
    else:
        yield Finding(f"huge pages: {mode}")


def examine(workdir: str = "", expected_processes: int | None = None) -> Iterator[Finding]:
    """Run all checks of an installation.

    Args:
        workdir: the directory whose speed, clock and free space are checked; empty: none.
        expected_processes: the expected number of processes; None: any.
    """
    yield from versions()
    yield from libtpu_lock()
    yield from devices()
    yield from processes(expected=expected_processes)
    yield from huge_pages()
    if workdir:
        yield from place(workdir)
        yield from disk(workdir)
