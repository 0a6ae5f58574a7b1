"""A run directory: who may write to it, what its run was started with, and how to load the trained
model.

WORKDIR/config.json  run.json  corpus.json  tokenizer/  metrics.jsonl  checkpoints/STEP/
        tensorboard/
        generation.json, if the model was imported or started from an imported one
"""

import hashlib
import json
import math
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from t5x_lite import locks, manifest, storage
from t5x_lite.config import Mesh, ModelDimensions, RunConfig, to_dict
from t5x_lite.config.amounts import Amount, parse_amount
from t5x_lite.config.files import flatten, load_run_config
from t5x_lite.config.permission import Permission, check_place, grant, permission, with_permission
from t5x_lite.config.provenance import remember
from t5x_lite.config.roles import (
    ADAPTATION,
    ADJUSTABLE,
    COMPUTATION,
    HEADS,
    LOCAL,
    OUTPUT,
    RESUMABLE,
    settings_with,
    without_effect,
)
from t5x_lite.data.rows.batches import Batches, RunData
from t5x_lite.data.rows.row_plan import RowPlan
from t5x_lite.data.store.prepare import prepare
from t5x_lite.data.tasks.task_data import TaskData, TaskPlan
from t5x_lite.data.tokenizers import tokenizer as tokenizers
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.data.tokenizers.vocabulary import Vocabulary
from t5x_lite.errors import (
    BAD_CONFIG,
    BAD_DATA,
    IO_ERROR,
    NO_FILE,
    USAGE,
    UserError,
    read_json,
    user_errors,
)
from t5x_lite.model.check import check_model
from t5x_lite.model.heads import Params, is_of_head
from t5x_lite.model.parts.positions import position_limit
from t5x_lite.model.transformer import parameter_axes, parameter_shapes
from t5x_lite.model.vocabulary import with_more_ids
from t5x_lite.model_address import ModelAddress, locate
from t5x_lite.parallel.mesh import DeviceMesh, make_mesh, padded_for, use_mesh
from t5x_lite.progress import say
from t5x_lite.resolve import Resolved, last_step, resolve, text_data
from t5x_lite.training import run_history
from t5x_lite.training.adapt import is_added, parse_adaptation
from t5x_lite.training.best import best_directory
from t5x_lite.training.checkpoint import Checkpoints, complete_steps
from t5x_lite.training.conversions import (
    Converter,
    conversions_of,
    convert,
    rename,
    renaming,
)
from t5x_lite.training.log import check_metrics
from t5x_lite.training.schedules import depends_on_end
from t5x_lite.training.step import parameter_shardings

_TEXT = ("tokenizer", "train", "validation")  # keys of corpus.json that say what was read
_CONVENTIONS = "generation.json"  # Conventions of an imported model
# The files that `create` writes. config.json has another name until all others are written.
_UNFINISHED = "config.json.unfinished"
_OF_CREATE = ("tokenizer", "checkpoints", _CONVENTIONS, run_history.FILE)
_OUTPUTS_OF_TASKS = ("classifier/output", "token_head/output")


