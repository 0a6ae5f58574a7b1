"""Write the locks: what each Python installs, by version and SHA-256.

    pip install uv
    python constraints/update.py [--upgrade]

uv resolves pyproject.toml for every platform and keeps the locked versions where it can; --upgrade
takes the newest. The Makefile installs uv from a lock of its own, one for every Python. Run the
tests on each Python before a lock is committed.
"""

import argparse
import json
import re
import subprocess
import tomllib
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

HERE = Path(__file__).parent
INDEX = "https://pypi.org/simple"
# The oldest release of each Python that all packages install on.
PYTHONS = ("3.11.5", "3.12", "3.13")
# Lock → the extras that it holds. launch/ installs the one for TPUs.
LOCKS = {"report": ("report",), "dev": ("dev",), "tpu": ("tpu", "gcs")}
# manylinux_2_28_x86_64 and macosx_11_0_arm64, for example; not musllinux, ppc64le or Windows
PLATFORMS = re.compile(r"any|(manylinux|linux).*_(x86_64|aarch64)|macosx_.*")


def resolve(python: str, asked: list[str], options: list[str]) -> str:
    """Resolve what is asked: a requirements file with the hashes of all files of each package.

    Args:
        asked: requirements, one a line.
        options: more words for uv, such as a project and its extras.
    """
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes"]
    command += ["--no-header", "--no-annotate", f"--python-version={python}", *options, "-"]
    return subprocess.run(
        command, input="\n".join(asked), text=True, stdout=subprocess.PIPE, check=True
    ).stdout


@cache
def file_names(package: str) -> dict[str, str]:
    """SHA-256 → name, of every file of a package on the index."""
    request = urllib.request.Request(
        f"{INDEX}/{package}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request) as response:
        files = json.load(response)["files"]
    return {file["hashes"]["sha256"]: file["filename"] for file in files}


def installs(name: str, python: str) -> bool:
    """Return True for source archives, and for wheels of this Python and a platform of ours."""
    try:
        _, _, _, tags = parse_wheel_filename(name)
    except InvalidWheelFilename:
        return True
    return any(
        _fits(tag.interpreter, tag.abi, python) and PLATFORMS.fullmatch(tag.platform)
        for tag in tags
    )


def _fits(interpreter: str, abi: str, python: str) -> bool:
    """
    >>> _fits("cp311", "cp311", "3.11"), _fits("cp39", "abi3", "3.11"), _fits("py3", "none", "3.11")
    (True, True, True)
    >>> _fits("cp312", "cp312", "3.11"), _fits("cp313", "cp313t", "3.13")
    (False, False)
    """
    digits = interpreter[2:]
    wanted = Version(python).release[:2]
    if interpreter.startswith("py"):
        return digits.startswith("3")
    if not interpreter.startswith("cp") or not digits.startswith("3"):
        return False
    built_for = (3, int(digits[1:] or 0))
    if abi == "abi3":
        return built_for <= wanted
    return built_for == wanted and abi in (interpreter, "none")


def only_ours(resolved: str, python: str) -> str:
    """Leave out the hashes of files that this Python does not install."""
    requirements = resolved.replace("\\\n", " ").splitlines()
    packages = [requirement.split("==")[0] for requirement in requirements]
    with ThreadPoolExecutor(8) as pool:
        names = dict(zip(packages, pool.map(file_names, packages), strict=True))
    lines = []
    for package, requirement in zip(packages, requirements, strict=True):
        pinned, *hashes = requirement.split("--hash=sha256:")
        kept = [one.strip() for one in hashes if installs(names[package][one.strip()], python)]
        if not kept:
            raise SystemExit(f"{pinned.strip()} has no file for Python {python}")
        lines.append(" \\\n    ".join([pinned.strip(), *(f"--hash=sha256:{one}" for one in kept)]))
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write every lock."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    upgrade = parser.parse_args().upgrade
    project = HERE.parent / "pyproject.toml"
    build = tomllib.loads(project.read_text())["build-system"]["requires"]

    def write(lock: Path, python: str, asked: list[str], options: list[str]) -> None:
        if lock.exists() and not upgrade:
            options = [*options, f"--constraints={lock}"]
        lock.parent.mkdir(exist_ok=True)
        lock.write_text(only_ours(resolve(python, asked, options), python))
        print(lock)

    for python in PYTHONS:
        minor = ".".join(python.split(".")[:2])
        for name, extras in LOCKS.items():
            of_extras = [*(f"--extra={extra}" for extra in extras), str(project)]
            write(HERE / minor / f"{name}.txt", python, build, of_extras)
    write(HERE / "uv.txt", PYTHONS[0], ["uv"], [])


if __name__ == "__main__":
    main()
