"""The kernels that compute attention, and the choice between them.

Shapes: B rows, T queries, S keys, H heads, G key and value heads (H a multiple of G), K head_dim.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.spmd import logical_to_mesh_axes
from jax.custom_derivatives import linear_call
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from t5x_lite.config import ModelDimensions
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.hardware import cuda_generation
from t5x_lite.model.masks import AttentionMask
from t5x_lite.model.matmul import (
    compiler_splits,
    matmul,
    matmul_transposed,
    target_kind,
    target_platform,
)
from t5x_lite.model.parts.activations import softcapped
from t5x_lite.model.parts.positions import NoPositions
from t5x_lite.parallel.sequence import sequence_order

Queries = Float[Array, "B H T K"]
Keys = Float[Array, "B G S K"]
Weights = Float[Array, "B H T S"]


def reference(
    q: Queries, k: Keys, v: Keys, mask: AttentionMask, bias: Array | None = None
) -> Queries:
    """Return softmax(q kᵀ + bias) v over the keys that are not masked, written as in the paper
    (Vaswani et al., 2017, eq. 1).

    q is already scaled; bias: [1 or B, H, T, S].
    """
    # Each K/V head serves a group of query heads.
    group_size = q.shape[1] // k.shape[1]
    k = jnp.repeat(k, group_size, 1)
    v = jnp.repeat(v, group_size, 1)

    logits = jnp.einsum("bhtk,bhsk->bhts", q, k)
    if bias is not None:
        logits += bias
    weights = jax.nn.softmax(jnp.where(mask.mask(), logits, -jnp.inf))
    return jnp.einsum("bhts,bhsk->bhtk", weights, v)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _rounded_softmax(logits: Weights, dtype: np.dtype) -> Weights:
    """Compute the softmax in the dtype of the logits, and round it to `dtype`. Only the rounded
    weights are kept for the backward pass.
    """
    return jax.nn.softmax(logits).astype(dtype)


@_rounded_softmax.defjvp
def _rounded_softmax_jvp(
    dtype: np.dtype, primals: tuple[Weights], tangents: tuple[Weights]
) -> tuple[Weights, Weights]:
    (logits,), (dlogits,) = primals, tangents
    weights = _rounded_softmax(logits, dtype)

    # With p = softmax(z): dp = p ⊙ (dz − Σ p dz), so p is all that it needs.
    def jacobian(weights: Weights, tangent: Weights) -> Weights:
        weights, tangent = weights.astype(logits.dtype), tangent.astype(logits.dtype)
        return weights * (tangent - (weights * tangent).sum(-1, keepdims=True))

    # linear_call keeps the rounded `weights`; jax's own transpose of the Jacobian would keep the
    # copy that is cast to the wider dtype.
    tangent = linear_call(
        lambda weights, dlogits: jacobian(weights, dlogits).astype(dtype),
        jacobian,  # it is symmetric
        weights,
        dlogits,
    )
    return weights, tangent


def attention_weights(q: Queries, k: Keys, mask_bias: Array, softcap: float = 0.0) -> Weights:
    """Return softmax(q kᵀ + mask_bias), with sums in float32; mask_bias: AttentionMask.bias.

    Args:
        softcap: soft cap of q kᵀ; 0: none.
    """
    B, H, T, K = q.shape
    G = k.shape[1]
    # Fold the query heads of a group into the query axis, so that no key is repeated.
    grouped_q = q.reshape(B, G, -1, K)
    logits = matmul_transposed(grouped_q, k).reshape(B, H, T, -1)
    logits = softcapped(logits, softcap) + mask_bias.astype(logits.dtype)
    # float64 is for numerical tests, which need jax's own derivatives, of any order.
    if q.dtype == jnp.float64:
        return jax.nn.softmax(logits)
    return _rounded_softmax(logits, q.dtype)


def weighted_sum(weights: Weights, v: Keys) -> Queries:
    """Multiply attention weights by values."""
    B, H, T, S = weights.shape
    G, K = v.shape[1], v.shape[3]
    grouped_weights = weights.reshape(B, G, -1, S)
    return matmul(grouped_weights, v).astype(v.dtype).reshape(B, H, T, K)


_MIN_HALF_LENGTH = 256  # positions


def plain(
    q: Queries,
    k: Keys,
    v: Keys,
    mask: AttentionMask,
    mask_bias: Array,
    dropout: Callable[[Array], Array] = lambda weights: weights,
    softcap: float = 0.0,
) -> Queries:
    """Compute attention by two matrix products, with dropout on the weights.

    Long causal rows are split in halves. Queries of the first half attend to no key of the second,
    so a quarter of the logits need not be computed. The first half is split again.
    """
    half = q.shape[2] // 2
    has_all_queries = mask.query_positions is None and mask.query_places is None
    is_plainly_causal = mask.causal and mask.prefix is None and has_all_queries
    if not is_plainly_causal or half < _MIN_HALF_LENGTH:
        weights = attention_weights(q, k, mask_bias, softcap)
        return weighted_sum(dropout(weights), v)

    # The first half attends to itself, and is split again.
    early_bias = mask_bias[:, :, :half, :half]
    early_q, early_k, early_v = (x[:, :, :half] for x in (q, k, v))
    early = plain(early_q, early_k, early_v, mask, early_bias, dropout, softcap)
    # The second half attends to both.
    late_weights = attention_weights(q[:, :, half:], k, mask_bias[:, :, half:], softcap)
    late = weighted_sum(dropout(late_weights), v)
    return jnp.concatenate([early, late], 2)


def cudnn(q: Queries, k: Keys, v: Keys, mask: AttentionMask, bias: Array | None = None) -> Queries:
    """Compute attention by cuDNN's flash attention (NVIDIA, bfloat16). Rows of one segment pass
    lengths instead of a mask. Packed rows and prefixes pass a mask, since cuDNN has no segments.
    """
    options: dict[str, Any] = {"bias": None if bias is None else bias.astype(q.dtype)}
    if mask.packed or mask.prefix is not None or mask.query_places is not None:
        options["mask"] = mask.mask()
    elif mask.causal:
        # Padding is at the end, so no query of the segment attends to it.
        options["is_causal"] = True
    else:
        # Keep at least one key: a row that is all padding must not give 0 / 0.
        lengths = (mask.key_segments > 0).sum(-1, dtype=jnp.int32)
        options["key_value_seq_lengths"] = jnp.maximum(lengths, 1)
    # Without a GPU here, the step is only being planned.
    if jax.default_backend() != "gpu":
        shown = [x for x in (bias, options.get("mask")) if x is not None]
        return _planned(q, k, v, *shown)
    # cuDNN wants [B, T, H, K].
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    y = jax.nn.dot_product_attention(q, k, v, scale=1.0, implementation="cudnn", **options)
    return y.swapaxes(1, 2)


@jax.custom_vjp
def _planned(*operands: Array) -> Array:
    """Stand-in with the inputs and outputs of cuDNN's attention. It can be traced, but not run."""
    return _planned_forward(*operands)[0]


