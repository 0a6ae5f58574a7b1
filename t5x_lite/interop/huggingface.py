"""Read and write models as Hugging Face files: config.json, safetensors, tokenizer.

Nothing in these files is ever executed: pickles are rejected, and names, shapes and types are
checked against config.json before an array is made. Here a *parameter* is one of our arrays, and a
*tensor* is one in Hugging Face's files. The tables in families/ say which belong together.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from t5x_lite import locks, manifest, storage
from t5x_lite.config import Architecture, Model, ModelDimensions
from t5x_lite.config.files import build
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.data.tokenizers.vocabulary import Vocabulary
from t5x_lite.errors import (
    BAD_CONFIG,
    BAD_DATA,
    IO_ERROR,
    NO_FILE,
    USAGE,
    UserError,
    optional_import,
    read_json,
    user_errors,
)
from t5x_lite.interop.families.family import ConfigJson, Family, Location
from t5x_lite.interop.families.table import ENCODER_ALONE, FAMILIES, find_family
from t5x_lite.interop.tokenizers import pretrained_files
from t5x_lite.model.check import check_model
from t5x_lite.model.heads import Params
from t5x_lite.model.parts.positions import Rotary, make_positions, rotary_angles
from t5x_lite.model.transformer import parameter_axes, parameter_shapes, unpadded_shapes
from t5x_lite.parallel.axes import is_kernel
from t5x_lite.parallel.placement import to_host
from t5x_lite.progress import say
from t5x_lite.resolve import resolve_model

Shape = tuple[int, ...]

# Types that tensors can be written in.
DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
# Types of tensors that can be read, by safetensors' names.
_READABLE_DTYPES = ("F32", "F16", "BF16")

# Tensors that hold no parameters: buffers, and leftovers of old versions of `transformers`.
_BUFFERS = re.compile(
    r".*(position_ids"
    r"|\.attn\.bias"
    r"|\.attn\.masked_bias"
    r"|\.attention\.(bias|masked_bias)"
    r"|(rotary_emb|rotary_embeddings)\.inv_freq"
    r"|EncDecAttention\.relative_attention_bias\.weight)"
)
# Tensors of task heads: for sequences, tokens, or answers in a text.
_TASK_HEADS = re.compile(r"(classifier|score|qa_outputs|classification_head)\..*")
# Classes that have the head of a task instead of one that predicts tokens.
_CLASS_OF_TASK = re.compile(
    r"For(Sequence|Token)Classification$|For(QuestionAnswering|MultipleChoice)"
)
# Temporary files that a killed process may have left: safetensors and storage write under another
# name first.
_TEMPORARY = re.compile(rf"\.tmp\w{{6}}|{re.escape(manifest.NAME)}.*")
# Names in old versions of `transformers` → today's names.
_RENAMED = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
}


# Which tensors store which parameters.


@dataclass(frozen=True)
class StoredParameter:
    """A parameter and the tensors that store it: one per layer if the parameter stacks layers."""

    shape: Shape  # shape of the parameter, without padding of the vocabulary
    axes: tuple[str, ...]  # logical axes of the parameter
    location: Location
    # In BERT, label 0 means that the second sentence follows the first; in our models, that it does
    # not.
    flips_labels: bool = False
    heads: int = 1  # number of attention heads: see Location.by_head
    head_dim: int = 1  # size of a head: see Location.pairs_are_neighbours

    @property
    def is_stacked(self) -> bool:
        """True if the first axis of the parameter stacks layers."""
        return "layers" in self.axes

    @property
    def tensors(self) -> dict[int, str]:
        """Names of the tensors, by layer. A parameter that stacks no layers has only tensor 0."""
        last = self.shape[0] if self.is_stacked else 1
        layers = range(self.location.first_layer, last)
        return {layer: self.location.name.replace("*", str(layer)) for layer in layers}

    @property
    def layer_shape(self) -> Shape:
        """Shape of the parameter in one layer."""
        return self.shape[1:] if self.is_stacked else self.shape

    @property
    def tensor_shape(self) -> Shape:
        """Shape of each tensor."""
        *others, outputs = self.layer_shape
        shape = (*others, outputs * self.location.parts)
        return shape[::-1] if self._is_transposed else shape

    @property
    def _is_transposed(self) -> bool:
        return is_kernel(self.axes) and self.location.kernel_layout == "out_in"

    def _by_pairs(self, layer: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
        """Swap two axes of the features of each head."""
        heads = layer.shape[-1] // self.head_dim
        split = layer.reshape(*layer.shape[:-1], heads, *sizes)
        return split.swapaxes(-1, -2).reshape(layer.shape)

    @property
    def _groups(self) -> int:
        return self.heads if self.location.by_head else 1

    def to_tensor(self, parts: list[np.ndarray]) -> np.ndarray:
        """Make a tensor of one layer.

        Args:
            parts: the parameters that the tensor holds in this layer, in order.
        """
        if self.location.parts > 1:  # put the outputs of all parts side by side
            lead = parts[0].shape[:-1]
            parts = [part.reshape(*lead, self._groups, 1, -1) for part in parts]
            layer = np.concatenate(parts, -2).reshape(*lead, -1)
        else:
            (layer,) = parts
        layer = np.flip(layer, axis=-1) if self.flips_labels else layer
        if self.location.pairs_are_neighbours:
            # [..., heads, 2, half] → [..., heads, half, 2]
            layer = self._by_pairs(layer, (2, -1))
        return layer.T if self._is_transposed else layer

    def from_tensor(self, tensor: np.ndarray) -> np.ndarray:
        """Extract the parameter of one layer from a whole tensor."""
        layer = tensor.T if self._is_transposed else tensor
        if self.location.parts > 1:
            lead = layer.shape[:-1]
            parts = layer.reshape(*lead, self._groups, self.location.parts, -1)
            layer = parts[..., self.location.part, :].reshape(*lead, -1)
        layer = np.flip(layer, axis=-1) if self.flips_labels else layer
        if self.location.pairs_are_neighbours:
            layer = self._by_pairs(layer, (-1, 2))
        return layer.astype(np.float32) + np.float32(self.location.offset)


def by_path(tree: Params) -> dict[str, Any]:
    """Return the leaves of a tree, by paths such as decoder/final_norm/scale."""
    return flatten_dict(tree, sep="/")


def stored_parameters(family: Family, model: ModelDimensions) -> dict[str, StoredParameter]:
    """Return where each parameter of a model is stored, by path.

    Raises:
        UserError: if models of the family lack one of the parameters.
    """
    axes = by_path(parameter_axes(model))
    parameters = {}
    for path, leaf in by_path(unpadded_shapes(model)).items():
        location = family.locate(path, model)
        is_label = "classes" in axes[path] and bool(family.class_with_label_head)
        parameters[path] = StoredParameter(
            leaf.shape, axes[path], location, is_label, model.num_heads, model.head_dim
        )
    return parameters


# Reading.


class TensorFiles:
    """The tensors in a directory, by name. Contents are read only when they are needed.

    Args:
        path: a directory of safetensors files.
        prefix: Family.prefix, which is put before all names if the files leave it out.

    Attributes:
        shapes: shape of each tensor, by name.
        dtypes: type of each tensor, by name, as safetensors calls it.

    Raises:
        UserError: if files are missing, pickled, broken, or outside the directory.
    """

    def __init__(self, path: Path, prefix: str):
        self._path = path
        names = _weight_files(path)
        safetensors = optional_import("safetensors", "hf", "import")
        with user_errors(BAD_DATA, f"{path}: no usable safetensors"):
            slices = {}
            for name in names:
                file = safetensors.safe_open(path / name, "numpy")
                for key in file.keys():  # noqa: SIM118
                    slices[key] = file.get_slice(key)
            if not any(key.startswith(prefix) for key in slices):
                slices = {prefix + key: tensor for key, tensor in slices.items()}
            for old, new in _RENAMED.items():
                slices = {key.replace(old, new): tensor for key, tensor in slices.items()}
            self._slices: dict[str, Any] = slices
            self.shapes: dict[str, Shape] = {}
            self.dtypes: dict[str, str] = {}
            for key, tensor in slices.items():
                self.shapes[key] = tuple(tensor.get_shape())
                self.dtypes[key] = tensor.get_dtype()

    def __getitem__(self, name: str) -> np.ndarray:
        with user_errors(BAD_DATA, f"{self._path}: cannot read the tensor {name}"):
            tensor = self._slices[name][:]
        if not np.isfinite(tensor).all():
            reason = f"the tensor {name} holds values that are not finite; get another copy"
            raise UserError(BAD_DATA, f"{self._path}: {reason}")
        return tensor

    def are_equal(self, name: str, other: str) -> bool:
        """Return True if two tensors are equal bit by bit, False if `other` does not exist."""
        if self.shapes[name] != self.shapes.get(other):
            return False
        return self[name].tobytes() == self[other].tobytes()


def _weight_files(path: Path) -> list[str]:
    """Return the names of the safetensors files in a directory. As in `transformers`, this is the
    single file if there is one, otherwise the files of the index.
    """
    index = path / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.is_file() and not (path / "model.safetensors").is_file():
        content = read_json(index, "expected an index of safetensors")
        with user_errors(BAD_DATA, f"{index}: cannot be understood"):
            names = set(content.get("weight_map", {}).values())
    for name in names:
        # An untrusted index must not lead out of the directory.
        if not isinstance(name, str) or Path(name).name != name:
            raise UserError(
                BAD_DATA, f"{index}: names the file {name!r}, expected one in the same directory"
            )
        if not (path / name).is_file():
            fix = "expected a model of Hugging Face"
            if any(path.glob("*.bin")) or any(path.glob("*.pt")):
                classes = read_json(path / "config.json", "").get("architectures") or ["AutoModel"]
                convert = f"{classes[0]}.from_pretrained(IN).save_pretrained(OUT)"
                fix = "its weights are pickled, which can run any code; "
                fix += f"if you trust them, convert them with transformers: {convert}"
            raise UserError(NO_FILE, f"{path}: has no {name}; {fix}")
    return sorted(names)


def read(path: Path) -> tuple[Model, Params]:
    """Read a model and its parameters from a directory.

    Returns:
        the model's settings, and its parameters as float32 numpy arrays. The padding of the
        vocabulary is zero.

    Raises:
        UserError: if the model belongs to none of FAMILIES, or its files do not fit its
            config.json.
    """
    config = read_json(path / "config.json", "expected the directory of a model of Hugging Face")
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        expected = f"expected one of {', '.join(FAMILIES)}"
        raise UserError(BAD_DATA, f"{path}/config.json: model_type={model_type!r}, {expected}")
    family = FAMILIES[model_type]
    tensors = TensorFiles(path, family.prefix)
    model = _read_model(path, family, config, tensors)
    if not model.lm_head:
        say("this model has no head that predicts tokens: it can embed texts, but not generate")
    dimensions = resolve_model(model, model.vocab_size, max_length=model.max_length or 1)
    parameters = stored_parameters(family, dimensions)
    _check_tensors(path, family, tensors, parameters)
    _check_angles(path, tensors, dimensions)

    shapes = by_path(parameter_shapes(dimensions))
    arrays = {}
    for name, parameter in parameters.items():
        arrays[name] = _read_parameter(tensors, parameter, shapes[name].shape)
    return model, unflatten_dict(arrays, sep="/")


def _read_model(path: Path, family: Family, config: ConfigJson, tensors: TensorFiles) -> Model:
    """Read the model's settings from config.json, and from the tensors in the files.

    Only the tensors tell whether the model has a decoder (T5), tied embeddings (T5), a language
    model head, or a sequence label head (BERT).
    """
    with user_errors(BAD_DATA, f"{path}/config.json: cannot be understood"):
        fields = family.read_config(config)
    model = build(Model, fields, f"{path}/config.json: model.")
    dimensions = resolve_model(model, model.vocab_size, max_length=model.max_length or 1)
    check_model(dimensions, RowShape())
    if family.encoder_class and not any(name.startswith("decoder.") for name in tensors.shapes):
        model = replace(model, **ENCODER_ALONE)
    elif family.tied_by_tensors:
        output = family.locate("head/output", model).name
        embedding = family.locate("embedding", model).name
        is_tied = output not in tensors.shapes or tensors.are_equal(output, embedding)
        model = replace(model, tie_embeddings=is_tied)
    if not _has_lm_head(family, model, config, tensors):
        model = replace(model, lm_head=False)
    if family.class_with_label_head:
        label_head = family.locate("classifier/output/kernel", model).name
        if label_head in tensors.shapes:
            model = replace(model, num_classes=2)

    num_tensors = len(tensors.shapes)
    if max(model.num_layers, model.num_decoder_layers) > num_tensors:
        needed = f"too few for the {model.num_layers} layers of config.json"
        raise UserError(BAD_DATA, f"{path}: the files hold {num_tensors} tensors, {needed}")
    return model


def _has_lm_head(family: Family, model: Model, config: ConfigJson, tensors: TensorFiles) -> bool:
    """Return True if the files hold a head that predicts tokens.

    A head that is tied to the embedding table has no tensor of its own. The model is assumed to
    have such a head unless config.json names the class of a task or, for T5, the class without a
    head.
    """
    architectures = config.get("architectures") or []
    if architectures and all(_CLASS_OF_TASK.search(str(name)) for name in architectures):
        return False
    dimensions = resolve_model(model, model.vocab_size, max_length=model.max_length or 1)
    names = [path for path in by_path(parameter_shapes(dimensions)) if path.startswith("head/")]
    if not names:
        names_body = config.get("architectures") == [family.class_without_head]
        return not (family.tied_by_tensors and names_body)
    return any(family.locate(name, model).name in tensors.shapes for name in names)


def _check_tensors(
    path: Path,
    family: Family,
    tensors: TensorFiles,
    parameters: dict[str, StoredParameter],
) -> None:
    """Reject tensors that are missing, have a wrong shape or type, or do not belong to the model.

    Copies and buffers are ignored. Poolers and task heads are left out with a message.
    """
    used = set()
    for parameter in parameters.values():
        expected = parameter.tensor_shape
        for name in parameter.tensors.values():
            shape = tensors.shapes.get(name)
            if shape != expected:
                got = "is missing" if shape is None else f"has shape {list(shape)}"
                reason = f"{got}, expected {list(expected)} by config.json"
                raise UserError(BAD_DATA, f"{path}: the tensor {name} {reason}")
            if tensors.dtypes[name] not in _READABLE_DTYPES:
                reason = f"is {tensors.dtypes[name]}, expected F32, F16 or BF16"
                raise UserError(BAD_DATA, f"{path}: the tensor {name} {reason}")
            used.add(name)

    for name in sorted(set(tensors.shapes) - used):
        if _BUFFERS.fullmatch(name) or _is_copy(name, family, tensors, parameters):
            continue
        if name in family.zeros:
            if np.any(tensors[name]):
                reason = "is not zero, a term that our model does not have"
                raise UserError(BAD_DATA, f"{path}: the tensor {name} {reason}")
            continue
        if "pooler" in name:
            say(f"left out: {name}, a pooler that no head reads")
        elif _TASK_HEADS.fullmatch(name):
            say(f"left out: {name}, of a head for a task")
        elif any(name.startswith(head) for head in family.other_heads):
            say(f"left out: {name}, of another head")
        else:
            reason = "does not belong to the model that config.json describes"
            raise UserError(BAD_DATA, f"{path}: the tensor {name} {reason}")


def _check_angles(path: Path, tensors: TensorFiles, model: ModelDimensions) -> None:
    """Reject stored rotary angles that differ from those of config.json. ESM's class uses the
    stored ones.
    """
    positions = make_positions(model)
    for name in tensors.shapes:
        if name.endswith("rotary_embeddings.inv_freq") and isinstance(positions, Rotary):
            angles = rotary_angles(positions.base, positions.width)
            stored = tensors[name]
            if stored.shape != angles.shape or not np.allclose(stored, angles, rtol=1e-4):
                reason = f"holds other angles than those of rope_theta={positions.base}"
                raise UserError(BAD_DATA, f"{path}: the tensor {name} {reason}; correct one")


def _is_copy(
    name: str, family: Family, tensors: TensorFiles, parameters: dict[str, StoredParameter]
) -> bool:
    """Return True if a tensor is a second copy of a tied parameter."""
    original = parameters.get(family.copies.get(name, ""))
    return original is not None and tensors.are_equal(name, original.tensors[0])


def _read_parameter(
    tensors: TensorFiles, parameter: StoredParameter, padded_shape: Shape
) -> np.ndarray:
    """Read a parameter in all layers, and pad its vocabulary with zeros."""
    array = np.zeros(padded_shape, np.float32)
    layers = array if parameter.is_stacked else array[None]
    without_padding = tuple(slice(size) for size in parameter.layer_shape)
    # Layers before first_layer have no such norm in the files, and do not use ours. Set it to 1, as
    # in an untrained model.
    layers[: parameter.location.first_layer] = 1.0
    for layer, name in parameter.tensors.items():
        layers[layer][without_padding] = parameter.from_tensor(tensors[name])
    return array


# Writing.


CARD = "README.md"  # not listed in the manifest, since people edit it


@dataclass(frozen=True)
class TaskHead:
    """The head of a task."""

    name: str  # its name in model.heads.HEADS
    labels: tuple[str, ...] = ()  # the names of the classes

    @property
    def settings(self) -> ConfigJson:
        """Settings of config.json that describe the head. Empty for choices and spans."""
        if self.name not in ("class", "number"):
            return {}
        problem = "regression" if self.name == "number" else "single_label_classification"
        names = dict(enumerate(self.labels)) or {0: "LABEL_0"}
        return {
            "problem_type": problem,
            "id2label": {str(number): label for number, label in names.items()},
            "label2id": {label: number for number, label in names.items()},
        }


def write(
    path: Path,
    model: ModelDimensions,
    params: Params,
    tokenizer: Tokenizer,
    dtype: str = "float32",
    task_head: TaskHead | None = None,
    ends: Sequence[int] = (),
    start: int | None = None,
    model_type: str = "",
    framed_as: Architecture | None = None,
    uses_sentinels: bool = False,
    origin: dict[str, Any] | None = None,
    card: Callable[[str], str] | None = None,
) -> str:
    """Write a model for `from_pretrained`.

    Args:
        path: a directory that does not exist yet, or is empty.
        params: numpy or jax arrays, which may be sharded.
        tokenizer: the model's tokenizer, which is also written.
        dtype: type of the tensors, a name in DTYPES.
        task_head: the head of the task that the model has learned, if it has one.
        ends: ids that end a text, if there are several.
        start: the id that the decoder of an encoder-decoder reads first; None: the start token of
            the vocabulary.
        model_type: the family to write the model as, if it belongs to it. Otherwise it is written
            as the first family that it belongs to.
        framed_as: the architecture whose special tokens the tokenizer puts around a text; None: the
            architecture of the model.
        uses_sentinels: see pretrained_files.
        origin: see write_directory.
        card: makes the content of README.md from the name of the class.

    Returns:
        the name of the model's class in `transformers`.

    Raises:
        UserError: if the model belongs to none of FAMILIES (the message names the differences from
            the nearest one), or the directory cannot be written.
    """
    if task_head is None and model.num_classes not in (0, 2):
        expected = "expected none, or 2 for sentence pairs"
        raise UserError(BAD_CONFIG, f"export: model.num_classes={model.num_classes}, {expected}")
    check_free(path)
    model_type = find_family(model, prefer=model_type)
    family = FAMILIES[model_type]
    if task_head is not None:
        family = family.with_head(task_head.name)
    stored = stored_parameters(family, model)
    left_out = sorted(_tops(by_path(params)) - _tops(stored))
    if left_out:
        say(f"left out, since {family.class_name} has none: {', '.join(left_out)}")
    tensors = _tensors_of(family, model, stored, params, dtype)

    class_name = _class_name(family, model)
    config = {
        "architectures": [class_name],
        "model_type": model_type,
        "dtype": dtype,
        "torch_dtype": dtype,  # what transformers 4 calls it
        **_special_ids(model, tokenizer.vocabulary, ends, start),
        **family.write_config(model),
        **(task_head.settings if task_head else {}),
    }
    files = pretrained_files(tokenizer, framed_as or model.architecture, uses_sentinels)
    files["config.json"] = (json.dumps(config, indent=2) + "\n").encode()
    files |= card_files(card, class_name)
    write_directory(path, files, tensors, "model.safetensors", origin)
    return class_name


def _tensors_of(
    family: Family,
    model: ModelDimensions,
    stored: dict[str, StoredParameter],
    params: Params,
    dtype: str,
) -> dict[str, np.ndarray]:
    """Return the tensors of a model in the form that its family expects."""
    otherwise = family.written_otherwise(model)
    if "scale_attention" in otherwise:
        params = _with_scaled_queries(model, params)
    tensors = _make_tensors(stored, params, dtype)
    if "token_types" in otherwise:
        tensors[family.type_table] = np.zeros((1, model.embedding_size), DTYPES[dtype])
    return tensors


def card_files(card: Callable[[str], str] | None, class_name: str) -> dict[str, bytes]:
    """Return the file of a model card, by its name. Return nothing if there is no card."""
    return {} if card is None else {CARD: card(class_name).encode()}


def _with_scaled_queries(model: ModelDimensions, params: Params) -> Params:
    """Multiply the query kernels by the scale of the attention logits."""
    scale = np.float32(model.query_width**-0.5)

    def scaled(path: str, leaf: Any) -> Any:
        return to_host(leaf) * scale if "/query/" in path else leaf

    return unflatten_dict({path: scaled(path, leaf) for path, leaf in by_path(params).items()}, "/")


def _class_name(family: Family, model: ModelDimensions) -> str:
    """Return the name of the `transformers` class that loads a model."""
    if model.lm_head:
        return family.class_with_label_head if model.num_classes else family.class_name
    is_encoder_alone = family.encoder_class and model.architecture == "encoder"
    return family.encoder_class if is_encoder_alone else family.class_without_head


def _tops(paths: Iterable[str]) -> set[str]:
    """Return the first part of each path."""
    return {path.split("/")[0] for path in paths}


def _make_tensors(
    parameters: dict[str, StoredParameter], params: Params, dtype: str
) -> dict[str, np.ndarray]:
    """Convert all parameters to tensors, by name."""
    arrays = by_path(params)
    parts: dict[str, dict[int, np.ndarray]] = {}
    holders: dict[str, StoredParameter] = {}
    for path, parameter in parameters.items():
        array = to_host(arrays[path])  # gathers sharded arrays
        without_padding = tuple(slice(size) for size in parameter.shape)
        array = array[without_padding] - np.float32(parameter.location.offset)
        array = array.astype(DTYPES[dtype])
        layers = array if parameter.is_stacked else array[None]
        for layer, name in parameter.tensors.items():
            holders[name] = parameter
            parts.setdefault(name, {})[parameter.location.part] = layers[layer]

    tensors = {}
    for name, by_part in parts.items():
        ordered = [by_part[part] for part in sorted(by_part)]
        tensors[name] = np.ascontiguousarray(holders[name].to_tensor(ordered))
    return tensors


def _special_ids(
    model: ModelDimensions, vocabulary: Vocabulary, ends: Sequence[int], start: int | None
) -> ConfigJson:
    """Return the settings of config.json that name special ids."""
    ids: ConfigJson = {
        "pad_token_id": vocabulary.pad,
        "eos_token_id": list(ends) if len(ends) > 1 else vocabulary.eos,
        "bos_token_id": vocabulary.start,
    }
    if model.is_encoder_decoder:
        ids["decoder_start_token_id"] = vocabulary.start if start is None else start
    return ids


def check_free(path: Path) -> None:
    """Reject a directory that is not empty."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(USAGE, f"export: {path.resolve()} exists; name another directory")


