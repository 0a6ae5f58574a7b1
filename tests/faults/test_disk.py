"""What the watched disk records is what happened, and it loses what no flush has saved."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT
from faults.disk import FATES, Disk, read_calls, watched

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler"
)
WRITE = """
import os, shutil, sys
from pathlib import Path
from t5x_lite import storage

top = Path(sys.argv[1])
"""
OFTEN = """
storage.write_durably(top / "a", "old")
storage.write_durably(top / "a", "new" * 1000)
(top / "d/e").mkdir(parents=True)
with open(top / "d/e/f", "wb") as file:
    file.write(b"0123456789")
    file.seek(3)
    file.write(b"xy")
    file.truncate(7)
with open(top / "d/e/f", "a") as file:
    file.write("end")
handle = os.open(top / "g", os.O_RDWR | os.O_CREAT)
os.pwrite(handle, b"far", 5000)
os.writev(handle, [b"near", b"by"])
os.close(handle)
(top / "d").rename(top / "h")
os.chdir(top)
shutil.copytree("h", "i")
os.replace("i/e/f", "j")
shutil.rmtree("i")
"""


def recorded(tmp_path, lines):
    """The directory in which a program has written, and the disk after all of its calls."""
    top, log = tmp_path / "top", tmp_path / "calls"
    top.mkdir()
    environment = os.environ | watched(tmp_path, top, log=log) | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", WRITE + lines, top], env=environment, check=True)
    disk = Disk(top)
    for call in read_calls(log):
        disk.do(call)
    return top, disk


def contents(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }


def test_the_calls_done_again_leave_the_same_files(tmp_path):
    top, disk = recorded(tmp_path, OFTEN)
    disk.write(tmp_path / "again", lambda: "kept")
    assert contents(tmp_path / "again") == contents(top)
    assert len(contents(top)) == 6


@pytest.mark.parametrize("fate", FATES)
def test_only_what_was_flushed_is_never_lost(tmp_path, fate):
    lines = 'storage.write_durably(top / "a", "old"); (top / "a").write_text("newer")'
    lines += '; storage.write_durably(top / "b", "safe"); (top / "c").write_text("lost")'
    _, disk = recorded(tmp_path, lines)
    disk.write(tmp_path / "left", lambda: fate)
    expected = {
        "kept": {"a": b"newer", "b": b"safe", "c": b"lost"},
        "lost": {"a": b"old", "b": b"safe"},
        "zeros": {"a": b"old\0\0", "b": b"safe"},
    }
    assert contents(tmp_path / "left") == expected[fate]


def test_calls_fail_from_one_on(tmp_path):
    (tmp_path / "top").mkdir()
    failing = watched(tmp_path, tmp_path / "top", error=28, start=4, times=2)
    lines = """
for number in range(8):
    try:
        os.mkdir(top / str(number))
    except OSError as error:
        print(number, error.strerror)
"""
    environment = os.environ | failing | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WRITE + lines, tmp_path / "top"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "3 No space left on device\n4 No space left on device\n"
