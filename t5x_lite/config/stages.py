"""Stages of a run: each is the run with some settings changed, and starts from the one before.

    config.training.steps = 1000
    config.stages = (
        {"until": "80%"},
        {"objective": "masked_lm(noise_density=0.3)", "model": {"architecture": "encoder"}},
    )

The count of steps continues from stage to stage. A stage that sets its own schedule runs it over
its own steps; otherwise one schedule covers all stages.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from t5x_lite.config.files import Settings, build, merge
from t5x_lite.config.ranges import check_value
from t5x_lite.config.roles import type_hints
from t5x_lite.config.schema import RunConfig, Start, to_dict
from t5x_lite.errors import BAD_CONFIG, UserError, nearest

Checked = TypeVar("Checked")

# Keys of a stage that are not settings of the run.
UNTIL, CONVERT, FRESH_OPTIMIZER = "until", "convert", "fresh_optimizer"
# Settings that a stage cannot change: they belong to the whole run, or follow from the stages.
_OF_THE_RUN = ("seed", "init_from", "start", "stages", "task")
_OF_A_SCHEDULE = ("schedule", "warmup_steps", "decay_steps")


def stages_of(config: RunConfig, directories: Sequence[str] = ()) -> tuple[RunConfig, ...]:
    """Return one run per stage of a config; if it has no stages, the config itself.

    The training.steps of each run is the step at which it ends. training/stages.py later fills in
    what follows from the text and the models.

    Args:
        directories: the directory of each run.

    Raises:
        UserError: for a stage with settings that do not exist or contradict each other.

    >>> from t5x_lite.config import Data, Lengths
    >>> data = Data(lengths=Lengths(sequence_length=8))
    >>> changed = {"objective": "causal_lm", "optimizer": {"schedule": "linear"}}
    >>> config = RunConfig(data=data, stages=({"until": "80%", "objective": "prefix_lm"}, changed))
    >>> for stage in stages_of(config):
    ...     print(stage.start.step, stage.training.steps, stage.objective)
    0 800 prefix_lm
    800 1000 causal_lm
    """
    if not config.stages:
        return (config,)
    _check_names(config)
    base = to_dict(config) | {"stages": ()}
    ends = _ends(config)
    runs: list[RunConfig] = []
    for number, (stage, end) in enumerate(zip(config.stages, ends, strict=True)):
        where = f"stages[{number}]."
        changed: Settings = copy.deepcopy(dict(stage))
        changed.pop(UNTIL, None)
        begin = ends[number - 1] if number else 0
        is_fresh = changed.pop(FRESH_OPTIMIZER, False)
        check_value(is_fresh, bool, f"{where}{FRESH_OPTIMIZER}")
        start: Settings = {
            "step": begin,
            "schedule_end": ends[-1],
            "convert": changed.pop(CONVERT, ""),
            "optimizer_step": begin if is_fresh else 0,
        }
        for name in _OF_THE_RUN:
            if name in changed:
                reason = "is the same in all stages, or follows from them"
                raise UserError(BAD_CONFIG, f"{where}{name}: {reason}; leave it out here")
        _check_length(changed, where)
        of_optimizer = changed.get("optimizer", {})
        if isinstance(of_optimizer, dict) and any(name in of_optimizer for name in _OF_A_SCHEDULE):
            start |= {"schedule_step": begin, "schedule_end": end}
        settings = merge(base, changed) | {"start": start}
        if isinstance(settings["training"], dict):
            settings["training"]["steps"] = end
        if number:
            settings["init_from"] = directories[number - 1] if directories else _BEFORE
        with naming_stage(config, number):
            runs.append(build(RunConfig, settings, where))
    return tuple(runs)


@contextmanager
def naming_stage(config: RunConfig, number: int) -> Iterator[None]:
    """Name the stage (from 0) in errors, if the config has several."""
    where = f"stages[{number}]."
    try:
        yield
    except UserError as error:
        if not config.stages:
            raise
        raise UserError(error.code, where + str(error).removeprefix(where)) from error


def each_stage(config: RunConfig, check: Callable[[RunConfig], Checked]) -> list[Checked]:
    """Return what a check returns for each stage. Errors name the stage.

    Raises:
        UserError: from the check, or from stages_of.
    """
    checked = []
    for number, stage in enumerate(stages_of(config)):
        with naming_stage(config, number):
            checked.append(check(stage))
    return checked


def in_words(config: RunConfig) -> list[str]:
    """Describe each stage by its objective, its architecture if that changes, and its end.

    >>> from t5x_lite.config import Data, Lengths
    >>> data = Data(lengths=Lengths(sequence_length=8))
    >>> masked = {"objective": "masked_lm", "model": {"architecture": "encoder"}}
    >>> in_words(RunConfig(data=data, stages=({"until": "30%"}, masked)))
    ['causal_lm to step 300', 'masked_lm on encoder to step 1000']
    """
    words, before = [], config.model.architecture
    for stage in stages_of(config):
        architecture = stage.model.architecture
        on = f" on {architecture}" if architecture != before else ""
        words.append(f"{stage.objective}{on} to step {stage.training.steps}")
        before = architecture
    return words


def as_run(stage: RunConfig) -> RunConfig:
    """Return a stage as a run of its own with the stage's number of steps, to compute its cost."""
    steps = stage.training.steps - stage.start.step
    training = dataclasses.replace(stage.training, steps=steps)
    return dataclasses.replace(stage, init_from="", start=Start(), training=training)


