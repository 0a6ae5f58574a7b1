"""The parts that blocks are made of, by their names in settings. Norms and positions have tables of
their own, in norms.py and positions.py.

To add one, write a class as described in contract.py, in a file beside this one, and add its name
here. A part in your own module need not be listed: the config names it by its module, as in
model.mixer="my_module.MyMixer".
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from t5x_lite.config import ModelDimensions
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.model.parts.attention import SelfAttention
from t5x_lite.model.parts.experts import Experts
from t5x_lite.model.parts.feed_forward import MLP, GatedMLP
from t5x_lite.model.parts.lstm import LSTM
from t5x_lite.model.parts.options import make_part, part_name

MIXERS = {"attention": SelfAttention, "lstm": LSTM}
FEED_FORWARDS = {"mlp": MLP, "gated_mlp": GatedMLP, "experts": Experts, "none": None}


def make_mixer(config: ModelDimensions, **more: Any) -> Any:
    """Make the mixer of a block; see contract.Mixer."""
    return _checked(make_part(MIXERS, "mixer", config, **more), "model.mixer", config.mixer)


def make_feed_forward(config: ModelDimensions, **more: Any) -> Any:
    """Make the feed-forward part of a block; None if it has none. See contract.FeedForward."""
    part = make_part(FEED_FORWARDS, "feed_forward", config, **more)
    return part and _checked(part, "model.feed_forward", config.feed_forward)


def _checked(part: Any, key: str, spec: str) -> Any:
    """Return the part, or raise UserError if it has no `flops`. Guessed FLOPs would make all
    figures wrong.
    """
    if not hasattr(part, "flops"):
        reason = "states no FLOPs, which comparisons, MFU and scaling laws rest on"
        fix = f"give {part_name(spec)} a method flops(stack), as in model/parts/contract.py"
        raise UserError(BAD_CONFIG, f"{key}={spec}: {reason}; {fix}")
    return part


def splits_of(part: Any) -> tuple[str, ...]:
    """Return the mesh axes that may split a part. A part that declares none runs whole."""
    return tuple(getattr(part, "splits", ()))


def layers_of_period(config: ModelDimensions) -> list[ModelDimensions]:
    """Return the config of each layer of a stack, up to the point where the layers repeat.

    A feed-forward part that is not in every layer has `period`, the number of layers after which
    they repeat, and `in_layer(place)`, the feed-forward setting of each of these layers.
    """
    part = make_feed_forward(config, parent=None)
    period = getattr(part, "period", 1)
    if period == 1:
        return [config]
    return [replace(config, feed_forward=part.in_layer(place)) for place in range(period)]


def runs_whole(config: ModelDimensions) -> bool:
    """True if some part of a block needs whole rows, even if several devices share them."""
    return any("sequence" not in splits_of(part) for part in _parts_of_blocks(config).values())


def unsplit_parts(config: ModelDimensions, mesh: Mapping[str, int]) -> list[str]:
    """Return a sentence for each part that runs whole on every device of a mesh axis, which
    therefore saves no work.

    >>> from t5x_lite.config import Model
    >>> from t5x_lite.resolve import resolve_model
    >>> model = resolve_model(Model(mixer="lstm", positions="none"), vocab_size=9, max_length=4)
    >>> unsplit_parts(model, {"data": 4, "tensor": 2})
    ['lstm runs whole on each of the 2 devices of mesh.tensor']
    """
    found = []
    for axis in ("tensor", "sequence"):
        size = mesh.get(axis, 1)
        for name, part in _parts_of_blocks(config).items():
            if size > 1 and axis not in splits_of(part):
                found.append(f"{name} runs whole on each of the {size} devices of mesh.{axis}")
    return found


def _parts_of_blocks(config: ModelDimensions) -> dict[str, Any]:
    """Return the mixer and the feed-forward parts of all layers, by name."""
    made = {part_name(config.mixer): make_mixer(config, parent=None)}
    for of_layer in layers_of_period(config):
        made[part_name(of_layer.feed_forward)] = make_feed_forward(of_layer, parent=None)
    return {name: part for name, part in made.items() if part is not None}


def part_of_parameter(config: ModelDimensions, path: tuple[str, ...]) -> Any:
    """Return the mixer or feed-forward part that a parameter belongs to; None if it belongs to
    neither.
    """
    # A companion's parameters are stored under its name.
    companion = config.companion(path[0])
    if companion is not None:
        return part_of_parameter(companion.model, path[1:])
    # Layers that differ are numbered within their period: see transformer.Period.
    of_layers = layers_of_period(config)
    places = [int(name.removeprefix("block_")) for name in path if name.startswith("block_")]
    of_layer = of_layers[places[0]] if places else of_layers[0]
    if part_name(config.mixer) in path:
        return make_mixer(of_layer, parent=None)
    if "feed_forward" in path:
        return make_feed_forward(of_layer, parent=None)
    return None
