"""Train a run with stages: a chain of runs, each of which starts from the previous one.

    WORKDIR/stages/1  ─►  WORKDIR/stages/2  ─►  …  ─►  WORKDIR, the last stage

Every stage is an ordinary run in its own directory, so it can be read, verified, exported and
started from like any other.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from t5x_lite import storage
from t5x_lite.config import Data, RunConfig
from t5x_lite.config.permission import grant
from t5x_lite.config.stages import each_stage, naming_stage, stages_of
from t5x_lite.data.rows.batches import TextData
from t5x_lite.data.rows.row_plan import RowPlan
from t5x_lite.data.store.corpus import Corpus
from t5x_lite.data.store.prepare import prepare
from t5x_lite.progress import messages_to, say, silent
from t5x_lite.resolve import Resolved, plan_objective, resolve, text_data
from t5x_lite.training import loop, run_directory, starting
from t5x_lite.training.conversions import between, renaming
from t5x_lite.training.program import check_head
from t5x_lite.training.schedules import depends_on_end


class Stage(NamedTuple):
    """One stage of a run, which is itself a run."""

    resolved: Resolved
    data: TextData
    directory: Path

    @property
    def steps(self) -> int:
        """Number of steps of this stage."""
        config = self.resolved.config
        return config.training.steps - config.start.step

    @property
    def saved_steps(self) -> list[int]:
        """The steps of the stage's checkpoints."""
        return run_directory.saved_steps(self.directory / "checkpoints")

    @property
    def raw_tokens(self) -> int:
        """Number of tokens of text that this stage reads."""
        return round(self.steps * self.data.batches("train").raw_tokens)


def directories_of(workdir: Path, stages: int) -> list[Path]:
    """Return the directory of each stage of the run in `workdir`."""
    return [*(workdir / "stages" / str(number) for number in range(1, stages)), workdir]


def address_of(directory: Path) -> str:
    """Return the address of a run, for init_from."""
    return str(storage.durable_path(directory.resolve()))


def plan_stages(
    config: RunConfig,
    directories: Sequence[Path],
    plans: Sequence[RowPlan] = (),
    corpus_of: Callable[[Data], Corpus] = prepare,
) -> list[Stage]:
    """Prepare the text of all stages, and fill in the settings that follow from the text and the
    models.

    Args:
        config: the config of a run; without stages, the run is its only stage.
        directories: where each stage is trained.
        plans: the rows of each stage, if they are planned already.
        corpus_of: prepares the text of a stage.

    Raises:
        UserError: for a stage that cannot be trained, or cannot start from the previous one.
    """
    # Each stage is a config of its own, which starts from the directory of the previous one.
    places = [address_of(directory) for directory in directories]
    configs = stages_of(config, places)
    plans = plans or each_stage(config, plan_objective)
    configs = _with_one_order(configs, plans)
    planned: list[Stage] = []
    read: dict[tuple[str, ...], int] = {}  # text → raw tokens of it that the stages so far read
    for number, (of_stage, directory) in enumerate(zip(configs, directories, strict=True)):
        with naming_stage(config, number):
            corpus = corpus_of(of_stage.data)
            resolved = resolve(of_stage, corpus.tokenizer.vocabulary, plans[number])
            check_head(resolved)
            if of_stage.start.schedule_end and not depends_on_end(of_stage.optimizer):
                # The schedule of this stage does not depend on where the run ends.
                resolved = _with_start(resolved, schedule_end=0)
            # Fill in what follows from the previous stage, and check that this one can start there.
            if planned:
                resolved = _after(planned[-1], resolved, corpus, read)
                before, directory_before = planned[-1].resolved, planned[-1].directory
                tokenizer = planned[-1].data.tokenizer
                starting.check_start(
                    resolved, corpus.tokenizer, directory_before, before, tokenizer
                )
            # Record how far this text is read: a later stage on it continues there.
            stage = Stage(resolved, text_data(resolved, corpus), directory)
            text = _text_of(corpus)
            read[text] = read.get(text, 0) + stage.raw_tokens
            planned.append(stage)
    return planned


