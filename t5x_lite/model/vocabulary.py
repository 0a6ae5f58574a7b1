"""Enlarge the vocabulary of a trained model by new ids."""

from typing import Any

import jax
import jax.numpy as jnp


def with_more_ids(
    leaf: Any, axes: tuple[str, ...], shape: tuple[int, ...], old: int, new: int
) -> Any:
    """Enlarge the vocabulary of one parameter. Each new id gets the mean over the old ones (Hewitt,
    2021), so that no new id is more probable than they are. Padding stays zero.

    Args:
        axes: names of its axes; a parameter without "vocab" is returned unchanged.
        shape: shape of the enlarged parameter, including padding.
        old, new: number of ids before and after.

    >>> table = jnp.array([[1.0, 3.0], [3.0, 5.0], [0.0, 0.0]])  # two ids, and padding
    >>> with_more_ids(table, ("vocab", "embedding"), (4, 2), old=2, new=3).tolist()
    [[1.0, 3.0], [3.0, 5.0], [2.0, 4.0], [0.0, 0.0]]
    """
    if "vocab" not in axes:
        return leaf
    axis = axes.index("vocab")
    known = jax.lax.slice_in_dim(leaf, 0, old, axis=axis)
    added = jnp.repeat(known.mean(axis, keepdims=True), new - old, axis)
    grown = jnp.concatenate([known, added], axis)
    padding = [(0, size - had) for size, had in zip(shape, grown.shape, strict=True)]
    return jnp.pad(grown, padding)


def grow_vocabulary(params: Any, axes: Any, shapes: Any, old: int, new: int) -> Any:
    """Enlarge the vocabulary of a parameter tree; see with_more_ids."""

    def grow(leaf: Any, names: tuple[str, ...], shape: Any) -> Any:
        return with_more_ids(leaf, names, shape.shape, old, new)

    return jax.tree.map(grow, params, axes, shapes)
