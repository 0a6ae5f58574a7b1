"""A feed-forward part with auxiliary losses, for the tests of what becomes of them."""

import jax.numpy as jnp
from flax import linen as nn

from t5x_lite.config import ModelDimensions
from t5x_lite.model.dense import parameter_dtype, with_axes
from t5x_lite.model.parts.feed_forward import MLP


class CountingMLP(nn.Module):
    """An MLP with three losses of each position that is no padding:

    tax: 3. toll: a parameter, 2 at first. size: the mean square of what comes out.
    """

    config: ModelDimensions
    splits = ("tensor", "sequence")

    @nn.nowrap
    def flops(self, stack):
        return MLP(self.config, parent=None).flops(stack)

    @nn.compact
    def __call__(self, x, context):
        y, _ = MLP(self.config, name="mlp")(x, context)
        dtype = parameter_dtype(self.config)
        toll = self.param("toll", with_axes(nn.initializers.constant(2.0), "norm"), (1,), dtype)
        is_real = (context.segments > 0).astype(dtype)
        mean_square = jnp.square(y.astype(dtype)).mean(-1)
        losses = {
            "tax": 3.0 * is_real.sum(),
            "toll": toll[0] * is_real.sum(),
            "size": (mean_square * is_real).sum(),
        }
        return y, losses