def write_directory(
    path: Path,
    files: dict[str, bytes],
    tensors: dict[str, np.ndarray],
    tensor_file: str,
    origin: dict[str, Any] | None = None,
) -> None:
    """Write files, a file of tensors and a manifest into a new directory, either completely or not
    at all.

    If there are several processes, only the first one writes.

    Args:
        origin: facts for the manifest about where the model comes from.

    Raises:
        UserError: if the directory cannot be written.
    """
    if jax.process_index() != 0:
        return
    path = path.resolve()
    safetensors = optional_import("safetensors.numpy", "hf", "export")
    partial = path.with_name(path.name + ".partial")
    with user_errors(IO_ERROR, f"{partial}: cannot be written"):
        storage.make_directory(partial)
        with locks.only_writer(partial, f"export: {path}"):
            _remove_unfinished(partial, {*files, tensor_file})
            try:
                for name, content in files.items():
                    (partial / name).write_bytes(content)
                safetensors.save_file(tensors, partial / tensor_file, {"format": "pt"})
                # The file that safetensors makes is private: give it the mode of the other files.
                (partial / tensor_file).chmod((partial / next(iter(files))).stat().st_mode)
                manifest.write(partial, origin or {}, leave_out=(*locks.FILES, CARD))
                os.replace(partial, path)
            except BaseException:  # a full disk or Ctrl-C
                shutil.rmtree(partial, ignore_errors=True)
                raise
            for name in locks.FILES:
                (path / name).unlink(missing_ok=True)
        storage.flush(path.parent)


def _remove_unfinished(partial: Path, names: set[str]) -> None:
    """Remove what an earlier export of these files left when it was killed or the disk failed."""
    for name in set(storage.names_in(partial)) - set(locks.FILES):
        if name not in names and not _TEMPORARY.fullmatch(name):
            reason = f"has {name}, which this export does not write; move it away"
            raise UserError(USAGE, f"export: {partial} {reason}")
        (partial / name).unlink()
