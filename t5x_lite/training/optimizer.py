"""Optimizers: update rules from optax.

An optimizer of your own needs no place here, only a config that names it by its module:
`optimizer.name=my_module.my_rule`. It is a function like those below.
"""

from typing import Any

import jax
import optax
from optax import contrib

from t5x_lite.config import Optimizer
from t5x_lite.config.named import find_named
from t5x_lite.errors import BAD_CONFIG, UserError, user_errors
from t5x_lite.parallel.axes import Names, is_kernel
from t5x_lite.training.averaging import averaged, find_average
from t5x_lite.training.schedules import Schedule, find_schedule
from t5x_lite.training.update_rule import (
    UpdateRule,
    by_label,
    is_decayed,
    whole_on_each_device,
)


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
    """Map the rule of one layer over the leading axis of scanned layers. Each array has a state of
    its own, because encoder and decoder may differ in their number of layers.
    """

    def init(params: optax.Params) -> optax.OptState:
        return jax.tree.map(jax.vmap(rule.init), params)

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        leaves, tree = jax.tree.flatten(updates)
        states, of_leaves = tree.flatten_up_to(state), tree.flatten_up_to(params)
        updated = [
            jax.vmap(rule.update)(*each) for each in zip(leaves, states, of_leaves, strict=True)
        ]
        return tree.unflatten(one for one, _ in updated), tree.unflatten(one for _, one in updated)

    return optax.GradientTransformation(init, update)


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


def make_optimizer(
    config: Optimizer, schedule: Schedule, axes: Any, steps: int = 1, before: int = 0
) -> UpdateRule:
    """Return the rule that `optimizer.name` names, with clipping by the global norm before it, and
    `optimizer.average` after it.

    Args:
        axes: the parameter tree with tuples of logical axis names: see transformer.parameter_axes.
        steps: of the run or stage, for averages over its end.
        before: updates of this state that stages before this one have made.

    Raises:
        UserError: for an unknown name or option.
    """
    named = find_named(config.name, OPTIMIZERS, "optimizer.name", "optimizer")
    with user_errors(BAD_CONFIG, f"optimizer.name={named.name}: cannot be made"):
        rule = named(config, schedule, axes)
    if not callable(getattr(rule, "init", None)) or not callable(getattr(rule, "update", None)):
        reason = f"made {str(rule)[:100]}, expected optax.GradientTransformation or UpdateRule"
        raise UserError(BAD_CONFIG, f"optimizer.name={named.name}: {reason}")
    transformation = optax.GradientTransformation(rule.init, rule.update)
    # Without clipping, the state has the same structure as with it: it may be switched on later.
    largest = config.grad_clip_norm
    clip = optax.clip_by_global_norm(largest) if largest else optax.identity()
    transformation = optax.chain(clip, transformation)
    rule = UpdateRule(*transformation, state_axes=getattr(rule, "state_axes", None))
    average = find_average(config)
    return averaged(rule, average, before, steps) if average else rule


def check_optimizer(config: Optimizer) -> None:
    """Reject an optimizer, schedule or average that does not exist, before anything is prepared."""
    find_schedule(config)
    # Build the rule for a single kernel: this also checks its options, and the average.
    make_optimizer(config, lambda step: 0.0 * step, {"kernel": ("embed", "mlp")})
