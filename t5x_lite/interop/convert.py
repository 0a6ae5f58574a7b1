"""Convert between Hugging Face's model directories and run directories: import and export."""

import dataclasses
import hashlib
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from t5x_lite import manifest
from t5x_lite.config import Data, Lengths, Mesh, Model, ModelDimensions, Optimizer, RunConfig
from t5x_lite.config.permission import grant
from t5x_lite.data.rows.row_plan import RowPlan
from t5x_lite.data.tasks.task_data import TaskPlan
from t5x_lite.data.tokenizers import tokenizer as tokenizers
from t5x_lite.data.tokenizers.vocabulary import Vocabulary
from t5x_lite.errors import BAD_DATA, USAGE, UserError, read_json
from t5x_lite.interop import conventions, huggingface, peft
from t5x_lite.interop.model_card import Naming, model_card
from t5x_lite.model.heads import Params
from t5x_lite.model.transformer import count_parameters, parameter_axes, parameter_shapes
from t5x_lite.model.vocabulary import grow_vocabulary
from t5x_lite.model_address import ModelAddress, locate
from t5x_lite.progress import say
from t5x_lite.resolve import resolve, resolve_model
from t5x_lite.training import loaded_model, run_directory, run_history
from t5x_lite.training.adapt import merge_low_rank
from t5x_lite.training.loaded_model import LoadedModel
from t5x_lite.version import VERSION


def default_config(model: Model, tokenizer: str, vocabulary: Vocabulary) -> RunConfig:
    """Return settings to train an imported model further.

    They are the usual objective of its architecture, rows of at most 512 positions, and a constant
    learning rate.

    Args:
        tokenizer: the value of data.tokenizer.
    """
    objectives = {"encoder": "masked_lm", "encoder_decoder": "span_corruption"}
    objective = objectives.get(model.architecture, "causal_lm")
    # Use BART's objective if the vocabulary has a mask but no sentinels.
    is_bart = model.is_encoder_decoder and not vocabulary.sentinels
    if is_bart and "[MASK]" in vocabulary.specials:
        objective = "text_infilling(permute_sentences=True)"
    if model.num_classes:
        objective = "masked_lm(second='next')"
    if model.is_encoder_decoder:
        longest = min(512, model.max_length or 512)
        # The targets of span corruption are the missing spans; those of text infilling are the
        # whole text.
        targets = 114 if objective == "span_corruption" else longest
        lengths = Lengths(inputs=longest, targets=targets)
        optimizer = Optimizer(
            name="adafactor", learning_rate=1e-3, schedule="constant", warmup_steps=0
        )
    else:
        lengths = Lengths(sequence_length=min(512, model.max_length or 512))
        optimizer = Optimizer(learning_rate=2e-5, schedule="constant", warmup_steps=100)
    data = Data(source="", tokenizer=tokenizer, lengths=lengths)
    return RunConfig(objective=objective, data=data, model=model, optimizer=optimizer)


def read(path: Path, tokenizer_files: str = "", add_specials: bool = False) -> LoadedModel:
    """Read a Hugging Face model from a directory, with its parameters in numpy.

    Args:
        tokenizer_files: the path of the tokenizer; empty: it is in `path`.
        add_specials: append the special ids that the tokenizer lacks, such as [MASK]. Ids that the
            model has no embedding for get the mean of the other embeddings (Hewitt, 2021).
    """
    _check_manifest(path)
    model, params = huggingface.read(path)
    grant(places=[tokenizer_files or str(path)])  # the caller's argument, not data
    tokenizer = tokenizers.make(tokenizer_files or f"{path}/", (), add_specials)
    size = tokenizer.vocabulary.size
    if add_specials and size > model.vocab_size:
        say(f"added: {size - model.vocab_size} ids, with the mean of the other embeddings")
        model, params = _with_more_ids(model, params, size)
    config = default_config(model, tokenizer_files or str(path), tokenizer.vocabulary)
    resolved = resolve(config, tokenizer.vocabulary)
    return LoadedModel(
        config,
        resolved.rows,
        resolved.model,
        tokenizer,
        params,
        step=0,
        conventions=conventions.read(path, Path(tokenizer_files or path), tokenizer),
    )


