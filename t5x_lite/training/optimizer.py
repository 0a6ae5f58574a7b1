"""Learning rate schedules and optimizers, all from optax."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from t5x_lite.config import Optimizer
from t5x_lite.parallel.axes import is_kernel, is_table

Schedule = Callable[[Any], jax.Array]  # step (from 0) → learning rate


def make_schedule(config: Optimizer, steps: int, raw_tokens_per_step: float) -> Schedule:
    """The learning rate of each step: a linear warm-up, then the schedule.

    The first step already has a rate just above initial_lr_ratio × peak, the last step of a decay
    exactly final_lr_ratio × peak.

    Args:
        steps: of the whole run; the decay ends with them where decay_steps is 0.
        raw_tokens_per_step: converts warm-up and decay that are given in tokens.
    """
    # All in steps.
    unit = raw_tokens_per_step if config.schedule_unit == "tokens" else 1
    warmup = config.warmup_steps / unit
    decay = config.decay_steps / unit if config.decay_steps else steps
    warmup_or_one = max(warmup, 1.0)
    final = config.final_lr_ratio

    # The learning rate after the warm-up, as a share of the peak. n: the step, from 1; progress: 0
    # at the end of the warm-up, 1 at the end of the decay.
    def constant(n, progress):
        return jnp.ones(())

    def linear(n, progress):
        return 1 - (1 - final) * progress

    def cosine(n, progress):
        return final + (1 - final) * 0.5 * (1 + jnp.cos(jnp.pi * progress))

    def inverse_square_root(n, progress):
        return jnp.sqrt(warmup_or_one / jnp.maximum(n, warmup_or_one))

    shares = {
        "constant": constant,
        "linear": linear,
        "cosine": cosine,
        "inverse_square_root": inverse_square_root,
    }
    after_warmup = shares[config.schedule]

    def schedule(step):
        n = step + 1.0
        progress = jnp.clip((n - warmup) / max(decay - warmup, 1.0), 0.0, 1.0)
        warming = jnp.minimum(n / warmup_or_one, 1.0)
        during_warmup = config.initial_lr_ratio + (1 - config.initial_lr_ratio) * warming
        ratio = jnp.where(n < warmup, during_warmup, after_warmup(n, progress))
        return config.learning_rate * ratio

    return schedule


def _is_axes(leaf: Any) -> bool:
    return isinstance(leaf, tuple)


def is_decayed(axes: Any) -> Any:
    """Whether weight decay applies: to dense kernels and lookup tables, not to norms, biases (T5's
    relative bias is one) and Shaw's relative vectors.
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
    rate, so that a third to a tenth of AdamW's is enough, and its weight decay as much larger (§5).
    """
    return optax.lion(
        schedule,
        config.beta1,
        config.beta2,
        weight_decay=config.weight_decay,
        mask=is_decayed(axes),
    )


def _by_label(
    rules: dict[str, optax.GradientTransformation], label: Callable[[Any], str], axes: Any
) -> optax.GradientTransformation:
    """One rule for each parameter, by what `label` makes of its axis names."""
    labels = jax.tree.map(label, axes, is_leaf=_is_axes)
    # Optax refuses a rule that no parameter has.
    present: Any = {name: rules[name] for name in jax.tree.leaves(labels)}
    return optax.partition(present, labels)


def _adafactor(config: Optimizer, schedule: Schedule, axes: Any) -> optax.GradientTransformation:
    """Adafactor (Shazeer and Stern, 2018): factored second moments, updates scaled by the root mean
    square of each parameter. The statistics of scanned layers are kept layer by layer.
    """
    rule = optax.adafactor(schedule, multiply_by_parameter_scale=True, clipping_threshold=1.0)

    def label(names):
        return "layers" if "layers" in names else "single"

    return _by_label({"layers": _over_layers(rule), "single": rule}, label, axes)


def _over_layers(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """The rule of one layer, mapped over the leading axis of scanned layers."""

    def update(updates, state, params=None):
        return jax.vmap(rule.update)(updates, state, params)

    return optax.GradientTransformation(jax.vmap(rule.init), update)


def _muon(config: Optimizer, schedule: Schedule, axes: Any) -> optax.GradientTransformation:
    """Muon (Jordan et al., 2024): the momentum of each kernel [in, out], made orthogonal. Tables,
    vectors and the kernels of heads, which predict words and labels, have AdamW.

    An orthogonal matrix is scaled to a root mean square of 0.2, about that of AdamW's updates, so
    that one learning rate and weight decay fit both (Liu et al., 2025, §2.2).
    """

    def label(names):
        is_head = names[-1] in ("vocab", "classes")
        return "muon" if is_kernel(names) and not is_head else "adam"

    def in_and_out(updates):
        return jax.tree.map(lambda _: contrib.MuonDimensionNumbers(-2, -1), updates)

    def as_large_as_adam(updates, params):
        return jax.tree.map(lambda x: 0.2 * max(x.shape[-2:]) ** 0.5 * x, updates)

    rules = {
        "muon": optax.chain(
            contrib.scale_by_muon(weight_dimension_numbers=in_and_out),
            optax.stateless(as_large_as_adam),
        ),
        "adam": optax.scale_by_adam(config.beta1, config.beta2, config.epsilon),
    }
    return optax.chain(
        _by_label(rules, label, axes),
        optax.add_decayed_weights(config.weight_decay, is_decayed(axes)),
        optax.scale_by_learning_rate(schedule),
    )


OPTIMIZERS = {"adamw": _adamw, "adafactor": _adafactor, "lion": _lion, "muon": _muon}


def make_optimizer(
    config: Optimizer, schedule: Schedule, axes: Any
) -> optax.GradientTransformation:
    """Clipping by global norm, then the rule of OPTIMIZERS.

    Args:
        axes: the parameter tree as tuples of logical axis names: see transformer.parameter_axes.
    """
    rule = OPTIMIZERS[config.name](config, schedule, axes)
    if not config.grad_clip_norm:
        return rule
    return optax.chain(optax.clip_by_global_norm(config.grad_clip_norm), rule)