def _planned_forward(*operands: Array) -> tuple[Array, tuple]:
    q = operands[0]
    # The output, and log Z of each query, which flash attention keeps for the backward pass.
    results = jax.ShapeDtypeStruct(q.shape, q.dtype), jax.ShapeDtypeStruct(q.shape[:3], jnp.float32)
    y, log_z = jax.ffi.ffi_call("planned_attention", results)(*operands)
    return y, (operands, y, log_z)


def _planned_backward(kept: tuple, gradient: Array) -> tuple:
    operands, y, log_z = kept
    # Queries, keys, values and a bias have gradients; a mask has none.
    differentiable = [x for x in operands if jnp.issubdtype(x.dtype, jnp.floating)]
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in differentiable]
    found = jax.ffi.ffi_call("planned_attention_backward", results)(*operands, y, log_z, gradient)
    return (*found, *[None] * (len(operands) - len(found)))


_planned.defvjp(_planned_forward, _planned_backward)


def splash(
    q: Queries,
    k: Keys,
    v: Keys,
    mask: AttentionMask,
    bias: Array | None = None,
    softcap: float = 0.0,
    interpret: bool = False,
) -> Queries:
    """Compute attention by Splash attention (TPU), which supports segments.

    Args:
        softcap: soft cap of the logits; 0: none.
        interpret: True to compute without a TPU, for tests.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

    def attend(
        q: Queries,
        k: Keys,
        v: Keys,
        query_segments: Int[Array, "B T"],
        key_segments: Int[Array, "B S"],
    ) -> Queries:
        kernel = _splash_kernel(q.shape[1], q.shape[2], k.shape[2], mask, softcap, interpret)
        segments = splash_attention_kernel.SegmentIds(query_segments, key_segments)
        return jax.vmap(kernel)(q, k, v, segments)

    mesh = jax.sharding.get_abstract_mesh()
    if mesh.size > 1 and not mesh.manual_axes:
        # The compiler cannot split a kernel, so each device computes its own rows and heads.
        # If there are several K/V heads, but too few for `tensor` to split, repeat them: one per
        # query head.
        if 1 < k.shape[1] < mesh.shape["tensor"]:
            group = q.shape[1] // k.shape[1]
            k, v = jnp.repeat(k, group, 1), jnp.repeat(v, group, 1)
        heads = logical_to_mesh_axes(("batch", "heads", None, None))
        # If `tensor` does not divide the K/V heads, each device has all of them.
        is_split = k.shape[1] % mesh.shape["tensor"] == 0
        kv_heads = heads if is_split else logical_to_mesh_axes(("batch", None, None, None))
        rows = logical_to_mesh_axes(("batch", None))
        specs = heads, kv_heads, kv_heads, rows, rows
        attend = jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=heads, check_vma=False)
    return attend(q, k, v, mask.query_segments, mask.key_segments)


def _splash_kernel(
    heads: int, T: int, S: int, mask: AttentionMask, softcap: float, interpret: bool
) -> Any:
    """Make the kernel for T queries and S keys of a row: a function of q, k, v and segments."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    # The largest block that divides both lengths, for the forward and the backward pass.
    block = next(size for size in (512, 256, 128) if T % size == 0 and S % size == 0)
    # Several devices may share a row, each with its own queries. The causal mask is then built for
    # the whole row, with its queries in the order in which the devices hold them.
    devices = mask.shards if mask.causal else 1
    pattern: Any = masks.FullMask((T, S))
    if mask.causal:
        pattern = masks.CausalMask((T * devices, S))
        pattern.q_sequence = sequence_order(T * devices, devices).astype(np.int32)
    backward_blocks: dict[str, Any] = dict.fromkeys(
        ("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute", "block_q_dq", "block_kv_dq"), block
    )
    kernel: Any = splash_attention_kernel.make_splash_mha(
        masks.MultiHeadMask([pattern] * heads),
        block_sizes=splash_attention_kernel.BlockSizes(block, block, **backward_blocks),
        head_shards=1,
        q_seq_shards=devices,
        attn_logits_soft_cap=softcap or None,
        interpret=interpret,
    )
    return _own_queries(kernel, mask) if devices > 1 else kernel


