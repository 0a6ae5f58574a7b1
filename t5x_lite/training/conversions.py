"""Conversions: how the parameters of one model become those of another architecture, depth, length
or vocabulary. `start.convert` names one; a stage finds that of its architectures by itself.

A conversion says for each parameter of the new model which one of the old model it is made from.
All settings of the model that it does not change have to be the same in both.
"""

import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from t5x_lite.config import ModelDimensions
from t5x_lite.config.grammar import parse_call
from t5x_lite.config.named import Named, find_named
from t5x_lite.config.ranges import Share
from t5x_lite.errors import BAD_CONFIG, UserError, nearest
from t5x_lite.model.parts.positions import make_positions
from t5x_lite.model.transformer import parameter_axes, parameter_shapes
from t5x_lite.parallel.axes import Names, is_kernel

Shape = tuple[int, ...]


class Parameter(NamedTuple):
    """A parameter of the new model.

    Attributes:
        path: such as decoder/layers/attention/out/kernel.
        axes: names of its axes.
        model: the new model.
    """

    path: str
    axes: Names
    model: ModelDimensions

    @property
    def period(self) -> int:
        """After how many layers their kinds repeat: see model.layer_pattern."""
        return len(self.model.layer_pattern) or 1


class Source(NamedTuple):
    """The parameter of the old model that one of the new model is made from, and how.

    Attributes:
        path: that of the old parameter.
        change: (its array, shape of the new one) → the new array; None: as it is.
    """

    path: str
    change: Callable[[jax.Array, Shape], jax.Array] | None = None


class Conversion(NamedTuple):
    """A conversion, as it is declared.

    Attributes:
        source: parameter of the new model → what it is made from; None: it is drawn fresh. Options
            are keyword-only.
        before, after: the architectures that it is for; none: any, and both the same.
        changes: settings of the model that it changes, besides the architecture.
    """

    source: Callable[..., Source | None]
    before: Collection[str] = ()
    after: Collection[str] = ()
    changes: Collection[str] = ()


CrossAttention = Literal["self", "zero", "fresh"]


def same(parameter: Parameter) -> Source | None:
    """Keep all parameters: a decoder and a prefix decoder differ only in their masks. A prefix
    decoder without a prefix computes what the decoder did (Raffel et al., 2020, §3.2.1; LM
    adaptation and its reverse: Lester et al., 2021, §2.2; UL2R: Tay et al., 2022).
    """
    return Source(parameter.path)


def decoder_to_encoder(parameter: Parameter) -> Source | None:
    """Let every position see all others: the stack, the tables and the head stay (LLM2Vec:
    BehnamGhader et al., 2024, §2.1; Gisserot-Boukhlef et al., 2025).
    """
    return Source(_of_stack(parameter.path, "encoder", "decoder"))


def encoder_to_decoder(parameter: Parameter) -> Source | None:
    """Let positions see only what is before them (cross-objective training: Weller et al., 2025,
    Ettin, §3.3).
    """
    return Source(_of_stack(parameter.path, "decoder", "encoder"))


def decoder_to_encoder_decoder(
    parameter: Parameter, *, cross_attention: CrossAttention = "self"
) -> Source | None:
    """Make both stacks from the decoder (T5Gemma: Zhang et al., 2025, §3.2).

    Args:
        cross_attention: made from self-attention; the same with an output of zero, so that the
            decoder first computes what it did; or drawn fresh.
    """
    if "cross_attention" in parameter.path:
        return _cross_attention(parameter.path, cross_attention)
    return Source(_of_stack(parameter.path, "encoder", "decoder"))


def encoder_to_encoder_decoder(
    parameter: Parameter, *, cross_attention: CrossAttention = "fresh"
) -> Source | None:
    """Make both stacks from the encoder (BERT2BERT: Rothe et al., 2020, §3). For the option, see
    decoder_to_encoder_decoder.
    """
    if "cross_attention" in parameter.path:
        found = _cross_attention(parameter.path, cross_attention)
        return found and found._replace(path=_of_stack(found.path, "decoder", "encoder"))
    return Source(_of_stack(parameter.path, "decoder", "encoder"))


