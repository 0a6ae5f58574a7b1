"""The `transformers` families that can be imported and exported, and how to find the family of a
model.

To add one, define its Family in a file of this folder, and add it to FAMILIES below.
"""

import dataclasses
from contextlib import suppress
from typing import Any, NamedTuple

from t5x_lite.config import Model, ModelDimensions
from t5x_lite.config.roles import COMPUTATION, HEADS, settings_with, without_effect
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.interop.families.bart import BART
from t5x_lite.interop.families.bert import (
    BERT,
    CAMEMBERT,
    DISTILBERT,
    ELECTRA,
    ESM,
    MODERNBERT,
    MODERNBERT_DECODER,
    ROBERTA,
    XLM_ROBERTA,
)
from t5x_lite.interop.families.cohere import COHERE
from t5x_lite.interop.families.family import ACTIVATION_NAMES, Family, ModelFields
from t5x_lite.interop.families.gpt import GPT, GPT2, GPT_NEOX
from t5x_lite.interop.families.llama import (
    GEMMA2,
    GEMMA3,
    LLAMA,
    MISTRAL,
    OLMO2,
    QWEN2,
    QWEN3,
)
from t5x_lite.interop.families.rotary import shortest_period
from t5x_lite.interop.families.t5 import MT5, T5, UMT5
from t5x_lite.model.masks import RULES
from t5x_lite.model.parts.options import canonical
from t5x_lite.model.parts.positions import POSITIONS, position_limit
from t5x_lite.resolve import resolve_model

# model_type in config.json → family. A model that belongs to several families is written as the
# first of them.
FAMILIES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "gpt2": GPT2,
    "t5": T5,
    "llama": LLAMA,
    "xlm-roberta": XLM_ROBERTA,
    "camembert": CAMEMBERT,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "modernbert": MODERNBERT,
    "modernbert-decoder": MODERNBERT_DECODER,
    "esm": ESM,
    "openai-gpt": GPT,
    "gpt_neox": GPT_NEOX,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "olmo2": OLMO2,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "cohere": COHERE,
    "mt5": MT5,
    "umt5": UMT5,
    "bart": BART,
}


class Difference(NamedTuple):
    """A field of Model in which a model does not fit a family."""

    field: str
    value: Any  # what the model has
    needed: Any  # what the family needs


# Fields that turn a two-stack model into its encoder only.
ENCODER_ALONE: ModelFields = {
    "architecture": "encoder",
    "num_decoder_layers": 0,
    "scale_logits": False,
    "lm_head": False,
}


def _canonical_positions(text: str) -> str:
    return canonical(POSITIONS, text) if text else text


def _canonical_rules(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(canonical(RULES, text) for text in texts)


# Field whose values can be written in several ways → function that makes them comparable.
_CANONICAL = {
    "positions": _canonical_positions,
    "local_positions": _canonical_positions,
    "attention_rules": _canonical_rules,
    "local_rules": _canonical_rules,
}


def _folded(model: ModelDimensions) -> ModelDimensions:
    """Return the model with its shortest layer_pattern, or without one if all layers are alike."""
    pattern = model.layer_pattern
    if not pattern:
        return model
    kinds = [pattern[layer % len(pattern)] for layer in range(model.num_layers)]
    period = shortest_period(kinds)
    if len(set(kinds)) > 1:
        return dataclasses.replace(model, layer_pattern=period)
    if kinds[0] == "local":
        positions = model.local_positions or model.positions
        model = dataclasses.replace(model, attention_rules=model.local_rules, positions=positions)
    return dataclasses.replace(model, layer_pattern=(), local_rules=(), local_positions="")


def differences(family: Family, model: ModelDimensions) -> list[Difference]:
    """Return the fields in which a model differs from a family; empty if the model belongs to it.

    Raises:
        UserError: if the family has no model of these sizes.
    """
    if model.activation not in ACTIVATION_NAMES:
        return [Difference("activation", model.activation, "gelu")]
    model = _folded(model)
    # The parameters, not the settings, tell which heads a model has.
    ignored = settings_with(ModelDimensions, COMPUTATION, HEADS)
    ignored.update(without_effect(model))
    if position_limit(model) is None:
        ignored.add("max_length")
    if family.tied_by_tensors:
        ignored.add("tie_embeddings")

    # Write the model's config.json and read it back. If a field changes, the family cannot express
    # it.
    fields = family.read_config(family.write_config(model))
    if family.encoder_class and model.architecture == "encoder":
        fields |= ENCODER_ALONE
    reread = _folded(resolve_model(Model(**fields), model.vocab_size, model.max_length))
    names = [entry.name for entry in dataclasses.fields(Model)]
    differing = []
    for name in names:
        value = getattr(model, name)
        needed = getattr(reread, name)
        if name in _CANONICAL:
            value, needed = _CANONICAL[name](value), _CANONICAL[name](needed)
        if name in family.written_otherwise(model):
            continue
        if name not in ignored and value != needed:
            differing.append(Difference(name, value, needed))
    return differing


def find_family(model: ModelDimensions, prefer: str = "") -> str:
    """Return the model_type of the family that a model belongs to.

    Args:
        prefer: the model_type to return if the model belongs to several families.

    Raises:
        UserError: if it belongs to none. The message names the differences from the nearest family.
    """
    differing: dict[str, list[Difference]] = {}
    for name, family in FAMILIES.items():
        with suppress(UserError):  # the family has no model of these sizes
            differing[name] = differences(family, model)
    problem = f"export: this model belongs to none of the families {', '.join(FAMILIES)}"
    if not differing:
        raise UserError(BAD_CONFIG, f"{problem}: none has models of such sizes")

    if differing.get(prefer) == []:
        return prefer

    def distance(name: str) -> tuple[int, int]:
        return len(differing[name]), len(FAMILIES[name].written_otherwise(model))

    nearest = min(differing, key=distance)
    if not differing[nearest]:
        return nearest
    changes = []
    for name, value, needed in differing[nearest]:
        changes.append(f"model.{name}={needed!r} (is {value!r})")
    raise UserError(BAD_CONFIG, f"{problem}; {nearest} needs {', '.join(changes)}")