def _with_one_order(configs: Sequence[RunConfig], plans: Sequence[RowPlan]) -> Sequence[RunConfig]:
    """Make all stages shuffle the same blocks of text, so that each continues in the order of the
    previous one, even if their windows differ.
    """
    # Blocks of the longest window hold the windows of all stages.
    windows = {member.window for plan in plans for member in plan.members}
    if len(configs) == 1 or len(windows) == 1:
        return configs
    block = max(windows)
    return [
        replace(config, data=replace(config.data, block=config.data.block or block))
        for config in configs
    ]


def _text_of(corpus: Corpus) -> tuple[str, ...]:
    """Return a key for the text of a stage: equal if text and tokenizer are the same."""
    return json.dumps(corpus.manifest["train"], sort_keys=True), corpus.manifest["tokenizer"]


def _with_start(resolved: Resolved, **settings: Any) -> Resolved:
    start = replace(resolved.config.start, **settings)
    return replace(resolved, config=replace(resolved.config, start=start))


def _after(
    before: Stage, resolved: Resolved, corpus: Corpus, read: Mapping[tuple[str, ...], int]
) -> Resolved:
    """Fill in the settings of a stage that follow from the previous one.

    Args:
        read: text → raw tokens of it that the earlier stages have read.
    """
    # From one architecture to another there is one conversion, unless the config names its own.
    start, old = resolved.config.start, before.resolved
    convert = start.convert or between(old.model, resolved.model)
    # Keep the optimizer state if both stages have the same optimizer and the same parameters.
    goes_on = (
        start.takes_optimizer
        and old.config.optimizer.name == resolved.config.optimizer.name
        and old.config.optimizer.average == resolved.config.optimizer.average
        and old.config.adapt == resolved.config.adapt == "full"
        and renaming(convert, old.model, resolved.model) is not None
    )
    return _with_start(
        resolved,
        convert=convert,
        optimizer_step=old.config.start.optimizer_step if goes_on else start.step,
        raw_tokens=sum(read.values()),
        skip_tokens=read.get(_text_of(corpus), 0),
    )


def train_stages(
    stages: Sequence[Stage],
    on_log: Callable[[dict], None] | None = None,
    take_over: bool = False,
    change: bool = False,
) -> None:
    """Train one stage after the other, each from the end of the previous one. Stages that are done
    are not touched. For the arguments see loop.train.

    Raises:
        UserError: see loop.train. A stage that cannot be trained is rejected before any is trained.
    """
    loop.setup_jax(stages[-1].resolved.model.dtype)
    # Permit only the runs that stages start from. The rest of the workdir stays closed, since the
    # config may be data.
    grant(places=[address_of(stage.directory) for stage in stages[:-1]])
    # Reject a bad stage now, not after hours of training the stages before it.
    if len(stages) > 1:
        run_directory.check_is_free(stages[-1].directory)
        for stage in stages:
            run = loop.Run(stage.resolved, stage.data)  # rejects a run that cannot work
            with messages_to(silent):
                config = run.resolved.config
                run_directory.check_same_run(stage.directory, config, run.batches, change)
    # If a stage has begun, all stages before it are done, even if their directories were removed.
    begun = [number for number, stage in enumerate(stages) if stage.saved_steps]
    first = begun[-1] if begun else 0
    if first < len(stages) - 1 and stages[first].resolved.steps in stages[first].saved_steps:
        first += 1
    for number, (resolved, data, directory) in enumerate(stages):
        if len(stages) > 1:
            done = ": done" if number < first else ""
            objective = resolved.config.objective
            say(f"stage {number + 1} of {len(stages)}: {objective}, in {directory}{done}")
        if number >= first:
            loop.train(resolved, data, directory, on_log, take_over=take_over, change=change)


def train_config(
    config: RunConfig,
    workdir: Path,
    plans: Sequence[RowPlan] = (),
    on_log: Callable[[dict], None] | None = None,
    take_over: bool = False,
    change: bool = False,
) -> None:
    """Train the run that a config describes in `workdir`, stage by stage if it has stages. For the
    arguments see plan_stages and loop.train.
    """
    stages = plan_stages(config, directories_of(workdir, max(len(config.stages), 1)), plans)
    train_stages(stages, on_log, take_over, change)
