"""Multi-head attention (Vaswani et al., 2017, §3.2), with fewer heads for keys and values where the config says so:
multi-query (Shazeer, 2019) and grouped-query attention (Ainslie et al., 2023).

Shapes: B rows, T queries, S keys, H heads, G key and value heads, K head size, D width.
"""

from functools import partial

import flax.linen as nn

from t5x_lite.config import Model
from t5x_lite.model.kernels import KERNELS, Sight, choose, kv_axis, mix, plain, weigh
from t5x_lite.model.layers import Dense, constrain, head_size
from t5x_lite.model.positions import ShawRelative, TransformerXL, rotate


class Attention(nn.Module):
    """softmax(q kᵀ · K^-½ + bias) v, over H heads; `remember` makes the k and v of what is looked at.

    own: it looks at its own stack, where positions count; else at the encoder.
    """

    config: Model
    own: bool = True

    def setup(self):
        config, size = self.config, head_size(self.config)
        groups = config.kv_heads or config.heads
        self.query = Dense(config, config.heads * size, ("embed", "heads"), query=True)
        self.key, self.value = (Dense(config, groups * size, ("embed", kv_axis(groups))) for _ in "kv")
        self.out = Dense(config, config.width, ("heads", "embed"), writes_to_stream=True)
        self.dropout = nn.Dropout(config.attention_dropout)
        if self.own and config.positions == "shaw":
            self.shaw = ShawRelative(config)
        if self.own and config.positions == "transformer_xl":
            self.relative = TransformerXL(config)

    def _heads(self, y, axis="heads"):
        y = y.reshape(*y.shape[:2], -1, head_size(self.config)).swapaxes(1, 2)
        return constrain(y, "batch", axis, None, None)

    def remember(self, source, positions=None):
        """Keys and values [B, G, S, K] of the source [B, S, D]; positions: [B, S], for those that turn."""
        axis = kv_axis(self.config.kv_heads or self.config.heads)
        k, v = self._heads(self.key(source), axis), self._heads(self.value(source), axis)
        return (self._turn(k, positions), v)

    def _turn(self, x, positions):
        turns = self.own and self.config.positions == "rotary"
        return rotate(x, positions, self.config.rotary_base) if turns else x

    def __call__(self, x, memory, sight: Sight, hidden, bias=None, positions=None, deterministic: bool = True):
        """x [B, T, D] looks at the memory → [B, T, D]. bias: [1 or B, H, T, S]; hidden: sight.hide(bias), computed once
        for all layers; positions: [B, T].
        """
        config, (k, v) = self.config, memory
        scale = head_size(config) ** -0.5 if config.scale_attention else 1.0
        q = (self._turn(self._heads(self.query(x)), positions) * scale).astype(k.dtype)
        drop = partial(self.dropout, deterministic=deterministic)
        kernel = choose(config, sight, dropout=config.attention_dropout > 0 and not deterministic)
        if kernel != "plain":
            y = KERNELS[kernel](q, k, v, sight, bias)
        elif self.own and config.positions == "shaw":
            weights = drop(weigh(q, k, hidden + self.shaw.logits(q, sight.distance())))
            y = mix(weights, v) + self.shaw.mix(weights, sight.distance())
        else:
            if self.own and config.positions == "transformer_xl":
                longest = max(x.shape[1], k.shape[2])
                hidden = hidden + self.relative.logits(q, sight.distance(), longest, scale)
                q += self.relative.u[:, None].astype(q.dtype) * scale
            y = plain(q, k, v, sight, hidden, drop)
        return self.out(y.swapaxes(1, 2).reshape(*x.shape[:2], -1))
