"""A run of six steps that has ended, made once: what is tested is what becomes of it."""

import shutil
from typing import NamedTuple

import pytest
from conftest import run, settings


class Trained(NamedTuple):
    """A run directory of its own, and the command that trained it."""

    workdir: object
    command: tuple[str, ...]


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory, text_file):
    """The config file and the directory of a finished run."""
    directory = tmp_path_factory.mktemp("trained")
    (directory / "config.py").write_text(f"def get_config():\n    return {settings(text_file)!r}\n")
    run("train", f"--config={directory / 'config.py'}", f"--workdir={directory / 'run'}")
    return directory


@pytest.fixture
def trained(trained_once, tmp_path):
    """A copy of a finished run, which may be continued and damaged."""
    workdir = tmp_path / "run"
    shutil.copytree(trained_once / "run", workdir)
    return Trained(
        workdir, ("train", f"--config={trained_once / 'config.py'}", f"--workdir={workdir}")
    )
