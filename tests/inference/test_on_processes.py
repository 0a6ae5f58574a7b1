"""A model whose parameters lie on devices of several processes is used as any other."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, run, users_environment, with_devices

# What is asked of a model, by one process or by each of several.
SCRIPT = """
import json, os, pathlib, sys
import jax

workdir, written, mesh = sys.argv[1:]
if "T5X_LITE_PROCESSES" in os.environ:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    places = [os.environ[f"T5X_LITE_{name}"] for name in ("COORDINATOR", "PROCESSES", "PROCESS")]
    jax.distributed.initialize(places[0], int(places[1]), int(places[2]))

from t5x_lite import api
from t5x_lite.config import Mesh
from t5x_lite.interop import convert

mesh = Mesh(**json.loads(mesh)) if mesh else None
model = api.load_model(workdir, mesh)
architecture = model.config.model.architecture
texts = ["The cat number 7 sat.", "A dog", ""]
answers = {
    "embed": [vector.tolist() for vector in model.embed(texts[:2])],
    "evaluate": api.evaluate(workdir, mesh),
}
if architecture == "encoder":
    answers["score"] = [score.nats for score in model.score(texts[:2])]
    answers["tokens"] = [token.probability for token in model.predict_tokens(texts[0])]
else:
    context = "" if architecture == "decoder" else "On the mat"
    answers["score"] = [score.nats for score in model.score(texts[:2], context)]
    answers["tokens"] = [token.probability for token in model.predict_tokens(texts[0], context)]
    prompts = texts[:2]
    answers["greedy"] = model.generate(prompts, max_new_tokens=20)
    answers["sampled"] = model.generate(prompts, max_new_tokens=20, temperature=1.0, seed=3)
    answers["beams"] = model.generate(prompts, max_new_tokens=12, num_beams=3)
if architecture != "decoder":
    answers["fill"] = model.fill("The cat number ___ sat.")
else:
    convert.export_model(pathlib.Path(workdir), pathlib.Path(written), "float32", mesh)
pathlib.Path(f"{written}-{jax.process_index()}.json").write_text(json.dumps(answers))
"""
# A GPT-2 is exported, too.
SETTINGS = {
    "gpt2": (
        "causal_lm",
        "decoder",
        {"model.activation": "gelu_tanh", "model.num_heads": 4},
    ),
    "t5": ("span_corruption", "encoder_decoder", {"model.num_heads": 4}),
    "bert": ("masked_lm", "encoder", {"model.num_heads": 4}),
}


def answers_of(workdir, written, mesh: dict | None = None, count: int = 1) -> list[dict]:
    """The answers of each process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    processes = []
    for number in range(count):
        environment = users_environment() if count == 1 else with_devices(4 // count)
        if count > 1:
            environment |= {
                "T5X_LITE_COORDINATOR": address,
                "T5X_LITE_PROCESSES": str(count),
                "T5X_LITE_PROCESS": str(number),
            }
        command = [sys.executable, "-c", SCRIPT, workdir, written, json.dumps(mesh) if mesh else ""]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, env=environment, **pipes))
    for process in processes:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    return [json.loads(Path(f"{written}-{number}.json").read_text()) for number in range(count)]


def assert_close(a, b) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_close(a[key], b[key])
    elif isinstance(a, list):
        for x, y in zip(a, b, strict=True):
            assert_close(x, y)
    elif isinstance(a, float):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-5)
    else:
        assert a == b


@pytest.mark.slow
@pytest.mark.parametrize("family", SETTINGS)
def test_a_model_on_several_processes_answers_as_on_one(tmp_path, config_file, family):
    objective, architecture, more = SETTINGS[family]
    path = config_file(objective, architecture, **{"training.steps": 20, **more})
    run("train", f"--config={path}", f"--workdir={tmp_path / 'run'}")
    (one,) = answers_of(tmp_path / "run", tmp_path / "one")
    for count, mesh in ((2, {"fsdp": 2, "tensor": 2}), (2, {"tensor": 4}), (4, {"fsdp": 4})):
        name = f"{count} {mesh}"
        for answers in answers_of(tmp_path / "run", tmp_path / name, mesh, count):
            assert_close(one, answers)
        if family == "gpt2":
            exported = (tmp_path / where / "model.safetensors" for where in ("one", name))
            first, second = (path.read_bytes() for path in exported)
            assert first == second


def launched(*words, code: int = 0) -> tuple[str, str]:
    command = [sys.executable, ROOT / "launch/local", "2", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, env=with_devices(1), cwd=ROOT, timeout=300
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.mark.slow
def test_two_processes_write_one_text(tmp_path, config_file):
    run("train", f"--config={config_file()}", f"--workdir={tmp_path / 'run'}")
    words = ("generate", f"--workdir={tmp_path / 'run'}", "The cat", "--max-new-tokens=8")
    alone, _ = run(*words)
    together, _ = launched(*words, "--mesh=fsdp=2")
    assert together.count(alone) == 1  # among what Gloo says of connections


def test_what_processes_cannot_share_is_one_sentence(tmp_path, config_file):
    run("train", f"--config={config_file()}", f"--workdir={tmp_path / 'run'}")
    _, err = launched("generate", f"--workdir={tmp_path / 'run'}", "The cat", code=2)
    assert "Traceback" not in err
    reason = (
        "generate: 2 processes must share the model over a mesh; add --mesh, such as --mesh=fsdp=4"
    )
    assert err.count(f"t5x_lite: {reason}") == 2
    _, err = launched("inspect", "--config=gpt_tiny", code=2)
    assert err.startswith("launch/local: got inspect, expected one that runs as several processes")
