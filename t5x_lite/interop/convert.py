"""Import and export: between the directories of Hugging Face's models and run directories."""

from collections.abc import Callable
from pathlib import Path

import jax

from t5x_lite.config import Data, Lengths, Mesh, Model, Optimizer, RunConfig
from t5x_lite.data.tokenizers import tokenizer as tokenizers
from t5x_lite.errors import read_json
from t5x_lite.interop import huggingface
from t5x_lite.model.transformer import count_parameters
from t5x_lite.resolve import resolve
from t5x_lite.specs import NO_CODE, AllowedCode
from t5x_lite.training import run_directory
from t5x_lite.training.run_directory import LoadedModel

Say = Callable[[str], None]


def default_config(model: Model, tokenizer: str) -> RunConfig:
    """Settings to train an imported model further: the objective that models of its architecture
    are known for, rows of at most 512 positions, a low constant learning rate.

    Args:
        tokenizer: as data.tokenizer has it.
    """
    objectives = {"encoder": "masked_lm", "encoder_decoder": "span_corruption"}
    objective = objectives.get(model.architecture, "causal_lm")
    if model.num_classes:
        objective = "masked_lm(second='next')"
    if model.is_encoder_decoder:
        lengths = Lengths(inputs=512, targets=114)
        optimizer = Optimizer(
            name="adafactor", learning_rate=1e-3, schedule="constant", warmup_steps=0
        )
    else:
        lengths = Lengths(sequence_length=min(512, model.max_length or 512))
        optimizer = Optimizer(learning_rate=2e-5, schedule="constant", warmup_steps=100)
    data = Data(source="", tokenizer=tokenizer, lengths=lengths)
    return RunConfig(objective=objective, data=data, model=model, optimizer=optimizer)


def read(path: Path, tokenizer_files: str = "", say: Say = print) -> LoadedModel:
    """The model of Hugging Face in a directory, parameters in numpy.

    Args:
        tokenizer_files: where the tokenizer is, if elsewhere.
    """
    model, params = huggingface.read(path, say)
    tokenizer = tokenizers.make(tokenizer_files or f"{path}/", ())
    start = tokenizer.vocabulary.start
    stated_start = read_json(path / "config.json", "").get("decoder_start_token_id")
    if model.is_encoder_decoder and stated_start not in (None, start):
        say(
            f"{path}/config.json: decoder_start_token_id is {stated_start}; "
            f"with this tokenizer decoders begin with {start}"
        )
    config = default_config(model, tokenizer_files or str(path))
    resolved = resolve(config, tokenizer.vocabulary)
    return LoadedModel(config, resolved.rows, resolved.model, tokenizer, params, step=0)


def import_model(path: Path, workdir: Path, tokenizer_files: str, say: Say) -> None:
    """Make a run directory of the model of Hugging Face in a directory."""
    loaded = read(path, tokenizer_files, say)
    config = default_config(loaded.config.model, f"{workdir.resolve()}/tokenizer")
    run_directory.create(workdir, config, loaded.tokenizer, jax.device_put(loaded.params))
    parameters = count_parameters(loaded.model)
    say(f"imported: {workdir}, {config.model.architecture} of {parameters:,} parameters")


def export_model(
    workdir: Path,
    path: Path,
    dtype: str,
    say: Say,
    mesh: Mesh | None = None,
    allowed: AllowedCode = NO_CODE,
) -> None:
    """Write the model of a run directory as files of Hugging Face."""
    loaded = run_directory.load(workdir, mesh, allowed)
    class_name = huggingface.write(path, loaded.model, loaded.params, loaded.tokenizer, dtype)
    say(f"exported: {path}, for {class_name}.from_pretrained")
