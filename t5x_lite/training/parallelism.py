"""Parallelism: each device computes the loss of its own rows, with its own part of the parameters.
All that the mesh axes `data` and `fsdp` send is sent here; what `sequence` and `tensor` send, in
model/parallel.py.

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
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import PartitionSpec
from jaxtyping import Array

from t5x_lite.config import ModelDimensions
from t5x_lite.model.heads import Params, Row
from t5x_lite.model.parallel import parts, sums_in
from t5x_lite.model.transformer import parameter_axes
from t5x_lite.training import exact
from t5x_lite.training.sharding import BATCH, device_rules, parameter_rules

Path = tuple[str, ...]


@dataclass(frozen=True)
class Parallelism:
    """How a model's gradient is computed by all devices of the mesh in use.

    Attributes:
        reduce_dtype: the type in which gradients, and activations split over `tensor`, are sent and
            summed; activations never in less than the type of the computation.
        line: see sharding.line_of_devices.
        exact: what devices have found is added up in one fixed order, see exact.py.
    """

    model: ModelDimensions
    reduce_dtype: str = "float32"
    line: int = 0
    exact: bool = False

    def __call__(
        self,
        compute: Callable[..., tuple[Params, Any]],
        trained: Params,
        frozen: Params,
        batch: Row,
        *constants: Any,
    ) -> tuple[Params, Any]:
        """compute(trained, frozen, rows, *constants) → (gradient of trained, sums), of all rows of
        the batch. Where there are several devices, `compute` gets the shards of one, and its rows;
        gradients and sums are added up.
        """
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.size <= 1:
            return compute(trained, frozen, batch, *constants)

        def on_one_device(trained, frozen, rows, *constants):
            own_axes = device_rules(self.model, mesh.shape["tensor"])
            with nn.logical_axis_rules(own_axes), sums_in(self._activation_sums):
                gradient, sums = compute(trained, frozen, rows, *constants)
            if self.exact:
                return exact.sum_over_devices((gradient, sums))
            return self._added_up(gradient), jax.lax.psum(sums, BATCH)

        shards = self._specs(trained), self._specs(frozen)
        everywhere = PartitionSpec()
        on_all_devices = jax.shard_map(
            on_one_device,
            mesh=mesh,
            in_specs=(*shards, PartitionSpec(BATCH), *(everywhere for _ in constants)),
            out_specs=(shards[0], everywhere),
            check_vma=False,
        )
        return on_all_devices(trained, frozen, batch, *constants)

    @property
    def _activation_sums(self) -> Any:
        """The type of sums over `tensor`; None: that of the computation."""
        is_wider = self.model.dtype == "bfloat16" and self.reduce_dtype == "float32"
        return jnp.float32 if is_wider else None

    @cached_property
    def _mesh_axes(self) -> dict[Path, tuple[str | None, ...]]:
        """By which mesh axis each axis of a parameter is split."""
        axes: Any = flatten_dict(parameter_axes(self.model))
        tensor = jax.sharding.get_abstract_mesh().shape.get("tensor", 1)
        rules = parameter_rules(self.model, tensor)
        return {
            path: tuple(logical_to_mesh_axes(names, rules) or ()) for path, names in axes.items()
        }

    def _specs(self, params: Params) -> Params:
        leaves: Any = flatten_dict(params)
        return unflatten_dict({path: PartitionSpec(*self._mesh_axes[path]) for path in leaves})

    def outside_of_layers(self, params: Params) -> Params:
        """The parameters with all whole but those of scanned layers."""
        leaves: Any = flatten_dict(params)
        whole = {}
        for path, leaf in leaves.items():
            is_layers = "layers" in path
            whole[path] = leaf if is_layers else self._whole(leaf, self._mesh_axes[path])
        return unflatten_dict(whole)

    @property
    def of_layer(self) -> Callable[[str, Params], Params] | None:
        """(name of a stack, parameters of one of its layers) → the same, whole; None: they are
        already.
        """
        if parts("fsdp") == 1:
            return None

        def whole_layer(stack: str, params: Params) -> Params:
            leaves: Any = flatten_dict(params)
            whole = {}
            for path, leaf in leaves.items():
                _, *mesh_axes = self._mesh_axes[(stack, "layers", *path)]
                whole[path] = self._whole(leaf, tuple(mesh_axes))
            return unflatten_dict(whole)

        return whole_layer

    def _whole(self, shard: Array, mesh_axes: tuple[str | None, ...]) -> Array:
        """A parameter that fsdp splits; the part of tensor stays a part."""
        if "fsdp" not in mesh_axes or parts("fsdp") == 1:
            return shard
        # Vectors are added to sums in float32.
        dtype = self.model.dtype if shard.ndim > 1 else shard.dtype
        axis, sum_dtype = mesh_axes.index("fsdp"), self._sum_dtype(shard)
        return _gather(shard, axis, jnp.dtype(dtype), sum_dtype, self.line)

    def _added_up(self, gradient: Params) -> Params:
        """The gradient that each device has found, summed over those that do not split the
        parameter. (Over fsdp it is summed already where fsdp splits it.)
        """
        leaves: Any = flatten_dict(gradient)
        added_up = {}
        for path, leaf in leaves.items():
            axes = [
                axis
                for axis in (*BATCH, "sequence", "tensor")
                if axis not in self._mesh_axes[path] and parts(axis) > 1
            ]
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


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _gather(shard: Array, axis: int, dtype: Any, reduce_dtype: Any, line: int) -> Array:
    """The shards of all devices of `fsdp`, rounded to dtype, along an axis. It has the wider of
    both types, so that its gradient is rounded no more than it will be when it is sent.
    """
    whole = jax.lax.all_gather(shard.astype(dtype), "fsdp", axis=axis, tiled=True)
    return whole.astype(jnp.promote_types(dtype, reduce_dtype))


def _gather_forward(shard, axis, dtype, reduce_dtype, line):
    # The residual is there for its type alone.
    return _gather(shard, axis, dtype, reduce_dtype, line), jnp.zeros((0,), shard.dtype)


def _gather_backward(axis, dtype, reduce_dtype, line, shard, gradient):
    """The sum over all devices, each with its part."""
    scatter = partial(jax.lax.psum_scatter, axis_name="fsdp", tiled=True)
    # The first axis: of parts along the last, TPUs would send the whole.
    part = jnp.moveaxis(gradient.astype(reduce_dtype), axis, 0)
    part = with_layout_constraint(part, Layout(tuple(range(part.ndim))))
    if not line:
        part = scatter(part)
    else:
        # Across the lines, then along each: see sharding.line_of_devices.
        lines = [list(range(first, first + line)) for first in range(0, parts("fsdp"), line)]
        across = [list(devices) for devices in zip(*lines, strict=True)]
        part = scatter(scatter(part, axis_index_groups=across), axis_index_groups=lines)
    return (jnp.moveaxis(part, 0, axis).astype(shard.dtype),)


_gather.defvjp(_gather_forward, _gather_backward)
