"""A mixer that is no attention, for the tests of what any mixer must be able to do."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_lite.config import ModelDimensions
from t5x_lite.model.layers import Dense


class LSTM(nn.Module):
    """A long short-term memory (Hochreiter and Schmidhuber, 1997, with forget gates), which starts
    anew with each segment; what it keeps is its state.
    """

    config: ModelDimensions

    def setup(self):
        config = self.config
        self.inputs = Dense(config, 4 * config.d_model, ("embed", "mlp"))
        self.recurrent = Dense(config, 4 * config.d_model, ("embed", "mlp"), use_bias=False)
        self.out = Dense(config, config.d_model, ("heads", "embed"), writes_to_stream=True)

    def __call__(self, x, context):
        y, _ = self.prefill(x, self.initial_state(len(x), 0), context)
        return y, {}

    def initial_state(self, rows, slots):
        zeros = jnp.zeros((rows, self.config.d_model), self.config.dtype)
        return {"cell": zeros, "hidden": zeros}

    def prefill(self, x, state, context):
        is_real = context.segments > 0
        is_start = is_real & (context.positions == 0)
        scan = nn.scan(
            LSTM._read_one,
            variable_broadcast=("params", "transposed"),
            split_rngs={"params": False, "dropout": False},
            in_axes=1,
            out_axes=1,
        )
        state, hidden = scan(self, state, (self.inputs(x), is_start, is_real))
        return self.out(hidden), state

    step = prefill

    def _read_one(self, state, position):
        gates, is_start, is_real = position
        before = jax.tree.map(lambda x: jnp.where(is_start[:, None], 0, x), state)
        i, f, g, o = jnp.split(gates + self.recurrent(before["hidden"]), 4, -1)
        cell = jax.nn.sigmoid(f) * before["cell"] + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        after = {"cell": cell, "hidden": hidden}
        after = jax.tree.map(lambda new, old: jnp.where(is_real[:, None], new, old), after, state)
        return after, hidden