def grow_depth(
    parameter: Parameter, *, order: Literal["stack", "interleave", "identity"] = "stack"
) -> Source | None:
    """Make a deeper model from copies of the layers.

    Args:
        order: of two layers, four: 0101 (stack: Gong et al., 2019) or 0011 (interleave: Chang et
            al., 2018); identity: 0011, where each copy writes nothing to the residual stream at
            first, so that the model computes what it did (Wu et al., 2024, LLaMA Pro, §3.2).
    """
    # Tables and norms outside of the layers stay as they are.
    if "layers" not in parameter.axes:
        return Source(parameter.path)
    # A block adds to the residual stream what `out` (attention) and `wo` (feed-forward) return.
    writes = parameter.path.split("/")[-2] in ("out", "wo") or parameter.path.endswith("/wo")
    change = partial(_more_layers, order=order, period=parameter.period, writes=writes)
    return Source(parameter.path, change)


def grow_width(parameter: Parameter, *, noise: Share = 0.01) -> Source | None:
    """Make a wider model from copies of its features, heads and hidden units: `model.d_model` and
    `num_heads`, `d_ff`, or all of them, times whole numbers. What a kernel reads twice it weighs by
    half, so that the model computes what it did (Chen et al., 2016, Net2Net; Chen et al., 2022,
    bert2BERT).

    Args:
        noise: standard deviation of the relative noise on kernels. Without noise, copies have equal
            gradients, and stay copies for ever.
    """
    model, path = parameter.model, parameter.path
    power = 0.0
    if path == "embedding" and model.scale_embeddings:
        power = -0.5  # the model multiplies it by the root of its width
    elif _reads_table(model) and path.startswith(_before_output(model)):
        # The table is the output layer, too: it cannot weigh its inputs by half, but the norm
        # before it can.
        power = -1.0 + 0.5 * model.scale_embeddings + 0.5 * model.scale_logits
    # A kernel reads each feature as often as it was copied; biases and scales read none.
    reads = is_kernel(parameter.axes)
    change = partial(
        _wider,
        reads=reads,
        power=power,
        noise=noise if reads else 0.0,
        seed=zlib.crc32(path.encode()),  # each kernel has noise of its own
    )
    return Source(path, change)


def _reads_table(model: ModelDimensions) -> bool:
    """Return True if the output layer is the table of tokens, as wide as the model."""
    return model.tie_embeddings and model.embedding_size == model.d_model


def _before_output(model: ModelDimensions) -> str:
    """Return where the parameters of the norm before the output layer are."""
    if model.mlm_head:
        return "head/norm/"
    stack = "encoder" if model.architecture == "encoder" else "decoder"
    return f"{stack}/final_norm/"


def longer_positions(parameter: Parameter) -> Source | None:
    """Read longer texts: a table of learned positions is interpolated (Dosovitskiy et al., 2021,
    §3.2). Rotary positions have no parameters; give them another base or scaling (Chen et al.,
    2023).
    """
    if parameter.path.endswith("position_embedding"):
        return Source(parameter.path, _interpolated)
    return Source(parameter.path)


def new_vocabulary(parameter: Parameter) -> Source | None:
    """Keep the layers, and draw tables and output layer for another tokenizer (Artetxe et al.,
    2020, §3).
    """
    return None if "vocab" in parameter.axes else Source(parameter.path)


# Prefix decoders are decoders here: these differ in their masks only.
_DECODERS = ("decoder", "prefix_decoder")

CONVERSIONS = {
    "decoder_to_prefix_decoder": Conversion(same, ("decoder",), ("prefix_decoder",)),
    "prefix_decoder_to_decoder": Conversion(same, ("prefix_decoder",), ("decoder",)),
    "decoder_to_encoder": Conversion(decoder_to_encoder, _DECODERS, ("encoder",)),
    "encoder_to_decoder": Conversion(encoder_to_decoder, ("encoder",), _DECODERS),
    "decoder_to_encoder_decoder": Conversion(
        decoder_to_encoder_decoder, _DECODERS, ("encoder_decoder",)
    ),
    "encoder_to_encoder_decoder": Conversion(
        encoder_to_encoder_decoder, ("encoder",), ("encoder_decoder",)
    ),
    # The stack that is kept; the other one is left out.
    "encoder_decoder_to_encoder": Conversion(same, ("encoder_decoder",), ("encoder",)),
    "encoder_decoder_to_decoder": Conversion(same, ("encoder_decoder",), _DECODERS),
    "grow_depth": Conversion(grow_depth, changes=("num_layers", "num_decoder_layers")),
    "grow_width": Conversion(
        grow_width, changes=("d_model", "embedding_size", "num_heads", "num_kv_heads", "d_ff")
    ),
    "longer_positions": Conversion(
        longer_positions, changes=("max_length", "positions", "local_positions")
    ),
    "new_vocabulary": Conversion(new_vocabulary, changes=("vocab_size",)),
}


