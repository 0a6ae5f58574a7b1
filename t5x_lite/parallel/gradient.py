"""The gradient of a model over several devices: each computes the loss of its own rows, with its
own part of the parameters. Parameters and gradients are sent here (with training.exact, gradients
in exact.py), activations in collectives.py.

Along `data`, devices hold copies of the parameters. Along `fsdp`, they hold shards (ZeRO's third
stage: Rajbhandari et al., 2020), which are gathered in the compute dtype when they are needed:
those of a block just before it runs, forward and again backward, and all others at the start. Their
gradient goes back the same way, summed and split:

    shard ──► all-gather ──► block, embedding, head
    its gradient ◄── reduce-scatter ◄── gradient on these rows
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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

from t5x_lite.parallel import exact
from t5x_lite.parallel.axes import BATCH, Names, device_rules, parameter_rules, stays_wide
from t5x_lite.parallel.collectives import part_number, parts, sums_in

Path = tuple[str, ...]
Params = dict[str, Any]
MeshAxes = tuple[str | None, ...]


@dataclass(frozen=True)
class Parallelism:
    """Computation of a model's gradient by all devices of the current mesh.

    Attributes:
        names: names of the axes of each parameter.
        kv_heads: number of K/V heads.
        dtype: the compute dtype.
        reduce_dtype: dtype in which gradients, and activations split over `tensor`, are sent and
            summed. For activations, this is never narrower than the compute dtype.
        line: see mesh.line_of_devices.
        exact: True to sum over devices in one fixed order, see exact.py.
    """

    names: Mapping[Path, Names]
    kv_heads: int
    dtype: str
    reduce_dtype: str = "float32"
    line: int = 0
    exact: bool = False

    def __call__(
        self,
        compute: Callable[..., tuple[Params, Any]],
        trained: Params,
        frozen: Params,
        batch: dict[str, Array],
        *constants: Any,
    ) -> tuple[Params, Any]:
        """Return compute(trained, frozen, rows, *constants) → (gradient of trained, sums), over all
        rows of the batch. If there are several devices, `compute` gets the shards and the rows of
        one device, and gradients and sums are added over the devices.
        """
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.size <= 1:
            return compute(trained, frozen, batch, *constants)

        def on_one_device(
            trained: Params, frozen: Params, rows: dict[str, Array], *constants: Any
        ) -> tuple[Params, Any]:
            # The rules within a step, where shards of `fsdp` are gathered before they are used.
            own_rules = device_rules(self.kv_heads, mesh.shape["tensor"])
            with nn.logical_axis_rules(own_rules), sums_in(self._activation_sums):
                gradient, sums = compute(trained, frozen, rows, *constants)
            if self.exact:
                return exact.sum_over_devices((gradient, sums))
            return self._added_up(gradient), jax.lax.psum(sums, BATCH)

        # Parameters and their gradient keep their sharding, rows are split, and everything else,
        # including the sums, is the same on every device.
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
        """Dtype of the sums over `tensor`; None: the compute dtype."""
        is_wider = self.dtype == "bfloat16" and self.reduce_dtype == "float32"
        return jnp.float32 if is_wider else None

    @cached_property
    def _mesh_axes(self) -> dict[Path, MeshAxes]:
        """Mesh axis that splits each axis of a parameter."""
        tensor = jax.sharding.get_abstract_mesh().shape.get("tensor", 1)
        rules = parameter_rules(self.kv_heads, tensor)
        return {
            path: tuple(logical_to_mesh_axes(names, rules) or ())
            for path, names in self.names.items()
        }

    def _specs(self, params: Params) -> Params:
        leaves: Any = flatten_dict(params)
        return unflatten_dict({path: PartitionSpec(*self._mesh_axes[path]) for path in leaves})

    def part(self, name: str) -> "Parallelism":
        """Return the Parallelism of the parameters under a name."""
        own = {path[1:]: names for path, names in self.names.items() if path[0] == name}
        return replace(self, names=own)

    # Gathering parameters where they are needed.

    def outside_of_layers(self, params: Params) -> Params:
        """Gather all parameters except those of scanned layers."""
        leaves: Any = flatten_dict(params)
        ready = {}
        for path, leaf in leaves.items():
            is_layers = "layers" in path
            ready[path] = leaf if is_layers else self._ready(leaf, path, self._mesh_axes[path])
        return unflatten_dict(ready)

    @property
    def of_layer(self) -> Callable[[str, Params], Params] | None:
        """Function from the name of a stack and the shards of one of its layers to the parameters
        that this device computes with; None if they are the same.
        """
        if parts("fsdp") == 1 and not self._repeats_kv_heads:
            return None

        def ready_layer(stack: str, params: Params) -> Params:
            leaves: Any = flatten_dict(params)
            ready = {}
            for path, leaf in leaves.items():
                # In the model, layers are stacked along a first axis, which the scan has removed.
                path_in_model = (stack, "layers", *path)
                _, *mesh_axes = self._mesh_axes[path_in_model]
                ready[path] = self._ready(leaf, path_in_model, tuple(mesh_axes))
            return unflatten_dict(ready)

        return ready_layer

    def _ready(self, leaf: Array, path: Path, mesh_axes: MeshAxes) -> Array:
        """Return a parameter as this device computes with it: gathered over fsdp, but still split
        over tensor and expert.
        """
        dtype = leaf.dtype if stays_wide(self.names[path]) else self.dtype
        if "fsdp" in mesh_axes and parts("fsdp") > 1:
            axis, sum_dtype = mesh_axes.index("fsdp"), self._sum_dtype(leaf, path)
            leaf = _gather(leaf, axis, jnp.dtype(dtype), sum_dtype, self.line)
        if self._repeats_kv_heads and self.names[path][-1] == "kv_heads":
            leaf = self._own_kv_head(leaf)
        return leaf

    @property
    def _repeats_kv_heads(self) -> bool:
        """True if there are fewer K/V heads than devices of `tensor`."""
        return self.kv_heads % parts("tensor") != 0

    def _own_kv_head(self, parameter: Array) -> Array:
        """Select the K/V head that this device's query heads attend to, from a parameter of all K/V
        heads.
        """
        # Neighbouring devices share a head.
        head_dim = parameter.shape[-1] // self.kv_heads
        head = part_number("tensor") // (parts("tensor") // self.kv_heads)
        return jax.lax.dynamic_slice_in_dim(parameter, head * head_dim, head_dim, -1)

    # Summing gradients.

    def _added_up(self, gradient: Params) -> Params:
        """Sum each gradient over the mesh axes that do not split its parameter. (If fsdp splits it,
        the gradient is already summed over fsdp.)
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
                dtype = self._sum_dtype(leaf, path)
                added_up[path] = jax.lax.psum(leaf.astype(dtype), axes).astype(leaf.dtype)
        return unflatten_dict(added_up)

    def _sum_dtype(self, gradient: Array, path: Path) -> Any:
        """Return the dtype of a gradient's sum; float64 is never rounded."""
        if stays_wide(self.names[path]) or gradient.dtype == jnp.float64:
            return gradient.dtype
        return jnp.dtype(self.reduce_dtype)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _gather(shard: Array, axis: int, dtype: Any, reduce_dtype: Any, line: int) -> Array:
    """Gather the shards of all devices of `fsdp`, rounded to dtype, along an axis.

    The result has the wider of dtype and reduce_dtype, so that its gradient is not rounded more
    than for sending it.
    """
    whole = jax.lax.all_gather(shard.astype(dtype), "fsdp", axis=axis, tiled=True)
    return whole.astype(jnp.promote_types(dtype, reduce_dtype))


