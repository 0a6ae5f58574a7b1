"""Checks of a model: whether its parts accept their settings, and whether they go together.

Settings check their own types and ranges when they are read, before jax is imported. Only a part
knows what a setting means to it, so the parts are asked here.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from t5x_lite.config import Companion, Mesh, Model, ModelDimensions, RunConfig
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.data.rows.row_plan import RowPlan
from t5x_lite.data.tasks.task_data import TaskPlan
from t5x_lite.errors import BAD_CONFIG, UserError, nearest
from t5x_lite.model.heads import HEADS, find_head
from t5x_lite.model.kernels import TPU_KERNELS
from t5x_lite.model.masks import find_rules
from t5x_lite.model.parts.activations import ACTIVATIONS
from t5x_lite.model.parts.attention import CrossAttention
from t5x_lite.model.parts.contract import Setting
from t5x_lite.model.parts.norms import make_norm
from t5x_lite.model.parts.options import part_name
from t5x_lite.model.parts.positions import make_positions
from t5x_lite.model.parts.table import (
    layers_of_period,
    make_feed_forward,
    make_mixer,
    runs_whole,
    splits_of,
)
from t5x_lite.model.transformer import parameter_shapes, shared_params
from t5x_lite.resolve import plan, plan_objective, resolve_model


def check_model(
    config: ModelDimensions, rows: RowShape, mesh: Mesh | None = None, platform: str = ""
) -> None:
    """Reject a model whose settings contradict each other, that cannot read rows of this shape, or
    that cannot be split over the devices.

    Args:
        mesh: arrangement of the devices, with all sizes filled in; None: one device.
        platform: platform of the devices; empty: not known yet.

    Raises:
        UserError: with the first contradiction.
    """
    for contradiction in contradictions(Setting(config, rows, mesh or Mesh(data=1))):
        raise UserError(BAD_CONFIG, contradiction)
    kernel = config.attention_kernel
    if kernel in TPU_KERNELS and platform not in ("", "tpu"):
        reason = "it needs a TPU; set it to auto"
        raise UserError(BAD_CONFIG, f"model.attention_kernel={kernel}: {reason}")


def plan_checked(config: RunConfig) -> RowPlan | TaskPlan:
    """Plan the rows of a config as resolve.plan does, and reject a model that cannot read them,
    before any text is prepared.
    """
    rows = plan(config)
    check_settings(config.model, rows.shape)
    return rows


def plan_objective_checked(config: RunConfig) -> RowPlan:
    """Do the same as plan_checked for a config's objective, even if the config has a task."""
    rows = plan_objective(config)
    check_settings(config.model, rows.shape)
    return rows


def check_settings(model: Model, rows: RowShape) -> None:
    """Check the model of a config before its vocabulary is known."""
    size = model.vocab_size or 1
    longest = rows.longest_segment
    check_model(resolve_model(model, vocab_size=size, max_length=longest), rows)


def contradictions(setting: Setting) -> Iterator[str]:
    """Yield one message per contradiction."""
    config, rows = setting.config, setting.rows
    if config.activation not in ACTIVATIONS:
        hint = nearest(config.activation, ACTIVATIONS)
        yield f"model.activation: got {config.activation!r}; {hint}"
    make_norm(config, parent=None)  # raises for an unknown norm

    # Each part by itself.
    positions, mixer = make_positions(config), make_mixer(config, parent=None)
    parts = [positions, mixer]
    for of_layer in layers_of_period(config):
        parts.append(make_feed_forward(of_layer, parent=None))
    if config.is_encoder_decoder:
        parts.append(CrossAttention(config, parent=None))
    for part in parts:
        if hasattr(part, "contradictions"):
            yield from part.contradictions(setting)

    # Parts and settings in combination.
    names = [part_name(head) for head in config.heads]
    for head, name in zip(config.heads, names, strict=True):
        if name in HEADS:
            yield f"model.heads={head}: the objective or task asks for that; name your own alone"
        if names.count(name) > 1:
            yield f"model.heads: two are called {name}, which names their parameters; rename one"
        find_head(head)  # raises for an unknown head
    if positions.in_attention and not getattr(mixer, "takes_positions", False):
        reason = f"is a part of attention, which mixer {config.mixer} is not"
        yield f"model.positions={config.positions}: {reason}; set none"
    is_attention = getattr(mixer, "takes_positions", False)
    for name, neutral in (
        ("attention_rules", ()),
        ("layer_pattern", ()),
        ("attention_softcap", 0),
        ("qk_norm", "none"),
    ):
        if getattr(config, name) != neutral and not is_attention:
            yield f"model.{name}: mixer {config.mixer} has no attention; leave it out"
    if config.qk_norm != "none" and config.norm == "none":
        yield f"model.qk_norm={config.qk_norm}: model.norm is none; set one"
    if not (config.shared_input_layers or config.embedding_norm or positions.table_rows):
        reason = "there is neither a table of positions nor embedding_norm; set it to True"
        yield f"model.shared_input_layers=False: {reason}"
    find_rules(config.attention_rules)  # raises for an unknown rule
    yield from _of_local_layers(config)
    if positions.limit is not None and positions.limit < rows.longest_segment:
        reason = f"got {positions.limit}, but data.lengths go up to {rows.longest_segment}"
        yield f"model.max_length: {reason}; raise one or lower the other"
    yield from _of_mimetic_init(config)
    yield from _of_depth(config)
    yield from _of_mesh(setting)
    for companion in config.companions:
        yield from _of_companion(setting, companion)


