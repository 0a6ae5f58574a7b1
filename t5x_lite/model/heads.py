"""What is asked of the hidden states: logits over the vocabulary, or over classes.

Shapes: B rows, W width, V embedding rows.
"""

import flax.linen as nn
import jax.numpy as jnp

from t5x_lite.config import Model
from t5x_lite.model.layers import Dense, Norm, activate, constrain, named, parameter_dtype
from t5x_lite.model.products import product, product_turned


def at_scored(row, hidden):
    """Hidden states [B, E, W] at the positions that are asked [B, K, W]; all of them where none are named."""
    return jnp.take_along_axis(hidden, row["encoder_scored"][..., None], 1) if "encoder_scored" in row else hidden


class Classifier(nn.Module):
    """The first position [B, W] to logits [B, classes], float32: BERT's pooler and the layer on it (released code)."""

    config: Model

    @nn.compact
    def __call__(self, first):
        dtype = parameter_dtype(self.config)
        pooled = jnp.tanh(Dense(self.config, self.config.width, ("embed", None), name="pooler")(first))
        return Dense(self.config, self.config.classes, (None, None), name="output")(pooled).astype(dtype)


class Head(nn.Module):
    """Hidden states [..., W] and a kernel [W, V], the embedding table transposed, to logits [..., V], float32."""

    config: Model

    @nn.compact
    def __call__(self, hidden, kernel):
        config, dtype = self.config, parameter_dtype(self.config)
        rows, width = embedding_rows(config), config.width
        factorised = config.embedding_size if config.tied else 0
        if config.mlm_head:
            dense = Dense(config, factorised or width, ("embed", None), name="dense")
            hidden = Norm(config, name="norm")(activate(config.activation, dense(hidden)))
        elif factorised:
            hidden = Dense(config, factorised, ("embed", None), name="dense")(hidden)
        turned = self.has_variable("turned", "kernel")  # where text is written: see decoding.py
        if not config.tied and not turned:
            init = nn.initializers.normal(width**-0.5 if config.init == "fan_in" else config.init_stddev)
            kernel = self.param("output", named(init, None, "vocab"), (width, rows), dtype)
        if config.scale_logits:
            hidden = hidden * width**-0.5
        flat = hidden.reshape(-1, hidden.shape[-1]).astype(config.dtype)
        y = product_turned(flat, self.get_variable("turned", "kernel")) if turned else product(flat, kernel)
        if config.mlm_head:
            y += self.param("bias", named(nn.initializers.zeros, "vocab"), (rows,), dtype)
        if rows > config.vocab_size:
            y = jnp.where(jnp.arange(rows) < config.vocab_size, y, -1e9)
        return constrain(y, "batch", "vocab").reshape(*hidden.shape[:-1], rows)


def head_weights(params: dict) -> dict:
    """The part of a model's parameters that `logits` reads."""
    head, table = params.get("head", {}), params.get("decoder_embedding", params["embedding"])
    return {"head": head, "kernel": None if "output" in head else table.T}


def logits(config: Model, weights: dict, hidden):
    """Hidden states [..., W] to logits [..., V], by the weights that `head_weights` picks."""
    variables = {"params": weights["head"], "turned": weights.get("turned", {})}
    return Head(config).apply(variables, hidden, weights["kernel"])


def embedding_rows(config: Model) -> int:
    """vocab_size rounded up to vocab_multiple."""
    return -(-config.vocab_size // config.vocab_multiple) * config.vocab_multiple
