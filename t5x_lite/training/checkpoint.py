"""Checkpoints: written by orbax in the background, and trusted only if they match their manifest.

Each checkpoint carries a manifest with the hash of every file, a checksum of every array as it was
in memory, and where it comes from: run, step, settings, text, versions. It is checked before
anything is restored. A checkpoint that fails the check is moved aside, and the previous one is
used.

DIRECTORY/STEP/manifest.json, and the files of orbax
          STEP.damaged/          moved aside; STEP.damaged.txt says why
          STEP.orbax-checkpoint-tmp/, STEP.removed/    left by a process that was killed
          kept-STEP.…/           the same, but with files that no run wrote
"""

import dataclasses
import json
import platform
import re
import shutil
import sys
from collections.abc import Collection, Container, Iterator
from contextlib import contextmanager
from functools import cache, reduce
from importlib.metadata import version
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.experimental import multihost_utils

from t5x_lite import manifest, storage
from t5x_lite.config import RunConfig, default
from t5x_lite.config.files import flatten
from t5x_lite.config.roles import ADJUSTABLE, settings_with
from t5x_lite.errors import BAD_CONFIG, IO_ERROR, NO_FILE, UserError, user_errors
from t5x_lite.manifest import Damage
from t5x_lite.model.heads import Params
from t5x_lite.progress import say
from t5x_lite.training.averaging import PLACE_OF_AVERAGE
from t5x_lite.training.checksums import checksum_on_host, checksums
from t5x_lite.version import VERSION

_DEFAULTS = json.loads(json.dumps(flatten(default().to_dict())))
KEPT = 2  # newest healthy checkpoints that are kept
_UNFINISHED = ".orbax-checkpoint-tmp"  # suffix of the name that orbax writes under
_REMOVED = ".removed"  # suffix of the name of a checkpoint that is being removed
_DAMAGED = ".damaged"
_ADJUSTABLE = settings_with(RunConfig, ADJUSTABLE)
_WRITTEN_LATER = ("_CHECKPOINT_METADATA", "commit_success.txt")  # by orbax, after the manifest
_OF_ORBAX = re.compile(
    r"_CHECKPOINT_METADATA|commit_success\.txt|_METADATA|_sharding|array_metadatas|d"
    r"|manifest\.json(\.\d+\.partial)?|manifest\.ocdbt|ocdbt\.process_\d+"
)
_ROOM, _ROOM_OF_FILES = 1.05, 1 << 20  # size on disk: the arrays times a factor, plus bytes
_NONE, _FAILED = -1, -2  # what process 0 tells the others if it has found no step


class Standing(NamedTuple):
    """A checkpoint is removed unless it is one of the newest healthy ones, or is kept."""

    healthy: bool  # False: the run may have diverged, so this replaces no other checkpoint
    kept: bool  # kept until the user removes it, even if the run continues with other settings