def fixed_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return, as a flat dict, the settings that must not change when a run continues."""
    free = settings_with(RunConfig, RESUMABLE, LOCAL)
    return {key: value for key, value in flatten(config).items() if key not in free}


# Writing.


@contextmanager
def owned(
    workdir: Path,
    config: RunConfig,
    batches: Batches,
    data: RunData,
    take_over: bool = False,
    change: bool = False,
) -> Iterator[None]:
    """Lock the directory for this run, and record its config, data and tokenizer there.

    Args:
        take_over: see locks.only_writer.
        change: let settings with the role ADJUSTABLE differ from those that the run began with.

    Raises:
        UserError: if another run is using the directory, or the directory's run had other settings
            or another text.
    """
    is_main = jax.process_index() == 0
    with ExitStack() as stack:
        try:
            if is_main:
                _check_names_no_checkpoint(workdir)
            storage.make_directory(workdir)
            if is_main:  # the other processes may already see what this one writes
                check_is_free(workdir)
                where = f"--workdir={workdir}"
                stack.enter_context(locks.only_writer(workdir, where, take_over))
        except OSError as error:
            raise _cannot_write(workdir, error) from error
        if is_main:
            _check_nothing_foreign(workdir)
        if config.init_from and is_same(workdir, base_of(config).directory):
            raise UserError(
                USAGE,
                f"--workdir={workdir}: holds the model that the run starts from; name another",
            )
        changes = check_same_run(workdir, config, batches, change)
        check_same_text(workdir, data)
        remember(config)
        try:
            if is_main:
                run_history.begin(workdir)
                if changes:  # record a change before it takes effect
                    saved = max(saved_steps(workdir / "checkpoints"), default=0)
                    event = {"event": "change", "after_step": saved, "settings": changes}
                    run_history.add(workdir, event)
                write = storage.write_durably
                write(workdir / "config.json", json.dumps(to_dict(config), indent=2))
                write(workdir / "corpus.json", json.dumps(data.manifest, indent=2))
                data.tokenizer.save(workdir / "tokenizer")
                storage.push(workdir)
        except OSError as error:
            raise _cannot_write(workdir, error) from error
        yield


def check_records(workdir: Path, facts: dict[str, Any]) -> None:
    """Print a message if metrics.jsonl has changed since a checkpoint was saved. The run continues.

    Args:
        facts: the facts in the checkpoint's manifest.
    """
    path = workdir / "metrics.jsonl"
    try:
        check_metrics(path, facts.get("metrics") or {})
    except manifest.Damage as damage:
        say(f"{path}: {damage}; its curves may be wrong, but the run continues")


def is_same(a: Path, b: Path) -> bool:
    """Return True if both paths name the same directory."""
    return str(storage.durable_path(a.resolve())) == str(storage.durable_path(b.resolve()))


def facts(config: RunConfig, workdir: Path, data: RunData) -> dict[str, str]:
    """Return the facts that all processes of a run must share: settings, directory, text,
    tokenizer, code and libraries.
    """
    local = settings_with(RunConfig, LOCAL)
    settings = flatten(to_dict(config))
    shared = {key: str(value) for key, value in settings.items() if key not in local}
    text = {key: str(data.manifest[key]) for key in _TEXT}
    # Processes with different code or libraries may compile different programs, and hang.
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parent.parent.rglob("*.py")):
        code.update(path.read_bytes())
    return {
        "--workdir": str(storage.durable_path(workdir.resolve())),
        **shared,
        **{f"the text ({key})": value for key, value in text.items()},
        "the code of t5x_lite": code.hexdigest()[:12],
        "Python": platform.python_version(),
        **{name: version(name) for name in ("jax", "jaxlib", "flax", "optax")},
    }


def _cannot_write(workdir: Path, error: OSError) -> UserError:
    return UserError(IO_ERROR, f"--workdir={workdir}: cannot be written: {error.strerror or error}")


def check_is_free(workdir: Path) -> None:
    """Reject a directory that is not meant for runs and holds other files: the root, its children,
    the user's home, or a directory of somebody else.
    """
    if storage.is_mirrored(workdir) or (workdir / "config.json").exists() or not workdir.exists():
        return
    place = workdir.resolve()
    is_others = hasattr(os, "getuid") and place.stat().st_uid not in (os.getuid(), 0)
    is_system = len(place.parts) <= 2 or place == Path.home()
    if (is_others or is_system) and any(place.iterdir()):
        reason = "belongs to somebody else" if is_others else "is no directory of its own"
        raise UserError(USAGE, f"--workdir={workdir}: {reason}, and holds files; name a new one")


def _check_nothing_foreign(workdir: Path) -> None:
    for name in ("metrics.jsonl", "corpus.json", "tokenizer", "checkpoints"):
        if storage.durable_path(workdir / name).exists() and not (workdir / "config.json").exists():
            raise UserError(
                USAGE,
                f"--workdir={workdir}: holds a {name} that no run wrote; name another directory",
            )


def _check_names_no_checkpoint(workdir: Path) -> None:
    """Reject a new directory whose name would be the address of a checkpoint of another run."""
    other = workdir.parent / workdir.name.rpartition("@")[0]
    is_run = (other / run_history.FILE).exists()
    if "@" in workdir.name and is_run and not (workdir / "config.json").exists():
        reason = f"would hide a checkpoint of the run in {other}"
        raise UserError(USAGE, f"--workdir={workdir}: {reason}; name another")


def check_same_run(
    workdir: Path, config: RunConfig, batches: Batches, change: bool
) -> dict[str, list[Any]]:
    """Reject settings that differ from the settings that the directory's run was started with.

    Args:
        batches: the run's batches, which say where data.epochs ends it.
        change: accept other values of settings with the role ADJUSTABLE.

    Returns:
        the settings that have changed: key → [old, new].
    """
    # A run cannot go back to an earlier step.
    saved = max(saved_steps(workdir / "checkpoints"), default=0)
    steps = last_step(config, batches)
    if saved > steps:
        reason = f"got {steps}, but the run in {workdir} has done {saved}"
        raise UserError(
            BAD_CONFIG,
            f"training.steps: {reason}; give at least that many, or name another --workdir",
        )
    # Settings that affect what is learned must not change, unless --change allows it.
    if not (workdir / "config.json").exists():
        return {}
    before = load_run_config(workdir / "config.json")
    old, new = fixed_settings(to_dict(before)), fixed_settings(to_dict(config))
    adjustable = settings_with(RunConfig, ADJUSTABLE)
    changes = {}
    for key in old:
        if old[key] == new[key]:
            continue
        if not (change and key in adjustable):
            reason = f"the run in {workdir} has {old[key]!r}, now it is {new[key]!r}"
            fix = "continue with the old value, or name another --workdir"
            if key in adjustable:
                fix = "continue with the old value, or add --change to change it from here on"
            raise UserError(BAD_CONFIG, f"{key}: {reason}; {fix}")
        changes[key] = [old[key], new[key]]
        if jax.process_index() == 0:
            say(f"{key}: {old[key]!r} before, {new[key]!r} after step {saved}")

    # More steps or epochs are allowed, but they move the end of a schedule that ends with the run.
    ends_with_run = depends_on_end(config.optimizer)
    old_end = before.start.schedule_end or last_step(before, batches)
    new_end = config.start.schedule_end or steps
    if saved and ends_with_run and old_end != new_end and jax.process_index() == 0:
        say(
            f"the last step: {old_end} before, {new_end} now: from here on the learning rate "
            "decays to the new end; optimizer.decay_steps would have fixed it"
        )
    return changes


def saved_steps(checkpoints: Path) -> list[int]:
    """Return the steps of the complete checkpoints in a directory."""
    return complete_steps(storage.durable_path(checkpoints))


def text_hashes(data: RunData) -> dict[str, Any]:
    """Return the hashes of text and tokenizer that each checkpoint records."""
    return {key: data.manifest[key] for key in _TEXT}


def check_same_text(workdir: Path, data: RunData) -> None:
    """Reject text or examples that differ from what the run in `workdir` was started on."""
    if not (workdir / "corpus.json").exists():
        return
    recorded = read_json(workdir / "corpus.json", "bring it back")
    for key in _TEXT:
        if recorded.get(key) != data.manifest[key]:
            kind = "tokenizer" if key == "tokenizer" else "text"
            difference = f"{key} {recorded.get(key)}, now {data.manifest[key]}"
            reason = f"the run was started on another {kind} ({difference})"
            raise UserError(
                BAD_DATA, f"{workdir}: {reason}; bring it back, or name another --workdir"
            )


def create(
    workdir: Path,
    config: RunConfig,
    tokenizer: Tokenizer,
    params: Params,
    conventions: "Conventions | None" = None,
) -> None:
    """Create a run directory for a model that was not trained here: its config, its tokenizer, and
    its parameters as step 0. Runs with this config start from these parameters.
    """
    _check_names_no_checkpoint(workdir)
    _check_is_new(workdir)
    resolved = resolve(config, tokenizer.vocabulary)
    own = str(storage.durable_path(workdir.resolve()))
    config = replace(config, init_from=own)
    storage.make_directory(workdir)
    with locks.only_writer(workdir, f"--workdir={workdir}"):
        _check_is_new(workdir)  # another process may have written it
        for name in storage.names_in(workdir):
            if name in _OF_CREATE:  # left by a process that was killed
                storage.remove_tree(workdir / name)
        storage.write_durably(workdir / _UNFINISHED, json.dumps(to_dict(config), indent=2))
        tokenizer.save(workdir / "tokenizer")
        run_history.begin(workdir)
        settings, run = fixed_settings(resolved.written_out), run_history.identity(workdir)
        checkpoints = Checkpoints(workdir / "checkpoints", settings, run)
        try:
            checkpoints.save(0, {"params": params})
            checkpoints.wait()
        finally:
            checkpoints.close()
        grant(places=[own])
        if conventions is not None:
            content = json.dumps(conventions._asdict(), indent=2)
            storage.write_durably(workdir / _CONVENTIONS, content)
        remember(config)
        # Do this last: a directory with a config.json counts as complete.
        (workdir / _UNFINISHED).rename(workdir / "config.json")
        storage.flush(workdir)
        storage.push(workdir)


def _check_is_new(workdir: Path) -> None:
    """Reject a directory that holds anything except what an unfinished `create` has left."""
    ours = {*locks.FILES, *(_OF_CREATE if (workdir / _UNFINISHED).exists() else ())}
    others = [name for name in storage.names_in(workdir) if not name.startswith(_UNFINISHED)]
    if not ours.issuperset(others) or (workdir.exists() and not workdir.is_dir()):
        raise UserError(USAGE, f"--workdir={workdir}: exists; name another directory")


# Reading.


def choose_step(checkpoints: Checkpoints, address: ModelAddress) -> int:
    """Return the step of the checkpoint that an address names, and check its files.

    Raises:
        UserError: if it was not kept, or is damaged. The message names the steps that were kept.
    """
    which, kept = address.checkpoint, checkpoints.steps
    if which in ("", "best"):  # in the directory `best`, the newest checkpoint is the best one
        step = checkpoints.newest
        if step is None:
            raise UserError(NO_FILE, f"{address.directory}: no checkpoint yet; train first")
        return step
    amount, found = parse_amount(which), None
    if amount and amount.unit == "steps":
        found = int(amount.number) if amount.number in kept else None
    elif amount:
        found = _nearest_step(checkpoints, amount)
    elif which == "0" and 0 in kept:  # the parameters of an imported model
        found = 0
    if found is None:
        steps = ", ".join(map(str, kept)) or "none"
        expected = f"expected a step that was kept ({steps}), best, or an amount of text"
        reason = f"no such checkpoint; {expected}, as 10M-tokens or 10M-words"
        raise UserError(NO_FILE, f"{address.directory}@{which}: {reason}")
    checkpoints.check_files(found)
    return found


def revisions(workdir: Path) -> dict[str, ModelAddress]:
    """Return the addresses of all kept checkpoints of a run, by the revision names that published
    models use: chck_10M for 10M-words (BabyLM), step4000 for step 4000 (Pythia).
    """
    config = load_run_config(workdir / "config.json")
    checkpoints = Checkpoints(workdir / "checkpoints", {}, read_only=True)
    try:
        steps = checkpoints.steps
        amounts = {text: parse_amount(text) for text in config.training.keep_at}
        named = {
            f"chck_{text.removesuffix('-words')}": _nearest_step(checkpoints, amount)
            for text, amount in amounts.items()
            if amount and amount.unit != "steps"
        }
    finally:
        checkpoints.close()
    if not steps:
        raise UserError(NO_FILE, f"{workdir}: no checkpoint yet; train first")
    # A run in progress has not reached all of its amounts.
    named = {name: step for name, step in named.items() if step is not None}
    named |= {f"step{step}": step for step in steps if step not in named.values()}
    return {name: ModelAddress(workdir, str(step)) for name, step in named.items()}


def step_to_load(address: ModelAddress) -> int:
    """Return the step of the checkpoint that is loaded for an address."""
    if address.checkpoint:
        return step_of(address)
    return max(saved_steps(_checkpoints_of(address)), default=0)


def step_of(address: ModelAddress) -> int:
    """Return how many steps a model was trained for; 0 for one that was not trained here."""
    directory = address.directory / "checkpoints"
    if not address.checkpoint:
        return max(saved_steps(directory), default=0)
    checkpoints = Checkpoints(_checkpoints_of(address), {}, read_only=True)
    try:
        with manifest.verification("off"):
            return choose_step(checkpoints, address)
    finally:
        checkpoints.close()


def _nearest_step(checkpoints: Checkpoints, amount: Amount) -> int | None:
    """Return the kept step that had read about this much text, or None. Batches do not end at round
    numbers, so a step may differ from the amount by half a batch, or by the fraction _NEAR.
    """
    key = "raw_tokens" if amount.unit == "tokens" else "words"
    nearest, least = None, math.inf
    for step in checkpoints.steps:
        with suppress(UserError):  # skip a checkpoint whose manifest is damaged
            read = checkpoints.facts(step).get(key, 0)
            away = abs(read - amount.number)
            batch = read / max(step, 1)
            allowed = batch if step == 1 else batch / 2  # step 1 also stands for smaller amounts
            if away <= max(_NEAR * amount.number, allowed) and away < least:
                nearest, least = step, away
    return nearest


_NEAR = 0.02  # fraction by which a checkpoint "10M-tokens" may have read more or less than that


class Conventions(NamedTuple):
    """How texts begin and end for a model that was imported, or that started from an imported one.

    Attributes:
        begin: ids that a decoder reads before a text: the ids that its tokenizer adds or, if there
            is an encoder, the id that the decoder starts from. None: the start token, which begins
            the rows of models that were trained here.
        before_inputs: ids that the encoder of an encoder-decoder reads before a text (BART: <s>).
        ends: ids that end a text, besides the vocabulary's end of text.
        model_type: kind of model, as `transformers` names it. It is exported as this if possible.
    """

    begin: tuple[int, ...] | None = None
    before_inputs: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    model_type: str = ""


def check_ids(ids: Sequence[Any], vocabulary: Vocabulary, where: str) -> tuple[int, ...]:
    """Return these ids, or raise UserError if one of them is not in the vocabulary."""
    for i in ids:
        if type(i) is not int or not 0 <= i < vocabulary.size:
            reason = f"got the id {i!r}, expected a number below {vocabulary.size:,}"
            raise UserError(BAD_DATA, f"{where}: {reason}")
    return tuple(ids)


def _read_conventions(workdir: Path, vocabulary: Vocabulary) -> Conventions:
    """Return the conventions of an imported model, or our own if none are recorded."""
    path = workdir / _CONVENTIONS
    if not path.exists():
        return Conventions()
    record = read_json(path, "bring it back, or import the model again")
    with user_errors(BAD_DATA, f"{path}: cannot be understood"):
        begin, before = record["begin"], record.get("before_inputs", ())
        return Conventions(
            None if begin is None else check_ids(begin, vocabulary, str(path)),
            check_ids(before, vocabulary, str(path)),
            check_ids(record["ends"], vocabulary, str(path)),
            str(record.get("model_type", "")),
        )


def keep_ends(workdir: Path, init_from: Path) -> None:
    """Copy the conventions of an imported model to a run that starts from it: the ids that end its
    texts, and the kind of model to export as. The beginning of texts is not copied, since the run's
    rows begin like all rows of models trained here.
    """
    path = init_from / _CONVENTIONS
    if path.exists() and not (workdir / _CONVENTIONS).exists():
        record = read_json(path, "bring it back, or import the model again")
        record |= {"begin": None, "before_inputs": ()}
        if jax.process_index() == 0:
            storage.write_durably(workdir / _CONVENTIONS, json.dumps(record, indent=2))


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model loaded from a run directory, with its tokenizer and parameters."""

    config: RunConfig  # as written in the directory
    rows: RowPlan | TaskPlan  # rows that the model was trained on
    model: ModelDimensions
    tokenizer: Tokenizer
    params: Params
    step: int  # number of steps that the model was trained for
    mesh: DeviceMesh | None = None  # mesh over which parameters are sharded; None: one device
    permitted: Permission = field(default_factory=permission)  # what the config may name
    conventions: Conventions = Conventions()  # those of an imported model

    @property
    def ends(self) -> tuple[int, ...]:
        """Ids that end a text, the vocabulary's end of text first."""
        eos = self.tokenizer.vocabulary.eos
        return (eos, *(i for i in self.conventions.ends if i != eos))

    @property
    def extra_start(self) -> int:
        """Number of ids that a decoder reads before a text, in addition to the first."""
        return max(len(self.after_start(np.zeros(0, np.int32))) - 1, 0)

    def after_start(self, ids: np.ndarray) -> np.ndarray:
        """Put the ids that a decoder reads first before a text: the start token or, for an imported
        model, the ids that its own tokenizer adds. The result has at least one id.
        """
        start = self.tokenizer.vocabulary.start
        begin = (start,) if self.conventions.begin is None else self.conventions.begin
        whole = np.concatenate([np.array(begin, np.int32), ids]).astype(np.int32)
        return whole if len(whole) else np.array([start], np.int32)

    @property
    def start(self) -> int:
        """The first id that a decoder reads after an encoder."""
        begin = self.conventions.begin
        return begin[0] if begin else self.tokenizer.vocabulary.start

    def check_predicts_tokens(self, command: str) -> None:
        """Raise UserError if the model has no language model head, or reads a soft prompt that it
        learned for a task.
        """
        if self.model.prompt_length:
            reason = f"this model reads a prompt that it learned with {self.rows}"
            raise UserError(USAGE, f"{command}: {reason}; use evaluate --task={self.rows}")
        if not self.model.lm_head:
            reason = "this model has no head that predicts tokens"
            fix = "use embed, or train it with model.lm_head=True"
            raise UserError(USAGE, f"{command}: {reason}; {fix}")

    @contextmanager
    def within(self) -> Iterator[None]:
        """Use the model's mesh and sharding rules, and permit the user's code that it needs."""
        with with_permission(self.permitted), use_mesh(self.mesh, self.model, split_rows=False):
            yield


