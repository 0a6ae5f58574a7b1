"""The locks in constraints/ hold all that pyproject.toml asks for, by version and hash."""

import re
import runpy
import tomllib

import pytest
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

UPDATE = runpy.run_path(str(ROOT / "constraints/update.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = sorted(path.relative_to(ROOT / "constraints") for path in ROOT.glob("constraints/*/*.txt"))


def locked(lock) -> dict[str, tuple[str, list[str]]]:
    """Package → version and hashes."""
    text = (ROOT / "constraints" / lock).read_text().replace("\\\n", " ")
    packages = {}
    for line in text.splitlines():
        pinned, *hashes = re.split(r"\s+--hash=sha256:", line)
        requirement = Requirement(pinned)
        (specifier,) = requirement.specifier
        assert specifier.operator == "=="
        packages[canonicalize_name(requirement.name)] = (specifier.version, hashes)
    return packages


def test_every_python_has_every_lock():
    pythons = {".".join(python.split(".")[:2]) for python in UPDATE["PYTHONS"]}
    assert {str(lock) for lock in LOCKS} == {
        f"{python}/{name}.txt" for python in pythons for name in UPDATE["LOCKS"]
    }


@pytest.mark.parametrize("lock", LOCKS, ids=str)
def test_lock_holds_what_the_project_requires(lock):
    packages = locked(lock)
    extras = PROJECT["project"]["optional-dependencies"]
    asked = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    for extra in UPDATE["LOCKS"][lock.stem]:
        asked += extras[extra]
    for requirement in map(Requirement, asked):
        marker = requirement.marker
        if marker and not marker.evaluate({"python_version": lock.parent.name}):
            continue
        version, _ = packages[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), requirement


@pytest.mark.parametrize("lock", [*LOCKS, "uv.txt"], ids=str)
def test_every_package_has_its_hashes(lock):
    for package, (_, hashes) in locked(lock).items():
        assert hashes, package
        assert all(re.fullmatch("[0-9a-f]{64}", one) for one in hashes), package


@pytest.mark.parametrize(
    ("name", "python", "is_installed"),
    [
        ("jaxlib-0.10.2-cp311-cp311-manylinux_2_27_x86_64.whl", "3.11", True),
        ("jaxlib-0.10.2-cp312-cp312-manylinux_2_27_x86_64.whl", "3.11", False),
        ("safetensors-0.6.2-cp38-abi3-macosx_11_0_arm64.whl", "3.13", True),
        ("orjson-3.11-cp311-cp311-musllinux_1_2_x86_64.whl", "3.11", False),
        ("orjson-3.11-cp311-cp311-win_amd64.whl", "3.11", False),
        ("orjson-3.11-cp311-cp311-manylinux_2_17_ppc64le.whl", "3.11", False),
        ("six-1.17.0-py2.py3-none-any.whl", "3.12", True),
        ("numpy-2.4.6.tar.gz", "3.12", True),
    ],
)
def test_only_files_of_this_python_are_kept(name, python, is_installed):
    assert UPDATE["installs"](name, python) is is_installed