def _check_manifest(path: Path) -> None:
    """Compare a model that t5x_lite exported with its manifest. Models from elsewhere have none."""
    if not manifest.is_in(path) or manifest.verification_level() == "off":
        return
    try:
        manifest.check_files(path, manifest.read(path))
    except manifest.Damage as damage:
        fix = "bring it back, or remove manifest.json if you changed the model yourself"
        raise UserError(BAD_DATA, f"{path}: {damage}; {fix}") from damage


def _with_more_ids(model: Model, params: Params, vocab_size: int) -> tuple[Model, Params]:
    """Enlarge the vocabulary of a model in numpy."""
    larger = dataclasses.replace(model, vocab_size=vocab_size)
    dimensions = resolve_model(larger, vocab_size, max_length=model.max_length or 1)
    axes, shapes = parameter_axes(dimensions), parameter_shapes(dimensions)
    grown = grow_vocabulary(params, axes, shapes, model.vocab_size, vocab_size)
    return larger, jax.tree.map(np.asarray, grown)


def import_model(
    path: Path, workdir: Path, tokenizer_files: str, add_specials: bool = False
) -> None:
    """Make a run directory from a Hugging Face model."""
    loaded = read(path, tokenizer_files, add_specials)
    config = default_config(
        loaded.config.model, f"{workdir.resolve()}/tokenizer", loaded.tokenizer.vocabulary
    )
    params = jax.device_put(loaded.params)
    run_directory.create(workdir, config, loaded.tokenizer, params, loaded.conventions)
    parameters = count_parameters(loaded.model)
    say(f"imported: {workdir}, {config.model.architecture} of {parameters:,} parameters")


def export_model(
    address: str | Path,
    path: Path,
    dtype: str,
    mesh: Mesh | None = None,
    lora: Literal["merge", "adapter"] | None = None,
    masked: bool = False,
    naming: Naming = Naming(),
) -> None:
    """Write the model of a run directory as Hugging Face files, with a model card.

    Args:
        address: see model_address.locate.
        dtype: the type of the tensors, a name in huggingface.DTYPES.
        mesh: the mesh to load the parameters on; None: one device.
        lora: for a model with LoRA updates: "merge" adds them to the weights, "adapter" writes only
            the updates, for `peft`.
        masked: write a decoder of masked_next_token as a class that reads texts in both directions
            and predicts masked tokens, each at the position before it.
        naming: name, licence and revision for the card; empty name: the name of the directory.

    Raises:
        UserError: if the model has LoRA updates and `lora` is None; if it has none and `lora` is
            "adapter"; or if `masked` is set and the model was not trained with masked_next_token.
    """
    loaded = loaded_model.load(address, mesh)
    workdir = locate(address).directory
    model, params, task_head = loaded.model, loaded.params, _task_head(loaded)
    # A decoder that has learned masked_next_token can be written as an encoder.
    is_decoder = model.architecture == "decoder"
    looks_ahead = isinstance(loaded.rows, RowPlan) and is_decoder and loaded.rows.shape.looks_ahead
    if masked and not looks_ahead:
        reason = f"this model learned {loaded.config.objective}, not masked_next_token"
        raise UserError(USAGE, f"export: --masked: {reason}; leave it out")
    as_encoder = looks_ahead and (masked or loaded.rows.masked)
    if as_encoder:
        model, params = _as_encoder(model, params)
        say("exported as an encoder: it predicts each masked token at the position before it")
    elif looks_ahead:
        say("exported as a causal decoder; --masked exports what it learned with masks")
    if model.lora_rank and not lora:
        reason = "this model has LoRA updates that are not merged into its weights"
        fix = "use --merge to merge them, or --adapter to write only them"
        raise UserError(USAGE, f"export: {reason}; {fix}")
    origin = {**_made_from(workdir, loaded.step, dtype, lora, masked), "t5x_lite": VERSION}
    if not naming.name:
        naming = naming._replace(name=path.resolve().name)
    card = partial(model_card, loaded, workdir, naming, lora == "adapter")
    if lora == "adapter":
        family = loaded.conventions.model_type
        class_name = peft.write(path, model, params, dtype, task_head, family, origin, card)
        say(f"exported: {path}, for peft on the exported base as {class_name}")
        return
    model, params = merge_low_rank(model, params)
    class_name = huggingface.write(
        path,
        model,
        params,
        loaded.tokenizer,
        dtype,
        task_head,
        ends=loaded.ends,
        start=loaded.start,
        model_type=loaded.conventions.model_type,
        framed_as=loaded.model.architecture,
        uses_sentinels=loaded.rows.uses_sentinels and not as_encoder,
        origin=origin,
        card=card,
    )
    say(f"exported: {path}, for {class_name}.from_pretrained")


