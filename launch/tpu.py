"""Code that launch/tpu_vm and launch/queued share: a TPU VM of one or more workers, controlled
through gcloud. launch/gke uses parts of it.
"""

import argparse
import importlib.util
import json
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(1, str(ROOT))

INTERRUPTED = 130
SSH_LOST = 255  # the exit code of ssh itself, not of the command that it runs
RETRIES_FOR = 1800.0  # seconds without a connection before giving up
SAVING_SECONDS = 600.0  # time that a run has to save and end after it is told to stop
# Directory in the home directory of each worker, and files in it.
REMOTE = "t5x_lite"
LOG, CODE, PID = ".launch.log", ".launch.code", ".launch.pid"
# The command line that corresponds to `pack`, shown by --dry-run.
ARCHIVE = "git ls-files -z | tar --null --files-from=- -cz"


class TpuType(NamedTuple):
    """A family of accelerator types, such as v5p for the type v5p-128.

    Attributes:
        chip: name of the chip in t5x_lite/hardware.py.
        cores_of_chip: how much one chip adds to the number in the type: 2 if it counts cores, 1 if
            it counts chips.
        chips_of_worker: maximum number of chips per worker.
        runtime: default software version of the workers.
    """

    chip: str
    cores_of_chip: int
    chips_of_worker: int
    runtime: str


TYPES = {
    "v2": TpuType("v2", 2, 4, "tpu-ubuntu2204-base"),
    "v3": TpuType("v3", 2, 4, "tpu-ubuntu2204-base"),
    "v4": TpuType("v4", 2, 4, "tpu-ubuntu2204-base"),
    "v5litepod": TpuType("v5e", 1, 8, "v2-alpha-tpuv5-lite"),
    "v5p": TpuType("v5p", 2, 4, "v2-alpha-tpuv5"),
    "v6e": TpuType("v6e", 1, 8, "v2-alpha-tpuv6e"),
}


class GcloudError(Exception):
    """A gcloud command that failed; the message has its purpose and its last line of output.

    Attributes:
        code: the exit code of gcloud.
        is_missing: True if the resource does not exist.
        exists_already: True if the resource to be created exists.
    """

    def __init__(self, purpose: str, code: int, stderr: str = ""):
        last = stderr.strip().splitlines()[-1:] or [f"failed with exit code {code}"]
        super().__init__(f"{purpose}: {last[0]}")
        self.code = code
        self.is_missing = "NOT_FOUND" in stderr
        self.exists_already = "ALREADY_EXISTS" in stderr


class OutOfTime(Exception):
    """Raised when the deadline has passed."""


def make_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that both commands have."""
    usage = f"launch/{name} NAME --zone=ZONE [options] -- train --config=… --workdir=gs://…"
    parser = argparse.ArgumentParser(
        f"launch/{name}",
        usage=usage,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", help="of the TPU VM")
    parser.add_argument("--zone", required=True)
    parser.add_argument("--project", default="", help="left out: gcloud's own")
    parser.add_argument(
        "--type", default="v5litepod-8", help="such as v5litepod-8, v5p-128, v6e-16"
    )
    parser.add_argument("--runtime", default="", help="its software; left out: what fits the type")
    parser.add_argument("--spot", action="store_true", help="cheaper, and may be taken away")
    parser.add_argument("--keep", action="store_true", help="do not delete it at the end")
    parser.add_argument("--dry-run", action="store_true", help="print what would be run")
    return parser


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into the options before --, and the t5x_lite command after it."""
    arguments = list(arguments)
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def refuse(name: str, reason: str) -> int:
    """Print what is wrong, and return the exit code for wrong usage."""
    print(f"launch/{name}: {reason}", file=sys.stderr)
    return 2


def what_is_wrong(command: Sequence[str]) -> str:
    """Return why a command cannot run, or an empty string if it can.

    This is called before anything that costs money is started. The command's settings are checked
    only if this Python has the libraries to read them.
    """
    if command[:1] != ["train"]:
        got = command[0] if command else "nothing"
        return f"got {got} after --, expected a run: -- train --config=…"
    if not workdir_of(command):
        return "the run has no --workdir=…; name one, best in a bucket"
    if not all(map(importlib.util.find_spec, ("ml_collections", "numpy", "sentencepiece"))):
        return ""
    from t5x_lite.commands.common import check_settings
    from t5x_lite.commands.line import parse
    from t5x_lite.errors import UserError

    try:
        check_settings(parse(command))
    except UserError as error:
        return str(error)
    return ""


