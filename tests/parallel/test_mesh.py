import dataclasses
import json
import subprocess
import sys

import jax
import proof_sharding
import pytest
from conftest import ROOT, slow, with_devices
from training.runs import figures

from t5x_lite.config import Mesh, Model
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.errors import UserError
from t5x_lite.model.check import check_model
from t5x_lite.parallel import exact
from t5x_lite.parallel.mesh import check_batch, make_mesh
from t5x_lite.resolve import resolve_model

PROVE = """
import json, sys
sys.path.insert(0, "tests")
import proof_sharding
name, arguments = sys.argv[1], json.loads(sys.argv[2])
with proof_sharding.manuals_modules():
    print("FIGURES", json.dumps(getattr(proof_sharding, name)(*arguments)))
"""


def prove(name, text_file, *arguments, devices) -> dict:
    """What a function of proof_sharding.py finds, on simulated devices."""
    command = [sys.executable, "-c", PROVE, name, json.dumps([str(text_file), *arguments])]
    out = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, env=with_devices(devices)
    ).stdout
    return json.loads(out.split("FIGURES ")[1])


@pytest.mark.parametrize(
    ("case", "variant"),
    [
        ("grouped queries, dropout", "sequence and tensor"),
        ("experts", "expert 2 and fsdp 2"),
        ("the manual's mixer", "sequence and microbatches"),  # as docs/how-to/own-block.md has it
        slow("the manual's ELECTRA", "sequence and microbatches"),
        slow("local and global layers", "sequence and microbatches"),
        slow("the manual's Shampoo", "fsdp 2 and tensor 2"),
    ],
)
def test_a_few_steps_are_the_same_on_any_mesh(text_file, case, variant):
    in_float32 = case == "the manual's mixer"  # differences grow with each step
    steps = 1 if in_float32 else 3
    differences = prove("prove_training", text_file, case, variant, steps, devices=8)
    assert differences["figures"] < (1e-6 if in_float32 else 1e-10)
    assert differences["parameters"] < (1e-4 if in_float32 else 1e-8)
    assert differences["gradients"] < (1e-6 if in_float32 else 1e-8)


EVERY_EXPERT = ["expert 4", "expert 2 and tensor 2", "expert 2 and sequence 2", "8 devices"]
ONE_BY_ONE = ["fsdp 2 and tensor 2", "sequence 2", "4 microbatches"]
FOR_ONE_DEVICE = ["fsdp 2", "tensor 2", "sequence 2", "fsdp 2 and tensor 2"]


# How far the gradients and the losses in float32 may differ.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "variants", "gradients", "losses"),
    [
        ("multi-query", ["sequence", "both"], 1e-10, 1e-5),
        ("encoder", ["sequence", "both"], 1e-10, 1e-5),
        ("encoder_decoder", ["sequence", "both"], 1e-10, 1e-5),
        ("grouped queries, dropout", ["sequence and tensor"], 1e-10, 1e-5),
        ("experts", [*EVERY_EXPERT, "expert 2 and fsdp 2"], 1e-10, 1e-5),
        ("Switch", EVERY_EXPERT, 1e-10, 1e-5),
        ("the manual's ELECTRA", ONE_BY_ONE, 1e-8, 1e-5),
        ("window", ONE_BY_ONE, 1e-8, 1e-5),
        ("local and global layers", ONE_BY_ONE, 1e-8, 1e-5),
        ("input layers of each stack", ONE_BY_ONE, 1e-8, 1e-5),
        ("biases of each layer", ONE_BY_ONE, 1e-8, 1e-5),
        ("a norm of its own for each part", ONE_BY_ONE, 1e-8, 1e-5),
        ("the manual's mixer", FOR_ONE_DEVICE, 1e-6, 1e-6),  # it computes in float32
        ("the manual's Shampoo", ["fsdp 2", "fsdp 2 and tensor 2"], 1e-10, 1e-5),
        ("Adafactor", ["fsdp 2", "fsdp 2 and tensor 2"], 1e-10, 1e-5),
    ],
)
def test_devices_and_microbatches_change_nothing(text_file, case, variants, gradients, losses):
    figures = prove("prove_case", text_file, case, 6, variants, devices=8)
    # The rows of a decoder are all full.
    has_decoder_alone = proof_sharding.architecture_of(case) == "decoder"
    assert figures.pop("unequal_targets") != has_decoder_alone
    for differences in figures.values():
        assert differences["float64 loss"] < 1e-10
        assert differences["float64 gradients"] < gradients
        assert differences["float32 losses"] < losses


