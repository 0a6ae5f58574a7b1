"""Who may look where, and the kernels that compute attention with it.

Shapes: B rows, T queries, S keys, H heads, G key and value heads (H a multiple of G), K head size.
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from t5x_lite.config import Model
from t5x_lite.errors import BAD_CONFIG, Refusal
from t5x_lite.model.layers import head_size
from t5x_lite.model.products import product, product_turned


class Sight(struct.PyTreeNode):
    """Who may look where. A query sees the keys of its own segment; if causal, those of them in its past, and what is
    marked as prefix. Unless rows are packed, each holds one segment and then padding, which nobody sees.

    >>> segments = jnp.array([[1, 1, 2]])
    >>> Sight(segments, segments, causal=True, packed=True).seen()[0, 0].astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """

    queries: jax.Array  # segments [B, T]; 0 is padding
    keys: jax.Array  # segments [B, S]
    prefix: jax.Array | None = None  # bool [B, S]: seen from everywhere in the segment
    query_positions: jax.Array | None = None  # [B, T] and …
    key_positions: jax.Array | None = None  # … [B, S], where distances do not follow from the order of the arrays
    causal: bool = struct.field(pytree_node=False, default=False)
    packed: bool = struct.field(pytree_node=False, default=False)

    def seen(self):
        """True where a query may see a key: [B or 1, 1, T, S]."""
        seen = True
        if self.packed:
            seen = (self.queries[:, :, None] == self.keys[:, None, :])[:, None]
        elif not self.causal:
            seen = (self.keys > 0)[:, None, None, :]
        if self.causal:
            past = jnp.arange(self.keys.shape[1]) <= jnp.arange(self.queries.shape[1])[:, None]
            past = past[None, None]
            seen &= past if self.prefix is None else past | self.prefix[:, None, None, :]
        return jnp.broadcast_to(seen, (*seen.shape[:2], self.queries.shape[1], seen.shape[3]))

    def hide(self, bias=None):
        """What is added to the logits: a bias (or 0) where a key is seen, −10⁹ elsewhere; [B or 1, H or 1, T, S]."""
        return jnp.where(self.seen(), 0.0 if bias is None else bias, -1e9)

    def distance(self):
        """The place of each key − that of each query: [T, S], or [B, T, S]."""
        if self.query_positions is not None:
            return self.key_positions[:, None, :] - self.query_positions[:, :, None]
        return np.arange(self.keys.shape[1])[None, :] - np.arange(self.queries.shape[1])[:, None]


def reference(q, k, v, sight: Sight, bias=None):
    """softmax(q kᵀ + bias) v over what is seen (Vaswani et al., 2017, eq. 1), as one reads it; q is scaled already.

    q [B, H, T, K], k and v [B, G, S, K], bias [1 or B, H, T, S] → [B, H, T, K].
    """
    k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    logits = jnp.einsum("bhtk,bhsk->bhts", q, k) + (0.0 if bias is None else bias)
    weights = jax.nn.softmax(jnp.where(sight.seen(), logits, -jnp.inf))
    return jnp.einsum("bhts,bhsk->bhtk", weights, v)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _softmax(logits, dtype):
    """Computed in the type of the logits and rounded to `dtype`, as which alone it is kept for the gradient."""
    return jax.nn.softmax(logits).astype(dtype)


def _softmax_gradient(dtype, weights, dw):
    weights, dw = (x.astype(jnp.promote_types(dtype, jnp.float32)) for x in (weights, dw))
    return (weights * (dw - (weights * dw).sum(-1, keepdims=True)),)


_softmax.defvjp(lambda logits, dtype: (_softmax(logits, dtype),) * 2, _softmax_gradient)


def weigh(q, k, hidden):
    """With `hidden` from Sight.hide, the weights [B, H, T, S] of `reference`; sums are float32."""
    (b, h, t, size), groups = q.shape, k.shape[1]
    q = q.reshape(b, groups, -1, size)  # the heads of a group, one after another: no key is repeated
    return _softmax(product_turned(q, k).reshape(b, h, t, -1) + hidden, q.dtype)


def mix(weights, v):
    """Weights [B, H, T, S] times the values [B, G, S, K]: [B, H, T, K]."""
    (b, h, t, s), (groups, size) = weights.shape, v.shape[1::2]
    return product(weights.reshape(b, groups, -1, s), v).astype(v.dtype).reshape(b, h, t, size)


_LEAST_HALF = 256  # positions


def plain(q, k, v, sight: Sight, hidden, drop=lambda weights: weights):
    """`weigh`, dropout on the weights if any, and `mix`. The first half of a long causal text sees nothing of its
    second half, which is not computed for it.
    """
    half = q.shape[2] // 2
    if not sight.causal or sight.prefix is not None or sight.query_positions is not None or half < _LEAST_HALF:
        return mix(drop(weigh(q, k, hidden)), v)
    first, second = slice(half), slice(half, None)
    early = plain(q[:, :, first], k[:, :, first], v[:, :, first], sight, hidden[:, :, first, first], drop)
    late = mix(drop(weigh(q[:, :, second], k, hidden[:, :, second])), v)
    return jnp.concatenate([early, late], 2)


def cudnn(q, k, v, sight: Sight, bias=None):
    """cuDNN's flash attention (NVIDIA, bfloat16). Rows of one segment pass lengths and no mask; packed rows and
    prefixes pass a mask, since it knows of no segments.
    """
    how = {"bias": None if bias is None else bias.astype(q.dtype)}
    if sight.packed or sight.prefix is not None:
        how["mask"] = sight.seen()
    elif sight.causal:  # padding is at the end, where no query of the segment looks
        how["is_causal"] = True
    else:
        how["key_value_seq_lengths"] = (sight.keys > 0).sum(-1, dtype=jnp.int32)
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v, scale=1.0, implementation="cudnn", **how).swapaxes(1, 2)


def splash(q, k, v, sight: Sight, bias=None, interpret: bool = False):
    """Splash attention (TPU), which knows of segments. interpret: without a TPU, for tests."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    def attend(q, k, v, queries, keys):
        shape = q.shape[2], k.shape[2]
        mask = masks.CausalMask(shape) if sight.causal else masks.FullMask(shape)
        block = next(size for size in (512, 256, 128) if not (shape[0] % size or shape[1] % size))
        backward = ("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute", "block_q_dq", "block_kv_dq")
        sizes = kernels.BlockSizes(block, block, **dict.fromkeys(backward, block))
        make = partial(kernels.make_splash_mha, head_shards=1, q_seq_shards=1, interpret=interpret)
        kernel = make(masks.MultiHeadMask([mask] * q.shape[1]), block_sizes=sizes)
        return jax.vmap(kernel)(q, k, v, kernels.SegmentIds(queries, keys))

    mesh = jax.sharding.get_abstract_mesh()
    if mesh.size > 1:  # a kernel is not split by the compiler: each device computes its rows and heads
        heads, keys = (nn.logical_to_mesh_axes(("batch", axis, None, None)) for axis in ("heads", kv_axis(k.shape[1])))
        rows = nn.logical_to_mesh_axes(("batch", None))
        specs = heads, keys, keys, rows, rows
        attend = jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=heads, check_vma=False)
    return attend(q, k, v, sight.queries, sight.keys)


