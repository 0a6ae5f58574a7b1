"""Feed-forward parts of a block.

Shapes: B rows, T positions, D d_model, F d_ff.
"""

from collections.abc import Iterator
from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float

from t5x_lite.config import ModelDimensions
from t5x_lite.model.dense import Dense, Written
from t5x_lite.model.dropout import Dropout
from t5x_lite.model.parts.activations import activate
from t5x_lite.model.parts.contract import Auxiliary, Setting, StackShape


class MLP(nn.Module):
    """A feed-forward part with one hidden layer, act(x U) V."""

    config: ModelDimensions
    splits = ("tensor", "sequence")
    matrices = 2

    @nn.compact
    def __call__(self, x_BTD: Float[Array, "B T D"], context: Any) -> tuple[Written, Auxiliary]:
        config = self.config
        x_BTF = Dense(config, config.d_ff, ("embed", "mlp"), name="wi")(x_BTD)
        x_BTF = activate(config.activation, x_BTF)
        return project_back(config, x_BTF, context), {}

    @nn.nowrap
    def flops(self, stack: StackShape) -> float:
        """Count the matrices; see contract.Part."""
        config = self.config
        return 2.0 * self.matrices * stack.positions * config.d_model * config.d_ff

    @nn.nowrap
    def contradictions(self, setting: Setting) -> Iterator[str]:
        """Yield a message per setting that it cannot work with, as contract.Part says."""
        yield from undivided_d_ff(setting)


class GatedMLP(MLP):
    """(act(x U) * x W) V (Shazeer, 2020; sigmoid: GLU, relu: ReGLU, gelu: GEGLU, silu: SwiGLU,
    linear: bilinear).
    """

    matrices = 3

    @nn.compact
    def __call__(self, x_BTD: Float[Array, "B T D"], context: Any) -> tuple[Written, Auxiliary]:
        config = self.config
        x_BTF = Dense(config, config.d_ff, ("embed", "mlp"), name="wi")(x_BTD)
        gate_BTF = Dense(config, config.d_ff, ("embed", "mlp"), name="gate")(x_BTD)
        x_BTF = activate(config.activation, x_BTF, gate_BTF)
        return project_back(config, x_BTF, context), {}


def project_back(config: ModelDimensions, x_BTF: Float[Array, "B T F"], context: Any) -> Written:
    """Apply dropout and the second matrix, which writes to the residual stream. Call it inside a
    compact method.
    """
    # Places among all features, since each device of `tensor` has only a part of them.
    places = context.noise.own_places(x_BTF.shape[2])
    x_BTF = Dropout(config.ff_dropout, axis=2)(x_BTF, context.noise, places)
    write = Dense(
        config, config.d_model, ("mlp", "embed"), writes_to_stream=True, is_last=True, name="wo"
    )
    return write(x_BTF)


def undivided_d_ff(setting: Setting) -> Iterator[str]:
    """Yield one message per incompatible setting, for a part whose features `tensor` splits."""
    config, mesh = setting.config, setting.mesh
    if config.d_ff % mesh.tensor:
        yield f"model.d_ff is {config.d_ff}, which mesh.tensor = {mesh.tensor} does not divide"
    if config.ff_dropout and mesh.sequence > 1:
        reason = f"cannot be split over mesh.sequence = {mesh.sequence}"
        yield f"model.ff_dropout: {reason}; set mesh.sequence to 1"
