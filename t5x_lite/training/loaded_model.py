"""A trained model, loaded from its run directory for inference or for another run. An adapted model
is loaded with the parameters of its base, which the run has recorded.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from t5x_lite import storage
from t5x_lite.config import Mesh, ModelDimensions, RunConfig
from t5x_lite.config.permission import Permission, permission, with_permission
from t5x_lite.data.rows.row_plan import RowPlan
from t5x_lite.data.tasks.task_data import TaskPlan
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_DATA, NO_FILE, USAGE, UserError, read_json
from t5x_lite.model.check import check_model
from t5x_lite.model.heads import Params
from t5x_lite.model.transformer import parameter_axes, parameter_shapes
from t5x_lite.model_address import ModelAddress, locate
from t5x_lite.parallel.mesh import DeviceMesh, make_mesh, padded_for, use_mesh
from t5x_lite.resolve import Resolved
from t5x_lite.training import run_history
from t5x_lite.training.adapt import parse_adaptation
from t5x_lite.training.checkpoint import Checkpoints
from t5x_lite.training.chosen_checkpoint import checkpoints_of, choose_step
from t5x_lite.training.run_directory import base_of, fixed_settings, read
from t5x_lite.training.step import parameter_shardings
from t5x_lite.training.text_conventions import Conventions, read_conventions

_BASE = "base.json"  # which model a run adapts


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
    conventions = read_conventions(workdir, tokenizer.vocabulary)
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
    of_base = parameters_for(model, base, theirs, mesh)
    wanted: Any = flatten_dict(shapes)
    leaves: Any = flatten_dict(of_base)
    _, frozen = adaptation.split(
        unflatten_dict({path: leaf for path, leaf in leaves.items() if path in wanted})
    )
    return adaptation.merge(trained, frozen), step


def parameters_for(
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
    workdir, directory = address.directory, checkpoints_of(address)
    if not storage.durable_path(directory).is_dir():
        raise UserError(NO_FILE, f"{workdir}: no checkpoint yet; train first")
    settings, run = fixed_settings(resolved.written_out), run_history.identity(workdir)
    checkpoints = Checkpoints(directory, settings, run, read_only=True)
    try:
        step = choose_step(checkpoints, address)
        return checkpoints.restore_parameters(step, shapes, shardings, axes), step
    finally:
        checkpoints.close()


# Models that were adapted.


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
    checkpoints = Checkpoints(checkpoints_of(address), {}, run, read_only=True)
    try:
        facts = checkpoints.facts(choose_step(checkpoints, address))
    finally:
        checkpoints.close()
    return hashlib.sha256(json.dumps(facts["files"], sort_keys=True).encode()).hexdigest()[:16]
