"""What a part of a block is. Each part describes itself: what it costs, what contradicts it, and
how devices may share it. Nothing of a part is written down anywhere else.

A part is a flax module, made with the config and its own options, and written for one device. Where
several devices share a model, the block gathers what the part reads and scatters what it writes:

    splits = ()                       the part runs whole, on each device: it sees all positions,
                                      and the config as it is
    splits = ("tensor", …)            its config has this device's own heads and own part of d_ff;
                                      what it returns is a term of a sum over these devices
    splits = ("sequence", …)          it sees this device's own positions (see Mixer.memory)
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
    """A mean that a part measures: it is logged, and not minimised.

    Attributes:
        weight: by which the total of all layers, devices and batches is divided.
    """

    total: Array
    weight: Array


# Losses by name, each summed over the positions that are no padding, and what is measured.
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
    """One stack of a row, as far as the cost of a part depends on it.

    Attributes:
        positions: of the stack.
        visible: keys that a query of self-attention may see, a mean: about half of the positions if
            it is causal.
        bidirectional: True if a position may see those after it.
    """

    positions: int
    visible: float | int
    bidirectional: bool


class Setting(NamedTuple):
    """Everything that may contradict a part.

    Attributes:
        rows: shape of the rows that it will read.
        mesh: the devices, with all sizes written out.
    """

    config: ModelDimensions
    rows: RowShape = RowShape()
    mesh: Mesh = Mesh(data=1)


@runtime_checkable
class Part(Protocol):
    """Interface of every part."""

    splits: tuple[str, ...]

    def flops(self, stack: StackShape) -> float:
        """Return the FLOPs of the matrix products of one layer's forward pass on one row: multiply
        and add count as two.
        """
        ...

    def contradictions(self, setting: Setting) -> Iterator[str]:
        """Yield one sentence for each setting that the part cannot work with: the key, what was
        got, and how to fix it.
        """
        ...


class Mixer(Part, Protocol):
    """A part that mixes positions. It owns its decoding state: the keys and values of attention,
    the two vectors of an LSTM.

    Attributes:
        takes_positions: True if it is attention, within which positions such as rotary act.
    """

    takes_positions: bool

    def __call__(self, x_BTD: Array, context: Any) -> tuple[Written, Auxiliary]:
        """Read whole rows, as in training: [B, T, D] → [B, T, D], and auxiliary losses.

        A mixer that splits over "sequence" also has `memory(x, context)`, what other positions read
        of these: arrays [B, heads, positions, …]. It is called as mixer(x, context, memory), with
        x at this device's positions and the memory of all of them.
        """
        ...

    def initial_state(self, rows: int, slots: int) -> Any:
        """Return the empty decoding state, with room for `slots` tokens. Every array has rows as
        its first axis, since beam search reorders them.
        """
        ...

    def prefill(self, x_BTD: Array, state: Any, context: Any) -> tuple[Written, Any]:
        """Read T tokens of each row, padding where context.segments is 0: return the outputs
        [B, T, D] and the updated state.
        """
        ...

    def step(self, x_B1D: Array, state: Any, context: Any) -> tuple[Written, Any]:
        """Read one token of each row; also the first, where a prompt has one."""
        ...


class FeedForward(Part, Protocol):
    """A part that treats each position alone."""

    def __call__(self, x_BTD: Array, context: Any) -> tuple[Written, Auxiliary]:
        """[B, T, D] → [B, T, D], and auxiliary losses; context: blocks.StackContext."""
        ...


class ExpertFeedForward(Part, Protocol):
    """A feed-forward part that splits over "expert". The block sends the tokens that `dispatch`
    has sorted to the devices that have their experts, and what `compute` returns back.
    """

    def dispatch(self, x_BTD: Array, context: Any, drops: bool) -> Any:
        """Return a tuple with what is `sent` to experts, arrays [E, S, …], and with `counts`, which
        are added up over the batch; drops: False where text is generated, and no token may be left
        out.
        """
        ...

    def compute(self, sent: Any, context: Any) -> Array:
        """Apply the experts of this device to what they were sent: [E, S, D]."""
        ...

    def combine(self, found_ESD: Array, routed: Any, counts: Any) -> tuple[Written, Auxiliary]:
        """Return what FeedForward does."""
        ...
