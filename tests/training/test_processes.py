"""Runs of several processes as a user has them: they train to the same losses, and end together."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time

import jax
import pytest
from conftest import ROOT, run, slow, start, with_devices
from training.runs import figures, saved_steps, wait_for

from t5x_lite.errors import UserError
from t5x_lite.training import processes


def launched(*args, count: int = 2, **more) -> subprocess.Popen:
    """launch/local, with so many processes."""
    command = [sys.executable, ROOT / "launch/local", str(count), *args]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **{"cwd": ROOT, **pipes, **more})


@pytest.mark.parametrize(
    ("tasks", "node", "task", "gpus", "expected"),
    [
        ("1(x4)", 3, 0, "0,1,2,3,4,5,6,7", list(range(8))),  # one task a node has all of its GPUs
        ("8(x2)", 1, 5, "0,1,2,3,4,5,6,7", None),  # jax gives each its own
        ("2", 0, 1, "2,3", [0, 1]),  # Slurm has bound two of four to each
        ("4", 0, 3, "3", [0]),
        ("2,4", 1, 3, "0,1,2,3,4,5,6,7", [6, 7]),
        ("2,1", 1, 0, "", list(range(4))),  # as SLURM_GPUS_ON_NODE says
    ],
)
def test_tasks_of_slurm_share_the_gpus_of_their_node(tasks, node, task, gpus, expected):
    environment = {
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": str(task),
        "SLURM_GPUS_ON_NODE": "4",
        "CUDA_VISIBLE_DEVICES": gpus,
    }
    assert processes.devices_of_task(environment) == expected


def test_tasks_that_cannot_share_the_gpus_are_named():
    environment = {"SLURM_STEP_TASKS_PER_NODE": "3", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}
    with pytest.raises(UserError, match="3 tasks of this node cannot share 8 GPUs evenly"):
        processes.devices_of_task(environment | {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"})
    assert processes.devices_of_task({}) is None


def test_two_processes_train_to_the_losses_of_one(tmp_path, config_file):
    path = config_file(
        **{"training.steps": 12, "training.eval_every": 6, "training.checkpoint_every": 6}
    )
    run("train", f"--config={path}", f"--workdir={tmp_path / 'one'}")
    process = launched("train", f"--config={path}", f"--workdir={tmp_path / 'two'}")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, out + err
    one, two = figures(tmp_path / "one"), figures(tmp_path / "two")
    assert [(r["step"], r["split"]) for r in one] == [(r["step"], r["split"]) for r in two]
    for a, b in zip(one, two, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["loss_tokens"] == b["loss_tokens"]


@pytest.mark.slow
def test_two_processes_stop_together_and_go_on(tmp_path, config_file):
    path = config_file(**{"training.steps": 3000, "data.batch_size": 8})
    workdir = tmp_path / "run"
    process = launched("train", f"--config={path}", f"--workdir={workdir}")
    wait_for(workdir, 3)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 143, out + err
    assert saved_steps(workdir)


@pytest.mark.slow
def test_two_processes_train_the_cells_of_a_comparison(tmp_path, config_file):
    question = tmp_path / "question.py"
    question.write_text(
        "import runpy\nfrom t5x_lite.config import CompareConfig, default\n"
        "def get_config():\n"
        f"    base = runpy.run_path({str(config_file())!r})['get_config']()\n"
        "    config = default(CompareConfig)\n"
        "    config.base.update(base)\n"
        "    config.cells = {'one': {}, 'two': {'model': {'num_layers': 1}}}\n"
        "    config.budget = 2e4\n"
        "    config.span_count = 4\n"
        "    return config\n"
    )
    words = ("compare", f"--config={question}", f"--workdir={tmp_path / 'shared'}")
    out, err = launched(*words).communicate(timeout=300)
    assert out.count("no report yet: run the same command as one process to write it") == 1, err
    assert not (tmp_path / "shared/report.json").exists()
    assert "report.html" in run(*words)[0]
    run("compare", f"--config={question}", f"--workdir={tmp_path / 'alone'}")
    for cell in ("one", "two"):
        pairs = zip(
            figures(tmp_path / "alone" / cell), figures(tmp_path / "shared" / cell), strict=True
        )
        for a, b in pairs:
            assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)


def test_launch_local_says_how_it_is_used():
    done = subprocess.run([ROOT / "launch/local"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("launch/local: got nothing, expected a number of processes")
    command = [ROOT / "launch/local", "--dry-run", "2", "train", "--workdir=it's one"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for number, line in enumerate(printed.splitlines()):
        assert f"T5X_LITE_PROCESSES=2 T5X_LITE_PROCESS={number} " in line
        assert shlex.split(line)[-2:] == ["train", "--workdir=it's one"]


def test_a_dead_process_ends_the_others(tmp_path, config_file):
    path = config_file(**{"training.steps": 100_000})
    workdir = tmp_path / "run"
    process = launched("train", f"--config={path}", f"--workdir={workdir}", cwd=tmp_path)
    wait_for(workdir, 2)
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    children = listed.stdout.split()
    os.kill(int(children[1]), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0


def of_each(config, count: int, workdirs, **more) -> list[subprocess.Popen]:
    """So many processes of a run, started one by one as a cluster does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    processes = []
    for number in range(count):
        environment = os.environ | {
            "T5X_LITE_COORDINATOR": address,
            "T5X_LITE_PROCESSES": str(count),
            "T5X_LITE_PROCESS": str(number),
        }
        args = ["train", f"--config={config}", f"--workdir={workdirs[number]}"]
        args += [f"--config.{key}={value[number]}" for key, value in more.items()]
        processes.append(start(*args, env=environment))
    return processes


