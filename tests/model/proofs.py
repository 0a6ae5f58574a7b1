"""What the proofs of the model share: small models, random parameters, finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from t5x_lite.config import Model, ModelDimensions
from t5x_lite.model import transformer
from t5x_lite.model.blocks import StackContext
from t5x_lite.model.dropout import Noise
from t5x_lite.model.masks import AttentionMask
from t5x_lite.model.transformer import parameter_shapes
from t5x_lite.resolve import resolve_model

SMALL = {
    "d_model": 6,
    "num_heads": 2,
    "num_layers": 2,
    "vocab_multiple": 4,
    "d_ff": 7,
    "dtype": "float64",
    "init_stddev": 0.5,
    "embedding_stddev": 0.5,
}
# Two rows of five positions: one packed with two segments, one with padding.
SEGMENTS = jnp.array([[1, 1, 1, 2, 2], [1, 1, 1, 1, 0]])
POSITIONS = jnp.array([[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]])
MASK = AttentionMask(SEGMENTS, SEGMENTS, causal=True, packed=True)
QUIET = Noise(jnp.arange(2))  # no dropout
ROW = {"decoder_tokens": SEGMENTS, "decoder_segments": SEGMENTS, "decoder_positions": POSITIONS}


# Compiled once for each model and each shape. It does not notice parts that a test exchanges.
apply = jax.jit(transformer.apply, static_argnums=0)


def small(**settings) -> ModelDimensions:
    """A model of 11 ids and 5 positions, in float64 unless told otherwise."""
    return resolve_model(Model(**{**SMALL, **settings}), vocab_size=11, max_length=5)


def context(encoded=None) -> StackContext:
    """What the blocks of a stack share on those two rows."""
    cross = {}
    if encoded is not None:
        cross = {"cross_mask": MASK, "cross_mask_bias": MASK.bias(), "encoded": encoded}
    return StackContext(SEGMENTS, POSITIONS, MASK, MASK.bias(), QUIET, **cross)


def draw(shapes, seed: int = 0, stddev: float = 0.5):
    """Random arrays of those shapes: parameters that start at 0 or 1 would hide mistakes. Drawn by
    numpy, since nothing has to be compiled for it.
    """
    rng = np.random.default_rng(seed)

    def draw_leaf(leaf):
        return jnp.asarray((stddev * rng.normal(size=leaf.shape)).astype(leaf.dtype))

    return jax.tree.map(draw_leaf, shapes)


def random_params(model: ModelDimensions, seed: int = 0, stddev: float = 0.5):
    """Random parameters of a whole model."""
    return draw(parameter_shapes(model), seed, stddev)


def check_gradient(f, arguments, rtol: float = 1e-5, atol: float = 1e-7) -> None:
    """The gradient of f [float64] is that of central differences, along a random direction of each
    array of its argument alone; and each of them matters.
    """
    value_and_grad = jax.jit(jax.value_and_grad(f))
    _, gradient = value_and_grad(arguments)
    leaves, tree = jax.tree.flatten(arguments)
    rng, step = np.random.default_rng(3), 1e-5
    for number, (path, slope) in enumerate(jax.tree_util.tree_leaves_with_path(gradient)):
        assert (slope != 0).any(), path
        leaf = leaves[number]
        direction = rng.normal(size=leaf.shape)

        def moved(by, number=number, leaf=leaf, direction=direction):
            there = [*leaves[:number], leaf + by * direction, *leaves[number + 1 :]]
            return float(value_and_grad(jax.tree.unflatten(tree, there))[0])

        expected = (moved(step) - moved(-step)) / (2 * step)
        found = float((slope * direction).sum())
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=str(path))


def check_gradients(module: nn.Module, call) -> None:
    """The gradient of sin(call(module, x)) by every parameter and by x [2, 5, 6] is that of finite
    differences.
    """
    with jax.enable_x64(True):
        x = draw(jax.ShapeDtypeStruct((2, 5, 6), jnp.float64), seed=1, stddev=1.0)
        variables = draw(
            jax.eval_shape(lambda: nn.meta.unbox(module.init(jax.random.key(0), x, method=call)))
        )

        def f(arguments):
            variables, x = arguments
            return jnp.sin(module.apply(variables, x, method=call)).sum()

        check_gradient(f, (variables, x))
