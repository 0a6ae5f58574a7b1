"""A run directory: who may write it, what it was started with, and how to read a trained model back.

WORKDIR/config.json  corpus.json  tokenizer/  metrics.jsonl  checkpoints/STEP/  tensorboard/
"""

import dataclasses
import fcntl
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax

from t5x_lite.config import RunConfig
from t5x_lite.data import layouts, objectives, tokenizer
from t5x_lite.data.corpus import Corpus
from t5x_lite.data.tokenizer import Tokenizer
from t5x_lite.data.vocabulary import Vocabulary
from t5x_lite.errors import BAD_CONFIG, BAD_DATA, IO_ERROR, NO_FILE, USAGE, Refusal, read_json
from t5x_lite.model.transformer import shapes
from t5x_lite.settings import flatten, load_json, to_dict
from t5x_lite.training.checkpoint import Checkpoints

# What may differ when a run goes on: how long, how often, on what machine, and where the text lies, not what it is.
_FREE = {"data.source", "data.validation_source", "data.tokenizer", "data.store", "data.workers", "data.processes"}
_FREE |= {"data.epochs", "training.steps", "training.microbatches", "training.profile"}
_FREE |= {"training.loss_chunk", "model.remat", "model.scan", "model.attention"}
_FREE |= {"init_from", "training.log_every", "training.eval_every", "training.checkpoint_every", "training.keep_every"}

# … and of a model whose parameters another run starts from.
_MAY_CHANGE = {"dtype", "scan", "remat", "attention", "dropout", "attention_dropout", "ff_dropout", "init"}
_MAY_CHANGE |= {"init_stddev", "embedding_stddev", "depth_scaled_init"}


def fixed(config: RunConfig) -> dict:
    """The settings, flat, that may not differ when a run goes on."""
    flat = flatten(to_dict(config))
    return {key: value for key, value in flat.items() if key not in _FREE and not key.startswith("mesh.")}


