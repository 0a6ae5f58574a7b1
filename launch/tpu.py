"""What launch/tpu_vm and launch/queued have in common: a TPU VM of one or more workers, through
gcloud.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
SSH_LOST = 255  # of ssh itself, not of the command that it runs
# In the home directory of each worker.
THERE = "t5x_lite"
LOG, CODE, PID = ".launch.log", ".launch.code", ".launch.pid"
_RUNTIMES = {
    "v5p": "v2-alpha-tpuv5",
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v6e": "v2-alpha-tpuv6e",
}


class Failed(Exception):
    """A command of gcloud that failed: what it was for, and what it said."""

    def __init__(self, what: str, code: int, said: str = ""):
        last = said.strip().splitlines()[-1:] or ["it said nothing"]
        super().__init__(f"{what}: {last[0]}")
        self.code = code
        self.said = said


def options(name: str, description: str | None) -> argparse.ArgumentParser:
    """Those of both commands."""
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
    """The options, and after -- the command of t5x_lite."""
    arguments = list(arguments)
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def refuse(name: str, reason: str) -> int:
    """Say what is wrong; the exit code of wrong usage."""
    print(f"launch/{name}: {reason}", file=sys.stderr)
    return 2


class TpuVm:
    """One TPU VM, by its name."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.retries = 5  # of a connection that is lost
        self.patience = 5.0  # seconds between them

    def gcloud(
        self, *words: str, what: str, shown: bool = False, seconds: float | None = None
    ) -> str:
        """Run `gcloud compute tpus …`, and return what it prints; with --dry-run print it.

        Args:
            shown: its output goes to ours instead.
            seconds: after which subprocess.TimeoutExpired is raised.
        """
        command = ["gcloud", "compute", "tpus", *words, f"--zone={self.args.zone}"]
        if self.args.project:
            command.append(f"--project={self.args.project}")
        if self.args.dry_run:
            print(shlex.join(command))
            return ""
        try:
            done = subprocess.run(
                command,
                text=True,
                stdout=None if shown else subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=seconds,
            )
        except FileNotFoundError as error:
            raise Failed(what, 127, "gcloud is not installed: cloud.google.com/sdk") from error
        if done.returncode:
            raise Failed(what, done.returncode, done.stderr)
        return done.stdout or ""

    @property
    def runtime(self) -> str:
        """The software of its workers."""
        family = self.args.type.partition("-")[0]
        return self.args.runtime or _RUNTIMES.get(family, "tpu-ubuntu2204-base")

    def state(self) -> str:
        """READY, CREATING, PREEMPTED, …; empty: there is none of that name."""
        try:
            said = self.gcloud(
                "tpu-vm", "describe", self.args.name, "--format=json", what="describe"
            )
        except Failed as failure:
            if "NOT_FOUND" in failure.said or "not found" in failure.said.lower():
                return ""
            raise
        return json.loads(said)["state"] if said else ""

    def create(self) -> None:
        """Make it."""
        args = self.args
        words = [f"--accelerator-type={args.type}", f"--version={self.runtime}"]
        if args.spot:
            words.append("--spot")
        self.gcloud("tpu-vm", "create", args.name, *words, what="create")

    def delete(self) -> None:
        """Remove it."""
        self.gcloud("tpu-vm", "delete", self.args.name, "--quiet", what="delete")

    def ssh(self, script: str, what: str, worker: str = "all", **how: Any) -> str:
        """Run a script on a worker, or on all; how: as of gcloud."""
        words = [f"--worker={worker}", f"--command={script}"]
        return self.gcloud("tpu-vm", "ssh", self.args.name, *words, what=what, **how)

    def install(self) -> None:
        """Copy the files that git tracks to all workers, and install them there."""
        with tempfile.TemporaryDirectory() as directory:
            archive = Path(directory) / "t5x_lite.tar.gz"
            if not self.args.dry_run:
                with archive.open("wb") as file:
                    pack(file)
            target = f"{self.args.name}:{THERE}.tar.gz"
            self.gcloud("tpu-vm", "scp", str(archive), target, "--worker=all", what="copy")
        script = (
            f"mkdir -p {THERE} && tar -xzf {THERE}.tar.gz -C {THERE} && cd {THERE} && "
            "python3 -m venv .venv && .venv/bin/pip install -q -e '.[tpu,gcs]'"
        )
        self.ssh(script, "install")

    def start(self, command: Sequence[str]) -> None:
        """Start a command of t5x_lite on all workers; it goes on when the connection is lost."""
        line = shlex.join([".venv/bin/python", "-m", "t5x_lite", *command, "--distributed"])
        inner = f"{line} > {LOG} 2>&1; echo $? > {CODE}"
        script = (
            f"cd {THERE} && rm -f {CODE} && "
            f"(setsid nohup sh -c {shlex.quote(inner)} < /dev/null > /dev/null 2>&1 & "
            f"echo $! > {PID})"
        )
        self.ssh(script, "start")

    def follow(self, seconds: float | None = None) -> int:
        """Show what the first worker prints until it ends; the exit code of the first worker that
        failed.

        Args:
            seconds: after which subprocess.TimeoutExpired is raised.
        """
        script = f'cd {THERE} && tail -n +1 --pid="$(cat {PID})" -F {LOG}'
        for attempt in range(self.retries + 1):
            try:
                self.ssh(script, "follow", worker="0", shown=True, seconds=seconds)
                break
            except Failed as failure:
                if failure.code != SSH_LOST or attempt == self.retries:
                    raise
                time.sleep(self.patience)
        wait = f"cd {THERE} && while [ ! -e {CODE} ]; do sleep 1; done; cat {CODE}"
        codes = [int(word) for word in self.ssh(wait, "exit code").split() if word.isdigit()]
        return next((code for code in codes if code), 0)

    def stop(self) -> None:
        """Tell the command on all workers to save and end."""
        self.ssh(f'cd {THERE} && pkill -TERM -P "$(cat {PID})"', "stop")

    def fetch(self, workdir: str) -> None:
        """Bring the directory of the run here."""
        parent = str(Path(workdir).parent)
        Path(parent).mkdir(parents=True, exist_ok=True)
        source = f"{self.args.name}:{THERE}/{workdir}"
        self.gcloud("tpu-vm", "scp", "--recurse", source, parent, "--worker=0", what="fetch")


def pack(archive: IO[bytes]) -> None:
    """Write an archive of the files that git tracks, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    with tarfile.open(fileobj=archive, mode="w:gz") as file:
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).exists():
                file.add(ROOT / name, name)


def workdir_of(command: Sequence[str]) -> str:
    """What its --workdir says; empty: nothing."""
    words = [word.partition("=")[2] for word in command if word.startswith("--workdir=")]
    return words[-1] if words else ""
