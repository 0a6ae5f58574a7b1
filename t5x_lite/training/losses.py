"""The one loss. It returns sums and a weight: add them over microbatches, devices and batches, divide once."""

from functools import partial

import jax
import jax.numpy as jnp


def _sums(logits, targets, weights, vocab_size: int, z_loss: float, label_smoothing: float) -> dict:
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    log_z = jax.nn.logsumexp(logits, -1)
    ids = jnp.arange(logits.shape[-1])
    of_target = jnp.where(ids == targets[..., None], logits, 0).sum(-1)  # no gather: it splits over the vocabulary
    nll = log_z - of_target
    objective = nll
    if label_smoothing:
        mean = jnp.where(ids < vocab_size, logits, 0).sum(-1) / vocab_size
        objective = (1 - label_smoothing) * nll + label_smoothing * (log_z - mean)
    if z_loss:
        objective += z_loss * jnp.square(log_z)
    correct = of_target >= logits.max(-1)
    each = {"objective": objective, "nll": nll, "correct": correct, "weight": jnp.ones_like(nll)}
    return {name: (value * weights).sum() for name, value in each.items()}


def cross_entropy(
    head,
    head_weights,
    hidden,
    targets,
    weights,
    vocab_size: int,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    chunk: int = 0,
) -> dict[str, jax.Array]:
    """Weighted sums over all positions: nll (nats), correct (no logit is larger than the target's), weight, and
    objective, which is what training minimises: nll, label-smoothed (Szegedy et al., 2016, §7), plus z_loss · log²Z
    (Mesh TensorFlow, T5).

    head(head_weights, hidden [..., D]) → logits [..., V]; it is called here alone, on `chunk` positions of each row at
    a time (0: all), and each chunk's gradient is taken with it: logits neither outlive their chunk nor are made twice.
    Only objective can be differentiated, by head_weights and hidden. hidden [B, T, D], targets and weights [B, T].
    """
    length = targets.shape[1]
    chunk = min(chunk, length) or length

    def cut(x):
        x = jnp.pad(x, [(0, 0), (0, -length % chunk)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(x.shape[0], -1, chunk, *x.shape[2:]), 1, 0)

    def sums(head_weights, part):
        hidden, targets, weights = part
        return _sums(head(head_weights, hidden), targets, weights, vocab_size, z_loss, label_smoothing)

    return _chunked(sums, head_weights, cut(hidden), (cut(targets), cut(weights)))


def label_sums(logits, labels, real) -> dict[str, jax.Array]:
    """Sums over the rows that are real [B]: label_nll, label_correct and label_weight of logits [B, C], labels [B]."""
    each = {
        "nll": -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)[:, 0],
        "correct": logits.argmax(-1) == labels,
        "weight": jnp.ones(labels.shape, logits.dtype),
    }
    return {f"label_{name}": jnp.where(real, value, 0).sum().astype(logits.dtype) for name, value in each.items()}


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked(sums, head_weights, hidden, labels):
    """The sums over all chunks (the leading axis of hidden and labels)."""

    def add(total, part):
        return jax.tree.map(jnp.add, total, sums(head_weights, (part[0], *part[1]))), None

    return jax.lax.scan(add, _zeros(sums, head_weights, hidden, labels), (hidden, labels))[0]


def _zeros(sums, head_weights, hidden, labels):
    first = jax.tree.map(lambda x: x[0], (hidden, *labels))
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(sums, head_weights, first))


def _forward(sums, head_weights, hidden, labels):
    def objective(head_weights, hidden, labels):
        made = sums(head_weights, (hidden, *labels))
        return made["objective"], made

    gradient = jax.grad(objective, argnums=(0, 1), has_aux=True)

    def add(total, part):
        (for_weights, for_hidden), made = gradient(head_weights, *part)
        return jax.tree.map(jnp.add, total, (made, for_weights)), for_hidden

    start = _zeros(sums, head_weights, hidden, labels), jax.tree.map(jnp.zeros_like, head_weights)
    (total, for_weights), for_hidden = jax.lax.scan(add, start, (hidden, labels))
    return total, (for_weights, for_hidden)


def _backward(sums, gradients, cotangent):
    for_weights, for_hidden = jax.tree.map(lambda g: (g * cotangent["objective"]).astype(g.dtype), gradients)
    return for_weights, for_hidden, None


_chunked.defvjp(_forward, _backward)