@contextmanager
def owned(workdir: Path, config: RunConfig, corpus: Corpus):
    """Hold the directory for this run alone and record its config, corpus and tokenizer there.

    Refuses a directory where another run is going on, or was started with other settings or other text.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock = open(workdir / ".lock", "w")
    except OSError as error:
        raise _cannot_write(workdir, error) from error
    with lock:
        if jax.process_index() == 0:
            _lock(lock, workdir)
            _nothing_foreign(workdir)  # the others may already see what this process writes
        if config.init_from and workdir.resolve() == Path(config.init_from).resolve():
            raise Refusal(USAGE, f"--workdir={workdir}: holds the model that the run starts from; name another")
        _same_run(workdir, config)
        same_text(workdir, corpus)
        try:
            if jax.process_index() == 0:
                _replace(workdir / "config.json", json.dumps(to_dict(config), indent=2))
                _replace(workdir / "corpus.json", json.dumps(corpus.manifest, indent=2))
                corpus.tokenizer.save(workdir / "tokenizer")
        except OSError as error:
            raise _cannot_write(workdir, error) from error
        yield


def _cannot_write(workdir: Path, error: OSError) -> Refusal:
    return Refusal(IO_ERROR, f"--workdir={workdir}: cannot be written: {error.strerror or error}")


def _lock(lock, workdir: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Refusal(USAGE, f"--workdir={workdir}: another run is going on there; wait or name another") from error


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    os.replace(partial, path)


def _nothing_foreign(workdir: Path) -> None:
    for name in ("metrics.jsonl", "corpus.json", "tokenizer", "checkpoints"):
        if (workdir / name).exists() and not (workdir / "config.json").exists():
            raise Refusal(USAGE, f"--workdir={workdir}: holds a {name} of no run of ours; name another directory")


def _same_run(workdir: Path, config: RunConfig) -> None:
    saved = max((int(path.name) for path in workdir.glob("checkpoints/*") if path.name.isdigit()), default=0)
    if saved > config.training.steps:
        raise Refusal(
            BAD_CONFIG,
            f"training.steps: got {config.training.steps}, but the run in {workdir} has done {saved}; "
            "give at least that many, or name another --workdir",
        )
    if (workdir / "config.json").exists():
        ends_with_run = not config.optimizer.decay and config.optimizer.schedule in ("cosine", "linear")
        before = load_json(workdir / "config.json")
        old, new = fixed(before), fixed(config)
        for key in old:
            if old[key] != new[key]:
                raise Refusal(
                    BAD_CONFIG,
                    f"{key}: the run in {workdir} has {old[key]!r}, now it is {new[key]!r}; "
                    "go on with the old value, or name another --workdir",
                )
        steps = before.training.steps, config.training.steps
        if saved and ends_with_run and steps[0] != steps[1] and jax.process_index() == 0:
            print(
                f"training.steps: {steps[0]} before, {steps[1]} now: the learning rate decays to the new end from "
                "here on; optimizer.decay would have fixed where it ends",
                flush=True,
            )


def same_text(workdir: Path, corpus: Corpus) -> None:
    """Refuse a corpus that is not the one the run in `workdir` was started on."""
    if (workdir / "corpus.json").exists():
        old = read_json(workdir / "corpus.json", "bring it back")
        for key in ("tokenizer", "train", "validation"):
            if old.get(key) != corpus.manifest[key]:
                raise Refusal(
                    BAD_DATA,
                    f"{workdir}: the run was started on another {'tokenizer' if key == 'tokenizer' else 'text'} "
                    f"({key} {old.get(key)}, now {corpus.manifest[key]}); bring it back, or name another --workdir",
                )


def resolve(config: RunConfig, vocabulary: Vocabulary) -> RunConfig:
    """The config with what follows from the tokenizer and the row written out: vocab_size, max_length, classes."""
    members, shape, _ = layouts.plan(config)
    for _, objective, window in members:
        objectives.check_vocabulary(objective, window, vocabulary)
    model = config.model
    if 0 < model.vocab_size < vocabulary.size:
        raise Refusal(
            BAD_CONFIG,
            f"model.vocab_size: got {model.vocab_size}, but the tokenizer has {vocabulary.size} ids; set it to 0",
        )
    model = dataclasses.replace(
        model,
        vocab_size=model.vocab_size or vocabulary.size,
        max_length=model.max_length or max(shape.encoder, shape.decoder),
        classes=model.classes or 2 * any(objective.option("second") for _, objective, _ in members),
    )
    return dataclasses.replace(config, model=model)


@dataclass(frozen=True, eq=False)
class Trained:
    """A model read back: its resolved config, its tokenizer, its parameters, and the steps it was trained for."""

    config: RunConfig
    tokenizer: Tokenizer
    params: dict
    step: int


def read(workdir: Path) -> tuple[RunConfig, Tokenizer]:
    """The resolved config of a run directory, and its tokenizer."""
    config, chosen = load_json(workdir / "config.json"), tokenizer.load(workdir / "tokenizer")
    return resolve(config, chosen.vocabulary), chosen


def load(workdir: Path, shardings=None) -> Trained:
    """The newest checkpoint of a run directory, its parameters on one device, or where the shardings say; those of
    float64 in float32, unless jax has 64 bits. Raises Refusal where there is none.
    """
    config, chosen = read(workdir)
    model = dataclasses.replace(config.model, attention="auto")  # this may be another device
    if model.dtype == "float64" and not jax.config.jax_enable_x64:
        model = dataclasses.replace(model, dtype="float32")
    if not (workdir / "checkpoints").is_dir():
        raise Refusal(NO_FILE, f"{workdir}: no checkpoint yet; train first")
    checkpoints = Checkpoints(workdir / "checkpoints", fixed(config), read_only=True)
    try:
        step = checkpoints.latest()
        if step is None:
            raise Refusal(NO_FILE, f"{workdir}: no checkpoint yet; train first")
        abstract = shapes(model)
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        shardings = shardings or jax.tree.map(lambda _: here, abstract)
        params = checkpoints.restore_parameters(step, abstract, shardings)
    finally:
        checkpoints.close()
    return Trained(dataclasses.replace(config, model=model), chosen, params, step)


def can_start_from(config: RunConfig, chosen: Tokenizer) -> None:
    """Refuse to start from the parameters of another model, or of other tokens."""
    directory = Path(config.init_from)
    before, theirs = read(directory)
    old, new = (flatten(to_dict(c)["model"]) for c in (before, config))
    may_change = _MAY_CHANGE if config.model.positions == "learned" else {*_MAY_CHANGE, "max_length"}
    for key in old:
        if old[key] != new[key] and key not in may_change:
            raise Refusal(
                BAD_CONFIG,
                f"model.{key}: got {new[key]!r}, but init_from={directory} has {old[key]!r}; --config={directory} "
                "takes its settings",
            )
    if theirs.fingerprint != chosen.fingerprint:
        mend = f"set data.tokenizer={directory}/tokenizer"
        raise Refusal(BAD_CONFIG, f"data.tokenizer: its ids are not those that init_from was trained with; {mend}")


def create(workdir: Path, config: RunConfig, chosen: Tokenizer, params: dict) -> None:
    """A run directory of a model that was not trained here: its config, tokenizer, and parameters as step 0. Runs with
    that config start from it.
    """
    if workdir.exists() and (not workdir.is_dir() or any(workdir.iterdir())):
        raise Refusal(USAGE, f"--workdir={workdir}: exists; name another directory")
    resolved = resolve(config, chosen.vocabulary)
    workdir.mkdir(parents=True, exist_ok=True)
    chosen.save(workdir / "tokenizer")
    checkpoints = Checkpoints(workdir / "checkpoints", fixed(resolved))
    try:
        checkpoints.save(0, {"params": params})
        checkpoints.wait()
    finally:
        checkpoints.close()
    config = dataclasses.replace(config, init_from=str(workdir.resolve()))
    _replace(workdir / "config.json", json.dumps(to_dict(config), indent=2))
