"""A Family describes one model_type of `transformers`: what the settings in its config.json mean,
and which modules hold its tensors. The same table is used for reading and for writing.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from t5x_lite.config import Model, ModelDimensions
from t5x_lite.errors import BAD_CONFIG, BAD_DATA, UserError
from t5x_lite.interop.config_keys import HARMLESS, NEUTRAL

ConfigJson = dict[str, Any]  # the settings of a config.json, by Hugging Face's names
ModelFields = dict[str, Any]  # fields of config.Model, by our names

# Name of an activation in config.json → our name.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "sigmoid": "sigmoid",
    "linear": "linear",
}
# Our name of an activation → the name that is written into config.json.
ACTIVATION_NAMES = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
    "sigmoid": "sigmoid",
    "linear": "linear",
}

# Our name of a parameter → its name in a PyTorch module.
_PARAMETER_NAMES = {"kernel": "weight", "scale": "weight", "bias": "bias"}


@dataclass(frozen=True)
class Location:
    """Where one of our modules or parameters is stored: in a Hugging Face module or tensor, or in a
    part of one that holds several of ours with their outputs side by side.
    """

    name: str  # * stands for the layer
    part: int = 0  # index of the part
    parts: int = 1  # number of parts
    by_head: bool = False  # True: the parts of each head are stored together (GPT-NeoX)
    # Layout of a dense kernel; ours are in_out
    kernel_layout: Literal["out_in", "in_out"] = "out_in"
    offset: float = 0.0  # our parameter minus theirs: Gemma's norms multiply by 1 + scale
    # True: the two features of a rotated pair are neighbours; ours are half a head apart
    pairs_are_neighbours: bool = False
    first_layer: int = 0  # layers before it store none, and do not use ours (ModernBERT)


class _Settings(dict[str, Any]):
    """The settings of a config.json. They remember which of them were read."""

    def __init__(self, settings: ConfigJson):
        super().__init__(settings)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a setting, or the default."""
        self.read.add(key)
        return super().get(key, default)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model_type of `transformers`: what its config.json means, and where its tensors are."""

    # The class of `transformers` that loads a model with its language model head.
    class_name: str
    # The class that also loads a sequence label head, if the family has one.
    class_with_label_head: str = ""
    # The class that loads a model without any head.
    class_without_head: str
    # The class that loads only the encoder, if the family has two stacks.
    encoder_class: str = ""
    # Name of a task's head in model.heads.HEADS → the class that loads a model with it.
    task_classes: dict[str, str] = field(default_factory=dict)

    # Setting of config.json → the field of Model that means the same.
    settings: dict[str, str]
    # Default values of settings that config.json may leave out.
    defaults: ConfigJson = field(default_factory=dict)
    # Settings where null has a meaning of its own; for all others it means the default.
    nullable: frozenset[str] = frozenset()
    # Settings of which we support only one value.
    supported: ConfigJson = field(default_factory=dict)
    # Settings that change nothing, in addition to HARMLESS.
    harmless: frozenset[str] = frozenset()
    # Fields of Model that have the same value in the whole family.
    constants: ModelFields
    # Compute further fields of Model from a config.json whose defaults are filled in.
    other_fields: Callable[[ConfigJson], ModelFields] = lambda config: {}
    # Compute the settings of config.json that `settings` does not cover.
    other_settings: Callable[[ModelDimensions], ConfigJson] = lambda model: {}
    # True if the tensors, not the settings, tell whether the output layer is the embedding table.
    tied_by_tensors: bool = False

    # Our module → Hugging Face's module, which holds a weight and a bias; * stands for the layer.
    modules: dict[str, str | Location]
    # Entries that replace some of `modules` if feed_forward is mlp, which has no gate.
    modules_without_gate: dict[str, str | Location] = field(default_factory=dict)
    # Entries that are added to `modules`, or replace some, in a model with the head of a task.
    task_modules: dict[str, str] = field(default_factory=dict)
    # Our parameter → the tensor, for parameters that are in none of these modules.
    tensors: dict[str, str]
    # The prefix of most tensor names, which the files of a model without its head leave out.
    prefix: str = ""
    # Tensor that may be a copy → our parameter that it is tied to.
    copies: dict[str, str] = field(default_factory=dict)
    # First parts of the names of other heads' tensors, which are not read.
    other_heads: tuple[str, ...] = ()
    # Tensors that must be zero, since our model does not have the terms that they hold.
    zeros: frozenset[str] = frozenset()
    # True if the family's tokenizer class puts <s> before a text unless its files say otherwise.
    adds_bos: bool = False
    # True if the class does not scale attention logits (T5). If a model of ours does, its query
    # kernels are written with the scale multiplied in.
    scales_in_kernels: bool = False

    def read_config(self, config: ConfigJson) -> ModelFields:
        """Translate a config.json into fields of Model.

        Raises:
            UserError: if a setting is missing, or has a value that our model does not support.
        """
        stated = {
            key: value for key, value in config.items() if value is not None or key in self.nullable
        }
        config = _Settings(self.defaults | stated)
        for key in self.settings:
            if key not in config:
                raise UserError(
                    BAD_DATA, f"config.json: has no {key}, expected a model of this kind"
                )

        fields = {name: config[key] for key, name in self.settings.items()}
        fields.update(self.constants)
        fields.update(self.other_fields(config))

        activation = fields["activation"]
        if activation not in ACTIVATIONS:
            expected = ", ".join(ACTIVATIONS)
            raise UserError(
                BAD_DATA, f"config.json: activation {activation!r}: expected one of {expected}"
            )
        fields["activation"] = ACTIVATIONS[activation]
        self._check_others(config)
        return fields

    def _check_others(self, config: "_Settings") -> None:
        """Reject each setting that was not read, unless it is known to change nothing."""
        neutral = NEUTRAL | {key: (value,) for key, value in self.supported.items()}
        harmless = HARMLESS | self.harmless
        for key, value in config.items():
            if value is None or key in config.read or key in harmless:
                continue
            if key not in neutral:
                reason = "unknown for models of this kind, so it may describe another model"
                fix = "remove it if it changes nothing"
                raise UserError(BAD_DATA, f"config.json: {key}={value!r}: {reason}; {fix}")
            if value not in neutral[key]:
                expected = " or ".join(repr(one) for one in neutral[key] if one is not None)
                reason = f"models of this kind are only read with {expected or 'null'}"
                raise UserError(BAD_DATA, f"config.json: {key}={value!r}: {reason}")

    def write_config(self, model: ModelDimensions) -> ConfigJson:
        """Translate a model of the family into settings of config.json."""
        config = {}
        for key, name in self.settings.items():
            config[key] = getattr(model, name)
            if name == "activation":
                config[key] = ACTIVATION_NAMES[model.activation]
            if name == "token_types":
                config[key] = max(model.token_types, 1)  # see type_table
        config.update(self.other_settings(model))
        return config

    @property
    def type_table(self) -> str:
        """Name of the table of token types; empty if the family has none. The classes need at least
        one type, so a model without types is written with a table of one row of zeros.
        """
        return self.tensors.get("type_embedding", "")

    def written_otherwise(self, model: ModelDimensions) -> set[str]:
        """Return the fields in which a model differs from the family, but can be written as a model
        of the family that computes the same.
        """
        fields = set()
        if self.type_table and not model.token_types:
            fields.add("token_types")
        if self.scales_in_kernels and model.scale_attention:
            fields.add("scale_attention")
        return fields

    def with_head(self, head: str) -> "Family":
        """Return the family with the head of a task instead of its pretraining heads.

        Raises:
            UserError: if no class of the family has such a head.
        """
        if head not in self.task_classes:
            known = ", ".join(sorted(self.task_classes)) or "none"
            reason = f"has no class with the head {head}; the heads it has for tasks: {known}"
            raise UserError(BAD_CONFIG, f"export: {self.class_name}'s family {reason}")
        class_name = self.task_classes[head]
        return dataclasses.replace(
            self,
            class_name=class_name,
            class_without_head=class_name,
            class_with_label_head="",
            modules=self.modules | self.task_modules,
        )

    def locate(self, parameter: str, model: Model) -> Location:
        """Return the location of the tensor that stores one of our parameters.

        >>> from t5x_lite.interop.families.gpt import GPT2
        >>> GPT2.locate("decoder/layers/attention_norm/scale", Model()).name
        'transformer.h.*.ln_1.weight'

        Raises:
            UserError: if models of the family have no such parameter.
        """
        if parameter in self.tensors:
            return Location(self.tensors[parameter])
        modules = self.modules
        if model.feed_forward == "mlp":
            modules = modules | self.modules_without_gate
        module, _, leaf = parameter.rpartition("/")
        if module not in modules or leaf not in _PARAMETER_NAMES:
            raise UserError(BAD_CONFIG, f"export: {self.class_name} has no place for {parameter}")
        holder = modules[module]
        if isinstance(holder, str):
            holder = Location(holder)
        return dataclasses.replace(holder, name=f"{holder.name}.{_PARAMETER_NAMES[leaf]}")