class Checkpoints:
    """The checkpoints of one run, in DIRECTORY/STEP.

    Args:
        settings: flat dict {key: value} of the settings that the checkpoints are made with. They
            are compared because models with different settings may have the same shapes.
        run: identity of the run; a checkpoint of another run counts as damaged. Empty: any run.
        text: hashes of text and tokenizer, recorded in each checkpoint.
        keep: number of healthy checkpoints to keep, the newest ones.
        kept: steps whose checkpoints are kept for good, even if the run continues with other steps
            to keep.
        read_only: change nothing in the directory.
    """

    def __init__(
        self,
        directory: Path,
        settings: dict,
        run: str = "",
        text: dict | None = None,
        keep: int = KEPT,
        kept: Container[int] = (),
        read_only: bool = False,
    ):
        # Silence orbax's log: it warns about what is intended, and repeats the traceback of each
        # error that it raises.
        logging.set_verbosity(logging.FATAL)
        sys.unraisablehook = _pass_over_late_writes
        self.directory = directory
        self._directory = storage.durable_path(directory.resolve())
        self._is_local = isinstance(self._directory, Path)
        self._settings, self._run, self._text = settings, run, text or {}
        self._keep, self._kept = keep, kept
        self._is_writer = not read_only and jax.process_index() == 0
        self._newest: int | None = None  # see newest
        self._has_looked = False
        self._standings: dict[int, Standing] = {}  # by step, as their manifests say
        self._saving: tuple[int, dict] = (0, {})  # step being saved, and facts for its manifest
        if self._is_writer:
            self._remove_leftovers()
        options = ocp.AsyncOptions(post_finalization_callback=self._write_manifest)
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.StandardCheckpointHandler(), async_options=options
        )

    def _remove_leftovers(self) -> None:
        """Remove what a killed process did not finish writing or removing, and nothing else."""
        for name in storage.names_in(self._directory):
            path = self._directory / name
            step, _, rest = name.partition(".")
            if not step.isdecimal():
                continue
            if not self._is_local:
                # In a bucket orbax writes under the final name. The manifest comes before the file
                # that marks the checkpoint as complete.
                has_manifest = (path / manifest.NAME).exists()
                if not rest and not has_manifest and not is_complete(path):
                    path.rmtree()
            elif f".{rest}".startswith((_UNFINISHED, _REMOVED)) and path.is_symlink():
                path.unlink()
            elif f".{rest}".startswith((_UNFINISHED, _REMOVED)):
                foreign = [p.name for p in path.iterdir() if not _OF_ORBAX.fullmatch(p.name)]
                if foreign:
                    kept = self._free_name(f"kept-{name}")
                    path.rename(self._directory / kept)
                    say(f"{path}: moved to {kept}, since no run wrote {foreign[0]} in it")
                else:
                    shutil.rmtree(path)

    # Reading.

    @property
    def steps(self) -> list[int]:
        """Steps of all complete checkpoints, damaged or not, in ascending order."""
        return sorted(complete_steps(self._directory))

    def check_files(self, step: int) -> None:
        """Raise UserError if the files of a checkpoint are not those that this run saved."""
        try:
            self._check(step)
        except Damage as damage:
            where = self._directory / str(step)
            raise UserError(NO_FILE, f"{where}: {damage}; name another checkpoint") from damage

    def facts(self, step: int) -> dict[str, Any]:
        """Return what the manifest of a checkpoint records."""
        where = self._directory / str(step)
        try:
            return manifest.read(where)
        except Damage as damage:
            raise UserError(NO_FILE, f"{where}: {damage}; bring it back") from damage

    @property
    def newest(self) -> int | None:
        """Step of the newest checkpoint that was not damaged when this was first asked, or None if
        there are no checkpoints. Newer ones are moved aside.

        Raises:
            UserError: if all are damaged.
        """
        if not self._has_looked:
            self._newest, self._has_looked = self._agree_on_newest(), True
        return self._newest

    def _agree_on_newest(self) -> int | None:
        if jax.process_count() == 1:
            return self._find_newest()
        # One process reads the files, and tells the others.
        found, error = _NONE, None
        if jax.process_index() == 0:
            try:
                step = self._find_newest()
                found = _NONE if step is None else step
            except UserError as failed:
                found, error = _FAILED, failed
        found = int(multihost_utils.broadcast_one_to_all(np.int32(found)))
        if found == _FAILED:
            raise error or UserError(NO_FILE, f"{self._directory}: no usable checkpoint")
        return None if found == _NONE else found

    def go_back(self, tried: Collection[int]) -> int | None:
        """Go back to the newest healthy checkpoint, and remove those after it.

        Args:
            tried: steps that the run has already gone back to without success.

        Returns:
            its step; None if there is no such checkpoint.
        """
        healthy = [step for step in self.steps if self._standing(step).healthy]
        step = max(set(healthy) - set(tried), default=None)
        if step is not None:
            self.remove_after(step)
            self._newest, self._has_looked = step, True
        return step

    def _find_newest(self) -> int | None:
        damaged: dict[int, Damage] = {}
        for step in reversed(self.steps):
            try:
                self._check(step)
            except Damage as damage:
                damaged[step] = damage
                continue
            for other, damage in damaged.items():
                self._set_aside(other, damage)
            return step
        if not damaged:
            return None
        # Move nothing aside: otherwise the same command would start again from scratch.
        reasons = "; ".join(f"{step}: {damage}" for step, damage in damaged.items())
        fix = "bring the files back, or name another directory"
        raise UserError(NO_FILE, f"{self._directory}: no usable checkpoint ({reasons}); {fix}")

    def _check(self, step: int) -> None:
        """Raise Damage if the files of a checkpoint are not those that this run saved."""
        where = self._directory / str(step)
        if manifest.verification_level() == "off":
            return
        try:
            facts = manifest.read(where)
        except Damage as damage:
            if self._is_local and (where / "default/_METADATA").exists():
                raise Damage("an earlier version wrote it, and can read it") from damage
            raise
        check_identity(facts, step, self._run)
        manifest.check_files(where, facts)

    def _set_aside(self, step: int, damage: Damage) -> None:
        where = self._directory / str(step)
        if not self._is_writer:
            say(f"{where} is damaged: {damage}; an earlier checkpoint is used")
            return
        aside = self._free_name(f"{step}{_DAMAGED}")
        storage.rename(where, self._directory / aside)
        # Write the reason beside the checkpoint, which may be a link to elsewhere.
        (self._directory / f"{aside}.txt").write_text(f"{damage}\n")
        say(f"{where} is damaged: {damage}; moved to {aside}, and an earlier checkpoint is used")

    def _free_name(self, name: str) -> str:
        """Return a name, with a number added if it is taken."""
        taken, number, free = storage.names_in(self._directory), 1, name
        while free in taken:
            number += 1
            free = f"{name}-{number}"
        return free

    def remove_after(self, step: int) -> None:
        """Remove the checkpoints after a step that the run goes back to."""
        if self._is_writer:
            for later in self.steps:
                if later > step:
                    self._remove(later)

    def restore(self, step: int, shapes: Any, shardings: Any, axes: Params) -> Any:
        """Restore the state of a step onto the given shardings. The padding of the vocabulary may
        differ from when it was saved.

        Args:
            axes: axis names of the parameters.

        Raises:
            UserError: if the checkpoint is of another model or other settings, or an array is not
                what was saved.
        """
        abstract = _abstract(shapes, shardings)
        with self._readable(step) as facts:
            self._check_shapes(step, abstract, facts, axes)
            # Not strict: padding rows of the vocabulary are cut off, or filled with zeros.
            args = ocp.args.StandardRestore(abstract, strict=False)
            state = self._checkpointer.restore(self._directory / str(step), args=args)
        self._check_arrays(step, state, facts)
        return state

    def restore_parameters(self, step: int, shapes: Any, shardings: Any, axes: Params) -> Any:
        """Restore only the parameters of a step, or their average if the run has kept one."""
        with self._readable(step) as facts:
            has_average = any(
                path.startswith("/".join(PLACE_OF_AVERAGE)) for path in facts["arrays"]
            )
            place = PLACE_OF_AVERAGE if has_average else ("params",)
            abstract: Any = unflatten_dict({place: _abstract(shapes, shardings)})
            restore_args = jax.tree.map(
                lambda args: dataclasses.replace(args, strict=False),  # as in restore
                ocp.checkpoint_utils.construct_restore_args(abstract),
            )
            self._check_shapes(step, abstract, facts, axes)
            args = ocp.args.PyTreeRestore(abstract, restore_args=restore_args, partial_restore=True)
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
                restored = checkpointer.restore(self._directory / str(step), args=args)
        self._check_arrays(step, restored, facts)
        return reduce(getitem, place, restored)

    def _check_arrays(self, step: int, restored: Any, facts: dict) -> None:
        """Compare restored arrays with what was in memory when they were saved."""
        if manifest.verification_level() != "full":
            return
        arrays = ocp.tree.to_flat_dict(restored, sep="/")
        # Skip arrays whose shape (by padding of the vocabulary) or type was changed on purpose.
        arrays = {
            path: array
            for path, array in arrays.items()
            if facts["arrays"].get(path, [])[:2] == _kind_of(array)
        }
        found = checksums(list(arrays.values()))
        for path, checksum in zip(arrays, found, strict=True):
            if checksum != facts["arrays"][path][2]:
                where = self._directory / str(step)
                reason = f"{path} is not what was in memory when it was saved"
                if self._is_writer:
                    self._set_aside(step, Damage(reason))
                    raise UserError(NO_FILE, f"{where}: {reason}; give the same command again")
                raise UserError(NO_FILE, f"{where}: {reason}; use an earlier checkpoint")

    def _check_shapes(self, step: int, abstract: Any, facts: dict, axes: Params) -> None:
        """Reject arrays that differ from the saved ones in more than the padding of the vocabulary.

        Adafactor's averages over the rows and columns of a table include its padding. They have
        fewer axes than the table, and their shapes must not change.
        """
        where = self._directory / str(step)
        saved = {path: tuple(shape) for path, (shape, _, _) in facts["arrays"].items()}
        names_of_axes: dict[str, Any] = flatten_dict(axes, sep="/")
        vocab_size = self._settings["model.vocab_size"]

        for path, leaf in ocp.tree.to_flat_dict(abstract, sep="/").items():
            # Restoring fails for an array that is missing, so check only shapes here.
            if saved.get(path, leaf.shape) == leaf.shape:
                continue
            # The path of a moment ends with the path of its parameter.
            names = (name for name in names_of_axes if path.endswith(f"/{name}"))
            of_leaf = names_of_axes.get(max(names, key=len, default=""), ())
            if _differ_in_padding(saved[path], leaf.shape, of_leaf, vocab_size):
                continue
            reason = f"got shape {list(leaf.shape)}, but {where} has {list(saved[path])}"
            fix = "restore the old model, or the old model.vocab_multiple and mesh.tensor"
            raise UserError(BAD_CONFIG, f"{path}: {reason}; {fix}")

    @contextmanager
    def _readable(self, step: int) -> Iterator[dict]:
        """Yield the facts of a checkpoint. Reject a checkpoint with other settings, and turn
        orbax's errors about a broken one into a UserError.
        """
        where = self._directory / str(step)
        with user_errors(NO_FILE, f"{where}: cannot be restored as this model"):
            facts = self.facts(step)
            difference = find_difference(facts["settings"], self._settings)
            if difference:
                key, before, now = difference
                reason = f"now {now!r}, but {where} was made with {before!r}"
                raise UserError(BAD_CONFIG, f"{key}: {reason}; restore the old value")
            yield facts

    # Writing.

    def save(self, step: int, state: Any, facts: dict | None = None, healthy: bool = True) -> None:
        """Begin to save a state. It may be changed or donated as soon as this returns.

        Args:
            facts: further facts for the manifest, as JSON.
            healthy: False if the run may have diverged; it then replaces no other checkpoint.
        """
        self.wait()  # for the previous save
        if self._is_local:
            self._check_room(step, state)
        arrays = ocp.tree.to_flat_dict(state, sep="/")
        sums = checksums(list(arrays.values()))
        standing = self._standings[step] = Standing(healthy, step in self._kept)
        recorded = {
            **(facts or {}),
            "step": step,
            **standing._asdict(),
            "run": self._run,
            "settings": self._settings,
            "text": self._text,
            "versions": _versions(),
            "arrays": {
                path: [*_kind_of(array), sum_of]
                for (path, array), sum_of in zip(arrays.items(), sums, strict=True)
            },
        }
        self._saving = step, recorded
        with self._writable():
            args = ocp.args.StandardSave(state)
            self._checkpointer.save(self._directory / str(step), args=args)

    def _write_manifest(self) -> None:
        """Write the manifest of the checkpoint being saved. Orbax calls this in the background, in
        process 0, when the files are complete. On a local disk the checkpoint does not have its
        final name yet.
        """
        step, facts = self._saving
        where = self._directory / str(step)
        if self._is_local:
            (where,) = self._directory.glob(f"{step}{_UNFINISHED}*")
        manifest.write(where, facts, leave_out=_WRITTEN_LATER)

    def _tidy(self) -> None:
        """Remove checkpoints that need not be kept, once the others are flushed to the device."""
        if not self._is_writer or not self._directory.is_dir():
            return
        if self._is_local:
            storage.flush(self._directory)
        steps = self.steps
        healthy = [step for step in steps if self._standing(step).healthy]
        newest = {*healthy[-self._keep :], *steps[-1:]}
        for step in steps:
            if step not in newest and step not in self._kept and not self._standing(step).kept:
                self._remove(step)

    def _standing(self, step: int) -> Standing:
        if step not in self._standings:
            try:
                facts = manifest.read(self._directory / str(step))
                found = Standing(facts["healthy"], facts.get("kept", False))
            except Damage:
                found = Standing(healthy=False, kept=False)
            self._standings[step] = found
        return self._standings[step]

    def _remove(self, step: int) -> None:
        """Remove a checkpoint. On a local disk, rename it first, so that a checkpoint that is only
        partly removed is not mistaken for a complete one.
        """
        where = self._directory / str(step)
        self._standings.pop(step, None)
        if self._is_local and where.is_symlink():
            where.unlink()
        elif self._is_local:
            shutil.rmtree(where.rename(self._directory / self._free_name(f"{step}{_REMOVED}")))
        else:
            where.rmtree()

    def _check_room(self, step: int, state: Any) -> None:
        """Reject a checkpoint that does not fit on the disk, before anything is written."""
        # Count what this process writes: its own shards, without replicas.
        arrays = sum(
            shard.data.nbytes
            for leaf in jax.tree.leaves(state)
            for shard in leaf.addressable_shards
            if shard.replica_id == 0
        )
        needed = arrays * _ROOM + _ROOM_OF_FILES
        storage.make_directory(self._directory)
        free = shutil.disk_usage(self._directory).free
        if free < needed:
            sizes = f"{needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free"
            raise UserError(
                IO_ERROR,
                f"{self._directory}: no room for the checkpoint of step {step} ({sizes}); make "
                "room, and the same command continues",
            )

    def check(self) -> None:
        """Raise if a save in the background has failed."""
        with self._writable():
            self._checkpointer.check_for_errors()

    def wait(self) -> None:
        """Wait until everything is on disk, and remove checkpoints that need not be kept."""
        with self._writable():
            self._checkpointer.wait_until_finished()
            self._tidy()

    def close(self) -> None:
        """Stop the background threads."""
        with self._writable():
            self._checkpointer.close()

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # orbax passes on any error of its background threads
            reason = f"a checkpoint could not be saved ({_innermost(error)})"
            fix = "check the disk's space and permissions, and the same command continues"
            raise UserError(IO_ERROR, f"{self._directory}: {reason}; {fix}") from error


