"""Multi-head attention (Vaswani et al., 2017, §3.2) and who may look where.

Shapes: B rows, T queries, S keys, H heads, K head size, D width.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_lite.config import Model
from t5x_lite.model.layers import Dense, constrain, head_size
from t5x_lite.model.positions import rotate
from t5x_lite.model.products import product

_HIDDEN = -1e9


def visible(queries, keys, causal: bool = False, prefix=None):
    """True where a query may see a key: the same segment; if causal, its past and what is marked as prefix.

    queries: segments [B, T]; keys: segments [B, S]; prefix: [B, S] bool or None. Returns [B, 1, T, S].

    >>> visible(jnp.array([[1, 1, 2]]), jnp.array([[1, 1, 2]]), causal=True)[0, 0].astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    seen = queries[:, :, None] == keys[:, None, :]
    if causal:
        past = jnp.arange(keys.shape[1]) <= jnp.arange(queries.shape[1])[:, None]
        seen &= past if prefix is None else past | prefix[:, None, :]
    return seen[:, None]


def hide(seen, bias=None):
    """What is added to the logits: a bias (or 0) where a key is seen, −10⁹ elsewhere; [B, H or 1, T, S]."""
    return jnp.where(seen, 0.0 if bias is None else bias, _HIDDEN)


class Attention(nn.Module):
    """softmax(q kᵀ · K^-½ + hidden) v, over H heads: x [B, T, D] looks at `source` [B, S, D] → [B, T, D].

    hidden: [B, H or 1, T, S], from `hide`. positions: [B, T], for rotary self-attention.
    """

    config: Model

    @nn.compact
    def __call__(self, x, source, hidden, positions=None, deterministic: bool = True):
        config = self.config
        size = head_size(config)
        inner = (config.heads, size)

        def project(name, of, query=False):
            y = Dense(config, config.heads * size, ("embed", "heads"), query=query, name=name)(of)
            return constrain(y.reshape(*of.shape[:2], *inner).swapaxes(1, 2), "batch", "heads", None, None)

        q, k, v = project("query", x, query=True), project("key", source), project("value", source)
        if config.positions == "rotary" and positions is not None:
            q, k = (rotate(y, positions[:, None]) for y in (q, k))
        if config.scale_attention:
            q *= size**-0.5
        logits = product(q, k.swapaxes(2, 3))
        weights = jax.nn.softmax(logits + hidden).astype(config.dtype)
        weights = nn.Dropout(config.dropout)(weights, deterministic=deterministic)
        y = product(weights, v).astype(config.dtype).swapaxes(1, 2).reshape(*x.shape[:2], config.heads * size)
        return Dense(config, config.width, ("heads", "embed"), writes_to_stream=True, name="out")(y)
