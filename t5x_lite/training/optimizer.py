"""Learning rate schedules and optimizers, all from optax."""

import jax
import jax.numpy as jnp
import optax

from t5x_lite.config import Optimizer


def make_schedule(config: Optimizer, steps: int, raw_tokens: int):
    """step (from 0) → learning rate. raw_tokens: of one step, for settings that count in tokens.

    Step n (from 1) runs at the rate of n: the first above warmup_from, the last of a decay at `final`.
    """
    per_step = raw_tokens if config.unit == "tokens" else 1
    warmup = config.warmup / per_step
    decay = config.decay / per_step if config.decay else steps
    peak, final = config.learning_rate, config.final

    def schedule(step):
        n = step + 1.0
        share = jnp.clip((n - warmup) / max(decay - warmup, 1.0), 0.0, 1.0)
        after = {
            "constant": jnp.ones(()),
            "linear": 1 - (1 - final) * share,
            "cosine": final + (1 - final) * 0.5 * (1 + jnp.cos(jnp.pi * share)),
            "inverse_square_root": jnp.sqrt(max(warmup, 1.0) / jnp.maximum(n, max(warmup, 1.0))),
        }[config.schedule]
        before = config.warmup_from + (1 - config.warmup_from) * jnp.minimum(n / max(warmup, 1.0), 1.0)
        return peak * jnp.where(n < warmup, before, after)

    return schedule


def _names(path) -> list[str]:
    return [str(getattr(key, "key", key)) for key in path]


def _decayed(parameters):
    """True for kernels and tables; biases and norms are not decayed."""
    ends = ("kernel", "embedding", "output")
    return jax.tree_util.tree_map_with_path(lambda path, _: _names(path)[-1].endswith(ends), parameters)


def _over_layers(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """The transformation of one layer, mapped over the leading axis of scanned layers: statistics stay per layer."""

    def update(updates, state, parameters):
        return jax.vmap(transform.update)(updates, state, parameters)

    return optax.GradientTransformation(jax.vmap(transform.init), update)


def _scanned(parameters):
    """ "layers" for parameters with a leading axis of layers, else "single"."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "layers" if "layers" in _names(path) else "single", parameters
    )


def make_optimizer(config: Optimizer, schedule) -> optax.GradientTransformation:
    """Clipping by global norm, then AdamW (Loshchilov and Hutter, 2019) or Adafactor (Shazeer and Stern, 2018: factored
    second moments, updates scaled by the root mean square of each parameter).
    """
    if config.name == "adamw":
        betas = config.beta1, config.beta2
        rule = optax.adamw(schedule, *betas, config.epsilon, weight_decay=config.weight_decay, mask=_decayed)
    else:
        single = optax.adafactor(schedule, multiply_by_parameter_scale=True, clipping_threshold=1.0)
        rule = optax.partition({"single": single, "layers": _over_layers(single)}, _scanned)
    return optax.chain(optax.clip_by_global_norm(config.clip), rule) if config.clip else rule