def read(workdir: Path) -> tuple[Resolved, Tokenizer]:
    """Read the resolved config and the tokenizer of the run in a directory.

    config.json is data: see config/permission.py for what it may name.
    """
    config = load_run_config(workdir / "config.json")
    tokenizer = tokenizers.load(workdir / "tokenizer")
    resolved = resolve(config, tokenizer.vocabulary)
    check_model(resolved.model, resolved.rows.shape)
    return resolved, tokenizer


def open_data(
    workdir: Path,
    resolved: Resolved,
    tokenizer: Tokenizer,
) -> RunData:
    """Open the training data of a run: its text, prepared again if needed, or the examples of its
    task.

    Raises:
        UserError: if the text or the examples have changed.
    """
    config, rows = resolved.config, resolved.rows
    if isinstance(rows, TaskPlan):
        data: RunData = TaskData(rows, tokenizer, config.data.batch_size, config.seed)
    else:
        corpus = prepare(config.data)
        data = text_data(resolved, corpus)
    check_same_text(workdir, data)
    return data


def load(address: str | Path, mesh: Mesh | None = None) -> LoadedModel:
    """Load a trained model. float64 parameters are loaded as float32, unless jax has 64 bits
    enabled.

    Args:
        address: see locate.
        mesh: mesh to shard the parameters over; None: one device.

    Raises:
        UserError: if there is no checkpoint.
    """
    located = locate(address)
    workdir = located.directory
    resolved, tokenizer = read(workdir)
    device_mesh = None if mesh is None else make_mesh(mesh)
    model = padded_for(device_mesh, model_here(resolved.model))
    if mesh is not None and device_mesh is not None:
        sizes = replace(mesh, **device_mesh.shape)
        check_model(model, resolved.rows.shape, sizes)
    params, step = _load_parameters(located, resolved, model, device_mesh)
    conventions = _read_conventions(workdir, tokenizer.vocabulary)
    if step:  # after training here, the model reads rows that begin with the start token
        conventions = conventions._replace(begin=None, before_inputs=())
    return LoadedModel(
        resolved.config,
        resolved.rows,
        model,
        tokenizer,
        params,
        step,
        device_mesh,
        conventions=conventions,
    )