KERNELS = {"cudnn": cudnn, "splash": splash}  # and plain, which takes what is hidden


def kv_axis(heads: int) -> str | None:
    """The logical axis that key and value heads lie on; a single head is everywhere."""
    return "heads" if heads > 1 else None


def why_not(kernel: str, config: Model, sight: Sight, dropout: bool) -> str:
    """Why a kernel cannot compute this attention; empty if it can. dropout: on the weights, now."""
    queries, keys, size = sight.queries.shape[1], sight.keys.shape[1], head_size(config)
    if kernel == "plain":
        return ""
    if dropout:
        return "it has no dropout on attention weights"
    if config.positions in ("shaw", "transformer_xl"):
        return f"positions {config.positions} need the logits"
    if kernel == "cudnn":
        if config.dtype != "bfloat16":
            return "it computes in bfloat16 alone"
        return f"it has no head size {size}" if size % 8 or size > 128 else ""
    if config.positions in ("relative", "alibi"):
        return f"it takes no bias, which positions {config.positions} are"
    if sight.prefix is not None:
        return "it takes no prefix"
    return f"{queries} × {keys} are no multiples of 128" if queries % 128 or keys % 128 else ""


def choose(config: Model, sight: Sight, dropout: bool = False, platform: str | None = None) -> str:
    """The kernel that computes this attention: the best for the platform that can, or config.attention, refused where
    it cannot.
    """
    if sight.queries.shape[1] == 1 or sight.query_positions is not None:  # text is written, token by token
        return "plain"
    platform = platform or jax.default_backend()
    best = {"gpu": "cudnn", "tpu": "splash"}.get(platform, "plain")
    wanted = best if config.attention == "auto" else config.attention
    reason = why_not(wanted, config, sight, dropout)
    if wanted == "cudnn" and platform != "gpu":
        reason = "it needs an NVIDIA GPU"
    if reason and config.attention != "auto":
        raise Refusal(BAD_CONFIG, f"model.attention={wanted}: {reason}; set it to auto")
    return "plain" if reason else wanted
