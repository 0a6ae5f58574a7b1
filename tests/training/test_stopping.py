"""Ctrl-C and SIGTERM, as a user sends them."""

import os
import signal

import pytest
from conftest import run, settings, start
from training.runs import assert_same, figures, wait_for

from t5x_lite.errors import HUNG_UP, INTERRUPTED, TERMINATED
from t5x_lite.training.stopping import StopSignal

STEPS = 150


@pytest.fixture(scope="module")
def whole(tmp_path_factory, text_file):
    """A config file, and the directory of a run that was never stopped."""
    directory = tmp_path_factory.mktemp("stopping")
    config = settings(text_file, **{"training.steps": STEPS})
    (directory / "config.py").write_text(f"def get_config():\n    return {config!r}\n")
    run("train", f"--config={directory / 'config.py'}", f"--workdir={directory / 'whole'}")
    return directory


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
    ],
)
def test_signals_save_and_the_same_command_goes_on(tmp_path, whole, number, code):
    """What goes on is not a process of its own, but compiled with the same flags: bits compare."""
    workdir = tmp_path / "run"
    command = ("train", f"--config={whole / 'config.py'}", f"--workdir={workdir}")
    before = signal.signal(number, signal.SIG_DFL)  # under nohup, a new process ignores SIGHUP
    process = start(*command, env=dict(os.environ))
    signal.signal(number, before)
    wait_for(workdir, 3)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, out + err
    assert "which is saved" in err
    assert "Traceback" not in err
    stopped = figures(workdir)[-1]["step"]
    assert stopped < STEPS
    out, _ = run(*command)
    assert f"step {stopped + 1}/{STEPS}" in out
    assert f"step {stopped}/{STEPS}" not in out
    assert_same(whole / "whole", workdir)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, TERMINATED), (signal.SIGHUP, HUNG_UP), (signal.SIGINT, INTERRUPTED)],
)
def test_handlers_are_put_back(number, code):
    """While listening a signal sets the exit code alone; a second Ctrl-C ends at once."""
    before = signal.getsignal(number)
    stop = StopSignal()
    with stop.listening():
        assert stop.exit_code() == 0
        os.kill(os.getpid(), number)
        assert stop.exit_code() == code
        if number == signal.SIGINT:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