_report_unraisable = sys.unraisablehook


def _pass_over_late_writes(unraisable: Any) -> None:
    """An unraisablehook that ignores late errors of tensorstore. When one write fails, its error is
    raised and ends the save; the writes that fail after it need no report.
    """
    if str(unraisable.exc_value) != "Event loop is closed":
        _report_unraisable(unraisable)


def complete_steps(directory: Any) -> list[int]:
    """Return the steps of the complete checkpoints in a directory, damaged or not."""
    names = [name for name in storage.names_in(directory) if name.isdecimal()]
    steps = [int(name) for name in names if str(int(name)) == name]
    return [step for step in steps if is_complete(directory / str(step))]


def find_difference(saved: dict, settings: dict) -> tuple[str, Any, Any] | None:
    """Return the first setting that differs from those of a checkpoint: key, old and new value."""
    for key, now in settings.items():
        if key in _ADJUSTABLE:  # checked against config.json
            continue
        # If the setting is newer than the checkpoint, the run behaved as with today's default.
        before = saved.get(key, _DEFAULTS.get(key))
        if before != now:
            return key, before, now
    return None


def is_complete(path: Any) -> bool:
    """Return True if a checkpoint was written completely. On a local disk, only a complete
    checkpoint has its final name; in a bucket, a file marks it as complete.
    """
    if isinstance(path, Path):
        return path.is_dir()
    return ocp.utils.is_checkpoint_finalized(path)