def model_here(model: ModelDimensions) -> ModelDimensions:
    """Return the model in a form that this process can compute: with an attention kernel for its
    kind of device, and in float32 if 64 bits are not enabled.
    """
    # The kernel in the config may not exist on this kind of device.
    here = replace(model, attention_kernel="auto")
    if model.dtype == "float64" and not jax.config.read("jax_enable_x64"):
        return replace(here, dtype="float32")
    return here


def _load_parameters(
    address: ModelAddress, resolved: Resolved, model: ModelDimensions, mesh: DeviceMesh | None
) -> tuple[Params, int]:
    """Load all parameters: those of the run and, for an adapted model, those frozen in its base."""
    adaptation = parse_adaptation(resolved.config.adapt)
    shapes = parameter_shapes(model)
    if mesh is None:
        one_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        shardings = jax.tree.map(lambda _: one_device, shapes)
    else:
        shardings = parameter_shardings(model, mesh)
    trained_shapes, _ = adaptation.split_shapes(shapes)
    trained_shardings, axes = adaptation.trained_part(shardings), parameter_axes(model)
    trained, step = _restore(address, resolved, trained_shapes, trained_shardings, axes)
    if adaptation.is_full:
        return trained, step
    base = base_of(resolved.config)
    if not base.is_run:
        reason = f"its parameters are those of {base.directory}, which is not there"
        raise UserError(NO_FILE, f"{address.directory}: was adapted from another model; {reason}")
    check_same_base(address.directory, base)
    # Take only parameters that the adapted model has too: the base may have another head.
    theirs, _ = read(base.directory)
    of_base = _parameters_for(model, base, theirs, mesh)
    wanted: Any = flatten_dict(shapes)
    leaves: Any = flatten_dict(of_base)
    _, frozen = adaptation.split(
        unflatten_dict({path: leaf for path, leaf in leaves.items() if path in wanted})
    )
    return adaptation.merge(trained, frozen), step


