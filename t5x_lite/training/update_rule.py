"""Update rules: optax transformations that say how their state is sharded."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import optax
from jax.tree_util import keystr

from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.parallel.axes import AXES, Names, is_kernel, is_table

# (axis names of a parameter, shape of a state array of it) → axis names of that array
StateAxes = Callable[[Names, tuple[int, ...]], Sequence[str | None]]


class UpdateRule(NamedTuple):
    """An optax transformation that says how its state is sharded.

    Attributes:
        init, update: as in optax.GradientTransformation.
        state_axes: names the axes of state arrays whose shape differs from their parameter's. For
            arrays that belong to no parameter, it is called with no names, (). Arrays of the same
            shape as their parameter are sharded like it.
    """

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]
    state_axes: StateAxes | None = None


def whole_on_each_device(names: Names, shape: tuple[int, ...]) -> Sequence[str | None]:
    """Name no axis, for small state that each device keeps whole: a StateAxes."""
    return [None] * len(shape)


def _is_axes(leaf: Any) -> bool:
    return isinstance(leaf, tuple)


def is_decayed(axes: Any) -> Any:
    """Mark the parameters with weight decay: dense kernels and lookup tables, but not norms, biases
    (including T5's relative bias) or Shaw's relative vectors.
    """
    return jax.tree.map(lambda names: is_kernel(names) or is_table(names), axes, is_leaf=_is_axes)


def by_label(
    rules: dict[str, optax.GradientTransformation], label: Callable[[Any], str], axes: Any
) -> optax.GradientTransformation:
    """Apply to each parameter the rule that `label` chooses from its axis names."""
    labels = jax.tree.map(label, axes, is_leaf=_is_axes)
    # Optax rejects a rule that no parameter uses.
    present: Any = {name: rules[name] for name in jax.tree.leaves(labels)}
    return optax.partition(present, labels)


def names_of_state(
    rule: UpdateRule, parameters: Any, names: Any
) -> Callable[[Any, Any], Sequence[str | None]]:
    """Return a function (path, array) → axis names, for the arrays of an optimizer's state.

    Args:
        parameters: the parameter tree, as shapes.
        names: the parameter tree, as tuples of axis names.
    """
    # Optax keeps moments as trees with the structure of the parameters, somewhere in its state. So
    # the path of a moment contains the path of its parameter.
    known: dict[str, tuple[tuple[int, ...], Names]] = {}
    leaves = jax.tree_util.tree_leaves_with_path(parameters)
    for (path, leaf), axes in zip(leaves, jax.tree.leaves(names, is_leaf=_is_axes), strict=True):
        known[keystr(path)] = leaf.shape, axes

    def names_of(path: Any, leaf: Any) -> Sequence[str | None]:
        shape, axes = _find_parameter(path, known)
        if leaf.shape == shape:
            return axes
        if leaf.size <= 1:  # such as the number of steps
            return [None] * len(leaf.shape)
        # Only the rule itself knows the axes of an array of any other shape.
        if rule.state_axes is None:
            reason = f"its state {keystr(path)} has shape {list(leaf.shape)}, unlike a parameter"
            fix = "return an UpdateRule with state_axes"
            raise UserError(BAD_CONFIG, f"optimizer.name: {reason}; {fix}")
        named = list(rule.state_axes(axes, leaf.shape))
        if len(named) != len(leaf.shape) or set(named) - {*AXES, None}:
            expected = f"expected {len(leaf.shape)} of {', '.join(AXES)} or None"
            reason = f"its state_axes name {named} for {keystr(path)}, {expected}"
            raise UserError(BAD_CONFIG, f"optimizer.name: {reason}")
        return named

    return names_of


def _find_parameter(path: Any, known: dict[str, Any]) -> tuple[tuple[int, ...] | None, Names]:
    """Return the shape and axis names of the parameter whose path is part of a path in the state;
    None and no names if there is no such parameter.
    """
    # Try longer pieces first, since a short piece may name another parameter.
    for start in range(len(path)):
        for end in range(len(path), start, -1):
            if found := known.get(keystr(path[start:end])):
                return found
    return None, ()
