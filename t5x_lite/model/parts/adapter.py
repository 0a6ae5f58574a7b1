"""Bottleneck adapters, which adapt a frozen model to a task."""

import flax.linen as nn
from jaxtyping import Array, Float

from t5x_lite.config import ModelDimensions
from t5x_lite.model.dense import normal, parameter_dtype, with_axes
from t5x_lite.model.matmul import matmul
from t5x_lite.model.parts.activations import activate


class Adapter(nn.Module):
    """Bottleneck y + act(y U) V (Houlsby et al., 2019), which starts as the identity."""

    config: ModelDimensions

    @nn.compact
    def __call__(self, y: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        config, dtype = self.config, parameter_dtype(self.config)
        width, size = y.shape[-1], config.adapter_size
        init, zeros = normal(config.init_stddev), nn.initializers.zeros
        down = self.param("down", with_axes(init, "embed", "adapter"), (width, size), dtype)
        down_bias = self.param("down_bias", with_axes(zeros, "adapter"), (size,), dtype)
        up = self.param("up", with_axes(zeros, "adapter", "embed"), (size, width), dtype)
        up_bias = self.param("up_bias", with_axes(zeros, "embed"), (width,), dtype)
        inner = matmul(y, down) + down_bias
        inner = activate(config.activation, inner.astype(y.dtype))
        return y + (matmul(inner, up) + up_bias).astype(y.dtype)