def check_whole(where: Any, run: str = "") -> dict[str, Any]:
    """Check the files and arrays of a complete checkpoint, and return the facts of its manifest.

    Args:
        run: identity of its run; empty: any.

    Raises:
        Damage: if the checkpoint is not what was saved.
    """
    facts = manifest.read(where)
    check_identity(facts, int(where.name), run)
    manifest.check_files(where, facts)
    if manifest.verification_level() == "full":
        handler = ocp.PyTreeCheckpointHandler()
        try:
            tree: Any = handler.metadata(where).tree
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            args = ocp.args.PyTreeRestore(tree, restore_args=as_numpy)
            restored = handler.restore(where, args=args)
        except Exception as error:  # orbax passes on errors of several libraries
            raise Damage(f"its arrays cannot be read ({_innermost(error)})") from error
        for path, array in ocp.tree.to_flat_dict(restored, sep="/").items():
            if facts["arrays"].get(path) != [*_kind_of(array), checksum_on_host(array)]:
                raise Damage(f"{path} is not what was in memory when it was saved")
    return facts


def check_identity(facts: dict[str, Any], step: int, run: str) -> None:
    """Raise Damage if a manifest belongs to another step or another run.

    Args:
        run: identity of the run; empty: any.
    """
    if facts.get("step") != step:
        raise Damage(f"it is the checkpoint of step {facts.get('step')}")
    if run and facts.get("run") != run:
        raise Damage(f"it is a checkpoint of another run ({facts.get('run')}, not {run})")


