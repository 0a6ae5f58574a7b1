"""Norms, computed in float32, or in float64 if the model is.

To add one, write a module that is made with the config and maps [..., D] → [..., D], and add its
name to NORMS below.

Shapes: D d_model.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_lite.config import ModelDimensions
from t5x_lite.model.dense import parameter_dtype, with_axes
from t5x_lite.model.parts.options import make_part


def _normalised(
    config: ModelDimensions, normalise: Callable[..., Array], x: Array, *parameters: Any
) -> Array:
    """Return normalise(x, *parameters), computed in float32 or better and rounded to the compute
    dtype.
    """

    # Keep only x for the backward pass. The rest is cheap to recompute, and would be kept three
    # times in float32.
    def rounded(x: Array, *parameters: Any) -> Array:
        return normalise(x.astype(parameter_dtype(config)), *parameters).astype(config.dtype)

    return jax.checkpoint(rounded, prevent_cse=False)(x, *parameters)


def _divided_by_rms(x: Array, epsilon: float) -> Array:
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon)


class LayerNorm(nn.Module):
    """LayerNorm (Ba et al., 2016): RMSNorm of the centred input, with a bias."""

    config: ModelDimensions

    @nn.compact
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        config, dtype, shape = self.config, parameter_dtype(self.config), (x.shape[-1],)
        scale = self.param("scale", with_axes(nn.initializers.ones, "norm"), shape, dtype)
        biases = []
        if config.bias:
            init = with_axes(nn.initializers.zeros, "norm")
            biases.append(self.param("bias", init, shape, dtype))

        def normalise(
            x: Float[Array, "*rows D"], scale: Float[Array, " D"], *biases: Float[Array, " D"]
        ) -> Float[Array, "*rows D"]:
            y = _divided_by_rms(x - x.mean(-1, keepdims=True), config.norm_epsilon) * scale
            return y + biases[0] if biases else y

        return _normalised(config, normalise, x, scale, *biases)


class RMSNorm(nn.Module):
    """RMSNorm (Zhang and Sennrich, 2019)."""

    config: ModelDimensions

    @nn.compact
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        config, dtype, shape = self.config, parameter_dtype(self.config), (x.shape[-1],)
        scale = self.param("scale", with_axes(nn.initializers.ones, "norm"), shape, dtype)

        def normalise(
            x: Float[Array, "*rows D"], scale: Float[Array, " D"]
        ) -> Float[Array, "*rows D"]:
            return _divided_by_rms(x, config.norm_epsilon) * scale

        return _normalised(config, normalise, x, scale)


class NoNorm(nn.Module):
    """The identity, for models without norms."""

    config: ModelDimensions

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        return x


NORMS = {"layer_norm": LayerNorm, "rms_norm": RMSNorm, "none": NoNorm}


def make_norm(config: ModelDimensions, **more: Any) -> Any:
    """Make the norm that config.norm names."""
    return make_part(NORMS, "norm", config, **more)
