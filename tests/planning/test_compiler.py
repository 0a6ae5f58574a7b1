"""Training steps through Google's compiler of TPUs, which `make test` installs beside the virtual
environment: within it, `plan` would compile all that the manual plans.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, run_apart, users_environment

LIBTPU = Path(sys.prefix) / "libtpu"
pytestmark = pytest.mark.skipif(not LIBTPU.exists(), reason="there is no libtpu for this machine")
COMPILE = """
import json, sys
sys.path.insert(0, "benchmarks")
from collectives import program_of
from t5x_lite.planning import traffic as inventory
program = program_of(*sys.argv[1:])
text = program.trace().lower().compile().as_text()
sent = inventory.collectives(text, program.mesh)
print("FOUND", json.dumps({
    "sent": inventory.by_axis(sent), "least": inventory.least_bytes(program),
    "kernels": text.count('custom_call_target="tpu_custom_call"'),
}))
"""


def environment() -> dict[str, str]:
    return users_environment() | {"PYTHONPATH": str(LIBTPU), "JAX_PLATFORMS": "cpu"}


def compiled(config: str, *settings: str, topology: str = "v5e:2x4") -> dict:
    """A program of benchmarks/collectives.py: what it sends, by axis, what fsdp has to, and how
    often it calls a kernel written by hand.
    """
    command = [sys.executable, "-c", COMPILE, config, topology, *settings]
    out = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, env=environment()
    ).stdout
    return json.loads(out.split("FOUND ")[1])


def test_fsdp_sends_little_more_than_it_has_to():
    found = compiled("gpt_tiny", "mesh.fsdp=8", "model.scan=True", "model.vocab_size=512")
    assert set(found["sent"]) == {"fsdp"}
    assert found["least"] <= found["sent"]["fsdp"] <= 1.1 * found["least"]
    assert found["kernels"]  # of attention, causal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "topology", "chips"),
    [("llama_7b", "v5p:4x4x4", 64), ("published:gpt3_175b", "v5p:8x8x8", 512)],
)
def test_large_models_over_fsdp_send_little_more_than_they_have_to(config, topology, chips):
    settings = [f"mesh.fsdp={chips}", "mesh.reduce_dtype=bfloat16", f"data.batch_size={chips}"]
    found = compiled(config, *settings, topology=topology)
    assert found["least"] <= sum(found["sent"].values()) <= 1.1 * found["least"]


@pytest.mark.slow
def test_attention_is_a_kernel_where_devices_share_heads():
    rows = "data.lengths.sequence_length=512"
    found = compiled("bert_tiny", rows, "mesh.data=4", "mesh.tensor=2")
    assert set(found["sent"]) == {"data", "tensor", "data × tensor"}
    assert found["kernels"]


@pytest.mark.parametrize(
    ("config", "settings", "axes"),
    [
        ("gpt_tiny", ["mesh.fsdp=8"], {"fsdp"}),
        pytest.param(
            "t5_tiny",
            ["mesh.fsdp=4", "mesh.tensor=2", "model.dtype=bfloat16"],
            {"fsdp", "tensor", "fsdp × tensor"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_plan_is_compiled(config, settings, axes):
    """In float32, too, of which nobody says how fast a TPU computes it."""
    words = [f"--config.{setting}" for setting in settings]
    out, err = run_apart(
        "plan", f"--config={config}", "--topology=v5e:2x4", *words, env=environment()
    )
    assert "compiling the step with libtpu" in err
    lines = [line for line in out.splitlines() if "the compiler, over" in line]
    assert {line.split("over ")[1].split("  ")[0] for line in lines} == axes
    assert "it fits" in out
    assert ("is not known: no time" in out) == ("model.dtype=bfloat16" not in settings)
