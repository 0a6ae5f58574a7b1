"""Choose which parameters of a model are trained on a task, and which are frozen.

Every entry of ADAPTATIONS trains the head of the task. A run saves only trained parameters.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from t5x_lite.config import ModelDimensions
from t5x_lite.config.named import find_named
from t5x_lite.config.ranges import Positive, Range
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.model.heads import Params, is_of_head
from t5x_lite.model.transformer import parameter_axes

Path = tuple[str, ...]


@dataclass(frozen=True)
class Adaptation:
    """A choice of the parameters that are trained.

    Attributes:
        name: name in the setting `adapt`.
        settings: settings of the model that add the adaptation's parameters.
        is_trained: returns True for the path of a trained parameter.
        layers: how many of the last layers of each stack are trained; 0: all.
    """

    name: str
    settings: dict[str, Any]
    is_trained: Callable[[Path], bool]
    layers: int = 0

    def trained_part(self, tree: Any) -> Any:
        """Select the trained leaves of a tree of axis names or shardings. For shapes, see
        split_shapes.
        """
        leaves: Any = flatten_dict(tree)
        return unflatten_dict({p: leaf for p, leaf in leaves.items() if self.is_trained(p)})

    def split_shapes(self, shapes: Params) -> tuple[Params, Params]:
        """Split parameters that are given as shapes: see split."""
        return jax.eval_shape(self.split, shapes)

    @property
    def is_full(self) -> bool:
        """True if all parameters are trained."""
        return self.name == "full"

    def check(self, model: ModelDimensions) -> None:
        """Reject a model with the settings of another adaptation, a number of layers that cannot be
        split off, and an adaptation other than probe that would train only the head of a task.
        """
        for name, value in self.settings.items():
            if getattr(model, name) != value:
                reason = f"got {getattr(model, name)}, but adapt={self.name} needs {value}"
                raise UserError(BAD_CONFIG, f"model.{name}: {reason}; set it to {value}")
        # Layers that differ are scanned in groups, which cannot be split.
        axes = parameter_axes(model)
        period = _period(flatten_dict(axes))
        if self.layers % period:
            reason = f"got {self.layers}, but layers repeat every {period}"
            fix = f"choose a multiple of {period}"
            raise UserError(BAD_CONFIG, f"adapt={self.name}: {reason}; {fix}")
        # A model without biases, for example, has nothing for bitfit to train.
        trained: Any = flatten_dict(self.trained_part(axes))
        if self.name != "probe" and all(is_head(path) for path in trained):
            reason = "this model has no such parameters"
            fix = "choose another adaptation"
            if self.name == "lora":
                fix = "name others in model.lora_targets"
            raise UserError(BAD_CONFIG, f"adapt={self.name}: {reason}; {fix}")

    def split(self, params: Params) -> tuple[Params, Params]:
        """Split parameters into those that are trained and those that are frozen."""
        trained, frozen = {}, {}
        leaves: Any = flatten_dict(params)
        # Layers are stacked in groups of one period: `turns` groups are trained.
        turns = self.layers // _period(leaves)
        for path, leaf in leaves.items():
            if not self.is_trained(path):
                frozen[path] = leaf
            # The first axis of a stacked parameter counts these groups: train only the last ones.
            elif turns and "layers" in path and len(leaf) > turns:
                trained[path], frozen[path] = leaf[-turns:], leaf[:-turns]
            else:
                trained[path] = leaf
        return unflatten_dict(trained), unflatten_dict(frozen)

    def merge(self, trained: Params, frozen: Params) -> Params:
        """Merge trained and frozen parameters: the inverse of split."""
        if self.is_full:
            return trained
        leaves: Any = dict(flatten_dict(frozen))
        of_trained: Any = flatten_dict(trained)
        for path, leaf in of_trained.items():
            # In a stack that was split by layers, the frozen layers come first.
            if path in leaves:
                leaves[path] = jnp.concatenate([leaves[path], leaf])
            else:
                leaves[path] = leaf
        return unflatten_dict(leaves)


def _period(paths: Iterable[Path]) -> int:
    """Return the number of layers after which their kinds repeat. Each such group is scanned as one
    unit.
    """
    # The layers of a group are named block_0, block_1, …
    places = [name for path in paths for name in path if name.startswith("block_")]
    return max((int(name.removeprefix("block_")) + 1 for name in places), default=1)


PositiveFloat = Annotated[float, Range(0.0, open=True)]

FULL = Adaptation("full", {}, lambda path: True)

# Parts of names by which to recognise the parameters that only an adapted model has.
_ADDED = ("lora_", "prefix_", "prompt", "_adapter")


def is_added(path: Path) -> bool:
    """Return True for a parameter that an adaptation adds."""
    return any(name in part for part in path for name in _ADDED)


def is_head(path: Path) -> bool:
    """Return True for a parameter of a task's head."""
    return is_of_head(path[0]) and path[0] != "head"