def test_every_parameter_and_its_moments_are_split(text_file):
    """On a mesh of 2 × 2 × 2, AdamW's moments lie where their parameter does, and kernels lie on
    four devices.
    """
    code = f"""
import sys; sys.path.insert(0, "tests")
import proof_sharding as p
import jax
from t5x_lite.data.store.prepare import prepare
config = p.build("encoder_decoder", {str(text_file)!r}, p.VARIANTS["8 devices"][0])
run = p.make_run(config, prepare(config.data), 8)
with run.within():
    state = run.fresh_state()
states = jax.tree.leaves(state.opt_state, is_leaf=lambda x: hasattr(x, "mu"))
mu = next(s.mu for s in states if hasattr(s, "mu"))
for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(state.params), jax.tree.leaves(mu)):
    assert a.sharding == b.sharding, path
    parts = a.size // a.addressable_shards[0].data.size
    name = jax.tree_util.keystr(path)
    split = 4 if "kernel" in name or name == "['embedding']" else 2 if "relative" in name else 1
    assert parts == split, (name, parts)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env=with_devices(8))


SHAMPOO = """
import sys; sys.path.insert(0, "tests")
import math, tempfile
from pathlib import Path
import jax
import proof_sharding as p
from t5x_lite.config.permission import allow
from t5x_lite.data.store.prepare import prepare
p.module_of_the_manual("own-optimizer.md", "my_shampoo.py", Path(tempfile.mkdtemp()))
config = p.build("the manual's Shampoo", sys.argv[1], {"mesh": {"fsdp": 4}})
with allow(["my_shampoo"]):
    program = p.make_run(config, prepare(config.data), 4).program
    shapes, shardings = program.shapes.opt_state, program.shardings.opt_state