def _parameters_for(
    model: ModelDimensions, base: ModelAddress, of_base: Resolved, mesh: DeviceMesh | None
) -> Params:
    """Load the parameters of the run at `base`, with the vocabulary padded like the model's."""
    padded = replace(model_here(of_base.model), vocab_multiple=model.vocab_multiple)
    params, _ = _load_parameters(base, of_base, padded, mesh)
    return params


def _restore(
    address: ModelAddress, resolved: Resolved, shapes: Params, shardings: Params, axes: Params
) -> tuple[Params, int]:
    """Restore the parameters from the checkpoint that an address names."""
    workdir, directory = address.directory, _checkpoints_of(address)
    if not storage.durable_path(directory).is_dir():
        raise UserError(NO_FILE, f"{workdir}: no checkpoint yet; train first")
    settings, run = fixed_settings(resolved.written_out), run_history.identity(workdir)
    checkpoints = Checkpoints(directory, settings, run, read_only=True)
    try:
        step = choose_step(checkpoints, address)
        return checkpoints.restore_parameters(step, shapes, shardings, axes), step
    finally:
        checkpoints.close()


def _checkpoints_of(address: ModelAddress) -> Path:
    """Return the directory to load from: `best`, for a run on a task, or `checkpoints`."""
    best = best_directory(address.directory)
    of_best = saved_steps(best)
    if address.checkpoint == "best" and not of_best:
        reason = "no best checkpoint; only runs on a task keep one"
        raise UserError(NO_FILE, f"{address.directory}: {reason}")
    if of_best and address.checkpoint in ("", "best", *map(str, of_best)):
        return best
    return address.directory / "checkpoints"


