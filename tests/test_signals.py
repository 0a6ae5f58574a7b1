"""SIGTERM and SIGHUP outside of training steps, and a launcher that is killed."""

import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT, start
from training.runs import wait_for

from t5x_lite.errors import optional_import
from t5x_lite.signals import Stopped, stop_on_signals

# Each command stops itself where the signal is to come: while it imports, prepares or asks.
STOP_WITHIN = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
from t5x_lite import __main__ as main
module, name, number = sys.argv[1:4]
import importlib
where = importlib.import_module(module)
def stop(*arguments, **more):
    os.kill(os.getpid(), int(number))
    for _ in range(10**9):
        pass
setattr(where, name, stop)
sys.exit(main.main(sys.argv[4:]))
"""
PHASES = {
    "prepare": ("t5x_lite.data.store.prepare", "prepare"),
    "compile": ("t5x_lite.training.loop", "state_shapes"),
    "report": ("t5x_lite.training.loop", "Run"),
}


@pytest.mark.parametrize(
    ("phase", "number", "code"),
    [
        ("prepare", signal.SIGTERM, 143),
        ("report", signal.SIGHUP, 129),
        ("prepare", signal.SIGINT, 130),
    ],
)
def test_a_signal_before_training_ends_with_its_code(tmp_path, config_file, phase, number, code):
    config, workdir = f"--config={config_file()}", f"--workdir={tmp_path / 'run'}"
    words = [sys.executable, "-c", STOP_WITHIN, *PHASES[phase], str(int(number))]
    done = subprocess.run([*words, "train", config, workdir], cwd=ROOT, capture_output=True)
    assert done.returncode == code, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert b"what was saved is kept" in done.stderr


def test_nohup_is_obeyed(tmp_path, config_file):
    """A run that is to outlive its terminal does not end with it."""
    more = {"training.steps": 30, "training.log_every": 1}
    command = ("train", f"--config={config_file(**more)}", f"--workdir={tmp_path / 'run'}")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = start(*command, env=dict(os.environ))
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_for(tmp_path / "run", 2)
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_the_processes_of_a_launcher_end_with_it(tmp_path, config_file):
    """They save, and the same command continues."""
    more = {"training.steps": 100_000, "training.log_every": 1}
    options = [f"--config={config_file(**more)}", f"--workdir={tmp_path / 'run'}"]
    launcher = subprocess.Popen(
        [sys.executable, ROOT / "launch/local", "2", "train", *options], stdout=subprocess.DEVNULL
    )
    wait_for(tmp_path / "run", 3)
    children = processes_with(str(tmp_path / "run"))
    assert len(children) >= 2
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + 60
    while processes_with(str(tmp_path / "run")) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = processes_with(str(tmp_path / "run"))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
    assert list((tmp_path / "run/checkpoints").glob("[0-9]*/manifest.json"))


def processes_with(word: str) -> list[int]:
    """Processes of t5x_lite whose command line has this word."""
    found = []
    for path in os.listdir("/proc"):
        if path.isdigit() and int(path) != os.getpid():
            try:
                with open(f"/proc/{path}/cmdline", "rb") as file:
                    words = file.read()
            except OSError:
                continue
            if word.encode() in words and b"t5x_lite" in words:
                found.append(int(path))
    return found


class _InDestructor:
    """Python drops what is raised in a destructor."""

    def __init__(self, number: int):
        self.number = number

    def __del__(self):
        os.kill(os.getpid(), self.number)
        sum(range(1000))  # the handler runs between two instructions


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_python_would_drop_comes_again(number, capfd):
    def dropped():
        # Whatever started the tests may ignore some of these signals.
        before = signal.signal(number, signal.default_int_handler)
        try:
            with stop_on_signals():
                _InDestructor(number)
                for _ in range(1000):
                    time.sleep(0.01)
        finally:
            signal.signal(number, before)

    with pytest.raises(KeyboardInterrupt) as caught:
        dropped()
    assert isinstance(caught.value, Stopped) == (number != signal.SIGINT)
    assert "Exception ignored" not in capfd.readouterr().err


@pytest.mark.parametrize("signalled", [Stopped(signal.SIGTERM), KeyboardInterrupt()])
def test_a_signal_within_the_import_of_a_library_in_cpp_is_one(signalled, monkeypatch):
    """pybind11 raises an ImportError from whatever was raised while a module was made."""
    with pytest.raises(KeyboardInterrupt) as caught, stop_on_signals():
        raise ImportError("initialization failed") from signalled
    assert caught.value is signalled
    with pytest.raises(ImportError, match="no such module"), stop_on_signals():
        raise ImportError("no such module")

    def stopped(name):
        raise ImportError("initialization failed") from signalled

    monkeypatch.setattr("importlib.import_module", stopped)
    with pytest.raises(KeyboardInterrupt) as caught:
        optional_import("torch", "hf", "export")
    assert caught.value is signalled


ENDING = """
import atexit, os, sys
from t5x_lite import __main__ as main

class Waits:
    def __del__(self):
        os.write(2, b"torn down")

def end(number=int(sys.argv[1])):
    os.write(1, b"ending ")
    if number:
        os.kill(os.getpid(), number)
        for _ in range(10**9):
            pass

def command():
    global waits
    waits = Waits()
    atexit.register(end)
    print("done")
    if sys.argv[2] == "error":
        raise ValueError("a bug")
    if sys.argv[2] == "usage":
        sys.exit(2)
    return int(sys.argv[2])

main.main = command
main.script()
"""


@pytest.mark.parametrize(
    ("code", "expected", "number"),
    [
        ("0", 0, 0),
        ("0", 0, signal.SIGTERM),
        ("0", 0, signal.SIGHUP),
        ("0", 0, signal.SIGINT),
        ("66", 66, 0),
        ("66", 66, signal.SIGTERM),
        ("usage", 2, 0),
        ("error", 1, 0),
    ],
)
def test_a_command_that_is_done_ends_with_its_code_and_at_once(code, expected, number):
    """What libraries do at the end is done, but nothing is freed; a signal changes no code."""
    words = [sys.executable, "-c", ENDING, str(int(number)), code]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.returncode == expected
    assert sorted(done.stdout.split()) == ["done", "ending"]
    assert "torn down" not in done.stderr
    assert ("ValueError: a bug" in done.stderr) == (code == "error")
