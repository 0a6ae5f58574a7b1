import json
import subprocess
import sys

import jax
import pytest
from conftest import ROOT, slow, with_devices

from t5x_lite.planning import traffic as inventory

MESH = jax.sharding.AbstractMesh((2, 2, 1, 2), ("data", "fsdp", "sequence", "tensor"))
# One loop of five turns, which sends in two ways; beside it a sum over all devices.
PROGRAM = """
%body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %gathered = bf16[4,16]{1,0} all-gather(%x), channel_id=1, replica_groups={GROUPS}, dimensions={1}
  %scattered = f32[4,8]{1,0} reduce-scatter(%y), channel_id=2, replica_groups=[4,2]<=[8], dimensions={1}, metadata={op_name="jit(step)/wo"}
}

%condition (p: (s32[], f32[4,8])) -> pred[] {
  %bound = s32[] constant(5)
  ROOT %less = pred[] compare(%turn, %bound), direction=LT
}

ENTRY %main (x: f32[4,8]) -> f32[4,8] {
  %loop = (s32[], f32[4,8]) while(%start), condition=%condition, body=%body
  %sum = f32[3]{0} all-reduce(%z), channel_id=3, replica_groups=[1,8]<=[8], to_apply=%add
}
"""  # noqa: E501


@pytest.mark.parametrize(
    "groups",
    [
        "{{0,2},{1,3},{4,6},{5,7}}",
        "[4,2]<=[2,2,2]T(0,2,1)",
        "mesh['data'=2,'fsdp'=2,'sequence'=1,'tensor'=2] {'fsdp'}",
        "mesh['axis_0'=2,'axis_1'=2,'axis_2'=2] {'axis_1'}",
    ],
)
def test_loops_are_counted_and_bytes_go_to_the_axis_that_they_cross(groups):
    program = PROGRAM.replace("{GROUPS}", groups)
    sent = inventory.collectives(program, MESH)
    assert [(one.kind, one.axes, one.sent, one.times) for one in sent] == [
        ("all-gather", ("fsdp",), 5 * 4 * 16 * 2, 5),
        ("reduce-scatter", ("tensor",), 5 * 2 * 4 * 8 * 4, 5),
        ("all-reduce", ("data", "fsdp", "tensor"), 2 * 3 * 4, 1),
    ]
    assert sent[1].operation == "jit(step)/wo"
    assert inventory.by_axis(sent)["data × fsdp × tensor"] == 24


COMPILE = """
import json, sys
from t5x_lite.config.files import load
from t5x_lite.resolve import resolve_without_text
from t5x_lite.planning import traffic as inventory
from t5x_lite.training.program import Program
settings = ["data.source=x", "model.vocab_size=512", "model.scan=True", *sys.argv[1:]]
config = load("gpt_tiny", settings)
program = Program(resolve_without_text(config))
sent = inventory.collectives(program.trace().lower().compile().as_text(), program.mesh)
model = program.resolved.model
print("FOUND", json.dumps({
    "bytes": inventory.by_axis(sent), "least": inventory.least_bytes(program),
    "stream": 8 // 4 * model.max_length * model.d_model * 4, "layers": model.num_layers,
}))
"""


def found(*settings: str) -> dict:
    command = [sys.executable, "-c", COMPILE, *settings]
    out = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, env=with_devices(8)
    ).stdout
    return json.loads(out.split("FOUND ")[1])


def test_fsdp_sends_little_more_than_it_has_to():
    """Parameters of layers twice, all others and all gradients once; besides, the gradients of
    vectors, which are not split, and sums.
    """
    all_of_it = found("mesh.fsdp=8", "data.batch_size=8")
    total = sum(all_of_it["bytes"].values())
    assert all_of_it["least"] <= total <= 1.1 * all_of_it["least"]


@pytest.mark.parametrize(("remat", "passes"), [("False", 8), slow("True", 11)])
def test_tensor_gathers_and_sums_the_stream_twice_a_block_and_pass(remat, passes):
    """Two gathers and two reduce-scatters forward, as many backward; computed again, two gathers
    and the one reduce-scatter that is read again.
    """
    split = found("mesh.fsdp=4", "mesh.tensor=2", "data.batch_size=8", f"model.remat={remat}")
    # After the embedding and before the head, once forward and once backward.
    outside = 4
    least = (passes * split["layers"] + outside) * split["stream"]
    assert least <= split["bytes"]["tensor"] <= 1.1 * least
