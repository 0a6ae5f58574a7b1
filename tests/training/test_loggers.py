"""Which loggers there are, and what happens where one cannot be had or fails. What Weights & Biases
and MLflow get is in tests/peers.
"""

import itertools
import shutil
import struct
import sys

import pytest
from conftest import run
from tensorboardX.proto import event_pb2

from t5x_lite.training import loggers
from t5x_lite.training.log import read_metrics


def test_what_is_refused(monkeypatch, tmp_path, config_file):
    command = ("train", f"--config={config_file()}", f"--workdir={tmp_path / 'run'}")
    _, err = run(*command, "--config.training.loggers=wandbb", code=78)
    assert "training.loggers=wandbb: no such logger; did you mean wandb?" in err
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as if it were not installed
    _, err = run(*command, "--config.training.loggers=('mlflow',)", code=66)
    assert "training.loggers: mlflow: needs the package mlflow: pip install" in err


def test_no_logger_is_needed(tmp_path, config_file):
    settings = {"training.steps": 2, "training.loggers": []}
    run("train", f"--config={config_file(**settings)}", f"--workdir={tmp_path / 'run'}")
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_logger_that_fails_ends_no_run(exchange, tmp_path, config_file):
    class Broken(loggers.TensorBoard):
        def write(self, step, values):
            if step == 2:
                raise ConnectionError("gone")
            super().write(step, values)

    exchange(loggers.LOGGERS, "tensorboard", Broken)
    out, _ = run("train", f"--config={config_file()}", f"--workdir={tmp_path / 'run'}")
    assert out.count("training.loggers: tensorboard: nothing more is written (ConnectionError") == 1
    assert "validation loss" in out


def test_tensorboard_reads_each_value_once(tmp_path, config_file):
    """Of the steps that a continued run repeats, it reads the later values."""
    settings = {"training.checkpoint_every": 2, "training.keep_every": 2}
    command = ("train", f"--config={config_file(**settings)}", f"--workdir={tmp_path / 'run'}")
    run(*command, "--config.training.steps=3")
    shutil.rmtree(tmp_path / "run/checkpoints/3")
    run(*command, "--config.training.steps=4")
    read = {}
    files = sorted((tmp_path / "run/tensorboard").iterdir(), key=lambda path: path.suffix)
    for event in itertools.chain.from_iterable(map(events, files)):
        if event.HasField("session_log"):
            read = {key: value for key, value in read.items() if key[0] < event.step}
        for value in event.summary.value:
            assert (event.step, value.tag) not in read
            read[event.step, value.tag] = value.simple_value
    records = read_metrics(tmp_path / "run/metrics.jsonl")
    for record in records:
        values = {key: value for key, value in record.items() if isinstance(value, int | float)}
        values.pop("step")
        for name, value in values.items():
            tag = f"{record['split']}/{name}"
            assert read.pop((record["step"], tag)) == pytest.approx(value, rel=1e-6), tag
    assert not read


def events(path):
    """The events of a file: of each record its length, a checksum, its content, and another."""
    content, place = path.read_bytes(), 0
    while place < len(content):
        (length,) = struct.unpack_from("Q", content, place)
        yield event_pb2.Event.FromString(content[place + 12 : place + 12 + length])
        place += length + 16


MINE = """
from pathlib import Path
from t5x_lite.training.callbacks import Callback


class Told(Callback):
    def __init__(self, workdir, config, name: str = "told.txt"):
        super().__init__(workdir, config)
        self.path = workdir / name

    def tell(self, text):
        with open(self.path, "a") as file:
            print(text, file=file)

    def on_step(self, step, metrics):
        self.tell(f"step {step} {sorted(metrics)[0]}")

    def on_log(self, record):
        self.tell(f"log {record['step']} {record['split']}")

    def on_checkpoint(self, step, directory):
        self.tell(f"checkpoint {step} {directory.parent.name}")


class Bad(Callback):
    def on_step(self, step, metrics):
        raise ValueError("no")


class Own:
    def __init__(self, workdir, config, first):
        self.path = Path(workdir) / "own.txt"

    def write(self, step, values):
        with open(self.path, "a") as file:
            print(step, sorted(values)[0], file=file)

    def close(self):
        pass
"""


def test_callbacks_and_loggers_of_ones_own(tmp_path, write_module, config_file):
    write_module("mine", MINE)
    settings = {"training.steps": 2, "training.log_every": 2, "training.eval_every": 2}
    settings |= {"training.loggers": ["mine.Own"], "training.callbacks": ["mine.Told(name='t')"]}
    run("train", f"--config={config_file(**settings)}", f"--workdir={tmp_path / 'run'}")
    told = (tmp_path / "run/t").read_text().splitlines()
    assert told == [
        "step 1 accuracy",
        "step 2 accuracy",
        "log 2 train",
        "log 2 validation",
        "checkpoint 2 checkpoints",
    ]
    assert (tmp_path / "run/own.txt").read_text().splitlines()[-1] == "2 validation/accuracy"


def test_an_error_in_a_callback_is_one_sentence(tmp_path, write_module, config_file):
    write_module("mine", MINE)
    config = config_file(**{"training.callbacks": ["mine.Bad"]})
    _, err = run("train", f"--config={config}", f"--workdir={tmp_path / 'run'}", code=78)
    assert "training.callbacks: mine.Bad.on_step failed (ValueError: no)" in err
    _, err = run(
        "train",
        f"--config={config_file(**{'training.callbacks': ['mine.Non']})}",
        f"--workdir={tmp_path / 'other'}",
        code=78,
    )
    assert "training.callbacks=mine.Non: expected module.function of your own" in err
    assert not (tmp_path / "other").exists()