def _gather_forward(
    shard: Array, axis: int, dtype: Any, reduce_dtype: Any, line: int
) -> tuple[Array, Array]:
    # The residual only carries the dtype.
    return _gather(shard, axis, dtype, reduce_dtype, line), jnp.zeros((0,), shard.dtype)


def _gather_backward(
    axis: int, dtype: Any, reduce_dtype: Any, line: int, shard: Array, gradient: Array
) -> tuple[Array]:
    """Sum the gradient over all devices; each keeps its own part."""
    scatter = partial(jax.lax.psum_scatter, axis_name="fsdp", tiled=True)
    # Scatter along the first axis: along the last, TPUs would send the whole array.
    part = jnp.moveaxis(gradient.astype(reduce_dtype), axis, 0)
    part = with_layout_constraint(part, Layout(tuple(range(part.ndim))))
    if not line:
        part = scatter(part)
    else:
        # Scatter across the lines, then along each of them: see mesh.line_of_devices.
        lines = [list(range(first, first + line)) for first in range(0, parts("fsdp"), line)]
        across = [list(devices) for devices in zip(*lines, strict=True)]
        part = scatter(scatter(part, axis_index_groups=across), axis_index_groups=lines)
    return (jnp.moveaxis(part, 0, axis).astype(shard.dtype),)


_gather.defvjp(_gather_forward, _gather_backward)