@pytest.mark.parametrize("differs", [slow("--workdir"), "optimizer.learning_rate"])
def test_processes_that_differ_say_in_what(tmp_path, config_file, differs):
    """One of them would wait for ever."""
    workdirs = [tmp_path / "a"] * 2
    more = {"optimizer.learning_rate": [0.1, 0.2]}
    if differs == "--workdir":
        workdirs, more = [tmp_path / "a", tmp_path / "b"], {}
    processes = of_each(config_file(), 2, workdirs, **more)
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 78, err
        (line,) = (line for line in err.splitlines() if line.startswith("t5x_lite: "))
        assert line.startswith(f"t5x_lite: {differs} is ")
        assert "in process 0, but " in line
        assert "in process 1; start all with the same command" in line
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, "process 1"),
        (0, "process 0, which coordinates the others,"),
    ],
)
@pytest.mark.parametrize("busy", ["", "eval_every", "checkpoint_every"])
@pytest.mark.slow
def test_a_process_that_has_stopped_is_named(tmp_path, config_file, number, words, busy):
    """Also where almost all of its time is spent on evaluations, or on checkpoints."""
    settings = {"training.steps": 100_000, "training.stuck_after": 5.0}
    path = config_file(**settings, **({f"training.{busy}": 1} if busy else {}))
    workdir = tmp_path / "run"
    first, second = of_each(path, 2, [workdir] * 2)
    try:
        wait_for(workdir, 3)
        stopped, other = (first, second) if number == 0 else (second, first)
        stopped.send_signal(signal.SIGSTOP)
        _, err = other.communicate(timeout=120)
        assert other.returncode == 142, err
        (line,) = (line for line in err.splitlines() if line.startswith("t5x_lite: "))
        assert f"{words} does not respond; this process is at step" in line
        assert "_train_steps" in (workdir / f"stacks-{1 - number}.txt").read_text()
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    "mesh", [{}, {"tensor": 4}, {"fsdp": 2, "tensor": 2}, {"fsdp": 4}, {"sequence": 2}], ids=str
)
def test_four_devices_of_processes_train_to_the_losses_of_one(
    tmp_path, config_file, mesh, count, dtype
):
    """Every axis but `data` runs within processes and across them."""
    settings = {"training.steps": 6, "training.checkpoint_every": 3, "model.num_heads": 4}
    path = config_file(**settings, **{"model.dtype": dtype, "data.batch_size": 4})
    axes = [f"--config.mesh.{axis}={size}" for axis, size in mesh.items()]
    _, err = start("train", f"--config={path}", f"--workdir={tmp_path / 'one'}").communicate()
    arguments = ["train", f"--config={path}", f"--workdir={tmp_path / 'several'}", *axes]
    process = launched(*arguments, count=count, env=with_devices(4 // count))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    tolerance = {"float32": 1e-5, "float64": 1e-10}[dtype]
    for a, b in zip(figures(tmp_path / "one"), figures(tmp_path / "several"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=tolerance)
    # What several have written, one and four devices read: whole, and on a mesh.
    whole = run("evaluate", f"--workdir={tmp_path / 'several'}")[0]
    args = ["evaluate", f"--workdir={tmp_path / 'several'}", "--mesh=fsdp=2,tensor=2"]
    on_four = start(*args, env=with_devices(4)).communicate(timeout=120)[0]
    losses = [float(text.split("loss ")[1].split()[0]) for text in (whole, on_four)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


class Others:
    """A run of two processes, of which the other is this object.

    Attributes:
        beat: what the other has told last: its step, its phase, whether that is timed, the time.
        answers: for each time that it is asked for, whether there is an answer; then always.
        ended: exit codes that this process would have ended with.
    """

    def __init__(self, monkeypatch):
        self.beat = [7, "step", True, 0.0]
        self.answers: list[bool] = []
        self.is_alive = True
        self.ended: list[int] = []
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        monkeypatch.setattr(processes, "_client", lambda: self)
        monkeypatch.setattr(processes.os, "_exit", self.ended.append)

    def key_value_set(self, key, value, allow_overwrite):
        pass

    def key_value_dir_get(self, where):
        if self.answers and not self.answers.pop(0):
            raise TimeoutError
        if self.is_alive:
            self.beat[3] += 1
        return [(f"{where}1", json.dumps(self.beat))]


@pytest.fixture
def others(monkeypatch):
    return Others(monkeypatch)


def is_soon(condition):
    """Whether it holds within ten seconds."""
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_a_run_that_moves_again_goes_on(tmp_path, others, capsys):
    """And one whose first steps are slow, or that evaluates, is not timed."""
    phase = ["step"]
    with processes.Heartbeat(tmp_path / "stacks", lambda: phase[0], 0.2) as heartbeat:
        time.sleep(0.5)  # the first step
        heartbeat.finished(1)
        heartbeat.finished(2)
        for phase[0] in ("evaluation", "checkpoint", "compile"):
            time.sleep(0.4)
        phase[0] = "step"
        for step in range(3, 20):
            time.sleep(0.05)
            heartbeat.finished(step)
        phase[0] = "evaluation"
        for batch in range(1, 20):
            time.sleep(0.05)
            heartbeat.evaluated(batch)
        heartbeat.evaluated(0)
        phase[0] = "step"
        assert not others.ended
        heartbeat._seconds.extend([0.0] * 50)
        assert is_soon(lambda: others.ended)
    assert others.ended[0] == 142
    assert "this process is at step 19 (step)" in capsys.readouterr().err
    assert "_watch" in (tmp_path / "stacks").read_text()


@pytest.mark.parametrize("phase", ["compile", "evaluation", "checkpoint", "step", "data"])
def test_a_process_that_does_not_respond_is_named_in_every_phase(tmp_path, others, capsys, phase):
    others.is_alive = False
    with processes.Heartbeat(tmp_path / "stacks", lambda: phase, 0.2) as heartbeat:
        heartbeat._seconds.extend([0.0] * 50)
        heartbeat.finished(7)
        assert is_soon(lambda: others.ended)
    words = f"process 1 does not respond; this process is at step 7 ({phase}); "
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("phase", ["data", "evaluation"])
def test_a_batch_of_an_evaluation_is_timed_as_a_step_is(tmp_path, others, capsys, phase):
    others.beat = [7, phase, True, 0.0]
    with processes.Heartbeat(tmp_path / "stacks", lambda: "evaluation", 0.2) as heartbeat:
        heartbeat._seconds.extend([0.0] * 50)
        heartbeat.finished(7)
        heartbeat.evaluated(2)
        assert is_soon(lambda: others.ended)
    assert f"process 1 is at step 7 ({phase}); this process is at" in capsys.readouterr().err


def test_one_answer_that_does_not_come_ends_nothing(tmp_path, others):
    others.answers = [False, True, True] * 20
    others.beat = [7, "checkpoint", False, 0.0]
    with processes.Heartbeat(tmp_path / "stacks", lambda: "compile", 0.1) as heartbeat:
        heartbeat._seconds.extend([0.0] * 50)
        heartbeat.finished(7)
        assert is_soon(lambda: not others.answers)
    assert not others.ended


def test_the_process_that_stores_the_heartbeats_is_named(tmp_path, others, capsys):
    others.answers = [True] + [False] * 999
    with processes.Heartbeat(tmp_path / "stacks", lambda: "compile", 0.1) as heartbeat:
        heartbeat._seconds.extend([0.0] * 50)
        heartbeat.finished(7)
        assert is_soon(lambda: others.ended)
    assert "process 0, which coordinates the others, does not respond" in capsys.readouterr().err


@pytest.mark.parametrize("phase", ["step", "checkpoint"])
def test_a_process_that_saves_for_long_is_named_and_waited_for(tmp_path, others, capfd, phase):
    others.beat = [6, "checkpoint", False, 0.0]
    said = ""
    with processes.Heartbeat(tmp_path / "stacks", lambda: phase, 0.1) as heartbeat:
        heartbeat._seconds.extend([0.0] * 50)
        heartbeat.finished(7)

        def is_named():
            nonlocal said
            said += capfd.readouterr().err
            return "process 1 is at step 6 (checkpoint); this process is at step 7" in said

        assert is_soon(is_named)
    assert "all respond" in said
    assert not others.ended
