"""An LSTM instead of attention: its memory is two vectors, however long the text is.

Shapes: B rows, T positions, D d_model, C cells, G the four gates of all cells, 4 × C.
"""

from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from t5x_lite.config import ModelDimensions
from t5x_lite.config.ranges import NonNegative
from t5x_lite.model.dense import Dense, parameter_dtype, with_axes
from t5x_lite.model.parts.contract import Auxiliary, Setting, StackShape
from t5x_lite.model.parts.norms import make_norm

# Added to the forget gate, so that a fresh LSTM remembers (Jozefowicz et al., 2015, §2.2).
FORGET_BIAS = 1.0


class LSTMState(struct.PyTreeNode):
    """The state of one direction after the tokens it has read."""

    cells: Float[Array, "B C"]  # at least float32, even if the compute dtype is narrower
    output: Float[Array, "B D"]


class Direction(nn.Module):
    """One LSTM (Hochreiter and Schmidhuber, 1997), with forget gates, an output projected to
    d_model (LSTMP: Sak et al., 2014, §2), and gates and cells normalised (Ba et al., 2016, eqs. 20
    to 22) with config.norm.
    """

    config: ModelDimensions
    cells: int

    def setup(self) -> None:
        config = self.config
        gates = 4 * self.cells
        self.inputs = Dense(config, gates, ("embed", "cells"), use_bias=False)
        self.recurrent = Dense(config, gates, ("embed", "cells"), use_bias=False)
        self.projection = Dense(
            config, config.d_model, ("cells", "embed"), writes_to_stream=True, use_bias=False
        )
        self.inputs_norm = make_norm(config)
        self.recurrent_norm = make_norm(config)
        self.cells_norm = make_norm(config)
        if config.bias:
            zeros = with_axes(nn.initializers.zeros, "cells")
            self.bias = self.param("bias", zeros, (gates,), parameter_dtype(config))

    def __call__(
        self,
        x_BTD: Float[Array, "B T D"],
        state: LSTMState,
        is_start: Bool[Array, "B T"],
        is_real: Bool[Array, "B T"],
        backward: bool = False,
    ) -> tuple[Float[Array, "B T D"], LSTMState]:
        """Read T tokens, and return the outputs and the state after the last.

        Args:
            is_start: True for the first token of a segment in reading order, where the state is
                reset.
            is_real: False for padding, which leaves the state unchanged.
            backward: read from the last token to the first.
        """
        # The tokens' term of the gates does not depend on the state: one product computes it for
        # all tokens.
        gates_BTG = self.inputs_norm(self.inputs(x_BTD))
        if self.config.bias:
            gates_BTG += self.bias.astype(gates_BTG.dtype)
        over_positions: Any = nn.scan(
            Direction.read_one,
            variable_broadcast=("params", "transposed"),
            split_rngs={"params": False, "dropout": False},
            in_axes=1,
            out_axes=1,
            reverse=backward,
        )
        state, outputs_BTD = over_positions(self, state, (gates_BTG, is_start, is_real))
        return outputs_BTD, state

    def read_one(self, state: LSTMState, token: Any) -> tuple[LSTMState, Float[Array, "B D"]]:
        """Read one token of each row, and return the updated state and the output."""
        gates_BG, is_start, is_real = token
        # A segment starts with zero cells and no previous output.
        before = jax.tree.map(lambda x: jnp.where(is_start[:, None], 0, x), state)
        gates_BG += self.recurrent_norm(self.recurrent(before.output))

        # The four gates of a cell are adjacent: input, forget, candidate and output gate.
        gates_BC4 = gates_BG.reshape(len(gates_BG), -1, 4).astype(state.cells.dtype)
        write_BC, forget_BC, new_BC, read_BC = jnp.moveaxis(gates_BC4, -1, 0)
        cells_BC = nn.sigmoid(forget_BC + FORGET_BIAS) * before.cells
        cells_BC += nn.sigmoid(write_BC) * jnp.tanh(new_BC)
        hidden_BC = nn.sigmoid(read_BC) * jnp.tanh(self.cells_norm(cells_BC))
        after = LSTMState(cells_BC, self.projection(hidden_BC).astype(self.config.dtype))

        # Padding leaves the state unchanged.
        state = jax.tree.map(lambda new, old: jnp.where(is_real[:, None], new, old), after, state)
        return state, after.output


class LSTM(nn.Module):
    """The LSTM mixer: one direction in a decoder, and two in an encoder, whose outputs are added.
    It needs a row from start to end, so it runs whole on each device.

    Attributes:
        cells: number of cells per direction, projected to d_model; 0: d_model.
    """

    config: ModelDimensions
    cells: NonNegative = 0
    splits = ()

    def setup(self) -> None:
        self.forward = Direction(self.config, self._cells)
        self.backward = Direction(self.config, self._cells)

    @property
    def _cells(self) -> int:
        return self.cells or self.config.d_model

    def __call__(
        self, x_BTD: Float[Array, "B T D"], context: Any
    ) -> tuple[Float[Array, "B T D"], Auxiliary]:
        """Read whole rows. context is a blocks.StackContext."""
        nothing = self.initial_state(len(x_BTD), 0)
        outputs_BTD, _ = self.prefill(x_BTD, nothing, context)
        # An encoder also reads backward, where a segment starts with its last token.
        if not context.mask.causal:
            segments = context.segments
            is_last = jnp.diff(segments, append=0) != 0
            backward_BTD, _ = self.backward(x_BTD, nothing, is_last, segments > 0, backward=True)
            outputs_BTD += backward_BTD
        return outputs_BTD, {}

    def initial_state(self, rows: int, slots: int) -> LSTMState:
        """Return a state of zeros. Its size does not depend on the number of tokens."""
        config = self.config
        cells = jnp.zeros((rows, self._cells), parameter_dtype(config))
        return LSTMState(cells, jnp.zeros((rows, config.d_model), config.dtype))

    def prefill(
        self, x_BTD: Float[Array, "B T D"], state: LSTMState, context: Any
    ) -> tuple[Float[Array, "B T D"], LSTMState]:
        """Read T tokens, some of which may be padding."""
        is_start = context.positions == 0  # positions restart in each segment
        return self.forward(x_BTD, state, is_start, context.segments > 0)

    step = prefill  # a single token is a prompt of length 1

    @nn.nowrap
    def flops(self, stack: StackShape) -> float:
        """Count the gates' products with the token and the previous output, and the projection; see
        contract.Part.
        """
        directions = 2 if stack.bidirectional else 1
        products = (2 * 4 + 1) * self.config.d_model * self._cells
        return 2.0 * directions * stack.positions * products

    @nn.nowrap
    def contradictions(self, setting: Setting) -> Iterator[str]:
        """Yield a message per setting that it cannot work with, as contract.Part says."""
        config = setting.config
        if config.architecture == "prefix_decoder":
            yield "model.mixer=lstm: reads a prefix one way only; use architecture decoder"
        if setting.rows.looks_ahead:
            reason = "got lstm, which reads one way, but the objective looks ahead"
            yield f"model.mixer: {reason}; set attention, or causal_lm"
        if config.shared_stacks:
            yield "model.shared_stacks: an LSTM reads both ways in encoders only; set it to False"
        if config.prefix_length:
            yield "model.prefix_length: mixer lstm has no keys and values; adapt in another way"