class Converter:
    """The conversion that `start.convert` names, with its options.

    Raises:
        UserError: if there is no such conversion or option.
    """

    def __init__(self, text: str):
        key = "start.convert"
        name = parse_call(text, key).name
        if name not in CONVERSIONS:  # nor may it be of a module of the user's
            hint = nearest(name, CONVERSIONS)
            raise UserError(BAD_CONFIG, f"{key}={name}: no such conversion; {hint}")
        self.declared = CONVERSIONS[name]
        self._named: Named = find_named(text, {name: self.declared.source}, key, "conversion")

    @property
    def changes(self) -> set[str]:
        """Settings of the model that may differ."""
        changes = set(self.declared.changes)
        if self.declared.before:
            changes |= {"architecture", "num_layers", "num_decoder_layers"}
        return changes

    def check(self, old: ModelDimensions, new: ModelDimensions) -> None:
        """Reject models that it is not for.

        Raises:
            UserError: naming what differs from what is expected.
        """
        what = f"start.convert={self._named}"
        # The two architectures
        before, after = self.declared.before, self.declared.after
        if before and not (old.architecture in before and new.architecture in after):
            reason = f"got architectures {old.architecture} and {new.architecture}"
            raise UserError(BAD_CONFIG, f"{what}: {reason}; name one that is for them, or none")
        # Depth: the same as that of the stack that it is made from, or more if it may grow.
        for stack in ("encoder", "decoder"):
            layers = _layers_of(new, stack)
            known = _layers_of(old, stack) or _layers_of(old, _OTHER[stack])
            if before and layers not in (0, known):
                reason = f"got {layers} layers in the {stack}, but the stack it is made from has"
                raise UserError(BAD_CONFIG, f"{what}: {reason} {known}; set it to that")
            if "num_layers" not in self.declared.changes or not layers:
                continue
            if layers < known:
                reason = f"got {layers} layers in the {stack}, but init_from has {known}"
                raise UserError(BAD_CONFIG, f"{what}: {reason}; set at least as many")
            period = len(new.layer_pattern) or 1
            if layers % period or known % period:
                reason = f"got {layers} layers made from {known}, whose kinds repeat every {period}"
                raise UserError(BAD_CONFIG, f"{what}: {reason}; use multiples of {period}")
        # T5's buckets of distances before a token are others where it also sees what is after it.
        for path, source in self.sources(new).items():
            if source is None or "relative_bias" not in path:
                continue
            if _sees_ahead(new, path) != _sees_ahead(old, source.path):
                reason = "relative positions count distances in other buckets"
                fix = "use rotary or learned positions from the start"
                raise UserError(BAD_CONFIG, f"{what}: {reason}; {fix}")
        if "d_model" in self.declared.changes:
            _check_widths(old, new, what)
        if self._named.options.get("order") == "identity" and new.norm_position != "pre":
            reason = "order=identity needs norms before each part"
            raise UserError(BAD_CONFIG, f"{what}: {reason}; use order=stack")

    def sources(self, model: ModelDimensions) -> dict[str, Source | None]:
        """Return what each parameter of a new model is made from, by path."""
        axes: Any = flatten_dict(parameter_axes(model), sep="/")
        return {path: self._named(Parameter(path, names, model)) for path, names in axes.items()}


def renaming(text: str, old: ModelDimensions, new: ModelDimensions) -> dict[str, str] | None:
    """Return the name that each parameter of the new model has in the old one, if a conversion does
    nothing but rename them; else None. Then the state of an optimizer can be renamed, too.

    Args:
        text: the conversion; empty: none, where the models have the same parameters.
    """
    old = replace(old, vocab_multiple=new.vocab_multiple)  # padding is cut off, or filled up
    before: Any = flatten_dict(parameter_shapes(old), sep="/")
    after: Any = flatten_dict(parameter_shapes(new), sep="/")
    if not text:
        return {path: path for path in after} if before == after else None
    # Each new parameter must be one old parameter, unchanged, and no two the same one.
    names: dict[str, str] = {}
    for path, source in Converter(text).sources(new).items():
        is_same = source and source.change is None and before.get(source.path) == after[path]
        if source is None or not is_same or source.path in names.values():
            return None
        names[path] = source.path
    return names if len(names) == len(before) else None


def rename(tree: Any, names: Mapping[str, str]) -> Any:
    """Rename the parameters wherever a tree has a dict of them, as the state of an optimizer does.

    >>> rename((0, {"encoder": {"x": 1}}), {"encoder/x": "decoder/x"})
    (0, {'decoder': {'x': 1}})
    """

    def is_of_parameters(node: Any) -> bool:
        return isinstance(node, dict) and set(flatten_dict(node, sep="/")) == set(names)

    def renamed(node: Any) -> Any:
        if not is_of_parameters(node):
            return node
        leaves: Any = flatten_dict(node, sep="/")
        return unflatten_dict({names[path]: leaf for path, leaf in leaves.items()}, sep="/")

    return jax.tree.map(renamed, tree, is_leaf=is_of_parameters)


