"""Which loggers there are, and what happens where one cannot be had or fails. What Weights & Biases
and MLflow get is in tests/peers.
"""

import sys

from conftest import run

from t5x_lite import config
from t5x_lite.training import loggers


def test_names_are_those_of_the_setting():
    assert tuple(loggers.LOGGERS) == config.LOGGERS


def test_what_is_refused(monkeypatch, tmp_path, config_file):
    command = ("train", f"--config={config_file()}", f"--workdir={tmp_path / 'run'}")
    _, err = run(*command, "--config.training.loggers=('wandbb',)", code=78)
    assert "training.loggers: got 'wandbb'; did you mean wandb?" in err
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