def workdir_of(command: Sequence[str]) -> str:
    """Return the value of a command's --workdir, or an empty string if it has none."""
    values = [word.partition("=")[2] for word in command if word.startswith("--workdir=")]
    return values[-1] if values else ""


def count_workers(accelerator_type: str) -> int:
    """Return the number of workers of a TPU VM of an accelerator type; 0 if it is not known.

    >>> count_workers("v5litepod-8"), count_workers("v5litepod-16"), count_workers("v5p-128")
    (1, 2, 16)
    """
    family, _, count = accelerator_type.partition("-")
    if family not in TYPES or not count.isdigit():
        return 0
    tpu = TYPES[family]
    return -(-int(count) // (tpu.cores_of_chip * tpu.chips_of_worker))


def raise_on_signals() -> None:
    """Treat SIGTERM and a closed terminal like Ctrl-C, so that the run saves and the VM is deleted.

    Signals that are ignored, as under nohup, stay ignored.
    """

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)


class TpuVm:
    """A TPU VM, identified by its name.

    Attributes:
        args: the options of the script.
        is_training: True once a run was started on the VM, or found there.
        deadline: time, as of time.time(), after which every call raises OutOfTime; None: no limit.
    """

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.deadline: float | None = None
        self.is_training = False

    def gcloud(self, *words: str, purpose: str, is_shown: bool = False) -> str:
        """Run `gcloud compute tpus …` and return what it prints; with --dry-run only print the
        command.

        Args:
            words: the rest of the command.
            purpose: what the command is for; begins error messages.
            is_shown: True to show the output as it comes instead of returning it.

        Raises:
            GcloudError: if the command fails, or gcloud is not installed.
            OutOfTime: if the deadline passes.
        """
        command = ["gcloud", "compute", "tpus", *words, f"--zone={self.args.zone}"]
        if self.args.project:
            command.append(f"--project={self.args.project}")
        if self.args.dry_run:
            print(shlex.join(command))
            return ""
        timeout = None if self.deadline is None else self.deadline - time.time()
        if timeout is not None and timeout <= 0:
            raise OutOfTime
        try:
            done = subprocess.run(
                command,
                text=True,
                stdout=None if is_shown else subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired as error:
            raise OutOfTime from error
        except FileNotFoundError as error:
            raise GcloudError(
                purpose, 127, "gcloud is not installed: cloud.google.com/sdk"
            ) from error
        if done.returncode:
            raise GcloudError(purpose, done.returncode, done.stderr)
        return done.stdout or ""

    def persistently(self, call: Callable[[], str], is_lost: Callable[[GcloudError], bool]) -> str:
        """Repeat a call after temporary errors until it succeeds, and return its result.

        Args:
            call: the call, which must be safe to repeat.
            is_lost: returns True for an error that may be temporary.

        Raises:
            GcloudError: if the error is permanent, or after RETRIES_FOR seconds of waiting without
                a connection. A call that lasted more than a minute was connected, and resets the
                count.
        """
        waited, delay = 0.0, 5.0
        while True:
            began = time.monotonic()
            try:
                return call()
            except GcloudError as error:
                if time.monotonic() - began > 60:  # it was connected
                    waited, delay = 0.0, 5.0
                if waited >= RETRIES_FOR or not is_lost(error):
                    raise
            time.sleep(delay)
            waited, delay = waited + delay, min(2 * delay, 60.0)

    def describe(self, kind: str) -> dict[str, Any]:
        """Return gcloud's description of the VM or of the request for it; empty if it does not
        exist.

        Args:
            kind: "tpu-vm" or "queued-resources".
        """
        words = (kind, "describe", self.args.name, "--format=json")
        try:
            said = self.persistently(
                lambda: self.gcloud(*words, purpose="describe"),
                lambda error: not error.is_missing and error.code != 127,
            )
        except GcloudError as error:
            if error.is_missing:
                return {}
            raise
        return json.loads(said) if said else {}

    def state(self) -> str:
        """Return the state of the VM: READY, CREATING, PREEMPTED, …, or empty if there is none."""
        return self.describe("tpu-vm").get("state", "")

    @property
    def runtime(self) -> str:
        """The software version of the workers: the one given, or the default of the type."""
        family = self.args.type.partition("-")[0]
        known = TYPES[family].runtime if family in TYPES else "tpu-ubuntu2204-base"
        return self.args.runtime or known

    def create(self) -> None:
        """Create the VM."""
        args = self.args
        words = [f"--accelerator-type={args.type}", f"--version={self.runtime}"]
        if args.spot:
            words.append("--spot")
        self.gcloud("tpu-vm", "create", args.name, *words, purpose="create")

    def delete(self) -> None:
        """Delete the VM."""
        self.gcloud("tpu-vm", "delete", self.args.name, "--quiet", purpose="delete")

    def ssh(self, script: str, purpose: str, worker: str = "all", is_shown: bool = False) -> str:
        """Run a shell script on one worker, or on all of them, and return its output."""
        words = [f"--worker={worker}", f"--command={script}"]
        return self.gcloud(
            "tpu-vm", "ssh", self.args.name, *words, purpose=purpose, is_shown=is_shown
        )

    def find_run(self) -> bool:
        """Return True if a run that was started earlier is still running."""
        script = f'kill -0 "$(cat {REMOTE}/{PID})" && echo running; true'
        self.is_training = "running" in self.ssh(f"({script}) 2> /dev/null", "look for a run")
        return self.is_training

    def install(self) -> None:
        """Copy the files that git tracks to all workers, and install them there."""
        target = f"{self.args.name}:{REMOTE}.tar.gz"
        with tempfile.TemporaryDirectory() as directory:
            archive = Path(directory) / f"{REMOTE}.tar.gz"
            if self.args.dry_run:
                archive = Path(archive.name)
                print(f"{ARCHIVE} > {archive}")
            else:
                with archive.open("wb") as file:
                    pack(file)
            self.gcloud("tpu-vm", "scp", str(archive), target, "--worker=all", purpose="copy")
        # The images have an older Python; uv installs the one that the lock is for.
        install = '"$HOME/.local/bin/uv" pip install -q'
        script = (
            f"mkdir -p {REMOTE} && tar -xzf {REMOTE}.tar.gz -C {REMOTE} && cd {REMOTE} && "
            "curl -LsSf https://astral.sh/uv/install.sh | sh && "
            '"$HOME/.local/bin/uv" venv -q --allow-existing --python 3.12 .venv && '
            f"{install} --require-hashes -r constraints/3.12/tpu.txt && "
            f"{install} --no-deps --no-build-isolation -e ."
        )
        self.ssh(script, "install")

    def start(self, command: Sequence[str]) -> None:
        """Start a t5x_lite command on all workers; it keeps running if the connection is lost."""
        line = shlex.join([".venv/bin/python", "-m", "t5x_lite", *command, "--distributed"])
        inner = f"{line} > {LOG} 2>&1; echo $? > {CODE}"
        script = (
            f"cd {REMOTE} && rm -f {CODE} && "
            f"(setsid nohup sh -c {shlex.quote(inner)} < /dev/null > /dev/null 2>&1 & "
            f"echo $! > {PID})"
        )
        self.ssh(script, "start")
        self.is_training = True

    def follow(self) -> int:
        """Show the output of the first worker until its command ends, reconnecting if necessary.

        Returns:
            the exit code of the first worker that failed, or 0.
        """
        follow = f'cd {REMOTE} && tail -n +1 --pid="$(cat {PID})" -F {LOG}'
        wait = f"cd {REMOTE} && while [ ! -e {CODE} ]; do sleep 1; done; cat {CODE}"

        self.persistently(
            lambda: self.ssh(follow, "follow", worker="0", is_shown=True), self.is_lost
        )
        said = self.persistently(lambda: self.ssh(wait, "exit code"), self.is_lost)
        codes = [int(word) for word in said.split() if word.isdigit()]
        return next((code for code in codes if code), 0)

    def is_lost(self, error: GcloudError) -> bool:
        """Return True if only the connection was lost and, as far as is known, the VM exists."""
        return error.code == SSH_LOST

    def stop(self) -> int:
        """Tell the command on all workers to save and end, and return its exit code.

        Raises:
            OutOfTime: if that takes longer than SAVING_SECONDS.
        """
        self.deadline = time.time() + SAVING_SECONDS
        try:
            self.ssh(f'cd {REMOTE} && pkill -TERM -P "$(cat {PID})"; true', "stop")
            return self.follow()
        finally:
            self.deadline = None

    def fetch(self, workdir: str) -> None:
        """Copy the run's directory from the first worker to this machine."""
        parent = Path(workdir).parent
        if not self.args.dry_run:
            parent.mkdir(parents=True, exist_ok=True)
        source = f"{self.args.name}:{REMOTE}/{workdir}"
        self.gcloud(
            "tpu-vm", "scp", "--recurse", source, str(parent), "--worker=0", purpose="fetch"
        )


def pack(archive: IO[bytes]) -> None:
    """Write a .tar.gz archive of the files that git tracks, as they are in the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=6) as file:
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).exists():
                file.add(ROOT / name, name)
