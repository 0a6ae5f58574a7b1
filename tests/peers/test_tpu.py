"""Splash attention, forward and backward, through the compiler of TPUs, for one and for four; no
TPU is needed.
"""

import os

import jax
import jax.numpy as jnp
import pytest
from conftest import USERS_FLAGS
from flax import linen as nn
from jax.sharding import NamedSharding

pytest.importorskip("libtpu", reason="make test-peers has it")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

from jax.experimental import topologies

from t5x_lite.config import Mesh, Model
from t5x_lite.model import kernels
from t5x_lite.model.masks import AttentionMask
from t5x_lite.resolve import resolve_model
from t5x_lite.training import sharding

ONE_DEVICE = Mesh()
FOUR_DEVICES = Mesh(tensor=2, fsdp=2)


@pytest.mark.parametrize("mesh", [ONE_DEVICE, FOUR_DEVICES], ids=["one device", "four devices"])
@pytest.mark.parametrize("causal", [False, True])
def test_splash_attention_compiles(mesh, causal, monkeypatch):
    # The TPU's library reads this too, and ends the process at a flag that only CPUs have.
    monkeypatch.setenv("XLA_FLAGS", USERS_FLAGS)
    devices = topologies.get_topology_desc("v5e:2x2", platform="tpu").devices
    if mesh is ONE_DEVICE:
        devices = devices[:1]
    model = resolve_model(Model(num_heads=4, num_kv_heads=2), vocab_size=256, max_length=256)
    device_mesh = sharding.make_mesh(mesh, model, devices)

    def loss(q, k, v, segments):
        mask = AttentionMask(segments, segments, causal=causal, packed=True)
        return kernels.splash(q, k, v, mask).astype(jnp.float32).sum()

    def abstract(shape, dtype, *axes):
        spec = nn.logical_to_mesh_axes(axes, sharding.rules(model, mesh.tensor))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(device_mesh, spec))

    q = abstract((4, 4, 256, 64), jnp.bfloat16, "batch", "heads", None, None)
    kv = abstract((4, 2, 256, 64), jnp.bfloat16, "batch", "heads", None, None)
    segments = abstract((4, 256), jnp.int32, "batch", None)
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
    with sharding.use_mesh(device_mesh, model):
        program = gradients.lower(q, kv, kv, segments).compile().as_text()
    assert "splash" in program
