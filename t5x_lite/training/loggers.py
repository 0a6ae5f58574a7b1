"""Where the curves of a run go besides metrics.jsonl: TensorBoard, Weights & Biases, MLflow.

To add one, write the class and add it to LOGGERS. Your own logger needs no entry here: name it by
its module in the config, `training.loggers=my_module.MyLogger`.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from t5x_lite import storage
from t5x_lite.config import RunConfig, to_dict
from t5x_lite.config.files import flatten
from t5x_lite.config.named import Named, find_named
from t5x_lite.config.permission import check_place, service
from t5x_lite.config.provenance import WRITES_HERE
from t5x_lite.errors import IO_ERROR, optional_import, user_errors

_FLUSH_EVERY = 10.0  # seconds until TensorBoard can read what was written
PROJECT = "t5x_lite"  # the project that runs belong to, unless the environment names another


class Logger(Protocol):
    """An entry of LOGGERS. It is made from the run's directory, its config, and the step that the
    run continues from.
    """

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics of a step, named "SPLIT/NAME"."""
        ...

    def close(self) -> None:
        """Write what is left, and release resources."""
        ...


class TensorBoard:
    """Event files in WORKDIR/tensorboard.

    Events are written in the caller's thread. SummaryWriter would use a thread of its own, in which
    an error such as a full disk only prints a traceback; the run then blocks on the queue.
    """

    def __init__(self, workdir: Path, config: RunConfig, first: int):
        from tensorboardX import RecordWriter
        from tensorboardX.proto import event_pb2

        self._protos: Any = event_pb2
        directory = workdir / "tensorboard"
        # The step keeps the files of two starts within the same second apart.
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{first}"
        with user_errors(IO_ERROR, f"{directory}: cannot be written"):
            directory.mkdir(parents=True, exist_ok=True)
            self._file = RecordWriter(str(directory / name))
        self._flushed = time.monotonic()
        self._write(file_version="brain.Event:2")
        if first:
            # The run repeats the steps after its checkpoint, so drop what was written for them.
            start = self._protos.SessionLog(status=self._protos.SessionLog.START)
            self._write(step=first + 1, session_log=start)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values as scalars."""
        from tensorboardX.summary import scalar

        for name, value in values.items():
            self._write(step=step, summary=scalar(name, value))
        if time.monotonic() - self._flushed > _FLUSH_EVERY:
            self._file.flush()
            self._flushed = time.monotonic()

    def _write(self, **fields: Any) -> None:
        event = self._protos.Event(wall_time=time.time(), **fields)
        self._file.write(event.SerializeToString())

    def close(self) -> None:
        """Write what is left to the file."""
        self._file.close()


class WeightsAndBiases:
    """A run of Weights & Biases. A continued run keeps its id.

    WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE=offline and wandb's other variables decide where it is
    stored.
    """

    def __init__(self, workdir: Path, config: RunConfig, first: int):
        wandb = optional_import("wandb", "wandb", "training.loggers: wandb")
        mend = "training.loggers: wandb: log in with `wandb login`, or set WANDB_MODE=offline"
        with user_errors(IO_ERROR, mend):
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=workdir.name,
                id=_kept(workdir / "wandb_id", lambda: uuid4().hex),
                resume="allow",
                dir=workdir,
                config=to_dict(config),
                settings=wandb.Settings(silent=True, console="off"),
            )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Send the values of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run of Weights & Biases."""
        self._run.finish()


class MLflow:
    """A run of MLflow, at MLFLOW_TRACKING_URI or else in WORKDIR/mlflow.db."""

    def __init__(self, workdir: Path, config: RunConfig, first: int):
        self._mlflow = mlflow = optional_import("mlflow", "mlflow", "training.loggers: mlflow")
        # Hide MLflow's messages about its own setup.
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        address = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{workdir.resolve()}/mlflow.db")
        with user_errors(IO_ERROR, f"training.loggers: mlflow: {address} does not answer"):
            self._client = mlflow.MlflowClient(address)
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            found = self._client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else self._client.create_experiment(name)
            self._id = _kept(workdir / "mlflow_id", lambda: self._new(experiment, workdir, config))
            # The last process of a continued run has marked it as ended.
            self._client.update_run(self._id, "RUNNING")

    def _new(self, experiment: str, workdir: Path, config: RunConfig) -> str:
        """Create a run with its config as parameters. Return its id."""
        run_id = self._client.create_run(experiment, run_name=workdir.name).info.run_id
        settings = flatten(to_dict(config)).items()
        params = [self._mlflow.entities.Param(name, str(value)) for name, value in settings]
        for start in range(0, len(params), 100):  # MLflow's limit per request
            self._client.log_batch(run_id, params=params[start : start + 100])
        return run_id

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Send the values of a step, with the time."""
        now = int(1000 * time.time())  # MLflow's timestamps are in milliseconds
        metrics = [
            self._mlflow.entities.Metric(name, value, now, step) for name, value in values.items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self._id)


LOGGERS: dict[str, Callable[[Path, RunConfig, int], Logger]] = {
    WRITES_HERE: TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def find_loggers(config: RunConfig) -> dict[str, Named]:
    """Find the loggers that `training.loggers` names.

    Raises:
        UserError: for an unknown name or option, or a service that is not permitted.
    """
    names = map(str, config.training.loggers)
    loggers = {name: find_named(name, LOGGERS, "training.loggers", "logger") for name in names}
    for name, logger in loggers.items():
        if logger.name in LOGGERS and logger.name != WRITES_HERE:
            check_place(service(name), "training.loggers", "sends nothing anywhere")
    return loggers


def _kept(path: Path, make: Callable[[], Any]) -> str:
    """Return the id stored in a file. The first time, make one and store it."""
    if not path.exists():
        storage.write_durably(path, make())
    return path.read_text()