def _kind_of(array: Any) -> list:
    """Return the shape and type of an array, as a manifest records them."""
    return [list(array.shape), str(array.dtype)]


@cache
def _versions() -> dict[str, str]:
    """Return the versions that a checkpoint was written with."""
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    found = {name: version(name) for name in packages}
    return {"t5x_lite": VERSION, "python": platform.python_version(), **found}


def _innermost(error: BaseException) -> str:
    """Return the message of the original error: orbax nests errors and their messages."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # Keep the end of the last line, without what tensorstore appends in brackets.
    lines = str(error).strip().splitlines()
    last = lines[-1] if lines else type(error).__name__
    message = last.rsplit(": ", 1)[-1]
    return message.split(" [os_error_code")[0][:200]


def _differ_in_padding(
    before: tuple[int, ...], now: tuple[int, ...], axes: tuple[str, ...], vocab_size: int
) -> bool:
    """Return True if two shapes differ only in the padding of the vocabulary.

    >>> _differ_in_padding((640, 16), (768, 16), ("vocab", "embedding"), vocab_size=524)
    True
    """
    return len(before) == len(now) == len(axes) and all(
        old == new or (axis == "vocab" and min(old, new) >= vocab_size)
        for old, new, axis in zip(before, now, axes, strict=True)
    )


def _abstract(shapes: Any, shardings: Any) -> Any:
    """Combine shapes and shardings into the target of orbax's restore."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        shardings,
    )
