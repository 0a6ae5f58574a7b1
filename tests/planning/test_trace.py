"""What is read from a traced program, against closed forms and against compiled programs."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from conftest import ROOT, slow, with_devices

from t5x_lite.planning import trace as traced

N = 256
MATRIX = 4 * N * N


def step_of(function, *arguments):
    return traced.of_device(jax.make_jaxpr(function)(*arguments))


def of_matrices(count):
    return [jax.ShapeDtypeStruct((N, N), jnp.float32)] * count


def test_products_are_written_and_what_is_elementwise_is_not():
    # Two products at a time: the second is being written while the first is read.
    assert step_of(lambda x: jnp.tanh(x @ x) @ x, *of_matrices(1)).peak == 2 * MATRIX
    assert step_of(lambda x, y: jnp.tanh(x) + y * 2, *of_matrices(2)).peak == MATRIX
    # A sum of what is elementwise writes a number alone.
    assert step_of(lambda x: jnp.exp(x).sum(), *of_matrices(1)).peak == 4


def test_memory_is_in_use_until_it_is_read_last():
    def chain(x):
        first = x @ x
        for _ in range(5):
            x = x @ x
        return first @ x

    # The first, and two of the chain at a time.
    assert step_of(chain, *of_matrices(1)).peak == 3 * MATRIX


def test_what_is_computed_from_memory_keeps_it_in_use():
    def late(x):
        first = x @ x
        both = first * jnp.cos(first)  # not written: `first` stays
        return (x @ x @ x @ x) + both

    def never(x):
        return x @ x @ x @ x

    assert step_of(late, *of_matrices(1)).peak == step_of(never, *of_matrices(1)).peak + MATRIX


@pytest.mark.parametrize("remat", [False, True])
def test_a_loop_over_layers_keeps_what_its_backward_pass_reads(remat):
    layers = 12

    def layer(x, w):
        return jnp.tanh(x @ w) @ w, None

    def loss(w, x):
        body = jax.checkpoint(layer) if remat else layer
        return jax.lax.scan(body, x, w)[0].sum()

    weights = jax.ShapeDtypeStruct((layers, N, N), jnp.float32)
    step = step_of(jax.grad(loss), weights, *of_matrices(1))
    kept = [v for v in step.alive if v.operation == "scan" and v.size == layers * MATRIX]
    # The gradient, and of each layer its input; without remat also what tanh returned, and 1 minus
    # that, which jax keeps too.
    assert len(kept) == (2 if remat else 4)
    assert len(kept) * layers * MATRIX < step.peak < (len(kept) * layers + 8) * MATRIX


def test_bytes_that_move_are_those_of_operands_and_results():
    assert step_of(lambda x, y: x @ y, *of_matrices(2)).moved == 3 * MATRIX
    looped = step_of(lambda x: jax.lax.fori_loop(0, 7, lambda _, y: y @ y, x), *of_matrices(1))
    assert looped.moved == 7 * 2 * MATRIX


def test_what_nobody_reads_costs_nothing():
    def wasteful(x):
        unread = x @ x
        return unread.shape[0] * x

    assert step_of(wasteful, *of_matrices(1)).moved <= 2 * MATRIX


COMPARE = """
import json, sys
import jax
from t5x_lite.config.files import load
from t5x_lite.hardware import parse_topology
from t5x_lite.resolve import resolve_without_text
from t5x_lite.planning import traffic as inventory
from t5x_lite.planning import trace as traced
from t5x_lite.training.program import Program
resolved = resolve_without_text(load(sys.argv[1], sys.argv[2:]))
here = Program(resolved, 1.0)
sent = inventory.by_axis(inventory.collectives(here.trace().lower().compile().as_text(), here.mesh))
planned = Program(resolved, 1.0, parse_topology("cpu:8").devices)
step = traced.of_device(planned.trace().jaxpr)
found = dict.fromkeys(sent, 0)
for axes, size in step.sent.items():
    found[" × ".join(axis for axis in axes if here.mesh.shape[axis] > 1)] += size
print("FOUND", json.dumps([sent, found]))
"""


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        slow("gpt_tiny", ["mesh.fsdp=8"]),
        slow("t5_tiny", ["mesh.fsdp=2", "mesh.data=4"]),
        slow("bert_tiny", ["mesh.fsdp=4", "mesh.tensor=2"]),
        ("gpt_tiny", ["mesh.sequence=2", "mesh.fsdp=4"]),
    ],
)
def test_what_is_sent_is_what_the_compiled_program_sends(config, settings):
    settings = ["model.scan=True", "data.batch_size=8", *settings]
    command = [sys.executable, "-c", COMPARE, config, *settings]
    out = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, env=with_devices(8)
    ).stdout
    compiled, found = json.loads(out.split("FOUND ")[1])
    assert sum(found.values()) == pytest.approx(sum(compiled.values()), rel=0.03)
    for axis, sent in compiled.items():
        if sent > 0.05 * sum(compiled.values()):
            assert found[axis] == pytest.approx(sent, rel=0.05)
