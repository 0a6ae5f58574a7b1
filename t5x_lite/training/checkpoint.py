"""Checkpoints: orbax, asynchronous and atomic. The newest one is kept, and one every `keep_every`
steps. Each records the settings it was made with, since different models can have parameters of the
same shapes.
"""

import dataclasses
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging
from flax.traverse_util import flatten_dict
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, EveryNSteps, LatestN

from t5x_lite import storage
from t5x_lite.config import default
from t5x_lite.config.files import flatten
from t5x_lite.errors import BAD_CONFIG, IO_ERROR, NO_FILE, UserError, user_errors
from t5x_lite.model.heads import Params

_DEFAULTS = json.loads(json.dumps(flatten(default().to_dict())))


class Checkpoints:
    """The checkpoints of one run, in WORKDIR/checkpoints/STEP.

    Args:
        settings: flat dict {key: value} of the settings that the checkpoints are made with.
    """

    def __init__(
        self, directory: Path, settings: dict, keep_every: int = 0, read_only: bool = False
    ):
        logging.set_verbosity(logging.ERROR)  # orbax warns about things that are intended
        self.directory = directory
        self._directory = storage.durable_path(directory.resolve())
        self._is_local = isinstance(self._directory, Path)
        self._settings = settings
        if not read_only and jax.process_index() == 0:
            # Orbax would do this in a thread, which a run that ends early would cut off.
            self._remove_leftovers()
        # What is kept when a newer checkpoint is complete.
        policies: list[Any] = [LatestN(1)]
        if keep_every:
            policies.append(EveryNSteps(keep_every))
        options = ocp.CheckpointManagerOptions(
            preservation_policy=AnyPreservationPolicy(policies),
            cleanup_tmp_directories=False,
            read_only=read_only,
        )
        self._manager = ocp.CheckpointManager(self._directory, options=options)

    def _remove_leftovers(self) -> None:
        """Remove checkpoints that a killed run did not finish."""
        if not self._directory.is_dir():
            return
        # On a disk orbax saves under a temporary name, in a bucket under the final one.
        for path in list(self._directory.iterdir()):
            if "orbax-checkpoint-tmp" in path.name and self._is_local:
                shutil.rmtree(path)
            elif path.name.isdigit() and not is_whole(path):
                path.rmtree()

    def latest(self) -> int | None:
        """Return the newest step with a complete checkpoint, or None."""
        return self._manager.latest_step()

    def remove_after(self, step: int) -> None:
        """Remove checkpoints after a step that a run goes back to."""
        for later in self._manager.all_steps():
            if later > step:
                self._manager.delete(later)

    def restore(self, step: int, shapes: Any, shardings: Any, axes: Params) -> Any:
        """Restore the state of a step onto the given shardings. The padding of the vocabulary may
        differ from when it was saved.

        Args:
            axes: axis names of the parameters.

        Raises:
            UserError: if the checkpoint is of another model or other settings.
        """
        abstract = _abstract(shapes, shardings)
        with self._readable(step):
            self._check_shapes(step, abstract, axes)
            # Not strict: padding rows of the vocabulary are cut off, or filled with zeros.
            args = ocp.args.StandardRestore(abstract, strict=False)
            return self._manager.restore(step, args=args)

    def restore_parameters(self, step: int, shapes: Any, shardings: Any, axes: Params) -> Any:
        """Restore only the parameters of a step, without the rest of its state."""
        abstract = {"params": _abstract(shapes, shardings)}
        restore_args = jax.tree.map(
            lambda args: dataclasses.replace(args, strict=False),  # as above
            ocp.checkpoint_utils.construct_restore_args(abstract),
        )
        with self._readable(step):
            self._check_shapes(step, abstract, axes)
            args = ocp.args.PyTreeRestore(abstract, restore_args=restore_args, partial_restore=True)
            return self._manager.restore(step, args=args)["params"]

    def _check_shapes(self, step: int, abstract: Any, axes: Params) -> None:
        """Reject arrays that differ from the saved ones in more than the padding of the vocabulary.

        Adafactor's averages over the rows and columns of a table include its padding. They have
        fewer axes than the table, and their shapes must not change.
        """
        # Read the saved shapes from the checkpoint's metadata, which takes no array.
        where = self._directory / str(step)
        metadata: Any = ocp.StandardCheckpointHandler().metadata(where / "default")
        saved = ocp.tree.to_flat_dict(metadata.tree, sep="/")
        names_of_axes: dict[str, Any] = flatten_dict(axes, sep="/")
        vocab_size = self._settings["model.vocab_size"]

        for path, leaf in ocp.tree.to_flat_dict(abstract, sep="/").items():
            # Restoring fails for an array that is missing, so check only shapes here.
            if path not in saved or saved[path].shape == leaf.shape:
                continue
            # The path of a moment ends with the path of its parameter.
            names = (name for name in names_of_axes if path.endswith(f"/{name}"))
            of_leaf = names_of_axes.get(max(names, key=len, default=""), ())
            if _differ_in_padding(saved[path].shape, leaf.shape, of_leaf, vocab_size):
                continue
            reason = f"got shape {list(leaf.shape)}, but {where} has {list(saved[path].shape)}"
            fix = "restore the old model, or the old model.vocab_multiple and mesh.tensor"
            raise UserError(BAD_CONFIG, f"{path}: {reason}; {fix}")

    def save(self, step: int, state: Any) -> None:
        """Begin to save a state. It may be changed or donated as soon as this returns."""
        if self._is_local:
            self._check_room(step, state)
        with self._writable():
            metadata = {"settings": self._settings}
            self._manager.save(step, args=ocp.args.StandardSave(state), custom_metadata=metadata)

    def _check_room(self, step: int, state: Any) -> None:
        """Reject a checkpoint that does not fit the disk, before anything is written."""
        # Count what this process writes: its own shards, without replicas.
        needed = sum(
            shard.data.nbytes
            for leaf in jax.tree.leaves(state)
            for shard in leaf.addressable_shards
            if shard.replica_id == 0
        )
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
            self._manager.check_for_errors()

    def wait(self) -> None:
        """Wait until everything that is being saved is on disk."""
        with self._writable():
            self._manager.wait_until_finished()
        self.check()

    def close(self) -> None:
        """Stop the background threads."""
        self._manager.close()

    @contextmanager
    def _readable(self, step: int) -> Iterator[None]:
        """Reject a checkpoint of other settings, and turn orbax's errors about a broken one into a
        UserError.
        """
        where = f"{self._directory}/{step}"
        with user_errors(NO_FILE, f"{where}: no usable checkpoint of this model; remove it"):
            saved = self._manager.metadata(step).custom_metadata["settings"]
            for key, value in self._settings.items():
                # A setting that is newer than the checkpoint had the effect of today's default.
                before = saved.get(key, _DEFAULTS.get(key))
                if before != value:
                    reason = f"now {value!r}, but {where} was made with {before!r}"
                    raise UserError(BAD_CONFIG, f"{key}: {reason}; restore the old value")
            yield

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # orbax passes on any error of its background threads
            # Orbax nests messages; show the innermost one, without its error code.
            last_line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            innermost = last_line.rsplit(": ", 1)[-1].split(" [os_error_code")[0][:200]
            reason = f"a checkpoint could not be saved ({innermost})"
            fix = "check the disk's space and permissions, and the same command continues"
            raise UserError(IO_ERROR, f"{self._directory}: {reason}; {fix}") from error


def is_whole(path: Any) -> bool:
    """Return True if a checkpoint was written completely. On a disk, it only gets its name then; in
    a bucket, a file marks it as complete.
    """
    return isinstance(path, Path) or ocp.utils.is_checkpoint_finalized(path)


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
    """Combine shapes and shardings, as the target of orbax's restore."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        shardings,
    )
