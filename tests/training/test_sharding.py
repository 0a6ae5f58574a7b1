"""What runs on a mesh of 2 × 2 × 2 simulated devices, in processes of their own, and what a mesh
refuses.
"""

import json
import os
import subprocess
import sys

import jax
import pytest
from conftest import ROOT
from training.proof_sharding import SIMULATED
from training.runs import figures

from t5x_lite.errors import UserError
from t5x_lite.training import sharding


def run_on_eight_devices(code: str, *args) -> str:
    """What a script says that finds eight devices."""
    command = [sys.executable, "-c", "import sys; sys.path.insert(0, 'tests')\n" + code]
    done = subprocess.run(
        [*command, *map(str, args)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | SIMULATED,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


PROVE = """
import json
from training import proof_sharding
source, *cases = sys.argv[1:]
print("FIGURES", json.dumps(proof_sharding.prove(source, cases, 6, ["both"])))
"""
PROVEN = ["encoder", "encoder_decoder", "multi-query"]  # proof_sharding.py has more


def test_devices_and_microbatches_change_nothing(text_file):
    out = run_on_eight_devices(PROVE, text_file, *PROVEN)
    cases = json.loads(out.split("FIGURES ")[1])
    assert list(cases) == PROVEN
    for case, found in cases.items():
        # the rows of a decoder are all full
        assert found.pop("unequal_targets") == (case != "multi-query"), case
        for differences in found.values():
            assert differences["float64 loss"] < 1e-10, case
            assert differences["float64 gradients"] < 1e-10, case
            assert differences["float32 losses"] < 1e-5, case


LOAD = """
import json
import pathlib
from contextlib import redirect_stdout
import io

import jax
import numpy as np
from model.proofs import random_params
from training import proof_sharding as proof

from t5x_lite.__main__ import main
from t5x_lite.config import Mesh
from t5x_lite.data.store.prepare import prepare
from t5x_lite.inference.fill import fill
from t5x_lite.inference.generate import continue_texts
from t5x_lite.inference.score import score
from t5x_lite.resolve import resolve
from t5x_lite.training import run_directory
from t5x_lite.training.loop import Run

source, directory = sys.argv[1:]
directory = pathlib.Path(directory)


def create(case):
    config = proof.build(case, source, {})
    corpus = prepare(config.data, say=lambda _: None)
    resolved = resolve(config, corpus.tokenizer.vocabulary)
    params = jax.device_put(random_params(resolved.model, stddev=0.3))
    run_directory.create(directory / case, config, corpus.tokenizer, params)


def answers(loaded, case):
    \"\"\"What the model of a case says, as texts and as numbers.\"\"\"
    texts, numbers = [], []
    if case == "encoder":
        for words in fill(loaded, "the ___ sees the ___", top=3):
            texts += [word for word, _ in words]
            numbers += [probability for _, probability in words]
        numbers += [one.nats for one in score(loaded, ["the cat"])]
    else:
        prompts = ["the cat", "the dog and the bird"]
        texts += continue_texts(loaded, prompts, max_new_tokens=6)
        texts += continue_texts(loaded, prompts, max_new_tokens=4, num_beams=2)
        context = "" if case == "decoder" else "the cat"
        numbers += [one.nats for one in score(loaded, [" sees", " hears it"], context)]
    return texts, numbers


def evaluated(workdir, *options):
    with redirect_stdout(io.StringIO()) as out:
        assert main(["evaluate", f"--workdir={workdir}", "--json", *options]) == 0
    return json.loads(out.getvalue().splitlines()[-1])


def exported(workdir, name, *options):
    path = directory / name
    with redirect_stdout(io.StringIO()):
        assert main(["export", f"--workdir={workdir}", *options, str(path)]) == 0
    return {file.name: file.read_bytes() for file in path.iterdir()}


figures = {}
for case in ("encoder", "decoder", "encoder_decoder"):
    create(case)
    one = run_directory.load(directory / case)
    many = run_directory.load(directory / case, mesh=Mesh(data=2, fsdp=2, tensor=2))
    parts = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(many.params):
        parts[jax.tree_util.keystr(path)] = leaf.size // leaf.addressable_shards[0].data.size
    texts, numbers = answers(one, case)
    texts_of_many, numbers_of_many = answers(many, case)
    figures[case] = {
        "devices": len(next(iter(jax.tree.leaves(many.params))).sharding.device_set),
        "same parameters": jax.tree.all(jax.tree.map(
            lambda a, b: np.array_equal(np.asarray(a), np.asarray(b)), one.params, many.params
        )),
        "kernels in parts": min(
            count for name, count in parts.items()
            if "layers" in name and "kernel" in name or name == "['embedding']"
        ),
        "texts": [texts, texts_of_many],
        "numbers": [numbers, numbers_of_many],
    }

# A run that was trained, on one device.
workdir = directory / "run"
mesh = "--mesh=data=2,fsdp=2,tensor=2"
figures["evaluated"] = [evaluated(workdir), evaluated(workdir, mesh)]
figures["same export"] = exported(workdir, "one") == exported(workdir, "many", mesh)

# AdamW's moments lie where their parameter does, and kernels lie on four devices.
config = proof.build("encoder_decoder", source, proof.VARIANTS["8 devices"][0])
corpus = prepare(config.data)
run = Run(resolve(config, corpus.tokenizer.vocabulary), corpus)
with run.within():
    state = run.fresh_state()
is_adam = lambda state: hasattr(state, "mu")
(mu,) = (s.mu for s in jax.tree.leaves(state.opt_state, is_leaf=is_adam) if is_adam(s))
leaves = jax.tree_util.tree_leaves_with_path(state.params)
for (path, a), b in zip(leaves, jax.tree.leaves(mu), strict=True):
    assert a.sharding == b.sharding, path
    parts = a.size // a.addressable_shards[0].data.size
    name = jax.tree_util.keystr(path)
    split = 4 if "kernel" in name or name == "['embedding']" else 2 if "relative" in name else 1
    assert parts == split, (name, parts)
figures["moments"] = len(leaves)
print("FIGURES", json.dumps(figures))
"""


def test_a_model_loaded_on_a_mesh_says_what_it_says_on_one_device(trained, text_file):
    """It generates, by beams too, fills, scores, is evaluated and exported; and in training every
    parameter and its moments are split alike.
    """
    out = run_on_eight_devices(LOAD, text_file, trained.workdir.parent)
    found = json.loads(out.split("FIGURES ")[1])
    for case in ("encoder", "decoder", "encoder_decoder"):
        one = found[case]
        assert one["devices"] == 8
        assert one["same parameters"]
        assert one["kernels in parts"] == 4
        texts, texts_of_many = one["texts"]
        assert texts == texts_of_many
        assert any(texts)
        numbers, numbers_of_many = one["numbers"]
        assert numbers == pytest.approx(numbers_of_many, rel=1e-4)
    single, many = found["evaluated"]
    recorded = figures(trained.workdir)[-1]
    assert single["step"] == many["step"] == recorded["step"]
    for name in ("loss", "accuracy", "total_loss"):
        assert single[name] == pytest.approx(recorded[name], rel=1e-6)
        assert many[name] == pytest.approx(recorded[name], rel=1e-5)
    assert found["same export"]
    assert found["moments"] > 20


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mesh.tensor": 4}, "model.num_heads is 2, which mesh.tensor = 4 does not divide"),
        ({"mesh.fsdp": 3}, "does not make the 4 devices"),
        ({"data.batch_size": 6}, "data.batch_size: 6 rows"),
        (
            {"mesh.fsdp": 4, "model.d_model": 6, "model.num_heads": 1, "data.batch_size": 8},
            "model.d_model is 6",
        ),
        ({"mesh.tensor": 2, "model.d_ff": 9}, "model.d_ff is 9"),
        (
            {
                "mesh.tensor": 4,
                "model.num_heads": 4,
                "model.vocab_multiple": 1,
                "model.vocab_size": 525,
            },
            "model.vocab_size",
        ),
    ],
)
def test_what_a_mesh_does_not_divide_is_named(make, settings, words):
    resolved, _ = make(**settings)
    config = resolved.config
    with pytest.raises(UserError) as caught:
        mesh = sharding.make_mesh(config.mesh, resolved.model, jax.devices() * 4)
        sharding.check_batch(config.data.batch_size, config.training.microbatches, mesh)
    assert words in str(caught.value)
