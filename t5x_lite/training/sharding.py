"""Which device holds what: a mesh with the axes data, fsdp and tensor, and the rules that place named axes on it."""

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.tree_util import keystr

from t5x_lite.config import RunConfig
from t5x_lite.errors import BAD_CONFIG, Refusal
from t5x_lite.model.heads import embedding_rows
from t5x_lite.model.layers import AXES

BATCH = ("data", "fsdp")
# Logical axis → mesh axes; of several rules for one name the first whose mesh axes are still free is taken.
RULES = (
    ("batch", BATCH),
    ("embed", "fsdp"),
    ("heads", "tensor"),
    ("mlp", "tensor"),
    ("vocab", ("tensor", "fsdp")),
    ("vocab", "tensor"),
    ("layers", None),
)
if {name for name, _ in RULES} != set(AXES):  # flax would leave an axis without a rule unsplit, silently
    raise ValueError(f"the rules name other axes than {AXES}")


def make_mesh(config: RunConfig, devices=None) -> jax.sharding.Mesh:
    """The mesh over all devices, or over those given; refuses, by name, what it does not divide."""
    mesh, model = config.mesh, config.model
    count = len(devices or jax.devices())

    def need(ok, message):
        if not ok:
            raise Refusal(BAD_CONFIG, message)

    splash = model.attention == "splash" and (devices or jax.devices())[0].platform != "tpu"
    need(not splash, "model.attention=splash: it needs a TPU; set it to auto")
    inner = mesh.fsdp * mesh.tensor
    data = count // inner if mesh.data == -1 else mesh.data
    need(
        data * inner == count,
        f"mesh: data {mesh.data} × fsdp {mesh.fsdp} × tensor {mesh.tensor} does not make the {count} devices here",
    )
    rows = config.data.batch_size // config.training.microbatches
    need(
        rows % (data * mesh.fsdp) == 0,
        f"data.batch_size: {rows} rows in each of training.microbatches {config.training.microbatches} do not divide "
        f"over mesh.data × mesh.fsdp = {data * mesh.fsdp}",
    )
    sizes = {
        "model.heads": (model.heads, "mesh.tensor", mesh.tensor),
        "model.kv_heads": (model.kv_heads if model.kv_heads > 1 else 0, "mesh.tensor", mesh.tensor),
        "model.ff_width": (model.ff_width or 4 * model.width, "mesh.tensor", mesh.tensor),
        "model.width": (model.width, "mesh.fsdp", mesh.fsdp),
        "model.vocab_size, padded by model.vocab_multiple,": (
            embedding_rows(model),
            "mesh.tensor × mesh.fsdp",
            mesh.tensor * mesh.fsdp,
        ),
    }
    for name, (size, axis, parts) in sizes.items():
        need(size % parts == 0, f"{name} is {size}, which {axis} = {parts} does not divide")
    sizes, axes = (data, mesh.fsdp, mesh.tensor), ("data", "fsdp", "tensor")
    return jax.make_mesh(sizes, axes, axis_types=(AxisType.Auto,) * 3, devices=devices)


def replicated(mesh) -> NamedSharding:
    """Every device holds all of it."""
    return NamedSharding(mesh, PartitionSpec())


def parameter_shardings(boxed, mesh):
    """The shardings of a parameter tree whose leaves are boxed with axis names."""
    return nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, RULES)


def optimizer_shardings(state, parameters, shardings, mesh):
    """Optimizer state that has a parameter's name and shape lies where the parameter does; the rest, small, everywhere.

    state, parameters: trees of shapes; shardings: that of the parameters.
    """
    everywhere = replicated(mesh)
    leaves = jax.tree_util.tree_leaves_with_path(parameters)
    known = {keystr(path): (leaf.shape, s) for (path, leaf), s in zip(leaves, jax.tree.leaves(shardings), strict=True)}

    def place_like(path, leaf):
        for i in range(len(path)):
            shape, sharding = known.get(keystr(path[i:]), (None, None))
            if shape == leaf.shape:
                return sharding
        return everywhere

    return jax.tree_util.tree_map_with_path(place_like, state)


def place(rows_at, batch_size: int, mesh) -> dict[str, jax.Array]:
    """The global batch as arrays split over the mesh; this process makes only the rows its own devices need.

    rows_at: a function from a list of row numbers of the batch to their arrays.
    """
    sharding = NamedSharding(mesh, PartitionSpec(BATCH))
    slices = sharding.addressable_devices_indices_map((batch_size,)).values()
    wanted = sorted({r for (rows,) in slices for r in range(*rows.indices(batch_size))})
    place_of = np.full(batch_size, -1)
    place_of[wanted] = np.arange(len(wanted))

    def spread(local):
        shape = (batch_size, *local.shape[1:])
        return jax.make_array_from_callback(shape, sharding, lambda index: local[place_of[index[0]]])

    return {key: spread(value) for key, value in rows_at(wanted).items()}