split = []
for (path, leaf), where in zip(
    jax.tree_util.tree_leaves_with_path(shapes), jax.tree.leaves(shardings), strict=True
):
    name = jax.tree_util.keystr(path)
    if ".left" in name or ".right" in name:
        split.append(leaf.size // math.prod(where.shard_shape(leaf.shape)))
assert len(split) >= 12 and set(split) == {4}, split
"""


def test_fsdp_splits_each_preconditioner(text_file):
    command = [sys.executable, "-c", SHAMPOO, str(text_file)]
    subprocess.run(command, cwd=ROOT, check=True, env=with_devices(4))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"mesh.tensor": 4}, "model.num_heads is 2, which mesh.tensor = 4 does not divide"),
        ({"mesh.fsdp": 3}, "does not make the 4 devices"),
        ({"data.batch_size": 6}, "data.batch_size: 6 rows"),
        (
            {"mesh.fsdp": 4, "model.d_model": 6, "model.num_heads": 1, "data.batch_size": 8},
            "model.d_model is 6",
        ),
        ({"mesh.tensor": 2, "model.d_ff": 9}, "model.d_ff is 9"),
    ],
)
def test_what_a_mesh_does_not_divide_is_named(make, more, words):
    resolved, _ = make(**more)
    config = resolved.config

    def make_and_check():
        mesh = make_mesh(config.mesh, jax.devices() * 4)
        sizes = dataclasses.replace(config.mesh, **mesh.shape)
        check_model(resolved.model, resolved.rows.shape, sizes)
        check_batch(config.data.batch_size, config.training.microbatches, mesh)

    with pytest.raises(UserError) as caught:
        make_and_check()
    assert words in str(caught.value)


THERE_AND_BACK = """
import sys
from pathlib import Path
import orbax.checkpoint as ocp
from t5x_lite.__main__ import main

config, directory = sys.argv[1], Path(sys.argv[2])

def train(name, steps, mesh):
    options = [f"--config.training.steps={steps}", f"--config.mesh.{mesh}=3"]
    assert not main(["train", f"--config={config}", f"--workdir={directory / name}", *options])
    saved = directory / name / f"checkpoints/{steps}"
    metadata = ocp.StandardCheckpointer().metadata(saved.resolve()).item_metadata
    return metadata["params"]["embedding"].shape[0]

rows = [train("moved", steps, mesh) for steps, mesh in [(2, "tensor"), (4, "data"), (6, "tensor")]]
whole = train("stayed", 6, "data")
assert rows[0] == rows[2] > rows[1] == whole, (rows, whole)
for mesh in ("tensor=3", "data=3"):
    assert not main(["score", f"--workdir={directory / 'moved'}", f"--mesh={mesh}", "Who?"])
"""


@pytest.mark.slow
def test_a_run_goes_on_where_its_vocabulary_is_padded_otherwise(tmp_path, config_file):
    model = {"num_heads": 3, "head_dim": 8, "d_ff": 48, "tie_embeddings": False}
    more = {f"model.{name}": value for name, value in model.items()}
    config = config_file(**more, **{"data.batch_size": 6, "training.eval_every": 2})
    command = [sys.executable, "-c", THERE_AND_BACK, str(config), str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, env=with_devices(3))
    moved, stayed = (
        {record["step"]: record["loss"] for record in figures(tmp_path / name)}
        for name in ("moved", "stayed")
    )
    assert moved == pytest.approx(stayed, rel=1e-5)


EXACT = """
import hashlib, sys; sys.path.insert(0, "tests")
import jax
import proof_sharding as p
from t5x_lite.data.store.prepare import prepare

source, case, *counts = sys.argv[1:]
config = p.build(case, source, {"training": {"exact": True}, "model": {"dropout": 0.1}})

def digest(devices):
    run = p.make_run(config, prepare(config.data), devices)
    with run.within():
        state = run.fresh_state()
        for step in range(20):
            state, _ = run.train_step(state, run.batch(run.batches, step))
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(jax.device_get(state)):
        found.update(leaf.tobytes())
    return found.hexdigest()

found = {count: digest(int(count)) for count in counts}
assert len(set(found.values())) == 1, found
"""


@pytest.mark.parametrize(
    ("case", "counts"),
    [
        ("decoder", (1, 4)),
        slow("decoder", (1, 2, 4, 8)),
        slow("encoder", (1, 2, 4, 8)),
        slow("encoder_decoder", (1, 2, 4, 8)),
        slow("Adafactor", (1, 4)),
        slow("Lion", (1, 4)),
    ],
)
def test_exact_training_is_the_same_to_the_last_bit_on_any_number_of_devices(
    text_file, case, counts
):
    """Parameters and the optimizer's state after 20 steps with dropout."""
    environment = with_devices(8)
    if len(counts) > 2:  # what takes longer, as users have it
        environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0"
    command = [sys.executable, "-c", EXACT, text_file, case, *map(str, counts)]
    subprocess.run(command, cwd=ROOT, check=True, env=environment)


@pytest.mark.parametrize(
    ("mesh", "batch_size", "words"),
    [
        ({"data": 1, "fsdp": 2}, 32, "goes over mesh.data alone, got a mesh of fsdp 2"),
        ({"data": 16, "fsdp": 1}, 32, "is for 1, 2, 4 or 8 devices, got 16"),
        ({"data": 3, "fsdp": 1}, 48, "is for 1, 2, 4 or 8 devices, got 3"),
        ({"data": 2, "fsdp": 1}, 24, "data.batch_size: got 24, expected a multiple of 16"),
    ],
)
def test_what_cannot_be_exact_is_named(mesh, batch_size, words):
    with pytest.raises(UserError, match=words):
        exact.check(batch_size, mesh)


@pytest.mark.parametrize(
    ("model", "lengths", "words"),
    [
        ({}, (66,), "data.lengths: 66 positions are no multiple of 2 × mesh.sequence 2"),
        ({"backward_decoder": True}, (64,), "model.backward_decoder=True: cannot be split"),
        ({"ff_dropout": 0.1}, (64,), "model.ff_dropout: cannot be split over mesh.sequence = 2"),
    ],
)
def test_rows_that_devices_cannot_share_are_named(model, lengths, words):
    dimensions = resolve_model(Model(**model), vocab_size=8, max_length=66)
    rows = RowShape(decoder=lengths[0])
    check_model(dimensions, rows, Mesh(data=1))
    with pytest.raises(UserError, match=words):
        check_model(dimensions, rows, Mesh(data=1, sequence=2))