def _sees_ahead(model: ModelDimensions, path: str) -> bool:
    """Return True if the stack of a parameter sees what comes after a token."""
    return path.startswith("encoder/") or model.architecture == "prefix_decoder"


_OTHER = {"encoder": "decoder", "decoder": "encoder"}


def conversions_of(setting: str) -> list[str]:
    """Return the names of the conversions that change a setting of the model.

    >>> conversions_of("max_length")
    ['longer_positions']
    """
    return [name for name, conversion in CONVERSIONS.items() if setting in conversion.changes]


def between(old: ModelDimensions, new: ModelDimensions) -> str:
    """Return the name of the conversion for these architectures, with its defaults.

    >>> from t5x_lite.config import Model
    >>> from t5x_lite.resolve import resolve_model
    >>> sizes = {"vocab_size": 8, "max_length": 4}
    >>> old = resolve_model(Model(architecture="decoder"), **sizes)
    >>> between(old, resolve_model(Model(architecture="encoder"), **sizes))
    'decoder_to_encoder'
    >>> between(old, old)
    ''
    """
    for name, conversion in CONVERSIONS.items():
        if old.architecture in conversion.before and new.architecture in conversion.after:
            return name
    return ""


def _layers_of(model: ModelDimensions, stack: str) -> int:
    """Return the number of layers of a stack, 0 if the model does not have it."""
    if stack == "decoder":
        return model.num_decoder_layers
    return model.num_layers if model.architecture in ("encoder", "encoder_decoder") else 0


def _of_stack(path: str, new: str, old: str) -> str:
    """Return the path in the old model's stack of a parameter of the new model's.

    >>> _of_stack("encoder/final_norm/scale", new="encoder", old="decoder")
    'decoder/final_norm/scale'
    """
    return f"{old}/{path.removeprefix(f'{new}/')}" if path.startswith(f"{new}/") else path


def _cross_attention(path: str, made_from: CrossAttention) -> Source | None:
    """Return the self-attention of the same layer, or with its output zero, or None."""
    if made_from == "fresh":
        return None
    is_output = "/cross_attention/out/" in path
    of_self = path.replace("cross_attention", "attention")
    return Source(of_self, _zero if made_from == "zero" and is_output else None)


def _zero(leaf: jax.Array, shape: Shape) -> jax.Array:
    return jnp.zeros(shape, leaf.dtype)