_BEFORE = "the stage before"  # value of init_from if only the settings are needed


def _check_names(config: RunConfig) -> None:
    known = [UNTIL, CONVERT, FRESH_OPTIMIZER, *type_hints(RunConfig)]
    for number, stage in enumerate(config.stages):
        for name in stage:
            if name in known:
                continue
            fix = nearest(name, known)
            section, dot, setting = name.partition(".")
            if dot:
                fix = f'write {{"{section}": {{"{setting}": …}}}}'
            raise UserError(BAD_CONFIG, f"stages[{number}].{name}: no such setting; {fix}")


def _check_length(changed: Settings, where: str) -> None:
    for section, name in (("training", "steps"), ("data", "epochs")):
        of_section = changed.get(section)
        if isinstance(of_section, dict) and name in of_section:
            reason = f"{UNTIL} says where a stage ends"
            raise UserError(BAD_CONFIG, f"{where}{section}.{name}: {reason}; leave it out here")


def _ends(config: RunConfig) -> list[int]:
    """Return the step at which each stage ends."""
    total, ends = config.training.steps, []
    for number, stage in enumerate(config.stages):
        key = f"stages[{number}].{UNTIL}"
        is_last = number == len(config.stages) - 1
        if is_last and UNTIL in stage:
            reason = "the last stage ends with training.steps"
            raise UserError(BAD_CONFIG, f"{key}: {reason}; leave it out")
        end = total if is_last else _step(stage.get(UNTIL), total, key)
        before = ends[-1] if ends else 0
        if not before < end <= total - (not is_last):
            expected = f"expected more than {before}, and less than training.steps {total}"
            raise UserError(BAD_CONFIG, f"{key}: got {stage.get(UNTIL, end)!r}, {expected}")
        ends.append(end)
    if config.data.epochs:
        reason = "the stages say how long a run is"
        raise UserError(BAD_CONFIG, f"data.epochs: {reason}; set it to 0")
    return ends


def _step(until: Any, total: int, key: str) -> int:
    """Return the step that `until` means: a number of steps, or a share of all steps.

    >>> _step("12.5%", 1000, ""), _step(300, 1000, "")
    (125, 300)
    """
    expected = 'expected a step, or a share of all steps such as "80%"'
    if type(until) is int:
        return until
    if isinstance(until, str) and until.endswith("%"):
        try:
            return round(float(until.removesuffix("%")) / 100 * total)
        except (ValueError, OverflowError):
            pass
    raise UserError(BAD_CONFIG, f"{key}: got {until!r}, {expected}")
