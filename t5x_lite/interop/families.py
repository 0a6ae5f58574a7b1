"""The `transformers` models that ours can represent: BERT, RoBERTa, GPT-2, T5 (1.0, 1.1), LLaMA.

Each is a Family: a table, used for reading and for writing, of what the settings in config.json
mean and which modules hold the tensors. To add a model, write its Family and name it in FAMILIES.
"""

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from t5x_lite.config import Model, ModelDimensions
from t5x_lite.config.roles import COMPUTATION, HEADS, settings_with, without_effect
from t5x_lite.errors import BAD_CONFIG, BAD_DATA, UserError
from t5x_lite.interop.config_keys import HARMLESS, NEUTRAL
from t5x_lite.model.parts.options import canonical, write_part
from t5x_lite.model.parts.positions import POSITIONS, make_positions, position_limit
from t5x_lite.resolve import resolve_model

ConfigJson = dict[str, Any]  # the settings of a config.json, by Hugging Face's names
ModelFields = dict[str, Any]  # fields of config.Model, by our names

# Name of an activation in config.json → our name.
_ACTIVATIONS = {
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
_ACTIVATION_NAMES = {
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
class Conv1D:
    """A dense layer of GPT-2, with a kernel [in, out] where torch.nn.Linear has [out, in].

    It may hold several of our modules side by side: its outputs are theirs, concatenated.
    """

    name: str
    part: int = 0  # index of our module in it
    parts: int = 1  # number of our modules in it


@dataclass(frozen=True)
class Location:
    """The place of one of our parameters: a tensor, or a part of one."""

    tensor: str  # * stands for the layer
    part: int = 0  # index of the part of the tensor
    parts: int = 1  # number of parts in the tensor
    kernel_layout: Literal["out_in", "in_out"] = "out_in"  # of a dense kernel; ours are in_out


class _Settings(dict[str, Any]):
    """Settings of a config.json that remember which of them were read."""

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


class Difference(NamedTuple):
    """A field of Model in which a model does not fit a family."""

    field: str
    value: Any  # what the model has
    needed: Any  # what the family needs


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model_type of `transformers`: what its config.json means, and where its tensors lie."""

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
    # Settings that we can read with one value only.
    supported: ConfigJson = field(default_factory=dict)
    # Settings that change nothing, besides those of every family.
    harmless: frozenset[str] = frozenset()
    # Fields of Model that have the same value in the whole family.
    constants: ModelFields
    # Compute further fields of Model from a config.json whose defaults are filled in.
    other_fields: Callable[[ConfigJson], ModelFields] = lambda config: {}
    # Compute the settings of config.json that `settings` does not cover.
    other_settings: Callable[[ModelDimensions], ConfigJson] = lambda model: {}
    # True if the tensors, not the settings, tell that the output layer is the embedding table.
    tied_by_tensors: bool = False

    # Our module → Hugging Face's module, which holds a weight and a bias; * stands for the layer.
    modules: dict[str, str | Conv1D]
    # Entries that replace some of `modules` where feed_forward is mlp, without a gate.
    modules_without_gate: dict[str, str | Conv1D] = field(default_factory=dict)
    # Entries that are added to `modules`, or replace some, in a model with the head of a task.
    task_modules: dict[str, str] = field(default_factory=dict)
    # Our parameter → the tensor, for parameters that are in no such module.
    tensors: dict[str, str]
    # The prefix of most tensor names, which the files of a model without its head leave out.
    prefix: str = ""

    def read_config(self, config: ConfigJson) -> ModelFields:
        """Translate a config.json into fields of Model.

        Raises:
            UserError: if a setting is missing, or has a value that our model does not support.
        """
        stated = {key: value for key, value in config.items() if value is not None}
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
        if activation not in _ACTIVATIONS:
            expected = ", ".join(_ACTIVATIONS)
            raise UserError(
                BAD_DATA, f"config.json: activation {activation!r}: expected one of {expected}"
            )
        fields["activation"] = _ACTIVATIONS[activation]
        self._check_others(config)
        return fields

    def _check_others(self, config: "_Settings") -> None:
        """Refuse each setting that was not read, unless it is known to change nothing."""
        neutral = NEUTRAL | {key: (value,) for key, value in self.supported.items()}
        harmless = HARMLESS | self.harmless
        for key, value in config.items():
            if key in config.read or key in harmless:
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
                config[key] = _ACTIVATION_NAMES[model.activation]
        config.update(self.other_settings(model))
        return config

    def with_head(self, head: str) -> "Family":
        """Return the family with the head of a task in place of its pretraining heads.

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
        """Return where one of our parameters is stored.

        >>> model = resolve_model(Model(), vocab_size=10, max_length=4)
        >>> GPT2.locate("decoder/layers/attention_norm/scale", model).tensor
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
        suffix = _PARAMETER_NAMES[leaf]
        if isinstance(holder, Conv1D):
            tensor = f"{holder.name}.{suffix}"
            return Location(tensor, holder.part, holder.parts, kernel_layout="in_out")
        return Location(f"{holder}.{suffix}")


# Fields that turn a two-stack model into its encoder only.
ENCODER_ALONE: ModelFields = {
    "architecture": "encoder",
    "num_decoder_layers": 0,
    "scale_logits": False,
    "lm_head": False,
}


def differences(family: Family, model: ModelDimensions) -> list[Difference]:
    """Return the fields in which a model differs from a family; empty if it belongs to it.

    Raises:
        UserError: if the family has no model of such sizes.
    """
    if model.activation not in _ACTIVATION_NAMES:
        return [Difference("activation", model.activation, "gelu")]
    # The parameters, and not the settings, tell which heads there are.
    ignored = settings_with(ModelDimensions, COMPUTATION, HEADS)
    ignored.update(without_effect(model))
    if position_limit(model) is None:
        ignored.add("max_length")
    if family.tied_by_tensors:
        ignored.add("tie_embeddings")

    # Write the model's config.json and read it back: what changes, the family cannot express.
    fields = family.read_config(family.write_config(model))
    if family.encoder_class and model.architecture == "encoder":
        fields |= ENCODER_ALONE
    reread = resolve_model(Model(**fields), model.vocab_size, model.max_length)
    names = [entry.name for entry in dataclasses.fields(Model)]
    differing = []
    for name in names:
        value = getattr(model, name)
        needed = getattr(reread, name)
        if name == "positions":
            value, needed = canonical(POSITIONS, value), canonical(POSITIONS, needed)
        if name not in ignored and value != needed:
            differing.append(Difference(name, value, needed))
    return differing


def find_family(model: ModelDimensions) -> str:
    """Return the model_type of the family that a model belongs to.

    Raises:
        UserError: if it belongs to none; the message names the differences from the nearest family.
    """
    differing: dict[str, list[Difference]] = {}
    for name, family in FAMILIES.items():
        with suppress(UserError):  # the family has no model of such sizes
            differing[name] = differences(family, model)
    problem = f"export: this model belongs to none of the families {', '.join(FAMILIES)}"
    if not differing:
        raise UserError(BAD_CONFIG, f"{problem}: none has models of such sizes")

    nearest = min(differing, key=lambda name: len(differing[name]))
    if not differing[nearest]:
        return nearest
    changes = []
    for name, value, needed in differing[nearest]:
        changes.append(f"model.{name}={needed!r} (is {value!r})")
    raise UserError(BAD_CONFIG, f"{problem}; {nearest} needs {', '.join(changes)}")


# BERT (Devlin et al., 2019) and RoBERTa (Liu et al., 2019).


def _bert_tables(prefix: str) -> dict[str, str]:
    """Return the lookup tables of both families."""
    return {
        "embedding": f"{prefix}embeddings.word_embeddings.weight",
        "position_embedding": f"{prefix}embeddings.position_embeddings.weight",
        "type_embedding": f"{prefix}embeddings.token_type_embeddings.weight",
    }


def _bert_modules(prefix: str) -> dict[str, str]:
    """Return the modules of both families, except the heads."""
    return {
        "embedding_norm": f"{prefix}embeddings.LayerNorm",
        "encoder/layers/attention/query": f"{prefix}encoder.layer.*.attention.self.query",
        "encoder/layers/attention/key": f"{prefix}encoder.layer.*.attention.self.key",
        "encoder/layers/attention/value": f"{prefix}encoder.layer.*.attention.self.value",
        "encoder/layers/attention/out": f"{prefix}encoder.layer.*.attention.output.dense",
        "encoder/layers/attention_norm": f"{prefix}encoder.layer.*.attention.output.LayerNorm",
        "encoder/layers/feed_forward/wi": f"{prefix}encoder.layer.*.intermediate.dense",
        "encoder/layers/feed_forward/wo": f"{prefix}encoder.layer.*.output.dense",
        "encoder/layers/feed_forward_norm": f"{prefix}encoder.layer.*.output.LayerNorm",
    }


BERT = Family(
    class_name="BertForMaskedLM",
    class_with_label_head="BertForPreTraining",
    class_without_head="BertModel",
    task_classes={
        "class": "BertForSequenceClassification",
        "number": "BertForSequenceClassification",
        "choice": "BertForMultipleChoice",
        "span": "BertForQuestionAnswering",
    },
    settings={
        "num_hidden_layers": "num_layers",
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_epsilon",
        "max_position_embeddings": "max_length",
        "type_vocab_size": "token_types",
        "vocab_size": "vocab_size",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    defaults={
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    },
    supported={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    # Of multilingual BERT's config.json, which no class reads.
    harmless=frozenset(
        {
            "directionality",
            "pooler_fc_size",
            "pooler_num_attention_heads",
            "pooler_num_fc_layers",
            "pooler_size_per_head",
            "pooler_type",
        }
    ),
    constants={
        "architecture": "encoder",
        "norm_position": "post",
        "embedding_norm": True,
        "mlm_head": True,
    },
    modules={
        **_bert_modules("bert."),
        "head/dense": "cls.predictions.transform.dense",
        "head/norm": "cls.predictions.transform.LayerNorm",
        "classifier/pooler": "bert.pooler.dense",
        "classifier/output": "cls.seq_relationship",
    },
    task_modules={
        "classifier/output": "classifier",
        "token_head/output": "qa_outputs",
    },
    tensors={
        **_bert_tables("bert."),
        "head/bias": "cls.predictions.bias",
    },
    prefix="bert.",
)


def _roberta_fields(config: ConfigJson) -> ModelFields:
    """Read the size of the position table."""
    # Positions are counted from the padding id on, so the table begins with pad_token_id + 1 rows
    # that no position uses.
    offset = config["pad_token_id"] + 1
    return {
        "max_length": config["max_position_embeddings"] - offset,
        "positions": write_part(POSITIONS, "learned", offset=offset),
    }


def _roberta_settings(model: ModelDimensions) -> ConfigJson:
    """Write the size of the position table, and the one activation."""
    offset = getattr(make_positions(model), "offset", 0)
    return {
        "hidden_act": "gelu",
        "max_position_embeddings": model.max_length + offset,
        "pad_token_id": offset - 1,
    }


ROBERTA = Family(
    class_name="RobertaForMaskedLM",
    class_without_head="RobertaModel",
    task_classes={
        "class": "RobertaForSequenceClassification",
        "number": "RobertaForSequenceClassification",
        "span": "RobertaForQuestionAnswering",
    },
    settings={key: name for key, name in BERT.settings.items() if name != "activation"},
    defaults={
        **BERT.defaults,
        "pad_token_id": 1,
    },
    # In `transformers` the head always applies gelu; ours applies hidden_act, so they must agree.
    supported={**BERT.supported, "hidden_act": "gelu"},
    constants={**BERT.constants, "activation": "gelu"},
    other_fields=_roberta_fields,
    other_settings=_roberta_settings,
    modules={
        **_bert_modules("roberta."),
        "head/dense": "lm_head.dense",
        "head/norm": "lm_head.layer_norm",
    },
    task_modules={
        "classifier/pooler": "classifier.dense",
        "classifier/output": "classifier.out_proj",
        "token_head/output": "qa_outputs",
    },
    tensors={
        **_bert_tables("roberta."),
        "head/bias": "lm_head.bias",
    },
    prefix="roberta.",
)


# GPT-2 (Radford et al., 2019).

GPT2 = Family(
    class_name="GPT2LMHeadModel",
    class_without_head="GPT2Model",
    settings={
        "n_layer": "num_layers",
        "n_embd": "d_model",
        "n_head": "num_heads",
        "n_positions": "max_length",
        "activation_function": "activation",
        "layer_norm_epsilon": "norm_epsilon",
        "vocab_size": "vocab_size",
        "tie_word_embeddings": "tie_embeddings",
        "resid_pdrop": "dropout",
        "embd_pdrop": "dropout",
        "attn_pdrop": "attention_dropout",
    },
    defaults={
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
    },
    supported={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    # Heads of other classes; the order in which attention is computed; the length of old files.
    harmless=frozenset(
        {
            "n_ctx",
            "reorder_and_upcast_attn",
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
        }
    ),
    constants={"architecture": "decoder"},
    other_fields=lambda config: {"d_ff": config.get("n_inner", 0)},
    other_settings=lambda model: {"n_inner": model.d_ff},
    modules={
        "decoder/layers/attention_norm": "transformer.h.*.ln_1",
        "decoder/layers/attention/query": Conv1D("transformer.h.*.attn.c_attn", part=0, parts=3),
        "decoder/layers/attention/key": Conv1D("transformer.h.*.attn.c_attn", part=1, parts=3),
        "decoder/layers/attention/value": Conv1D("transformer.h.*.attn.c_attn", part=2, parts=3),
        "decoder/layers/attention/out": Conv1D("transformer.h.*.attn.c_proj"),
        "decoder/layers/feed_forward_norm": "transformer.h.*.ln_2",
        "decoder/layers/feed_forward/wi": Conv1D("transformer.h.*.mlp.c_fc"),
        "decoder/layers/feed_forward/wo": Conv1D("transformer.h.*.mlp.c_proj"),
        "decoder/final_norm": "transformer.ln_f",
    },
    tensors={
        "embedding": "transformer.wte.weight",
        "position_embedding": "transformer.wpe.weight",
        "head/output": "lm_head.weight",
    },
    prefix="transformer.",
)


# T5 1.0 (Raffel et al., 2020) and T5 1.1 (Shazeer, 2020; released checkpoints).


def _t5_fields(config: ConfigJson) -> ModelFields:
    """Read the feed-forward part, the decoder's layers, the scaling of logits, and dropout."""
    # feed_forward_proj is relu, or gated-gelu, which in T5 1.1 means the tanh approximation.
    gated, _, activation = config["feed_forward_proj"].rpartition("-")
    if gated and activation == "gelu":
        activation = "gelu_new"
    # Version 4 writes these two, which follow from the first and win over it if they are stated.
    for key, follows in (("dense_act_fn", activation), ("is_gated_act", bool(gated))):
        stated = config.get(key, follows)
        if stated != follows:
            reason = f"feed_forward_proj={config['feed_forward_proj']!r} means {follows!r}"
            raise UserError(BAD_DATA, f"config.json: {key}={stated!r}, but {reason}; correct one")
    positions = write_part(
        POSITIONS,
        "relative",
        buckets=config["relative_attention_num_buckets"],
        distance=config["relative_attention_max_distance"],
    )
    return {
        "activation": activation,
        "positions": positions,
        "feed_forward": "gated_mlp" if gated else "mlp",
        "num_decoder_layers": config.get("num_decoder_layers", config["num_layers"]),
        "scale_logits": config.get("scale_decoder_outputs", config["tie_word_embeddings"]),
        "attention_dropout": config["dropout_rate"],
        "ff_dropout": config["dropout_rate"],
    }


def _t5_settings(model: ModelDimensions) -> ConfigJson:
    """Write the settings that _t5_fields reads."""
    feed_forward = _ACTIVATION_NAMES[model.activation]
    if model.feed_forward == "gated_mlp":
        if model.activation == "gelu_tanh":
            feed_forward = "gelu"
        feed_forward = f"gated-{feed_forward}"
    positions = make_positions(model)
    return {
        "feed_forward_proj": feed_forward,
        "relative_attention_num_buckets": getattr(positions, "buckets", 32),
        "relative_attention_max_distance": getattr(positions, "distance", 128),
        "num_decoder_layers": model.num_decoder_layers or model.num_layers,
        # In `transformers` this setting also decides whether logits are scaled.
        "tie_word_embeddings": model.scale_logits,
        "is_encoder_decoder": model.is_encoder_decoder,
    }


T5 = Family(
    class_name="T5ForConditionalGeneration",
    class_without_head="T5Model",
    encoder_class="T5EncoderModel",
    settings={
        "num_layers": "num_layers",
        "d_model": "d_model",
        "num_heads": "num_heads",
        "d_kv": "head_dim",
        "d_ff": "d_ff",
        "layer_norm_epsilon": "norm_epsilon",
        "vocab_size": "vocab_size",
        "dropout_rate": "dropout",
    },
    defaults={
        "feed_forward_proj": "relu",
        "layer_norm_epsilon": 1e-6,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "tie_word_embeddings": True,
        "dropout_rate": 0.1,
    },
    # The tensors say whether there is a decoder; relative positions have no number.
    harmless=frozenset({"is_encoder_decoder", "n_positions"}),
    constants={
        "architecture": "encoder_decoder",
        "norm": "rms_norm",
        "bias": False,
        "scale_attention": False,
    },
    other_fields=_t5_fields,
    other_settings=_t5_settings,
    tied_by_tensors=True,
    modules={
        # The encoder: self-attention, feed-forward.
        "encoder/layers/attention_norm": "encoder.block.*.layer.0.layer_norm",
        "encoder/layers/attention/query": "encoder.block.*.layer.0.SelfAttention.q",
        "encoder/layers/attention/key": "encoder.block.*.layer.0.SelfAttention.k",
        "encoder/layers/attention/value": "encoder.block.*.layer.0.SelfAttention.v",
        "encoder/layers/attention/out": "encoder.block.*.layer.0.SelfAttention.o",
        "encoder/layers/feed_forward_norm": "encoder.block.*.layer.1.layer_norm",
        "encoder/layers/feed_forward/wi": "encoder.block.*.layer.1.DenseReluDense.wi_0",
        "encoder/layers/feed_forward/gate": "encoder.block.*.layer.1.DenseReluDense.wi_1",
        "encoder/layers/feed_forward/wo": "encoder.block.*.layer.1.DenseReluDense.wo",
        "encoder/final_norm": "encoder.final_layer_norm",
        # The decoder: self-attention, cross-attention, feed-forward.
        "decoder/layers/attention_norm": "decoder.block.*.layer.0.layer_norm",
        "decoder/layers/attention/query": "decoder.block.*.layer.0.SelfAttention.q",
        "decoder/layers/attention/key": "decoder.block.*.layer.0.SelfAttention.k",
        "decoder/layers/attention/value": "decoder.block.*.layer.0.SelfAttention.v",
        "decoder/layers/attention/out": "decoder.block.*.layer.0.SelfAttention.o",
        "decoder/layers/cross_attention_norm": "decoder.block.*.layer.1.layer_norm",
        "decoder/layers/cross_attention/query": "decoder.block.*.layer.1.EncDecAttention.q",
        "decoder/layers/cross_attention/key": "decoder.block.*.layer.1.EncDecAttention.k",
        "decoder/layers/cross_attention/value": "decoder.block.*.layer.1.EncDecAttention.v",
        "decoder/layers/cross_attention/out": "decoder.block.*.layer.1.EncDecAttention.o",
        "decoder/layers/feed_forward_norm": "decoder.block.*.layer.2.layer_norm",
        "decoder/layers/feed_forward/wi": "decoder.block.*.layer.2.DenseReluDense.wi_0",
        "decoder/layers/feed_forward/gate": "decoder.block.*.layer.2.DenseReluDense.wi_1",
        "decoder/layers/feed_forward/wo": "decoder.block.*.layer.2.DenseReluDense.wo",
        "decoder/final_norm": "decoder.final_layer_norm",
    },
    modules_without_gate={
        "encoder/layers/feed_forward/wi": "encoder.block.*.layer.1.DenseReluDense.wi",
        "decoder/layers/feed_forward/wi": "decoder.block.*.layer.2.DenseReluDense.wi",
    },
    tensors={
        "embedding": "shared.weight",
        "encoder/relative_bias/embedding": (
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        ),
        "decoder/relative_bias/embedding": (
            "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        ),
        "head/output": "lm_head.weight",
    },
)


# LLaMA 1 and 2 (Touvron et al., 2023), and models built like them.


def _llama_fields(config: ConfigJson) -> ModelFields:
    """Read the rotary base and the sizes of heads; scaled rotary angles are rejected."""
    bases = set()
    for key in ("rope_parameters", "rope_scaling"):  # of transformers 5 and 4
        rope = dict(config.get(key) or {})
        for name in ("rope_type", "type"):
            kind = rope.pop(name, "default")
            if kind != "default":
                expected = "expected 'default', angles that are not scaled"
                raise UserError(BAD_DATA, f"config.json: {key}: {name}={kind!r}: {expected}")
        bases.add(rope.pop("rope_theta", config.get("rope_theta")))
        if rope:
            raise UserError(BAD_DATA, f"config.json: {key}: got {rope}, expected only rope_theta")
    bases -= {None}
    if len(bases) > 1:
        got = " and ".join(map(str, sorted(bases)))
        raise UserError(BAD_DATA, f"config.json: rope_theta is {got}; correct one")
    base = float(bases.pop()) if bases else 10_000.0
    return {
        "positions": write_part(POSITIONS, "rotary", base=base),
        "head_dim": config.get("head_dim", 0),
        "num_kv_heads": config.get("num_key_value_heads", 0),
    }


def _llama_settings(model: ModelDimensions) -> ConfigJson:
    """Write the settings that _llama_fields reads."""
    base = getattr(make_positions(model), "base", 10_000.0)
    return {
        "rope_parameters": {"rope_type": "default", "rope_theta": base},
        "rope_theta": base,  # transformers 4 reads it here
        "head_dim": model.head_dim,
        "num_key_value_heads": model.num_kv_heads,
    }


LLAMA = Family(
    class_name="LlamaForCausalLM",
    class_without_head="LlamaModel",
    settings={
        "num_hidden_layers": "num_layers",
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        "hidden_act": "activation",
        "rms_norm_eps": "norm_epsilon",
        "max_position_embeddings": "max_length",
        "vocab_size": "vocab_size",
        "tie_word_embeddings": "tie_embeddings",
        "attention_dropout": "attention_dropout",
    },
    defaults={
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "attention_dropout": 0.0,
    },
    supported={
        "attention_bias": False,
        "mlp_bias": False,
        "pretraining_tp": 1,
    },
    constants={
        "architecture": "decoder",
        "feed_forward": "gated_mlp",
        "norm": "rms_norm",
        "bias": False,
    },
    other_fields=_llama_fields,
    other_settings=_llama_settings,
    modules={
        "decoder/layers/attention_norm": "model.layers.*.input_layernorm",
        "decoder/layers/attention/query": "model.layers.*.self_attn.q_proj",
        "decoder/layers/attention/key": "model.layers.*.self_attn.k_proj",
        "decoder/layers/attention/value": "model.layers.*.self_attn.v_proj",
        "decoder/layers/attention/out": "model.layers.*.self_attn.o_proj",
        "decoder/layers/feed_forward_norm": "model.layers.*.post_attention_layernorm",
        "decoder/layers/feed_forward/wi": "model.layers.*.mlp.gate_proj",
        "decoder/layers/feed_forward/gate": "model.layers.*.mlp.up_proj",
        "decoder/layers/feed_forward/wo": "model.layers.*.mlp.down_proj",
        "decoder/final_norm": "model.norm",
    },
    tensors={
        "embedding": "model.embed_tokens.weight",
        "head/output": "lm_head.weight",
    },
    prefix="model.",
)

# model_type in config.json → family.
FAMILIES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "gpt2": GPT2,
    "t5": T5,
    "llama": LLAMA,
}
