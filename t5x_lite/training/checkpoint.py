"""Checkpoints: orbax, asynchronous and atomic. The newest is kept, and one of every `keep_every`
steps. Each names the settings it was made with, since many another model has parameters of the same
shapes.
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
        settings: the flat dict {key: value} that they were, or will be, made with.
    """

    def __init__(
        self, directory: Path, settings: dict, keep_every: int = 0, read_only: bool = False
    ):
        logging.set_verbosity(logging.ERROR)  # orbax warns of what is meant
        self.directory = directory
        self._directory = storage.durable_path(directory.resolve())
        self._is_local = isinstance(self._directory, Path)
        self._settings = settings
        if not read_only and jax.process_index() == 0:
            # Orbax would do it in a thread, which a run that ends early cuts off.
            self._remove_leftovers()
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
        """Remove what a run that was killed was saving."""
        if not self._directory.is_dir():
            return
        for path in list(self._directory.iterdir()):
            if "orbax-checkpoint-tmp" in path.name and self._is_local:
                shutil.rmtree(path)
            elif path.name.isdigit() and not is_whole(path):
                path.rmtree()

    def latest(self) -> int | None:
        """The newest step that was saved whole."""
        return self._manager.latest_step()

    def remove_after(self, step: int) -> None:
        """Remove what was saved after a step that a run goes back to."""
        for later in self._manager.all_steps():
            if later > step:
                self._manager.delete(later)

    def restore(self, step: int, shapes: Any, shardings: Any, axes: Params) -> Any:
        """The state of a step, on today's mesh, with as many rows of padding as it needs.

        Args:
            axes: the names of the parameters' axes.

        Raises:
            UserError: for a checkpoint of another model or other settings.
        """
        abstract = _abstract(shapes, shardings)
        with self._readable(step):
            self._check_shapes(step, abstract, axes)
            # Not strict: what pads the vocabulary is cut off, or filled with zeros.
            args = ocp.args.StandardRestore(abstract, strict=False)
            return self._manager.restore(step, args=args)

    def restore_parameters(self, step: int, shapes: Any, shardings: Any, axes: Params) -> Any:
        """The parameters of a step alone, whatever else was saved with them."""
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
        """Refuse arrays that differ from those saved in more than the padding of the vocabulary.

        The averages that Adafactor keeps of a table's rows and columns are of its padding, too:
        they have fewer axes than the table and may not change.
        """
        where = self._directory / str(step)
        metadata: Any = ocp.StandardCheckpointHandler().metadata(where / "default")
        saved = ocp.tree.to_flat_dict(metadata.tree, sep="/")
        names_of_axes: dict[str, Any] = flatten_dict(axes, sep="/")
        vocab_size = self._settings["model.vocab_size"]

        for path, leaf in ocp.tree.to_flat_dict(abstract, sep="/").items():
            if path not in saved or saved[path].shape == leaf.shape:
                continue
            # The path of a moment ends with that of its parameter.
            names = (name for name in names_of_axes if path.endswith(f"/{name}"))
            of_leaf = names_of_axes.get(max(names, key=len, default=""), ())
            if _differ_in_padding(saved[path].shape, leaf.shape, of_leaf, vocab_size):
                continue
            reason = f"got shape {list(leaf.shape)}, in {where} it is {list(saved[path].shape)}"
            fix = "bring the old model, or model.vocab_multiple and mesh.tensor, back"
            raise UserError(BAD_CONFIG, f"{path}: {reason}; {fix}")

    def save(self, step: int, state: Any) -> None:
        """Begin to save; the state may be used, and given away, as soon as this returns."""
        if self._is_local:
            self._check_room(step, state)
        with self._writable():
            metadata = {"settings": self._settings}
            self._manager.save(step, args=ocp.args.StandardSave(state), custom_metadata=metadata)

    def _check_room(self, step: int, state: Any) -> None:
        """Refuse, before anything is written, what the disk has no room for."""
        # This process's part of the state, copies left out.
        needed = sum(
            shard.data.nbytes
            for leaf in jax.tree.leaves(state)
            for shard in leaf.addressable_shards
            if shard.replica_id == 0
        )
        free = shutil.disk_usage(self._directory).free
        if free < needed:
            sizes = f"takes {needed / 1e6:,.1f} MB where {free / 1e6:,.1f} MB are free"
            raise UserError(
                IO_ERROR,
                f"{self._directory}: no room for the checkpoint of step {step}, which {sizes}; "
                "make room, and the same command continues",
            )

    def check(self) -> None:
        """Raise if a save in the background has failed."""
        with self._writable():
            self._manager.check_for_errors()

    def wait(self) -> None:
        """Until what was begun is on disk."""
        with self._writable():
            self._manager.wait_until_finished()
        self.check()

    def close(self) -> None:
        """Stop the background threads."""
        self._manager.close()

    @contextmanager
    def _readable(self, step: int) -> Iterator[None]:
        """Refuse a checkpoint of other settings, and whatever orbax raises of a broken one."""
        where = f"{self._directory}/{step}"
        with user_errors(NO_FILE, f"{where}: no usable checkpoint of this model; remove it"):
            saved = self._manager.metadata(step).custom_metadata["settings"]
            for key, value in self._settings.items():
                # A setting that did not exist yet was what its default is now.
                before = saved.get(key, _DEFAULTS.get(key))
                if before != value:
                    reason = f"now {value!r}, but {where} was made with {before!r}"
                    raise UserError(BAD_CONFIG, f"{key}: {reason}; bring the old value back")
            yield

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # orbax hands on whatever the background raised
            last_line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            innermost = last_line.rsplit(": ", 1)[-1].split(" [os_error_code")[0][:200]
            reason = f"a checkpoint could not be saved ({innermost})"
            raise UserError(
                IO_ERROR, f"{self._directory}: {reason}; make room and go on"
            ) from error


def is_whole(path: Any) -> bool:
    """Whether the checkpoint of a step was written to its end. On a disk it has its name only then,
    in a bucket it has a file that says so.
    """
    return isinstance(path, Path) or ocp.utils.is_checkpoint_finalized(path)


def _differ_in_padding(
    before: tuple[int, ...], now: tuple[int, ...], axes: tuple[str, ...], vocab_size: int
) -> bool:
    """Whether two shapes differ in nothing but what pads a vocabulary.

    >>> _differ_in_padding((640, 16), (768, 16), ("vocab", "embedding"), vocab_size=524)
    True
    """
    return len(before) == len(now) == len(axes) and all(
        old == new or (axis == "vocab" and min(old, new) >= vocab_size)
        for old, new, axis in zip(before, now, axes, strict=True)
    )


def _abstract(shapes: Any, shardings: Any) -> Any:
    """Shapes with their shardings, for orbax to restore onto."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        shardings,
    )