def base_of(config: RunConfig) -> ModelAddress:
    """Return the address of the model that a run starts from.

    Raises:
        UserError: if the config is data, and may not name this place.
    """
    check_place(config.init_from, "init_from")
    return locate(config.init_from)


# Models that were adapted.

_BASE = "base.json"  # which model a run adapts


def record_base(workdir: Path, base: ModelAddress) -> None:
    """Record which model the run in a directory adapts. If another one is recorded, reject it."""
    if (workdir / _BASE).exists():
        return check_same_base(workdir, base)
    record = {"base": str(base), "checkpoint": _checkpoint_hash(base)}
    if jax.process_index() == 0:
        storage.write_durably(workdir / _BASE, json.dumps(record, indent=2))


def check_same_base(workdir: Path, base: ModelAddress) -> None:
    """Reject a base whose parameters have changed since it was adapted."""
    recorded = read_json(workdir / _BASE, "bring it back")
    if recorded.get("checkpoint") != _checkpoint_hash(base):
        reason = f"{base.directory} no longer holds the parameters that it was adapted from"
        raise UserError(BAD_DATA, f"{workdir}: {reason}; bring them back")


def _checkpoint_hash(address: ModelAddress) -> str:
    """Return a hash of the checkpoint that the parameters of a model are read from."""
    run = run_history.identity(address.directory)
    checkpoints = Checkpoints(_checkpoints_of(address), {}, run, read_only=True)
    try:
        facts = checkpoints.facts(choose_step(checkpoints, address))
    finally:
        checkpoints.close()
    return hashlib.sha256(json.dumps(facts["files"], sort_keys=True).encode()).hexdigest()[:16]