def _own_queries(kernel: Any, mask: AttentionMask) -> Any:
    """Return this device's shard of a Splash kernel that was built for the whole sequence."""
    # The kernel says how a mesh splits its arrays, which hold data about each block of queries.
    mesh = jax.sharding.AbstractMesh((mask.shards,), ("sequence",))
    queries = PartitionSpec(None, "sequence")
    specs = kernel.manual_sharding_spec(NamedSharding(mesh, queries))

    def own(leaf: Array | np.ndarray, spec: PartitionSpec) -> Array | np.ndarray:
        if "sequence" not in spec:
            return leaf
        axis = spec.index("sequence")
        size = leaf.shape[axis] // mask.shards
        return jax.lax.dynamic_slice_in_dim(leaf, mask.shard * size, size, axis)

    return jax.tree.map(own, kernel, specs)


def flash(q: Queries, k: Keys, v: Keys, mask: AttentionMask, bias: Array | None = None) -> Queries:
    """Compute attention by flash attention with a bias (TPU), for T5's relative positions, ALiBi
    and prefixes. Rows are computed one at a time, so that the bias of all logits, and its gradient,
    exist for one row only.

    bias: [1, H, T, S].
    """
    from jax.experimental.pallas.ops.tpu import flash_attention as pallas

    # The kernel handles segments and plain causal masks; everything else goes into the bias.
    is_plainly_causal = mask.causal and mask.prefix is None and mask.query_places is None
    group_size = q.shape[1] // k.shape[1]
    shape = 1, q.shape[1], q.shape[2], k.shape[2]

    def attend(row: Any) -> Array:
        q, k, v, query_segments, key_segments, prefix = jax.tree.map(lambda x: x[None], row)
        if group_size > 1:
            k, v = (jnp.repeat(x, group_size, 1) for x in (k, v))
        added = jnp.zeros(()) if bias is None else bias
        if mask.causal and not is_plainly_causal:
            of_row = mask.replace(
                query_segments=query_segments, key_segments=key_segments, prefix=prefix
            )
            added = of_row.bias(bias)
        added = jnp.broadcast_to(jnp.asarray(added, jnp.float32), shape)
        segments = pallas.SegmentIds(query_segments, key_segments)
        return pallas.flash_attention(q, k, v, added, segments, causal=is_plainly_causal)[0]

    rows = q, k, v, mask.query_segments, mask.key_segments, mask.prefix
    return jax.lax.map(attend, rows)


# Fused kernels take the mask itself; `plain` takes the bias that is made from it.
FUSED_KERNELS = {"cudnn": cudnn, "splash": splash, "flash": flash}
TPU_KERNELS = ("splash", "flash")
# The kernels that are better than plain on each platform, best first.
_BEST = {"gpu": ("cudnn",), "tpu": TPU_KERNELS}
# With fewer logits per head than this, plain is no slower than flash.
_LEAST_FOR_FLASH = 1024 * 1024


