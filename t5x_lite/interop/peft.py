"""Write LoRA updates for Hugging Face's `peft`, which adds them to the exported base model."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from t5x_lite.config import ModelDimensions
from t5x_lite.errors import USAGE, UserError
from t5x_lite.interop.families.family import Family, Location
from t5x_lite.interop.families.table import FAMILIES, find_family
from t5x_lite.interop.huggingface import (
    DTYPES,
    TaskHead,
    by_path,
    card_files,
    check_free,
    stored_parameters,
    write_directory,
)
from t5x_lite.model.heads import Params
from t5x_lite.parallel.placement import to_host
from t5x_lite.training.adapt import is_head, merge_low_rank

# Name of a head → what `peft` calls its task.
_TASK_TYPES = {
    "class": "SEQ_CLS",
    "number": "SEQ_CLS",
    "choice": "FEATURE_EXTRACTION",
    "span": "QUESTION_ANS",
}

# T5 stores one table, but it is a separate module in each stack, and `peft` needs an update for
# each module.
_LOOKED_UP_IN = {
    "shared": ["encoder.embed_tokens", "decoder.embed_tokens"],
    "model.shared": ["model.encoder.embed_tokens", "model.decoder.embed_tokens"],
}


def write(
    path: Path,
    model: ModelDimensions,
    params: Params,
    dtype: str = "float32",
    task_head: TaskHead | None = None,
    model_type: str = "",
    origin: dict[str, Any] | None = None,
    card: Callable[[str], str] | None = None,
) -> str:
    """Write adapter_config.json and adapter_model.safetensors: the updates, and the head of a task.

    Args:
        path: a directory that does not exist yet, or is empty.
        dtype: type of the tensors, a name in huggingface.DTYPES.
        task_head: the head of the task that the model has learned, if it has one.
        model_type: the family to write it as, see huggingface.write.
        origin, card: see huggingface.write.

    Returns:
        the name of the `transformers` class to load the base model with.

    Raises:
        UserError: if the model has no LoRA updates, or belongs to no family of Hugging Face.
    """
    if not model.lora_rank:
        reason = "this model has no LoRA updates; leave --adapter out"
        raise UserError(USAGE, f"export: --adapter: {reason}")
    check_free(path)
    plain, merged = merge_low_rank(model, params)
    family = FAMILIES[find_family(plain, prefer=model_type)]
    if task_head is not None:
        family = family.with_head(task_head.name)

    # The updates of dense layers and embedding tables, by the module that they belong to.
    tensors: dict[str, np.ndarray] = {}
    ranks: dict[str, int] = {}
    kernel_layouts = set()
    for place, updates in _updates_by_module(family, model, params).items():
        ranks[_in_every_layer(place)] = model.lora_rank * len(updates)
        kernel_layouts.add(updates[0].location.kernel_layout)
        for layer in range(len(updates[0].a)):
            module = place.replace("*", str(layer))
            down, up = _side_by_side(updates, layer, model)
            tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"] = down, up
    for place, (down, up) in _updates_of_tables(family, model, params).items():
        ranks[re.escape(place)] = model.lora_rank
        tensors[f"{place}.lora_embedding_A"], tensors[f"{place}.lora_embedding_B"] = down, up
    of_head = _head_tensors(family, plain, merged)
    saved_modules = {name.removeprefix(family.prefix).partition(".")[0] for name in of_head}
    tensors |= of_head

    config = _ranks_and_scales(model, ranks) | {
        "peft_type": "LORA",
        "task_type": _task_type(plain, task_head),
        "base_model_name_or_path": None,
        "inference_mode": True,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": "in_out" in kernel_layouts,
        "modules_to_save": sorted(saved_modules) or None,
    }
    files = {"adapter_config.json": (json.dumps(config, indent=2) + "\n").encode()}
    files |= card_files(card, family.class_name)
    named = {
        f"base_model.model.{name}": np.ascontiguousarray(tensor.astype(DTYPES[dtype]))
        for name, tensor in tensors.items()
    }
    write_directory(path, files, named, "adapter_model.safetensors", origin)
    return family.class_name


def _head_tensors(family: Family, model: ModelDimensions, params: Params) -> dict[str, np.ndarray]:
    """Return the tensors of a task's head. The whole head is saved, with its updates added."""
    leaves = by_path(params)
    tensors = {}
    for name, parameter in stored_parameters(family, model).items():
        if is_head(tuple(name.split("/"))):
            tensors[parameter.tensors[0]] = parameter.to_tensor([to_host(leaves[name])])
    return tensors


