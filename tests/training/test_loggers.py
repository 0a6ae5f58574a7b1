"""Which loggers there are, and what happens where one cannot be had or fails. What Weights & Biases
and MLflow get is in tests/peers.
"""

import sys

from conftest import run

from t5x_lite.training import loggers


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
