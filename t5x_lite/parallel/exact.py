"""training.exact: the same parameters, to the last bit, on 1, 2, 4 or 8 devices.

Sums of floating-point numbers depend on their order. Here the batch is always cut into 16 parts,
however many devices there are. The gradient of each part is the same program on the same numbers,
and the parts are summed in one fixed order: a binary tree that joins neighbours, of which each
device computes a branch:

    part    0   1   2   3   4   5   6   7  …
             └─┬─┘   └─┬─┘   └─┬─┘   └─┬─┘
               └───┬───┘       └───┬───┘       two devices: each has half of the parts,
                   └───────┬───────┘           and both add up the last two sums

The price is memory (about 7 more gradients on one device, and 19 on eight), parts that may be too
small to keep a device busy, and gradients that are gathered instead of reduced.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.parallel.collectives import part_number, parts, rows_from

PARTS = 16
# At least two parts per device: the compiler would unroll a loop with a single turn, which makes it
# a different program.
_MOST_DEVICES = PARTS // 2


def check(batch_size: int, mesh: dict[str, int]) -> None:
    """Reject a batch or a mesh that training.exact does not work with."""
    others = [axis for axis, size in mesh.items() if axis != "data" and size > 1]
    if others:
        reason = f"goes over mesh.data alone, got a mesh of {others[0]} {mesh[others[0]]}"
        raise UserError(BAD_CONFIG, f"training.exact: {reason}; leave mesh as it is by default")
    devices = mesh["data"]
    if devices > _MOST_DEVICES or PARTS % devices:
        reason = f"is for 1, 2, 4 or 8 devices, got {devices}"
        raise UserError(BAD_CONFIG, f"training.exact: {reason}")
    if batch_size % PARTS:
        reason = f"got {batch_size}, expected a multiple of {PARTS} with training.exact"
        raise UserError(BAD_CONFIG, f"data.batch_size: {reason}")


def check_rule(update: Callable[..., Any], *shapes: Any) -> None:
    """Reject an update rule with matrix products, such as Muon: the compiler lays these out, and
    orders their sums, differently for one device and for several.

    Args:
        update: the rule's update function.
        shapes: its arguments, as shapes.
    """
    if "dot_general" in str(jax.make_jaxpr(update)(*shapes)):
        reason = "multiplies matrices, in an order that depends on the number of devices"
        fix = "set training.exact to False, or optimizer.name to adamw"
        raise UserError(BAD_CONFIG, f"training.exact: the optimizer {reason}; {fix}")


def sum_of_parts(compute: Callable[..., Any], rows: Any, key: Array | None) -> Any:
    """Sum compute(rows of a part, key) over the parts of this device."""
    devices = parts("data")
    count = PARTS // devices
    first = part_number("data") * count

    def split(x: Array) -> Array:
        return x.reshape(count, -1, *x.shape[1:])

    def of_part(part: tuple[Array, Any]) -> Any:
        number, rows = part
        size = jax.tree.leaves(rows)[0].shape[0]
        # Dropout depends on the index of a row in the batch.
        with rows_from(number * size):
            return compute(rows, key)

    numbers, rows_of_parts = first + jnp.arange(count), jax.tree.map(split, rows)
    return _tree_sum(of_part, (numbers, rows_of_parts), count)


def _tree_sum(of_leaf: Callable[[Any], Any], leaves: Any, count: int) -> Any:
    """Sum over `count` leaves in a fixed order: recursively, the sum of the sums of both halves."""
    if count == 1:
        return of_leaf(jax.tree.map(lambda x: x[0], leaves))
    halves = jax.tree.map(lambda x: x.reshape(2, count // 2, *x.shape[1:]), leaves)
    sums = jax.lax.map(lambda half: _tree_sum(of_leaf, half, count // 2), halves)
    return jax.tree.map(lambda x: x[0] + x[1], sums)


def sum_over_devices(found: Any) -> Any:
    """Sum over all devices in the upper part of the tree. As on one device, the last step adds two
    results of a loop, which the compiler fuses with the operation that reads the sum.
    """
    # Every device has all branches, and adds them in the same order.
    gathered = jax.tree.map(lambda x: jax.lax.all_gather(x, "data"), found)
    return _tree_sum(lambda leaf: leaf, gathered, parts("data"))