class _Update(NamedTuple):
    """The update of one of our modules, in all layers."""

    location: Location  # of the kernel in Hugging Face's files
    a: np.ndarray  # [layers, in, rank]
    b: np.ndarray  # [layers, rank, out]


def _updates_by_module(
    family: Family, model: ModelDimensions, params: Params
) -> dict[str, list[_Update]]:
    """Group the updates by Hugging Face's module, which may hold several of ours side by side.

    In the name of a module, * stands for the layer.
    """
    updates: dict[str, list[_Update]] = {}
    leaves = by_path(params)
    for name, a in leaves.items():
        module, _, leaf = name.rpartition("/")
        if leaf == "lora_a" and not is_head(tuple(name.split("/"))):
            location = family.locate(f"{module}/kernel", model)
            place = location.name.removesuffix(".weight")
            factors = (a, leaves[f"{module}/lora_b"])
            update = _Update(location, *(to_host(one).astype(np.float32) for one in factors))
            updates.setdefault(place, []).append(update)
    return updates


def _updates_of_tables(
    family: Family, model: ModelDimensions, params: Params
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return A [rank, vocab] and B [out, rank] of each table, by Hugging Face's module."""
    leaves = by_path(params)
    updates = {}
    for name, a in leaves.items():
        table, _, rest = name.partition("_lora_")
        if rest == "a":
            place = family.locate(table, model).name.removesuffix(".weight")
            b = leaves[f"{table}_lora_b"]
            for module in _LOOKED_UP_IN.get(place, [place]):
                updates[module] = to_host(a)[: model.vocab_size].T, to_host(b).T
    return updates


def _in_every_layer(place: str) -> str:
    r"""Return the regular expression by which `peft` finds a module in every layer.

    >>> print(_in_every_layer("h.*.attn"))
    h\.\d+\.attn
    """
    return re.escape(place).replace(r"\*", r"\d+")


def _side_by_side(
    updates: list[_Update], layer: int, model: ModelDimensions
) -> tuple[np.ndarray, np.ndarray]:
    """Join the updates of parts that lie side by side in a module into one, W + B A.

    Each part has its own rows of A, and its own block of B.

    Returns:
        A [rank, in] and B [out, rank], where the rank is the sum of the ranks of the parts.
    """
    down = np.concatenate([update.a[layer].T for update in updates])
    *_, rank, outputs = updates[0].b.shape
    location = updates[0].location
    up = np.zeros((location.parts * outputs, len(down)), np.float32)
    # The rows of each part form one block, or one block per head.
    groups = model.num_heads if location.by_head else 1
    rows_of_heads = np.arange(len(up))
    if location.pairs_are_neighbours:  # ours lie half a head apart
        pairs = rows_of_heads.reshape(-1, model.head_dim // 2, 2)
        rows_of_heads = pairs.swapaxes(1, 2).ravel()
    places = rows_of_heads.reshape(groups, location.parts, -1)
    for number, update in enumerate(updates):
        rows = places[:, update.location.part].ravel()
        up[rows, number * rank : (number + 1) * rank] = update.b[layer].T
    return down, up


def _ranks_and_scales(model: ModelDimensions, ranks: dict[str, int]) -> dict[str, Any]:
    """Return the settings that say which modules have updates, and of which rank.

    Several updates side by side form one update of a higher rank, scaled by the same alpha / rank.
    """
    scale = model.lora_alpha / model.lora_rank
    higher = {module: rank for module, rank in ranks.items() if rank != model.lora_rank}
    return {
        "r": model.lora_rank,
        "lora_alpha": model.lora_alpha,
        "target_modules": "|".join(sorted(ranks)),
        "rank_pattern": higher,
        "alpha_pattern": {module: scale * rank for module, rank in higher.items()},
    }


def _task_type(model: ModelDimensions, task_head: TaskHead | None) -> str:
    """Return what `peft` calls the task of a model."""
    if task_head is not None:
        return _TASK_TYPES[task_head.name]
    if model.architecture == "encoder":
        return "FEATURE_EXTRACTION"
    return "SEQ_2_SEQ_LM" if model.is_encoder_decoder else "CAUSAL_LM"