def reason_against(
    kernel: str,
    config: ModelDimensions,
    mask: AttentionMask,
    kind: NoPositions,
    dropout: bool,
    learned_prefix: bool,
) -> str:
    """Say why a kernel cannot compute this attention; empty if it can.

    Args:
        kind: the positions of this attention.
        dropout: True if there is now dropout on the weights.
        learned_prefix: True if learned keys and values precede those of the tokens.
    """
    T, S = mask.query_segments.shape[1], mask.key_segments.shape[1]
    if kernel == "plain":
        return ""
    # Features that fused kernels lack (only Splash has a soft cap).
    if dropout:
        return "it has no dropout on attention weights"
    if kind.needs_logits:
        return f"positions {config.positions} need the logits"
    if config.attention_softcap and kernel != "splash":
        return "it has no soft cap"
    if mask.rules:
        return "its mask has rules that no fused kernel knows"
    if learned_prefix:
        return "its mask is for the tokens, not for a learned prefix"
    if kernel == "cudnn":
        return _reason_against_cudnn(config, T, S)
    # The kernels for TPUs, with blocks of at least 128 positions.
    if T % 128 or S % 128:
        return f"{T} × {S} are no multiples of 128"
    if config.dtype == "bfloat16" and target_kind().startswith(("TPU v2", "TPU v3")):
        return f"on a {target_kind()} it has no bfloat16"
    if kernel == "flash":
        return "it is for rows that the compiler does not split" if compiler_splits() else ""
    if kind.is_bias:
        return f"it takes no bias, which positions {config.positions} are"
    if mask.prefix is not None:
        return "it takes no prefix"
    return ""


def _reason_against_cudnn(config: ModelDimensions, T: int, S: int) -> str:
    """Say why cuDNN cannot compute this attention or its gradient; empty if it can."""
    generation = cuda_generation(target_kind())
    if not generation:
        return f"it needs an NVIDIA GPU, this is {target_kind()}"
    if generation == "old":
        return f"it needs Ampere or later, this is {target_kind()}"
    if config.dtype != "bfloat16":
        return "it computes in bfloat16 only"
    widest = 256 if generation == "hopper" else 128
    if config.head_dim % 8 or config.head_dim > widest:
        return f"it has no head_dim {config.head_dim}"
    if T % 2 or S % 2:
        return f"it has no gradient for {T} × {S}, an odd length"
    return ""


def explain_choice(
    config: ModelDimensions,
    mask: AttentionMask,
    kind: NoPositions,
    dropout: bool = False,
    learned_prefix: bool = False,
) -> str:
    """Say which kernel computes this attention and, if it is plain, why no better one does."""
    kernel = choose_kernel(config, mask, kind, dropout, learned_prefix=learned_prefix)
    if kernel != "plain" or config.attention_kernel != "auto":
        return kernel
    reasons = []
    for better in _BEST.get(target_platform(), ()):
        reason = reason_against(better, config, mask, kind, dropout, learned_prefix)
        reasons.append(f"{better}: {reason or 'rows are short'}")
    return f"plain ({'; '.join(reasons)})" if reasons else "plain"


def choose_kernel(
    config: ModelDimensions,
    mask: AttentionMask,
    kind: NoPositions,
    dropout: bool = False,
    platform: str | None = None,
    learned_prefix: bool = False,
) -> str:
    """Choose the kernel that computes this attention: the best for the platform that can, or
    config.attention_kernel.

    Args:
        kind: the positions of this attention.

    Raises:
        UserError: if the named kernel cannot compute it.
    """
    # During generation, queries are few, and keys are in the slots of a cache.
    is_decoding = mask.query_segments.shape[1] == 1 or mask.query_positions is not None
    if is_decoding:
        return "plain"
    platform = platform or target_platform()
    if config.attention_kernel == "auto":
        logits = mask.query_segments.shape[1] * mask.key_segments.shape[1]
        for kernel in _BEST.get(platform, ()):
            is_worth_it = kernel != "flash" or logits >= _LEAST_FOR_FLASH
            reason = reason_against(kernel, config, mask, kind, dropout, learned_prefix)
            if is_worth_it and not reason:
                return kernel
        return "plain"
    # A kernel that the config names is used or refused, never replaced, except while decoding.
    kernel = config.attention_kernel
    reason = reason_against(kernel, config, mask, kind, dropout, learned_prefix)
    if kernel == "cudnn" and platform != "gpu":
        reason = "it needs an NVIDIA GPU"
    if reason:
        raise UserError(BAD_CONFIG, f"model.attention_kernel={kernel}: {reason}; set it to auto")
    return kernel
