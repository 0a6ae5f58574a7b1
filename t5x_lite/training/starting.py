"""How a run starts from another one, which `init_from` names: what has to be the same in both, and
where each parameter comes from.
"""

from functools import partial
from pathlib import Path
from typing import Any

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from t5x_lite.config import ModelDimensions, to_dict
from t5x_lite.config.files import flatten
from t5x_lite.config.roles import (
    ADAPTATION,
    COMPUTATION,
    HEADS,
    OUTPUT,
    settings_with,
    without_effect,
)
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.model.heads import Params, is_of_head
from t5x_lite.model.parts.positions import position_limit
from t5x_lite.model.transformer import parameter_axes
from t5x_lite.model.vocabulary import with_more_ids
from t5x_lite.parallel.mesh import DeviceMesh
from t5x_lite.progress import say
from t5x_lite.resolve import Resolved
from t5x_lite.training import run_history
from t5x_lite.training.adapt import is_added, parse_adaptation
from t5x_lite.training.checkpoint import Checkpoints
from t5x_lite.training.chosen_checkpoint import checkpoints_of, choose_step
from t5x_lite.training.conversions import Converter, conversions_of, convert, rename, renaming
from t5x_lite.training.loaded_model import parameters_for
from t5x_lite.training.run_directory import base_of, fixed_settings, read

_OUTPUTS_OF_TASKS = ("classifier/output", "token_head/output")


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
    # Without a table of positions, no parameter depends on the length.
    if position_limit(resolved.model) is None:
        free.add("max_length")
    extends = tokenizer.extends(their_tokenizer)
    if extends and adaptation.is_full:
        free.add("vocab_size")
    # A conversion frees the settings that it changes, once it has checked both models.
    start = resolved.config.start
    if start.convert:
        converter = Converter(start.convert)
        converter.check(theirs.model, resolved.model)
        free |= converter.changes
    if start.takes_optimizer:
        _check_same_state(resolved, directory, theirs)
    # All other settings of the model must be the same.
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
    # Each id must stand for the same piece of text in both.
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
    checkpoints = Checkpoints(checkpoints_of(address), settings, run, read_only=True)
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
    params = parameters_for(resolved.model, address, theirs, mesh)
    # First bring what was loaded into the shapes of this model: new ids, then a conversion.
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

    # Say what happened to each parameter that was not simply loaded.
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