def _of_local_layers(config: ModelDimensions) -> Iterator[str]:
    if not config.layer_pattern:
        return
    find_rules(config.local_rules, "local_rules")  # raises for an unknown rule
    if not config.local_positions:
        return
    local = make_positions(config, "local_positions")  # raises for unknown positions
    for name, positions in (("positions", make_positions(config)), ("local_positions", local)):
        if not positions.only_rotates:
            got = f"got {getattr(config, name)} beside local_positions={config.local_positions}"
            yield f"model.{name}: {got}, expected rotary(…) or none"
    # Check local layers as those of a model with these positions.
    as_positions = replace(config, positions=config.local_positions)
    for contradiction in make_positions(as_positions).contradictions(Setting(as_positions)):
        yield contradiction.replace("model.positions", "model.local_positions", 1)


def _of_mimetic_init(config: ModelDimensions) -> Iterator[str]:
    if not config.mimetic_init:
        return
    needs = {
        "architecture encoder_decoder": config.is_encoder_decoder,
        "a mixer of attention": getattr(make_mixer(config, parent=None), "takes_positions", False),
        "positions relative": make_positions(config).has_mimetic_init,
        "at least 2 num_heads": config.num_heads > 1,
        "as many num_kv_heads as num_heads": config.num_kv_heads == config.num_heads,
        "scale_attention": config.scale_attention,
        "two stacks (shared_stacks=False)": not config.shared_stacks,
    }
    missing = [need for need, is_met in needs.items() if not is_met]
    if missing:
        yield f"model.mimetic_init: needs {', '.join(missing)}; set it to False"


def _of_depth(config: ModelDimensions) -> Iterator[str]:
    period = len(layers_of_period(config))
    for name, layers in (
        ("num_layers", config.num_layers),
        ("num_decoder_layers", config.num_decoder_layers),
    ):
        if layers % period:
            reason = f"{layers} is no multiple of {period}, the layers after which parts repeat"
            yield f"model.{name}: {reason} (model.feed_forward={config.feed_forward})"
    if period > 1 and config.shared_layers != "none":
        yield f"model.shared_layers: layers differ (model.feed_forward={config.feed_forward})"


def _of_mesh(setting: Setting) -> Iterator[str]:
    config, rows, mesh = setting
    for name in ("d_model", "embedding_size"):
        size = getattr(config, name)
        if size % mesh.fsdp:
            yield f"model.{name} is {size}, which mesh.fsdp = {mesh.fsdp} does not divide"
    if mesh.expert > 1 and not has_experts(config):
        yield f"mesh.expert: got {mesh.expert}, but no part of this model has experts; set it to 1"
    if mesh.sequence == 1:
        return
    # Each device holds two pieces of every row: see parallel/sequence.py.
    for length in (rows.encoder, rows.decoder):
        if length % (2 * mesh.sequence):
            reason = f"{length} positions are no multiple of 2 × mesh.sequence {mesh.sequence}"
            yield f"data.lengths: {reason}"
    if config.backward_decoder:
        reason = f"cannot be split over mesh.sequence = {mesh.sequence}"
        yield f"model.backward_decoder=True: {reason}; set mesh.sequence to 1"


def _of_companion(setting: Setting, companion: Companion) -> Iterator[str]:
    name, model = companion.name, companion.model
    for contradiction in contradictions(setting._replace(config=model)):
        yield f"{name}: {contradiction}"
    tensor = setting.mesh.tensor
    if setting.config.num_kv_heads % tensor or model.num_kv_heads % tensor:
        yield f"mesh.tensor = {tensor}: does not divide the num_kv_heads of a model and its {name}"
    params = parameter_shapes(replace(setting.config, companions=()))
    own: Any = parameter_shapes(model)
    if name in params:
        yield f"{name}: the model has parameters of that name; give its companion another"
    for shared, theirs in shared_params(companion, params).items():
        if own.get(shared) != theirs:
            yield f"{name}: cannot share {shared}, which has another shape there"


def has_experts(config: ModelDimensions) -> bool:
    """True if some layer has a mixture of experts."""
    parts = (make_feed_forward(of_layer, parent=None) for of_layer in layers_of_period(config))
    return any("expert" in splits_of(part) for part in parts)


def undivided(config: ModelDimensions, fsdp: int = 1, tensor: int = 1) -> str:
    """Say why a model cannot be split over this many devices; empty if it can."""
    # Ignore contradictions that also exist on one device.
    mesh = Mesh(data=1, fsdp=fsdp, tensor=tensor)
    before = set(contradictions(Setting(config)))
    found = (text for text in contradictions(Setting(config, mesh=mesh)) if text not in before)
    return next(found, "")


def shares_rows(config: ModelDimensions) -> bool:
    """True if devices of `sequence` can share the rows of a model, and each saves work that way."""
    if runs_whole(config):
        return False
    mesh, before = Mesh(data=1, sequence=2), set(contradictions(Setting(config)))
    return all(text in before for text in contradictions(Setting(config, mesh=mesh)))