# Starting from another run.


def check_init_from(resolved: Resolved, tokenizer: Tokenizer) -> None:
    """Reject init_from if its model has another body or another tokenizer, or if it is missing and
    `adapt` needs it. Heads may differ, and the tokenizer may have more ids.
    """
    adaptation = parse_adaptation(resolved.config.adapt)
    if not resolved.config.init_from:
        if not adaptation.is_full:
            fix = "set init_from to the run directory of the model to adapt"
            raise UserError(BAD_CONFIG, f"adapt={resolved.config.adapt}: {fix}")
        return
    directory = base_of(resolved.config).directory
    check_start(resolved, tokenizer, directory, *read(directory))


def check_start(
    resolved: Resolved,
    tokenizer: Tokenizer,
    directory: Path,
    theirs: Resolved,
    their_tokenizer: Tokenizer,
) -> None:
    """Reject a run that cannot start from another one: see check_init_from. The other run may not
    have been trained yet.

    Args:
        directory: directory of the other run.
    """
    adaptation = parse_adaptation(resolved.config.adapt)
    # Collect the settings that may differ.
    free = settings_with(ModelDimensions, COMPUTATION, HEADS, OUTPUT)
    # An adaptation may be added, but one that init_from has must be kept.
    for name in settings_with(ModelDimensions, ADAPTATION):
        if not getattr(theirs.model, name):
            free.add(name)
    free.update(without_effect(theirs.model))
    if position_limit(resolved.model) is None:
        free.add("max_length")
    extends = tokenizer.extends(their_tokenizer)
    if extends and adaptation.is_full:
        free.add("vocab_size")
    start = resolved.config.start
    if start.convert:
        converter = Converter(start.convert)
        converter.check(theirs.model, resolved.model)
        free |= converter.changes
    if start.takes_optimizer:
        _check_same_state(resolved, directory, theirs)
    old, new = to_dict(theirs.model), to_dict(resolved.model)
    for key in old:
        if old[key] != new[key] and key not in free:
            reason = f"got {new[key]!r}, but init_from={directory} has {old[key]!r}"
            fix = f"--config={directory} takes its settings"
            names = conversions_of(key)
            if names:
                fix += f", or convert it: start.convert={'|'.join(names)}"
            raise UserError(BAD_CONFIG, f"model.{key}: {reason}; {fix}")
    if "vocab_size" in free and not extends and start.convert:
        return  # the conversion gives the model a vocabulary of its own
    if not extends:
        reason = "its ids are not those that init_from was trained with, nor those and more"
        if their_tokenizer.vocabulary.sentinels:
            reason += " (it has sentinels, which are counted from the last id)"
        fix = f"set data.tokenizer={directory}/tokenizer"
        raise UserError(BAD_CONFIG, f"data.tokenizer: {reason}; {fix}")
    if new["vocab_size"] < old["vocab_size"]:
        reason = f"got {new['vocab_size']}, but init_from={directory} has {old['vocab_size']} ids"
        raise UserError(BAD_CONFIG, f"model.vocab_size: {reason}; set it to that, or more")


def _check_same_state(resolved: Resolved, directory: Path, theirs: Resolved) -> None:
    """Reject a run that would take an optimizer state that does not match its own parameters."""
    step = resolved.config.start.step
    fix = f"begin with a fresh state, as start.optimizer_step={step} does"
    for key in ("optimizer.name", "optimizer.average", "adapt"):
        old, new = (flatten(to_dict(of.config))[key] for of in (theirs, resolved))
        if old != new:
            reason = f"got {new!r}, but init_from={directory}, whose state is taken, has {old!r}"
            raise UserError(BAD_CONFIG, f"{key}: {reason}; {fix}")
    if renaming(resolved.config.start.convert, theirs.model, resolved.model) is None:
        reason = f"its parameters are not those of init_from={directory}"
        raise UserError(BAD_CONFIG, f"model: {reason}, whose optimizer state is taken; {fix}")


