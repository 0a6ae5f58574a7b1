"""Bring a model, take a model: between the directories of others and run directories."""

from collections.abc import Callable
from pathlib import Path

import jax

from t5x_lite.config import Data, Lengths, Model, Optimizer, RunConfig, check
from t5x_lite.data import tokenizer
from t5x_lite.errors import read_json
from t5x_lite.interop import huggingface
from t5x_lite.model.transformer import count_parameters
from t5x_lite.training import rundir
from t5x_lite.training.rundir import Trained


def config_of(model: Model, tokens: str) -> RunConfig:
    """Settings to go on training a model with: the objective that models of its architecture are known for, rows of at
    most 512 positions, a low constant learning rate. tokens: its tokenizer's files.
    """
    objective = {"encoder": "masked_lm", "encoder_decoder": "span_corruption"}.get(model.architecture, "causal_lm")
    if model.classes:
        objective = "masked_lm(second='next')"
    lengths = Lengths(inputs=512, targets=114)
    if model.architecture != "encoder_decoder":
        lengths = Lengths(row=min(512, model.max_length or 512))
    adafactor = Optimizer(name="adafactor", learning_rate=1e-3, schedule="constant", warmup=0)
    adamw = Optimizer(learning_rate=2e-5, schedule="constant", warmup=100)
    optimizer = adafactor if model.architecture == "encoder_decoder" else adamw
    data = Data(source="", tokenizer=tokens, lengths=lengths)
    return check(RunConfig(objective=objective, data=data, model=model, optimizer=optimizer))


def read(path: Path, tokens: str = "", say: Callable[[str], None] = print) -> Trained:
    """The model of Hugging Face in a directory, parameters in numpy. tokens: the tokenizer's files, if elsewhere."""
    model, params = huggingface.read(path, say)
    chosen = tokenizer.make(tokens or f"{path}/", ())
    theirs, ours = read_json(path / "config.json", "").get("decoder_start_token_id"), chosen.vocabulary.start
    if model.architecture == "encoder_decoder" and theirs not in (None, ours):
        say(f"{path}/config.json: decoder_start_token_id is {theirs}; with this tokenizer decoders begin with {ours}")
    return Trained(rundir.resolve(config_of(model, tokens or str(path)), chosen.vocabulary), chosen, params, 0)


def bring(path: Path, workdir: Path, tokens: str, say: Callable[[str], None]) -> None:
    """A run directory of the model of Hugging Face in a directory."""
    found = read(path, tokens, say)
    config = config_of(found.config.model, f"{workdir.resolve()}/tokenizer")
    rundir.create(workdir, config, found.tokenizer, jax.device_put(found.params))
    say(f"imported: {workdir}, {config.model.architecture} of {count_parameters(config.model):,} parameters")


def take(workdir: Path, path: Path, dtype: str, say: Callable[[str], None]) -> None:
    """The model of a run directory as files of Hugging Face."""
    trained = rundir.load(workdir)
    name = huggingface.write(path, trained.config.model, trained.params, trained.tokenizer, dtype)
    say(f"exported: {path}, for {name}.from_pretrained")
