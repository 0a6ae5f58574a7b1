"""The interface of the parts of a block: mixers and feed-forward parts. Each part describes itself:
its cost, the settings that it cannot work with, and how devices may share it. Nothing about a part
is written down anywhere else.

A part is a flax module that is made with the config and its own options, and written as if for one
device. If several devices share a model, the block gathers the part's inputs and scatters its
outputs:

    splits = ()                       the part runs whole on each device: it sees all positions and
                                      the full config
    splits = ("tensor", …)            its config has only this device's heads and part of d_ff; its
                                      output is one term of a sum over these devices
    splits = ("sequence", …)          it sees only this device's positions (see Mixer.memory)
    splits = ("expert", …)            each device has its own experts (see Experts in experts.py)
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from t5x_lite.config import Mesh, ModelDimensions
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.model.dense import Written


class Measured(NamedTuple):
    """A mean that a part measures, which is logged but not minimised.

    Attributes:
        total, weight: both are summed over layers, devices and batches; the mean is total / weight.
    """

    total: Array
    weight: Array


# By name: auxiliary losses, each summed over non-padding positions, and measured means.
Auxiliary = dict[str, Array | Measured]


def add_auxiliary(a: Auxiliary, b: Auxiliary) -> Auxiliary:
    """Add the losses of two parts of a model by name.

    >>> from jax.numpy import array
    >>> one, two = array(1.0), array(2.0)
    >>> losses = add_auxiliary({"balance": one}, {"balance": two, "z": two})
    >>> {name: float(loss) for name, loss in losses.items()}
    {'balance': 3.0, 'z': 2.0}
    """
    total = dict(a)
    for name, loss in b.items():
        total[name] = jax.tree.map(jnp.add, total[name], loss) if name in total else loss
    return total


class StackShape(NamedTuple):
    """The properties of one stack of a row that the cost of a part depends on.

    Attributes:
        positions: number of positions in the stack.
        visible: mean number of keys that a query of self-attention may see: about half of the
            positions if it is causal.
        bidirectional: True if a position may see later ones.
    """

    positions: int
    visible: float | int
    bidirectional: bool


class Setting(NamedTuple):
    """Everything that a part may be incompatible with.

    Attributes:
        rows: shape of the rows that the model will read.
        mesh: arrangement of the devices, with all sizes filled in.
    """

    config: ModelDimensions
    rows: RowShape = RowShape()
    mesh: Mesh = Mesh(data=1)


@runtime_checkable
class Part(Protocol):
    """Interface of every part."""

    splits: tuple[str, ...]

    def flops(self, stack: StackShape) -> float:
        """Return the FLOPs of the matrix products in one layer's forward pass on one row. A
        multiply-add counts as two.
        """
        ...

    def contradictions(self, setting: Setting) -> Iterator[str]:
        """Yield one message per setting that the part cannot work with: the key, the value, and how
        to fix it.
        """
        ...


class Mixer(Part, Protocol):
    """A part that mixes positions. It owns its decoding state, such as attention's keys and values
    or an LSTM's two vectors.

    Attributes:
        takes_positions: True for attention, inside which positions such as rotary act.
    """

    takes_positions: bool

    def __call__(self, x_BTD: Array, context: Any) -> tuple[Written, Auxiliary]:
        """Read whole rows, as in training: [B, T, D] → [B, T, D], and auxiliary losses.

        A mixer that splits over "sequence" also has a method `memory(x, context)`. It returns what
        other positions need from x, such as keys and values: arrays [B, heads, positions, …]. The
        mixer is then called as mixer(x, context, memory), with x at this device's positions and
        the memory of all positions.
        """
        ...

    def initial_state(self, rows: int, slots: int) -> Any:
        """Return the empty decoding state for up to `slots` tokens. The first axis of every array
        is rows, since beam search reorders them.
        """
        ...

    def prefill(self, x_BTD: Array, state: Any, context: Any) -> tuple[Written, Any]:
        """Read T tokens of each row, and return the outputs [B, T, D] and the updated state. Tokens
        are padding where context.segments is 0.
        """
        ...

    def step(self, x_B1D: Array, state: Any, context: Any) -> tuple[Written, Any]:
        """Read one token of each row. This also reads the first token if a prompt has only one."""
        ...


class FeedForward(Part, Protocol):
    """A part that processes each position independently."""

    def __call__(self, x_BTD: Array, context: Any) -> tuple[Written, Auxiliary]:
        """Map [B, T, D] → [B, T, D], and return auxiliary losses. context is a
        blocks.StackContext.
        """
        ...


class ExpertFeedForward(Part, Protocol):
    """A feed-forward part that splits over "expert". `dispatch` sorts tokens by expert, and the
    block sends them to the devices that hold these experts. `compute` runs there, and the block
    sends its results back to `combine`.
    """

    def dispatch(self, x_BTD: Array, context: Any, drops: bool) -> Any:
        """Return a named tuple with `sent`, the arrays [E, S, …] to send to the experts, and
        `counts`, which the block sums over the batch.

        Args:
            drops: False during generation, when no token may be dropped.
        """
        ...

    def compute(self, sent: Any, context: Any) -> Array:
        """Apply this device's experts to the tokens that they were sent: [E, S, D]."""
        ...

    def combine(self, found_ESD: Array, routed: Any, counts: Any) -> tuple[Written, Auxiliary]:
        """Combine the experts' outputs for each token, and return the same as FeedForward.

        Args:
            routed: what `dispatch` returned.
            counts: its counts, summed over the batch.
        """
        ...