def is_exported(
    address: ModelAddress, path: Path, dtype: str, lora: str | None, masked: bool
) -> bool:
    """Return True if a directory holds what export_model would write there.

    Args:
        address: must name a step.

    Raises:
        UserError: if it holds another export, or its manifest is damaged.
    """
    if not manifest.is_in(path):
        return False
    expected = _made_from(address.directory, int(address.checkpoint), dtype, lora, masked)
    try:
        found = manifest.read(path)
    except manifest.Damage as damage:
        raise UserError(BAD_DATA, f"{path}: {damage}; remove it") from damage
    for key, value in expected.items():
        if found.get(key) != value:
            got = f"holds an export with {key}={found.get(key)}, not {value}"
            raise UserError(USAGE, f"export: {path} {got}; remove it, or name another directory")
    return True


def _made_from(
    workdir: Path, step: int, dtype: str, lora: str | None, masked: bool
) -> dict[str, Any]:
    """Return the facts that determine the tensors of an export, as its manifest records them."""
    run = run_history.identity(workdir)
    return {"run": run, "step": step, "dtype": dtype, "lora": lora, "masked": masked}


def _as_encoder(model: ModelDimensions, params: Params) -> tuple[ModelDimensions, Params]:
    """Return the same blocks as an encoder, in which every position sees the whole text."""
    encoder = dataclasses.replace(model, architecture="encoder", num_decoder_layers=0)
    renamed = {"encoder" if name == "decoder" else name: leaf for name, leaf in params.items()}
    return encoder, renamed


def _task_head(loaded: LoadedModel) -> huggingface.TaskHead | None:
    """Return the head of the task that a model has learned; None without a task or such a head."""
    rows = loaded.rows
    if not isinstance(rows, TaskPlan) or rows.format.head == "lm":
        return None
    return huggingface.TaskHead(rows.format.head, tuple(map(str, rows.task.labels)))


def as_run(address: ModelAddress, imported: Path) -> ModelAddress:
    """Return the address of a model's run. A model in Hugging Face files is imported first.

    Args:
        address: address of a run, which is returned unchanged, or of Hugging Face files.
        imported: where imported models are kept, one directory each.
    """
    path = address.directory
    if "model_type" not in read_json(path / "config.json", "expected the directory of a model"):
        return address
    directory = imported / _digest(path)
    if not (directory / "config.json").is_file():
        import_model(path, directory, "")
    return ModelAddress(directory)


def _digest(path: Path) -> str:
    """Return a hash of all files that an import reads, to tell models apart."""
    digest = hashlib.sha256((path / "config.json").read_bytes())
    kinds = ("*.safetensors", "*.json", "*.model", "*.txt", "*.bpe")
    for file in sorted(file for kind in kinds for file in path.glob(kind)):
        digest.update(file.name.encode())
        with open(file, "rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:8]
