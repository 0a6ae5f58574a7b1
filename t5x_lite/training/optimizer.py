"""Optimizers: update rules from optax, and the sharding of their state.

An optimizer of your own needs no place here, only a config that names it by its module:
`optimizer.name=my_module.my_rule`. It is a function like those below.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import optax
from jax.tree_util import keystr
from optax import contrib

from t5x_lite.config import Optimizer
from t5x_lite.config.named import find_named
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.parallel.axes import AXES, Names, is_kernel, is_table
from t5x_lite.training.schedules import Schedule, find_schedule

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


def _adamw(config: Optimizer, schedule: Schedule, axes: Any) -> optax.GradientTransformation:
    """AdamW (Loshchilov and Hutter, 2019)."""
    return optax.adamw(
        schedule,
        config.beta1,
        config.beta2,
        config.epsilon,
        weight_decay=config.weight_decay,
        mask=is_decayed(axes),
    )


def _lion(config: Optimizer, schedule: Schedule, axes: Any) -> optax.GradientTransformation:
    """Lion (Chen et al., 2023): the sign of the momentum. Every parameter moves by the learning
    rate, so use a third to a tenth of AdamW's, and a weight decay larger by the same factor (§5).
    """
    return optax.lion(
        schedule,
        config.beta1,
        config.beta2,
        weight_decay=config.weight_decay,
        mask=is_decayed(axes),
    )


def by_label(
    rules: dict[str, optax.GradientTransformation], label: Callable[[Any], str], axes: Any
) -> optax.GradientTransformation:
    """Apply to each parameter the rule that `label` chooses from its axis names."""
    labels = jax.tree.map(label, axes, is_leaf=_is_axes)
    # Optax rejects a rule that no parameter uses.
    present: Any = {name: rules[name] for name in jax.tree.leaves(labels)}
    return optax.partition(present, labels)


def _adafactor(config: Optimizer, schedule: Schedule, axes: Any) -> UpdateRule:
    """Adafactor (Shazeer and Stern, 2018): factored second moments, updates scaled by the root mean
    square of each parameter. Each layer of a scanned stack has its own statistics.
    """
    if config.weight_decay:
        reason = f"got {config.weight_decay}, but adafactor has no weight decay"
        fix = "set it to 0, or set optimizer.name to adamw"
        raise UserError(BAD_CONFIG, f"optimizer.weight_decay: {reason}; {fix}")
    rule = optax.adafactor(schedule, multiply_by_parameter_scale=True, clipping_threshold=1.0)

    def label(names: Names) -> str:
        return "layers" if "layers" in names else "single"

    # Scanned layers are stacked in one array; treat each layer as a parameter of its own.
    rule = by_label({"layers": _over_layers(rule), "single": rule}, label, axes)
    # Statistics of rows and columns are small, so each device keeps all of them.
    return UpdateRule(rule.init, rule.update, whole_on_each_device)


def _over_layers(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """Map the rule of one layer over the leading axis of scanned layers."""

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        return jax.vmap(rule.update)(updates, state, params)

    return optax.GradientTransformation(jax.vmap(rule.init), update)


def _muon(config: Optimizer, schedule: Schedule, axes: Any) -> UpdateRule:
    """Muon (Jordan et al., 2024): the momentum of each kernel [in, out], made orthogonal. Tables,
    vectors and the kernels of heads, which predict words and labels, use AdamW.

    The orthogonal matrix is scaled to a root mean square of 0.2, about as large as AdamW's updates,
    so that one learning rate and weight decay suit both (Liu et al., 2025, §2.2).
    """

    def label(names: Names) -> str:
        is_head = names[-1] in ("vocab", "classes")
        return "muon" if is_kernel(names) and not is_head else "adam"

    # The last two axes are a matrix; an axis of layers before them is a batch of matrices.
    def in_and_out(updates: optax.Updates) -> optax.Updates:
        return jax.tree.map(lambda _: contrib.MuonDimensionNumbers(-2, -1), updates)

    # An orthogonal [m, n] matrix has a root mean square of 1/√max(m, n).
    def as_large_as_adam(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
        return jax.tree.map(lambda x: 0.2 * max(x.shape[-2:]) ** 0.5 * x, updates)

    rules = {
        "muon": optax.chain(
            contrib.scale_by_muon(weight_dimension_numbers=in_and_out),
            optax.stateless(as_large_as_adam),
        ),
        "adam": optax.scale_by_adam(config.beta1, config.beta2, config.epsilon),
    }
    # Decay and learning rate come after both rules, so they apply to all parameters alike.
    rule = optax.chain(
        by_label(rules, label, axes),
        optax.add_decayed_weights(config.weight_decay, is_decayed(axes)),
        optax.scale_by_learning_rate(schedule),
    )
    # Besides the momentum, Muon's state holds the three coefficients of its iteration.
    return UpdateRule(rule.init, rule.update, whole_on_each_device)


OPTIMIZERS = {"adamw": _adamw, "adafactor": _adafactor, "lion": _lion, "muon": _muon}


def make_optimizer(config: Optimizer, schedule: Schedule, axes: Any) -> UpdateRule:
    """Return the rule that `optimizer.name` names, with clipping by the global norm before it.

    Args:
        axes: the parameter tree with tuples of logical axis names: see transformer.parameter_axes.

    Raises:
        UserError: for an unknown name or option.
    """
    named = find_named(config.name, OPTIMIZERS, "optimizer.name", "optimizer")
    rule = named(config, schedule, axes)
    transformation = optax.GradientTransformation(rule.init, rule.update)
    if config.grad_clip_norm:
        clip = optax.clip_by_global_norm(config.grad_clip_norm)
        transformation = optax.chain(clip, transformation)
    return UpdateRule(*transformation, state_axes=getattr(rule, "state_axes", None))


def check_optimizer(config: Optimizer) -> None:
    """Reject an optimizer or schedule that does not exist, before anything is prepared."""
    find_schedule(config)
    # Build the rule for a single kernel: this also checks its options.
    make_optimizer(config, lambda step: 0.0 * step, {"kernel": ("embed", "mlp")})


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
