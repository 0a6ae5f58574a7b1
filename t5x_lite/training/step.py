"""The train step and the evaluation step: pure functions of a state and a batch."""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from t5x_lite.config import RunConfig
from t5x_lite.data import layouts
from t5x_lite.model.heads import Classifier, at_scored, head_weights, logits
from t5x_lite.model.transformer import Transformer, initialise
from t5x_lite.training import sharding
from t5x_lite.training.losses import cross_entropy, label_sums


class TrainState(struct.PyTreeNode):
    """Data only: how many steps are done, the parameters, and what the optimizer remembers."""

    step: jax.Array
    params: dict
    opt_state: tuple


def create_state(config: RunConfig, optimizer, mesh) -> TrainState:
    """A fresh state, every array born where the mesh wants it."""
    _, shardings = state_shardings(config, optimizer, mesh)
    return jax.jit(lambda: fresh_state(config, optimizer), out_shardings=shardings)()


def fresh_state(config: RunConfig, optimizer) -> TrainState:
    """The state before the first step, a function of the seed alone."""
    params = nn.meta.unbox(initialise(config.model, jax.random.key(config.seed)))["params"]
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def state_shardings(config: RunConfig, optimizer, mesh) -> tuple[TrainState, TrainState]:
    """The state's shapes, and where each of its arrays lies; nothing is allocated."""
    boxed = jax.eval_shape(lambda: initialise(config.model, jax.random.key(0)))["params"]
    abstract = jax.eval_shape(lambda: fresh_state(config, optimizer))
    params = sharding.parameter_shardings(boxed, mesh)
    opt_state = sharding.optimizer_shardings(abstract.opt_state, abstract.params, params, mesh)
    return abstract, TrainState(sharding.replicated(mesh), params, opt_state)


def scored(row: dict) -> tuple[jax.Array, jax.Array]:
    """Targets and weights of the stack that carries them."""
    stack = "encoder" if "encoder_targets" in row else "decoder"
    return row[f"{stack}_targets"], row[f"{stack}_weights"]


def make_sums(config: RunConfig):
    """(params, rows, dropout key or None) → the loss's sums over those rows."""
    model, training = Transformer(config.model, layouts.plan(config).packed), config.training

    def sums(params, rows, key=None):
        rngs = {"dropout": key} if key is not None else {}
        method = Transformer.encode if "encoder_labels" in rows else None
        hidden = model.apply({"params": params}, rows, deterministic=key is None, rngs=rngs, method=method)
        of_rows = {}
        if "encoder_labels" in rows:
            said = Classifier(config.model).apply({"params": params["classifier"]}, hidden[:, 0])
            of_rows = label_sums(said, rows["encoder_labels"], rows["encoder_segments"][:, 0] > 0)
            hidden = at_scored(rows, hidden)
        return of_rows | cross_entropy(
            partial(logits, config.model),
            head_weights(params),
            hidden,
            *scored(rows),
            vocab_size=config.model.vocab_size,
            z_loss=training.z_loss,
            label_smoothing=training.label_smoothing,
            chunk=training.loss_chunk,
        )

    return sums


def make_gradient(config: RunConfig):
    """(params, batch, key) → (gradient of the mean objective, sums): each microbatch counts by its share of the weight
    of the whole batch, so that microbatches with unequal numbers of targets change nothing. Labels of rows add their
    own mean to it (BERT: Devlin et al., 2019, §A.2).
    """
    sums = make_sums(config)

    def whole(params, batch, key):
        weight = jnp.maximum(scored(batch)[1].sum(), 1)

        def objective(params, rows, key):
            made = sums(params, rows, key)
            mean = made["objective"] / weight
            if "label_nll" in made:
                mean += made["label_nll"] / jnp.maximum((batch["encoder_segments"][:, 0] > 0).sum(), 1)
            return mean, made

        gradient = partial(jax.grad(objective, has_aux=True), params)
        return _over_microbatches(gradient, batch, key, config.training.microbatches)

    return whole


def make_evaluation(config: RunConfig):
    """(params, batch) → the loss's sums, in the microbatches of training: what trains can be evaluated."""
    sums = make_sums(config)
    return lambda params, batch: _over_microbatches(partial(sums, params), batch, None, config.training.microbatches)


def _over_microbatches(compute, batch, key, parts: int):
    """compute(rows, key), summed over microbatches one after the other."""
    if parts == 1:
        return compute(batch, key)
    # Row r goes to microbatch r mod parts: each device cuts its own rows, nothing moves.
    cut = jax.tree.map(lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), batch)
    keys = None if key is None else jax.random.split(key, parts)
    first = jax.tree.map(lambda x: x[0], (cut, keys))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(compute, *first))
    return jax.lax.scan(lambda total, part: (jax.tree.map(jnp.add, total, compute(*part)), None), zeros, (cut, keys))[0]


def make_train_step(config: RunConfig, optimizer, schedule):
    """(state, batch) → (state, sums): the sums of the loss, the learning rate, and the norms by which a run gone bad
    is known.
    """
    gradient = make_gradient(config)
    drops_out = config.model.dropout or config.model.attention_dropout or config.model.ff_dropout

    def train_step(state: TrainState, batch: dict) -> tuple[TrainState, dict]:
        key = jax.random.fold_in(jax.random.key(config.seed), state.step) if drops_out else None
        grads, sums = gradient(state.params, batch, key)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        norms = {"gradient_norm": optax.tree.norm(grads), "parameter_norm": optax.tree.norm(params)}
        figures = sums | norms | {"learning_rate": jnp.asarray(schedule(state.step))}
        return TrainState(state.step + 1, params, opt_state), figures

    return train_step