def _named(*names: str) -> Callable[[Path], bool]:
    """Select heads, and the parameters with one of these names somewhere in their path."""
    return lambda path: is_head(path) or any(name in part for part in path for name in names)


def full() -> Adaptation:
    """Train all parameters of the model."""
    return FULL


def lora(rank: Positive = 8, alpha: PositiveFloat = 16.0) -> Adaptation:
    """Train low-rank updates of dense kernels (Hu et al., 2022)."""
    return Adaptation("lora", {"lora_rank": rank, "lora_alpha": alpha}, _named("lora_"))


def prefix(length: Positive = 20) -> Adaptation:
    """Train extra keys and values in front of each layer's own (Li and Liang, 2021)."""
    return Adaptation("prefix", {"prefix_length": length}, _named("prefix_"))


def prompt(length: Positive = 20) -> Adaptation:
    """Train extra embeddings in front of the text (Lester et al., 2021)."""
    return Adaptation("prompt", {"prompt_length": length}, _named("prompt"))


def adapter(size: Positive = 64) -> Adaptation:
    """Train a bottleneck after each part of a block, and the norms (Houlsby et al., 2019)."""
    return Adaptation("adapter", {"adapter_size": size}, _named("_adapter", "norm"))


def bitfit() -> Adaptation:
    """Train the biases (Ben Zaken et al., 2022)."""
    return Adaptation("bitfit", {}, lambda path: is_head(path) or path[-1].endswith("bias"))


def probe() -> Adaptation:
    """Train only the head of the task."""
    return Adaptation("probe", {}, is_head)


def last(layers: Positive = 2) -> Adaptation:
    """Train the last layers of each stack, and its final norm."""

    def is_trained(path: Path) -> bool:
        return is_head(path) or "layers" in path or "final_norm" in path

    return Adaptation("last", {}, is_trained, layers)


ADAPTATIONS: dict[str, Callable[..., Adaptation]] = {
    "full": full,
    "lora": lora,
    "prefix": prefix,
    "prompt": prompt,
    "adapter": adapter,
    "bitfit": bitfit,
    "probe": probe,
    "last": last,
}


def parse_adaptation(text: str) -> Adaptation:
    """Parse the setting `adapt`.

    Raises:
        UserError: for an unknown adaptation or option, or a value out of range.
    """
    return find_named(text, ADAPTATIONS, "adapt", "adaptation")()


def merge_low_rank(model: ModelDimensions, params: Params) -> tuple[ModelDimensions, Params]:
    """Add LoRA's updates to the kernels and tables, W + A B · alpha / rank. Return the model
    without LoRA, and its parameters.
    """
    if not model.lora_rank:
        return model, params
    scale = model.lora_alpha / model.lora_rank
    leaves: Any = flatten_dict(params)
    merged = {}
    for path, leaf in leaves.items():
        *parents, name = path
        if "lora_" in name:
            continue
        # The factors of a kernel are named lora_a and lora_b. Those of a table are prefixed with
        # its name.
        prefix = "" if name == "kernel" else f"{name}_"
        a, b = (leaves.get((*parents, f"{prefix}lora_{factor}")) for factor in "ab")
        merged[path] = leaf if a is None else leaf + a @ b * scale
    return replace(model, lora_rank=0), unflatten_dict(merged)
