"""Weights & Biases, offline, and MLflow have the records of a run, also of one that was resumed."""

import json
import struct

import pytest
from conftest import run

from t5x_lite.training.log import read_metrics

mlflow = pytest.importorskip("mlflow", reason="make test-peers has it")
wandb_internal_pb2 = pytest.importorskip("wandb.proto.wandb_internal_pb2")


pytestmark = pytest.mark.filterwarnings("ignore")  # of the loggers' own parts


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def logged(workdir):
    """What MLflow has: name → [(step, value)], and the settings."""
    client = mlflow.MlflowClient(f"sqlite:///{workdir}/mlflow.db")
    (found,) = client.search_runs([client.get_experiment_by_name("t5x_lite").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == workdir.name
    curves = {
        name: [(one.step, one.value) for one in client.get_metric_history(found.info.run_id, name)]
        for name in found.data.metrics
    }
    return curves, found.data.params


def test_mlflow_has_the_records_of_a_resumed_run(tmp_path, config_file):
    workdir = tmp_path / "run"
    settings = {"training.steps": 3, "training.log_every": 1, "training.loggers": ["mlflow"]}
    command = ("train", f"--config={config_file(**settings)}", f"--workdir={workdir}")
    run(*command)
    run(*command, "--config.training.steps=5")
    assert not (workdir / "tensorboard").exists()
    curves, params = logged(workdir)
    records = read_metrics(workdir / "metrics.jsonl")
    expected = [(one["step"], one["loss"]) for one in records if one["split"] == "train"]
    assert [step for step, _ in expected] == [1, 2, 3, 4, 5]
    assert curves["train/loss"] == expected
    assert [step for step, _ in curves["validation/loss"]] == [3, 5]
    assert params["training.log_every"] == "1"


def entries(written, block=32768):
    """Those of a log in LevelDB's format: checksum, length, and whether more follows."""
    data, place = b"", 7  # after wandb's own header
    while place < len(written):
        if block - place % block < 7:
            place += block - place % block
        _, length, kind = struct.unpack_from("<IHB", written, place)
        data += written[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield data
            data = b""


def history(path):
    """What wandb wrote for its server: step → values."""
    steps = {}
    for data in entries(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {
                item.key or item.nested_key[0]: json.loads(item.value_json)
                for item in record.history.item
            }
            steps[items["_step"]] = items
    return steps


def test_wandb_keeps_a_run_offline(tmp_path, config_file):
    workdir = tmp_path / "run"
    settings = {"training.steps": 2, "training.loggers": ["tensorboard", "wandb"]}
    command = ("train", f"--config={config_file(**settings)}", f"--workdir={workdir}")
    run(*command)
    run_id = (workdir / "wandb_id").read_text()
    (written,) = (workdir / "wandb").glob(f"offline-run-*-{run_id}/*.wandb")
    of_steps = history(written)
    records = read_metrics(workdir / "metrics.jsonl")
    for record in records:
        assert of_steps[record["step"]][f"{record['split']}/loss"] == record["loss"]
    assert list((workdir / "tensorboard").glob("events*"))
    run(*command, "--config.training.steps=4")
    assert (workdir / "wandb_id").read_text() == run_id


def test_a_server_that_does_not_answer(monkeypatch, tmp_path, config_file):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://at.all")
    command = ("train", f"--config={config_file()}", f"--workdir={tmp_path / 'run'}")
    _, err = run(*command, "--config.training.loggers=('mlflow',)", code=74)
    assert "training.loggers: mlflow: nowhere://at.all does not answer" in err
