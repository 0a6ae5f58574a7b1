"""Activation functions."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array

from t5x_lite.model.matmul import target_platform, wide_dtype

ACTIVATIONS = {
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "linear": lambda x: x,
    "elu": jax.nn.elu,
    "selu": jax.nn.selu,
    "softplus": jax.nn.softplus,
}


def softcapped(logits: Array, cap: float) -> Array:
    """Bound logits smoothly to ± cap (Bello et al., 2017, §5.1). A cap of 0 leaves them unchanged.

    >>> print(softcapped(jnp.array([0.0, 1.0, 100.0]), 2.0))
    [0.         0.92423433 2.        ]
    """
    return cap * jnp.tanh(logits / cap) if cap else logits


def activate(name: str, x: Array, gate: Array | float = 1.0) -> Array:
    """Return act(x) · gate, computed in float32 or better and rounded once. The backward pass
    recomputes it.
    """

    def activated(x: Array, gate: Array | float) -> Array:
        dtype = wide_dtype(x.dtype)
        y = ACTIVATIONS[name](x.astype(dtype)) * jnp.asarray(gate, dtype)
        return y.astype(x.dtype)

    # XLA:TPU fuses the recomputation into the neighbouring matrix products. XLA:CPU would merge it
    # with the forward computation and keep the result, unless that is prevented.
    return jax.checkpoint(activated, prevent_cse=target_platform() != "tpu")(x, gate)
