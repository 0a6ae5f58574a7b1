"""Read and write models in the files of Hugging Face: config.json, safetensors, tokenizer. Nothing of them is ever run:
pickles are refused, and names, shapes and types are checked against config.json before an array is made.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from t5x_lite.config import Model, check_model
from t5x_lite.data.tokenizer import Tokenizer
from t5x_lite.errors import BAD_CONFIG, BAD_DATA, IO_ERROR, NO_FILE, USAGE, Refusal, imported, read_json, refusing
from t5x_lite.interop.families import FAMILIES, Family, differences
from t5x_lite.interop.tokenizers import pretrained_files
from t5x_lite.model.transformer import shapes, sizes
from t5x_lite.settings import build

_TYPES = ("F32", "F16", "BF16")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# Tensors that say nothing: buffers, and what old versions of `transformers` wrote.
_BUFFERS = re.compile(
    r".*(position_ids|\.attn\.bias|\.attn\.masked_bias|rotary_emb\.inv_freq|EncDecAttention\.relative_attention_bias\.weight)"
)
# Second names of tensors that are tied.
_SAME_AS = {
    "lm_head.weight": "embedding",
    "encoder.embed_tokens.weight": "embedding",
    "decoder.embed_tokens.weight": "embedding",
    "cls.predictions.decoder.weight": "embedding",
    "cls.predictions.decoder.bias": "head/bias",
    "lm_head.decoder.weight": "embedding",
    "lm_head.decoder.bias": "head/bias",
}


class Files:
    """The tensors of a directory's safetensors, by name; shapes and types are known, contents read when asked for.

    prefix: what the names begin with in files of a model with its head, and do not in those of a bare model.
    """

    def __init__(self, path: Path, prefix: str):
        self._path = path
        index = path / "model.safetensors.index.json"
        names = {"model.safetensors"}
        if index.is_file():
            names = set(read_json(index, "expected an index of safetensors").get("weight_map", {}).values())
        for name in names:
            if not isinstance(name, str) or Path(name).name != name:
                raise Refusal(BAD_DATA, f"{index}: names the file {name!r}, expected one beside it")
            if not (path / name).is_file():
                pickled = any(path.glob("*.bin")) or any(path.glob("*.pt"))
                why = "its weights are pickled, which could run anything; save them as safetensors" if pickled else ""
                raise Refusal(NO_FILE, f"{path}: has no {name}; {why or 'expected a model of Hugging Face'}")
        safetensors = imported("safetensors", "hf", "import")
        with refusing(BAD_DATA, f"{path}: no usable safetensors"):
            files = [safetensors.safe_open(path / name, "numpy") for name in sorted(names)]
            self._at = {key: file.get_slice(key) for file in files for key in file.keys()}  # noqa: SIM118
            if not any(key.startswith(prefix) for key in self._at):
                self._at = {prefix + key: part for key, part in self._at.items()}
            for old, new in {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}.items():
                self._at = {key.replace(old, new): part for key, part in self._at.items()}
            self.shapes = {key: tuple(part.get_shape()) for key, part in self._at.items()}
            self.types = {key: part.get_dtype() for key, part in self._at.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        with refusing(BAD_DATA, f"{self._path}: cannot read the tensor {name}"):
            return self._at[name][:]

    def same(self, name: str, other: str) -> bool:
        """Whether two tensors are equal, bit by bit."""
        return self.shapes[name] == self.shapes.get(other) and self[name].tobytes() == self[other].tobytes()


class Place:
    """Where a parameter of ours lies with them: the tensor's name, of layer {i}, and what turns an array of ours into
    theirs and back.
    """

    def __init__(self, family: Family, model: Model, path: str):
        module, _, leaf = path.rpartition("/")
        if path not in family.modules and module not in family.modules:
            raise Refusal(BAD_CONFIG, f"export: {family.architecture} has no place for {path}")
        name = family.modules.get(path) or family.modules[module]
        name, _, part = name.partition("[")  # [1/3]: the second of three that lie side by side in one tensor
        self.part, self.of = map(int, part.removesuffix("]").split("/")) if part else (0, 1)
        if path not in family.modules:
            name += ".bias" if leaf == "bias" else ".weight"
        self.name = name if model.gated else name.replace("wi_0", "wi")
        self._turned = path in ("head/output", "classifier/output/kernel") or (leaf == "kernel" and family.transposed)
        self._flipped = module == "classifier/output"  # to them 0 says that a sentence is the next

    def theirs(self, x: np.ndarray) -> np.ndarray:
        """Of ours."""
        x = x[..., ::-1] if self._flipped else x
        return x.T if self._turned else x

    def ours(self, x: np.ndarray) -> np.ndarray:
        """Of theirs."""
        x = np.split(x, self.of, -1)[self.part]
        x = x.T if self._turned else x
        return x[..., ::-1] if self._flipped else x

    def shape(self, ours: tuple) -> tuple:
        """Of their tensor."""
        ours = (*ours[:-1], ours[-1] * self.of)
        return ours[::-1] if self._turned else ours


class Parameter(NamedTuple):
    """One parameter of ours: its shape without rows of padding, its place with them, and their names of its layers."""

    shape: tuple
    place: Place
    names: list[str]  # one, where it has no axis of layers
    scanned: bool

    @property
    def their_shape(self) -> tuple:
        return self.place.shape(self.shape[1:] if self.scanned else self.shape)


def _parameters(family: Family, model: Model) -> dict[str, Parameter]:
    made = {}
    for path, leaf in flatten_dict(sizes(model), sep="/").items():
        place, scanned = Place(family, model, path), "/layers/" in path
        names = [place.name.format(i=i) for i in range(leaf.shape[0] if scanned else 1)]
        made[path] = Parameter(leaf.shape, place, names, scanned)
    return made


def read(path: Path, say: Callable[[str], None] = print) -> tuple[Model, dict]:
    """The model in a directory, and its parameters (numpy, float32). Raises Refusal for what is not of FAMILIES."""
    config = read_json(path / "config.json", "expected the directory of a model of Hugging Face")
    family = FAMILIES.get(config.get("model_type"))
    if family is None:
        known = ", ".join(FAMILIES)
        raise Refusal(BAD_DATA, f"{path}/config.json: model_type={config.get('model_type')!r}, expected one of {known}")
    files = Files(path, family.prefix)
    with refusing(BAD_DATA, f"{path}/config.json: cannot be understood"):
        settings = family.read(config)
    if family is FAMILIES["t5"]:  # 1.1 says it by having an output layer
        settings["tied"] = "lm_head.weight" not in files.shapes or files.same("lm_head.weight", "shared.weight")
    if family is FAMILIES["bert"] and "cls.seq_relationship.weight" in files.shapes:
        settings["classes"] = 2
    model = check_model(build(Model, settings, f"{path}/config.json: model."))
    if max(model.layers, model.decoder_layers) > len(files.shapes):
        few = f"{len(files.shapes)} tensors, too few for the {model.layers} layers of config.json"
        raise Refusal(BAD_DATA, f"{path}: the files hold {few}")
    parameters = _parameters(family, model)
    _check(path, files, parameters, say)
    padded = flatten_dict(shapes(model), sep="/")
    params = {}
    for name, (shape, place, names, scanned) in parameters.items():
        made = params[name] = np.zeros(padded[name].shape, np.float32)
        for i, tensor in enumerate(names):
            at = made[i] if scanned else made
            at[tuple(map(slice, shape[scanned:]))] = place.ours(files[tensor])
    return model, unflatten_dict(params, sep="/")


def _check(path: Path, files: Files, parameters: dict[str, Parameter], say: Callable[[str], None]) -> None:
    """Refuse tensors that are missing, of another shape or type, or that the model has no place for."""
    used = set()
    for parameter in parameters.values():
        for name in parameter.names:
            expected, found = parameter.their_shape, files.shapes.get(name)
            if found != expected:
                got = "is missing" if found is None else f"has shape {list(found)}"
                raise Refusal(BAD_DATA, f"{path}: the tensor {name} {got}, expected {list(expected)} by config.json")
            if files.types[name] not in _TYPES:
                raise Refusal(BAD_DATA, f"{path}: the tensor {name} is {files.types[name]}, expected F32, F16 or BF16")
            used.add(name)
    for name in sorted(set(files.shapes) - used):
        twin = parameters.get(_SAME_AS.get(name, ""))
        if (twin and files.same(name, twin.names[0])) or _BUFFERS.fullmatch(name):
            continue
        if "pooler" not in name:
            raise Refusal(BAD_DATA, f"{path}: the tensor {name} belongs to nothing that config.json describes")
        say(f"left out: {name}, a pooler that no head reads")


def write(path: Path, model: Model, params: dict, tokenizer: Tokenizer, dtype: str = "float32") -> str:
    """Write a model for `from_pretrained`, and return the name of its class in `transformers`. Raises Refusal where
    the model is of none of FAMILIES, naming what differs from the nearest.
    """
    if model.classes not in (0, 2):
        raise Refusal(BAD_CONFIG, f"export: model.classes={model.classes}, expected none, or 2 for sentence pairs")
    differing = {name: differences(family, model) for name, family in FAMILIES.items()}
    name = min(differing, key=lambda name: len(differing[name]))
    if differing[name]:
        wanted = ", ".join(f"model.{key}={theirs!r} (is {ours!r})" for key, (ours, theirs) in differing[name].items())
        raise Refusal(BAD_CONFIG, f"export: this model is of no family of {', '.join(FAMILIES)}; {name} needs {wanted}")
    path = path.resolve()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Refusal(USAGE, f"export: {path} exists; name another directory")
    family, flat, tensors = FAMILIES[name], flatten_dict(params, sep="/"), {}
    for key, (shape, place, names, scanned) in _parameters(family, model).items():
        array = np.asarray(flat[key])[tuple(map(slice, shape))].astype(DTYPES[dtype])
        for layer, tensor in zip(array if scanned else [array], names, strict=True):
            tensors.setdefault(tensor, [None] * place.of)[place.part] = place.theirs(layer)
    whole = {name: np.ascontiguousarray(np.concatenate(parts, -1)) for name, parts in tensors.items()}
    vocabulary = tokenizer.vocabulary
    architecture = "BertForPreTraining" if model.classes else family.architecture
    ids = {"pad_token_id": vocabulary.pad, "eos_token_id": vocabulary.eos, "bos_token_id": vocabulary.start}
    config = {"architectures": [architecture], "model_type": name, "dtype": dtype, "torch_dtype": dtype}
    if model.architecture == "encoder_decoder":
        ids["decoder_start_token_id"] = vocabulary.start
    config |= ids | family.write(model)
    save_file = imported("safetensors.numpy", "hf", "export").save_file
    others = pretrained_files(tokenizer, model)
    partial = path.with_name(path.name + ".partial")
    if partial.exists():
        raise Refusal(USAGE, f"export: {partial} exists, left by an export that was killed; remove it")
    partial.mkdir(parents=True)
    try:
        with refusing(IO_ERROR, f"{partial}: cannot be written"):
            for file, content in others.items():
                (partial / file).write_bytes(content)
            (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n")
            save_file(whole, partial / "model.safetensors", {"format": "pt"})
            os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # what a full disk or Ctrl-C has left
    return architecture
