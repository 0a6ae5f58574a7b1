import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.model import matmul as module
from t5x_lite.model.matmul import matmul, matmul_transposed


def by_transposed(x, w):
    """x times w, by the product with the transpose of what is stored."""
    return matmul_transposed(x, w.swapaxes(-1, -2))


@pytest.mark.parametrize("multiply", [matmul, by_transposed])
@pytest.mark.parametrize(("n", "d", "f"), [(64, 24, 40), (64, 40, 24), (3, 5, 7)])
def test_products_sum_in_float32_and_so_do_their_gradients(n, d, f, multiply):
    """Against the exact product of the same bfloat16 operands; with both sides the narrower one,
    and few of each.
    """
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(2, n, d), (2, d, f), (2, n, f)]
    x, w, dy = (jax.random.normal(*drawn) for drawn in zip(keys, shapes, strict=True))
    x = x.astype(jnp.bfloat16)
    y, pull = jax.vjp(jax.jit(multiply), x, w)
    dx, dw = pull(dy)
    assert (y.dtype, dx.dtype, dw.dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)
    x, w, dy = (np.asarray(a.astype(jnp.bfloat16), np.float64) for a in (x, w, dy))
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(y, x @ w, **close)
    np.testing.assert_allclose(dw, x.swapaxes(1, 2) @ dy, **close)
    expected_dx = dy @ w.swapaxes(1, 2)
    np.testing.assert_allclose(np.asarray(dx, np.float64), expected_dx, rtol=2**-8, atol=1e-5)


# Shapes of x and w: flat rows, rows of a batch, few rows, and a product of a batch of matrices.
SHAPES = {
    "flat": ((48, 12), (12, 20)),
    "batched rows": ((2, 24, 20), (20, 12)),
    "few rows": ((3, 12), (12, 20)),
    "one row of a batch": ((3, 1, 12), (12, 20)),
    "batched matrices": ((2, 3, 16, 12), (2, 3, 12, 20)),
}
# How far a derivative is from the exact one, relative to the largest entry.
ROUNDING = {"float32": 1e-5, "bfloat16": 2**-7}


def operands(shapes, dtype):
    """x and w, and a direction of each; w is a parameter, in float32."""
    keys = jax.random.split(jax.random.key(1), 4)
    x, w, dx, dw = (jax.random.normal(*drawn) for drawn in zip(keys, shapes * 2, strict=True))
    return (x.astype(dtype), w), (dx.astype(dtype), dw)


def dot(a, b) -> float:
    """The inner product of two trees, in float64."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return sum(
        float(np.vdot(np.asarray(x, np.float64), np.asarray(y, np.float64))) for x, y in pairs
    )


@pytest.mark.parametrize("multiply", [matmul, by_transposed])
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("shapes", SHAPES)
def test_forward_derivatives_are_those_of_reverse_mode(multiply, dtype, shapes):
    """jvp and linearize agree with the exact derivative dx w + x dw, and ⟨u, J v⟩ = ⟨Jᵀ u, v⟩."""
    primals, tangents = operands(SHAPES[shapes], dtype)
    y, dy = jax.jvp(multiply, primals, tangents)
    _, linear = jax.linearize(multiply, *primals)
    # What is multiplied is of the type of the computation.
    x, w, dx, dw = (np.asarray(a.astype(dtype), np.float64) for a in (*primals, *tangents))
    exact = dx @ w + x @ dw
    tolerance = 1e-5 * np.abs(exact).max()
    np.testing.assert_allclose(y, x @ w, atol=1e-5 * np.abs(x @ w).max(), rtol=0)
    np.testing.assert_allclose(dy, exact, atol=tolerance, rtol=0)
    np.testing.assert_allclose(linear(*tangents), exact, atol=tolerance, rtol=0)
    assert y.dtype == dy.dtype == jnp.float32

    u = jax.random.normal(jax.random.key(2), y.shape)
    _, pull = jax.vjp(multiply, *primals)
    size = np.sqrt(dot(u, u) * dot(exact, exact))
    assert dot(u, dy) == pytest.approx(dot(pull(u), tangents), abs=ROUNDING[dtype] * size)


@pytest.mark.parametrize("multiply", [matmul, by_transposed])
@pytest.mark.parametrize("shapes", SHAPES)
def test_derivatives_in_float64_are_finite_differences(multiply, shapes):
    """Of float64 itself, and of float32 against it."""
    with jax.enable_x64(True):
        (x, w), (dx, dw) = jax.tree.map(
            lambda a: a.astype(jnp.float64), operands(SHAPES[shapes], "float32")
        )
        step = 1e-3  # the product is quadratic in (x, w): central differences are exact
        ahead, back = (multiply(x + e * dx, w + e * dw) for e in (step, -step))
        expected = (ahead - back) / (2 * step)
        _, dy = jax.jvp(multiply, (x, w), (dx, dw))
        assert dy.dtype == jnp.float64
        np.testing.assert_allclose(dy, expected, rtol=1e-9, atol=1e-9)
        single = [a.astype(jnp.float32) for a in (x, w, dx, dw)]
        _, dy = jax.jvp(multiply, tuple(single[:2]), tuple(single[2:]))
        np.testing.assert_allclose(dy, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("multiply", [matmul, by_transposed])
def test_rows_of_a_batch_are_rows_of_one_matrix(multiply, dtype, platform, monkeypatch):
    """[B, T, D] gives what [B · T, D] gives: the product, its tangent and its gradients; also where
    it is not flattened first, as for a TPU.
    """
    monkeypatch.setattr(module, "target_platform", lambda: platform)
    with jax.enable_x64(dtype == "float64"):
        (x, w), (dx, dw) = operands(((4, 20, 12), (12, 16)), dtype)
        w, dw = (a.astype(jnp.promote_types(dtype, "float32")) for a in (w, dw))
        u = jax.random.normal(jax.random.key(2), (4, 20, 16)).astype(w.dtype)

        def everything(x, dx, u):
            y, dy = jax.jvp(multiply, (x, w), (dx, dw))
            for_x, for_w = jax.vjp(multiply, x, w)[1](u)
            return [a.reshape(-1, a.shape[-1]) for a in (y, dy, for_x, for_w)]

        batched = everything(x, dx, u)
        flat = everything(*(a.reshape(-1, a.shape[-1]) for a in (x, dx, u)))
        row, same_row = (everything(*(a[at] for a in (x, dx, u))) for at in ((0, 0), (0, slice(1))))
        for one, other in zip(batched + row, flat + same_row, strict=True):
            assert one.dtype == other.dtype
            one, other = (np.asarray(a, np.float64) for a in (one, other))
            rounding = 0 if platform == "cpu" else 1e-5  # sums in another order
            np.testing.assert_allclose(one, other, rtol=rounding, atol=rounding)