def restore_state(resolved: Resolved, shapes: Any, shardings: Any) -> Any:
    """Return the state of init_from: parameters, optimizer state and number of steps."""
    address = base_of(resolved.config)
    theirs, _ = read(address.directory)
    names = renaming(resolved.config.start.convert, theirs.model, resolved.model)
    assert names is not None  # see _check_same_state
    settings, run = fixed_settings(theirs.written_out), run_history.identity(address.directory)
    checkpoints = Checkpoints(_checkpoints_of(address), settings, run, read_only=True)
    try:
        step = choose_step(checkpoints, address)
        if step != resolved.config.start.step:
            reason = f"{address} has done {step} steps, start.step is {resolved.config.start.step}"
            raise UserError(BAD_CONFIG, f"init_from: {reason}; name that checkpoint")
        # Restore the state under the other run's names, but onto this run's shardings.
        axes = parameter_axes(resolved.model)
        theirs_shapes, theirs_shardings = rename(shapes, names), rename(shardings, names)
        state = checkpoints.restore(step, theirs_shapes, theirs_shardings, rename(axes, names))
    finally:
        checkpoints.close()
    state = rename(state, {old: new for new, old in names.items()})
    say(f"init_from: parameters and optimizer state loaded from {address}, step {step}")
    return state


def merge_parameters(resolved: Resolved, fresh: Params, mesh: DeviceMesh) -> tuple[Params, str]:
    """Take the parameters of init_from where they fit, and fresh ones for heads that it lacks.

    Returns:
        the parameters, and a line that says what was loaded, left out and newly drawn.

    Raises:
        UserError: if a parameter other than a head's does not fit.
    """
    address = base_of(resolved.config)
    directory = address.directory
    theirs, _ = read(directory)
    params = _parameters_for(resolved.model, address, theirs, mesh)
    before, after = theirs.model.vocab_size, resolved.model.vocab_size
    if after > before:
        params = _grown(params, fresh, parameter_axes(theirs.model), before, after)
        say(f"init_from: {after - before} new ids, with the mean of the other embeddings")
    old: Any = flatten_dict(params, sep="/")
    new: Any = flatten_dict(fresh, sep="/")
    of_conversion: list[str] = []
    if resolved.config.start.convert:
        old, of_conversion = _converted(resolved, directory, old, new)

    # Take each parameter from init_from if it fits, and a fresh one if it belongs to a head. The
    # output layer of a task is always fresh, unless init_from was trained on the same task.
    is_new_task = resolved.config.task.name != theirs.config.task.name
    merged, drawn = {}, []
    for path, leaf in new.items():
        is_new = is_new_task and path.startswith(_OUTPUTS_OF_TASKS)
        if path in old and old[path].shape == leaf.shape and not is_new:
            merged[path] = old[path].astype(leaf.dtype)
        elif path in of_conversion or _may_be_new(resolved.model, tuple(path.split("/"))):
            merged[path] = leaf
            drawn.append(path)
        else:
            has = list(old[path].shape) if path in old else "none"
            reason = f"the parameter {path} has shape {list(leaf.shape)}, there it is {has}"
            raise UserError(
                BAD_CONFIG, f"init_from={directory}: {reason}; use --config={directory}"
            )

    left_out = sorted(set(old) - set(merged) | set(drawn) & set(old))
    report = f"init_from: {len(merged) - len(drawn)} arrays loaded from {address}"
    if left_out:
        report += f"; left out: {', '.join(left_out)}"
    if drawn:
        report += f"; newly drawn: {', '.join(drawn)}"
    return unflatten_dict(merged, sep="/"), report


def _converted(
    resolved: Resolved, directory: Path, old: dict[str, Any], fresh: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Convert the parameters of init_from into parameters of this model, as start.convert says.

    Returns:
        the parameters by path, and the paths of those that are newly drawn.
    """
    text, model = resolved.config.start.convert, resolved.model

    def may_be_new(path: str) -> bool:
        return _may_be_new(model, tuple(path.split("/")))

    try:
        return convert(Converter(text), old, fresh, model, may_be_new)
    except KeyError as error:
        reason = f"start.convert={text}: init_from={directory} has no {error.args[0]}"
        fix = "choose a conversion, or an option of it, that does without"
        raise UserError(BAD_CONFIG, f"{reason}; {fix}") from error


def _grown(params: Params, fresh: Params, axes: Params, before: int, after: int) -> Params:
    """Enlarge the vocabulary of parameters, with the shapes and shardings of the fresh ones."""
    leaves: Any = flatten_dict(params)
    names: Any = flatten_dict(axes)
    like: Any = flatten_dict(fresh)
    grown = {}
    for path, leaf in leaves.items():
        if path not in like or "vocab" not in names[path]:
            grown[path] = leaf
            continue
        shape, sharding = like[path].shape, like[path].sharding
        enlarge = partial(with_more_ids, axes=names[path], shape=shape, old=before, new=after)
        grown[path] = jax.jit(enlarge, out_shardings=sharding)(leaf)
    return unflatten_dict(grown)


def _may_be_new(model: ModelDimensions, path: tuple[str, ...]) -> bool:
    """Return True for a parameter that may be newly drawn if init_from does not have it."""
    of_companion = model.companion(path[0]) is not None
    return of_companion or is_of_head(path[0]) or is_added(path)
