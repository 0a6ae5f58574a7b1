"""A run directory: who may write to it, and what its run was started with.

WORKDIR/config.json  run.json  corpus.json  tokenizer/  metrics.jsonl  checkpoints/STEP/
        tensorboard/
        generation.json, if the model was imported or started from an imported one
        base.json, if the run adapts another model
"""

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from t5x_lite import locks, manifest, storage
from t5x_lite.config import RunConfig, to_dict
from t5x_lite.config.files import flatten, load_run_config
from t5x_lite.config.permission import check_place, grant
from t5x_lite.config.provenance import remember
from t5x_lite.config.roles import ADJUSTABLE, LOCAL, RESUMABLE, settings_with
from t5x_lite.data.rows.batches import Batches, RunData
from t5x_lite.data.store.prepare import prepare
from t5x_lite.data.tasks.task_data import TaskData, TaskPlan
from t5x_lite.data.tokenizers import tokenizer as tokenizers
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_CONFIG, BAD_DATA, IO_ERROR, USAGE, UserError, read_json
from t5x_lite.model.check import check_model
from t5x_lite.model.heads import Params
from t5x_lite.model_address import ModelAddress, locate
from t5x_lite.progress import say
from t5x_lite.resolve import Resolved, last_step, resolve, text_data
from t5x_lite.training import run_history, text_conventions
from t5x_lite.training.checkpoint import Checkpoints, complete_steps
from t5x_lite.training.log import check_metrics
from t5x_lite.training.schedules import depends_on_end
from t5x_lite.training.text_conventions import Conventions

_TEXT = ("tokenizer", "train", "validation")  # keys of corpus.json that say what was read
# The files that `create` writes. config.json has another name until all others are written.
_UNFINISHED = "config.json.unfinished"
_OF_CREATE = ("tokenizer", "checkpoints", text_conventions.FILE, run_history.FILE)


def fixed_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return, as a flat dict, the settings that must not change when a run continues."""
    free = settings_with(RunConfig, RESUMABLE, LOCAL)
    return {key: value for key, value in flatten(config).items() if key not in free}


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
        # Lock the directory, before anything in it is read or written.
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
        # The run that is there must be this one: the same settings, the same text.
        changes = check_same_run(workdir, config, batches, change)
        check_same_text(workdir, data)
        remember(config)
        # Record this start.
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
    # The same user, or root, must own it; and it must be deeper than /home or /tmp.
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
    # Compare hashes, since the text itself may be elsewhere, or gone.
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
    conventions: Conventions | None = None,
) -> None:
    """Create a run directory for a model that was not trained here: its config, its tokenizer, and
    its parameters as step 0. Runs with this config start from these parameters.
    """
    _check_names_no_checkpoint(workdir)
    _check_is_new(workdir)
    # The run starts from itself, so that training it, or a copy of its config, begins here.
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
        # Step 0 has parameters only: no optimizer has a state yet.
        try:
            checkpoints.save(0, {"params": params})
            checkpoints.wait()
        finally:
            checkpoints.close()
        grant(places=[own])
        if conventions is not None:
            text_conventions.write_conventions(workdir, conventions)
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


def base_of(config: RunConfig) -> ModelAddress:
    """Return the address of the model that a run starts from.

    Raises:
        UserError: if the config is data, and may not name this place.
    """
    check_place(config.init_from, "init_from")
    return locate(config.init_from)