def _more_layers(leaf: jax.Array, shape: Shape, order: str, period: int, writes: bool) -> jax.Array:
    """Copy layers, which are the first axis, until there are enough. Layers of one period stay
    together.

    >>> _more_layers(jnp.array([1, 2]), (4,), "identity", 1, writes=True).tolist()
    [1, 0, 2, 0]
    >>> _more_layers(jnp.array([1, 2]), (4,), "identity", 2, writes=True).tolist()
    [1, 2, 0, 0]
    """
    layers = np.arange(shape[0])
    group, place = np.divmod(layers, period)
    # 0101: layer i of the new model is layer i mod n of the old one.
    if order == "stack":
        return leaf[layers % len(leaf)]
    # 0011: each period of layers is followed by its copies.
    copied = group * (len(leaf) // period) // (shape[0] // period)
    grown = leaf[copied * period + place]
    # What a copy would write to the residual stream is zero at first.
    if order == "identity" and writes:
        is_copy = (layers >= period) & (copied == np.roll(copied, period))
        of_layers = (-1,) + (1,) * (leaf.ndim - 1)
        grown = jnp.where(is_copy.reshape(of_layers), 0, grown)
    return grown


def _check_widths(old: ModelDimensions, new: ModelDimensions, what: str) -> None:
    """Reject widths that no copies make, and models that would compute something else."""
    # Every width is a whole number of copies.
    growth = {}
    for key in CONVERSIONS["grow_width"].changes:
        before, after = getattr(old, key), getattr(new, key)
        if after % before:
            reason = f"got model.{key}={after}, but init_from has {before}"
            raise UserError(BAD_CONFIG, f"{what}: {reason}; use a multiple of that")
        growth[key] = after // before
    # Heads are copied whole: wider heads would have other attention weights.
    if old.head_dim != new.head_dim or growth["num_heads"] != growth["num_kv_heads"]:
        reason = f"got heads of width {new.head_dim}, {new.num_heads} with {new.num_kv_heads}"
        before = f"{old.head_dim}, {old.num_heads} with {old.num_kv_heads} of keys and values"
        fix = "let their numbers grow, not their width"
        raise UserError(BAD_CONFIG, f"{what}: {reason}, but init_from has {before}; {fix}")
    # No part may compute with the width itself, as sinusoidal positions do.
    positions = {new.positions, new.local_positions or new.positions}
    kinds = [make_positions(replace(new, positions=kind)) for kind in sorted(positions)]
    if new.mixer != "attention" or not all(kind.same_when_wider for kind in kinds):
        reason = f"mixer {new.mixer}, positions {', '.join(sorted(positions))}"
        expected = "expected attention, with positions that do not depend on the width"
        fix = "use grow_depth, or a model with rotary, learned or relative positions"
        raise UserError(BAD_CONFIG, f"{what}: {reason}; {expected}; {fix}")
    # A tied output layer has no inputs of its own to weigh by half: see grow_width.
    paths: Any = flatten_dict(parameter_axes(new), sep="/")
    has_norm = any(path.startswith(_before_output(new)) for path in paths)
    if _reads_table(new) and growth["d_model"] > 1 and not has_norm:
        reason = "the table of tokens is the output layer, with no norm of its own before it"
        fix = "use tie_embeddings=False or norm_position=pre from the start"
        raise UserError(BAD_CONFIG, f"{what}: {reason}; {fix}")


def _wider(
    leaf: jax.Array, shape: Shape, reads: bool, power: float, noise: float, seed: int
) -> jax.Array:
    """Repeat an array along its axes until it has the shape.

    Args:
        reads: True for a kernel, which divides what it reads from copies by their number.
        power: multiply by the growth of the last axis to this power.
        noise: standard deviation of relative noise.

    >>> _wider(jnp.array([[1.0], [2.0]]), (4, 2), True, 0.0, 0.0, seed=0).tolist()
    [[0.5, 0.5], [1.0, 1.0], [0.5, 0.5], [1.0, 1.0]]
    """
    repeats = [after // before for before, after in zip(leaf.shape, shape, strict=True)]
    grown = jnp.tile(leaf, repeats) * (repeats[-1] ** power)
    # Each of n equal inputs counts for 1 / n (Net2WiderNet).
    if reads:
        grown /= repeats[-2]
    # Break the symmetry of the copies, so that they learn different things.
    if noise and max(repeats) > 1:
        grown *= 1 + noise * jax.random.normal(jax.random.key(seed), shape, leaf.dtype)
    return grown.astype(leaf.dtype)


def _interpolated(leaf: jax.Array, shape: Shape) -> jax.Array:
    """Interpolate a table of positions [n, width]."""
    return jax.image.resize(leaf, shape, "linear").astype(leaf.dtype)


def convert(
    converter: Converter,
    old: Mapping[str, Any],
    fresh: Mapping[str, Any],
    model: ModelDimensions,
    may_be_new: Callable[[str], bool],
) -> tuple[dict[str, Any], list[str]]:
    """Return the parameters of the new model that are made from the old one, by path, and the paths
    of those that are drawn.

    Args:
        old: the parameters of the old model.
        fresh: those of the new model, as drawn, on the devices where they belong.
        model: the new model.
        may_be_new: path → True for a parameter that is drawn where the old model does not have it.

    Raises:
        KeyError: if the old model lacks another parameter; its argument is the path.
    """
    made, drawn, changes = {}, [], {}
    taken = set()
    for path, source in converter.sources(model).items():
        if source is None or (source.path not in old and may_be_new(path)):
            drawn.append(path)
            continue
        array = old[source.path]
        if source.change is not None:
            changes[path] = source.change
        elif source.path in taken:
            array = jnp.copy(array)  # the state is donated, so no two parameters share an array
        taken.add(source.path)
        made[path] = array
    return made | _changed(changes, made, fresh), drawn


def _changed(
    changes: Mapping[str, Callable[[jax.Array, Shape], jax.Array]],
    arrays: Mapping[str, Any],
    like: Mapping[str, Any],
) -> dict[str, Any]:
    """Change arrays, by path, and put the results where `like` is. One program does all of it."""
    shapes = {path: like[path].shape for path in changes}

    def change_all(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {path: change(arrays[path], shapes[path]) for path, change in changes.items()}

    places = {path: like[path].sharding for path in changes}
    return jax.jit(change_all, out_shardings=places)({path: arrays[path] for path in changes})
