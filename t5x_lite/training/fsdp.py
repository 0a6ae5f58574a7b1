"""Data parallelism: each device computes the loss of its own rows, with its own part of the
parameters. All that the mesh axes `data` and `fsdp` send is sent here; what `tensor` sends is left
to the compiler.

`data` holds copies of the parameters. `fsdp` splits them (ZeRO's third stage: Rajbhandari et al.,
2020). Where they are needed they are gathered, in the type of the computation: those of a block
just before it, forward and once more backward, all others at the start. Their gradient goes back
the same way, summed and split:

    shard ──► all-gather ──► block, embedding, head
    its gradient ◄── reduce-scatter ◄── gradient on these rows
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.spmd import logical_to_mesh_axes
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import PartitionSpec
from jaxtyping import Array

from t5x_lite.config import ModelDimensions
from t5x_lite.model.heads import Params, Row
from t5x_lite.model.layers import GATHERED
from t5x_lite.model.transformer import parameter_axes
from t5x_lite.training.sharding import BATCH, RULES, RULES_OF_OWN_ROWS

Path = tuple[str, ...]


@dataclass(frozen=True)
class DataParallel:
    """How a model's gradient is computed by all devices that split the rows of a batch.

    Attributes:
        reduce_dtype: the type in which gradients are sent and summed.
        line: see sharding.line_of_devices.
    """

    model: ModelDimensions
    reduce_dtype: str = "float32"
    line: int = 0

    def __call__(
        self,
        compute: Callable[..., tuple[Params, Any]],
        trained: Params,
        frozen: Params,
        batch: Row,
        *constants: Any,
    ) -> tuple[Params, Any]:
        """compute(trained, frozen, rows, *constants) → (gradient of trained, sums), of all rows of
        the batch. Where several devices split them, `compute` gets the shards of one, and its rows;
        gradients and sums are added up.
        """
        if not self.splits_rows:
            return compute(trained, frozen, batch, *constants)

        def on_own_rows(trained, frozen, rows, *constants):
            with nn.logical_axis_rules(RULES_OF_OWN_ROWS):
                gradient, sums = compute(trained, frozen, rows, *constants)
            return self._added_up(gradient), jax.lax.psum(sums, BATCH)

        shards = self._specs(trained), self._specs(frozen)
        everywhere = PartitionSpec()
        on_all_rows = jax.shard_map(
            on_own_rows,
            mesh=jax.sharding.get_abstract_mesh(),
            axis_names=set(BATCH),
            in_specs=(*shards, PartitionSpec(BATCH), *(everywhere for _ in constants)),
            out_specs=(shards[0], everywhere),
            check_vma=False,
        )
        return on_all_rows(trained, frozen, batch, *constants)

    @property
    def splits_rows(self) -> bool:
        """Whether the mesh in use has several devices that split rows."""
        return any(_size(axis) > 1 for axis in BATCH)

    @property
    def _splits_parameters(self) -> bool:
        return _size("fsdp") > 1

    @cached_property
    def _split_axes(self) -> dict[Path, int]:
        """The axis of each parameter that `fsdp` splits; those that it does not are left out."""
        split = {}
        of_model: Any = flatten_dict(parameter_axes(self.model))
        for path, names in of_model.items():
            mesh_axes = tuple(logical_to_mesh_axes(names, RULES) or ())
            if "fsdp" in mesh_axes:
                split[path] = mesh_axes.index("fsdp")
        return split

    def _specs(self, params: Params) -> Params:
        def spec(path):
            axis = self._split_axes.get(path)
            return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, "fsdp")

        return unflatten_dict({path: spec(path) for path in flatten_dict(params)})

    def outside_of_layers(self, params: Params) -> Params:
        """The parameters with all but those of scanned layers whole."""
        if not self._splits_parameters:
            return params
        leaves: Any = flatten_dict(params)
        return unflatten_dict(
            {
                path: leaf if "layers" in path else self._whole(leaf, self._split_axes.get(path))
                for path, leaf in leaves.items()
            }
        )

    @property
    def of_layer(self) -> Callable[[str, Params], Params] | None:
        """(name of a stack, parameters of one of its layers) → the same, whole; None: they are
        already.
        """
        if not self._splits_parameters:
            return None

        def whole_layer(stack: str, params: Params) -> Params:
            leaves: Any = flatten_dict(params)
            whole = {}
            for path, leaf in leaves.items():
                axis = self._split_axes.get((stack, "layers", *path))
                whole[path] = self._whole(leaf, None if axis is None else axis - 1)
            return unflatten_dict(whole)

        return whole_layer

    def _whole(self, shard: Array, axis: int | None) -> Array:
        if axis is None:
            return shard
        # Vectors are added to sums in float32.
        dtype = self.model.dtype if shard.ndim > 1 else shard.dtype
        reduce_dtype = self._sum_dtype(shard)
        whole = _gather(shard, axis, jnp.dtype(dtype), reduce_dtype, self.line)
        return checkpoint_name(whole, GATHERED)

    def _added_up(self, gradient: Params) -> Params:
        """The gradient of shards, which is that of these rows where nothing was split, summed over
        all rows.
        """
        leaves: Any = flatten_dict(gradient)
        added_up = {}
        for path, leaf in leaves.items():
            is_split = self._splits_parameters and path in self._split_axes
            axes = [axis for axis in (("data",) if is_split else BATCH) if _size(axis) > 1]
            added_up[path] = leaf
            if axes:
                dtype = self._sum_dtype(leaf)
                added_up[path] = jax.lax.psum(leaf.astype(dtype), axes).astype(leaf.dtype)
        return unflatten_dict(added_up)

    def _sum_dtype(self, gradient: Array) -> Any:
        """Of a gradient; vectors and float64 are never rounded."""
        if gradient.ndim < 2 or gradient.dtype == jnp.float64:
            return gradient.dtype
        return jnp.dtype(self.reduce_dtype)


def _size(axis: str) -> int:
    return jax.sharding.get_abstract_mesh().shape.get(axis, 1)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _gather(shard: Array, axis: int, dtype: Any, reduce_dtype: Any, line: int) -> Array:
    """The shards of all devices of `fsdp`, rounded to dtype, along an axis. It has the type of the
    shard, so that its gradient is not rounded before it is sent.
    """
    whole = jax.lax.all_gather(shard.astype(dtype), "fsdp", axis=axis, tiled=True)
    return whole.astype(shard.dtype)


def _gather_forward(shard, axis, dtype, reduce_dtype, line):
    return _gather(shard, axis, dtype, reduce_dtype, line), None


def _gather_backward(axis, dtype, reduce_dtype, line, _, gradient):
    """The sum over all devices, each with its part."""
    scatter = partial(jax.lax.psum_scatter, axis_name="fsdp", tiled=True)
    # The first axis: of parts along the last, TPUs would send the whole.
    part = jnp.moveaxis(gradient.astype(reduce_dtype), axis, 0)
    part = with_layout_constraint(part, Layout(tuple(range(part.ndim))))
    if not line:
        part = scatter(part)
    else:
        # Across the lines, then along each: see sharding.line_of_devices.
        lines = [list(range(first, first + line)) for first in range(0, _size("fsdp"), line)]
        across = [list(devices) for devices in zip(*lines, strict=True)]
        part = scatter(scatter(part, axis_index_groups=across), axis_index_groups=lines)
    return (jnp.moveaxis(part, 0, axis).astype(gradient.dtype),)


_gather.defvjp(_gather_forward, _gather_backward)
