"""What only a GPU can show: JAX_PLATFORMS=cuda pytest tests/model/test_gpu.py"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model.proofs import random_params
from model.test_kernels import MASKS, drawn

from t5x_lite.config import Model
from t5x_lite.model import kernels
from t5x_lite.model.matmul import matmul
from t5x_lite.model.transformer import apply
from t5x_lite.parallel.mesh import use_mesh
from t5x_lite.resolve import resolve_model

if jax.default_backend() != "gpu":
    pytest.skip("needs a GPU", allow_module_level=True)


def relative_error(found, expected) -> float:
    """‖found − expected‖ / ‖expected‖."""
    found, expected = (np.asarray(x, np.float64) for x in (found, expected))
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("length", "groups", "head_dim"), [(114, 4, 64), (256, 4, 64), (256, 2, 64), (512, 1, 128)]
)
def test_cudnn_computes_the_reference(length, groups, head_dim, has_bias, kind):
    """Values and gradients, of numbers that bfloat16 has exactly."""
    qkv, mask, is_real = drawn(kind, length, groups, head_dim)
    qkv = [x.astype(jnp.bfloat16) for x in qkv]
    qkv[0] *= head_dim**-0.5
    draws = iter(jax.random.split(jax.random.key(0)))
    bias = jax.random.normal(next(draws), (1, 4, length, length), jnp.bfloat16)
    weights = jax.random.normal(next(draws), qkv[0].shape)

    def total(kernel, q, k, v, bias):
        y = kernel(q, k, v, mask, bias if has_bias else None)
        y = jnp.where(is_real, y.astype(jnp.float32), 0)
        return (weights * y).sum(), y

    def computed(kernel, *arrays):
        which = (0, 1, 2, 3) if has_bias else (0, 1, 2)
        program = jax.value_and_grad(partial(total, kernel), which, has_aux=True)
        (_, y), gradients = jax.jit(program)(*arrays)
        return [y, *gradients]

    found = computed(kernels.cudnn, *qkv, bias)
    with jax.default_matmul_precision("highest"):
        wide = [x.astype(jnp.float32) for x in (*qkv, bias)]
        expected = computed(kernels.reference, *wide)
    for name, a, b in zip(("y", "q", "k", "v", "bias"), found, expected, strict=False):
        assert relative_error(a, b) < 0.01, name


def test_a_product_in_float32_is_not_rounded_to_less():
    """Tensor cores round float32 to TF32, which has the digits of half precision."""
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=(512, 512)) for _ in range(2))
    model = resolve_model(Model(), vocab_size=100, max_length=8)
    with use_mesh(None, model):
        found = jax.jit(matmul)(jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32))
    assert relative_error(found, x @ w) < 1e-6


STACKS = {
    "encoder": {"architecture": "encoder"},
    "decoder": {"architecture": "decoder"},
    "prefix decoder": {"architecture": "prefix_decoder"},
    "relative positions": {"architecture": "encoder", "positions": "relative"},
    "alibi": {"positions": "alibi"},
    "rotary, grouped": {"positions": "rotary", "num_kv_heads": 1},
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", STACKS)
def test_a_model_computes_with_cudnn_what_it_does_without(name, packed):
    """In bfloat16, beside float32 with the plain kernel: last hidden states, and gradients."""
    settings = {"num_heads": 2, "d_model": 128, "num_layers": 2, "init_stddev": 0.1}
    settings |= STACKS[name]
    length = 256
    segments = np.ones((2, length), np.int32)
    segments[1, 200:] = 0
    if packed:
        segments[0, 100:] = 2
    stack = "encoder" if settings.get("architecture") == "encoder" else "decoder"
    rng = np.random.default_rng(0)
    row = {
        "tokens": rng.integers(1, 100, (2, length)),
        "segments": segments,
        "positions": np.tile(np.arange(length), (2, 1)),
    }
    if settings.get("architecture") == "prefix_decoder":
        row["prefix"] = (np.arange(length) < 50) & (segments == 1)
    batch = {f"{stack}_{key}": jnp.asarray(value) for key, value in row.items()}

    def computed(dtype, kernel):
        model = Model(**settings, dtype=dtype, attention_kernel=kernel)
        config = resolve_model(model, vocab_size=100, max_length=length)
        params = random_params(config, stddev=0.1)

        def total(params):
            hidden_BTD = apply(config, params, batch, packed).hidden_states
            is_real = (segments > 0)[..., None]
            return (jnp.sin(hidden_BTD.astype(jnp.float32)) * is_real).sum()

        return jax.jit(jax.value_and_grad(total))(params)

    value, gradient = computed("bfloat16", "cudnn")
    with jax.default_matmul_precision("highest"):
        expected_value, expected_gradient = computed("float32", "plain")
    flat, expected_flat = (
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
        for tree in (gradient, expected_gradient)
    )
    assert relative_error(flat, expected_flat) < 0.05
    assert float(value) == pytest.approx(float(expected_value), abs=0.05 * segments.size)
