"""Plan the cells of a comparison: the cost of a step, the steps that the budget buys, and the runs
to make. Anything that cannot be run is rejected here, before training starts.
"""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from t5x_lite.comparison.adaptation import check_adaptation, plan_adaptation
from t5x_lite.comparison.budget import (
    StepCost,
    Timings,
    inherited,
    matmul_rate,
    spent,
    step_cost,
    steps_of_cells,
    with_budget,
)
from t5x_lite.comparison.evaluations import Questions, check_tasks, fingerprints
from t5x_lite.comparison.scores import ADAPTED, FROM_SCRATCH, SCORES, name_of_task_score
from t5x_lite.comparison.span_bits import (
    Span,
    draw_spans,
    shortened,
    validation_documents,
)
from t5x_lite.comparison.writing import GivenTexts
from t5x_lite.config import CompareConfig, RunConfig, to_dict
from t5x_lite.config.files import flatten, load_run_config
from t5x_lite.config.grammar import quoted
from t5x_lite.config.roles import BUDGET, settings_with
from t5x_lite.config.schema import TRUNKS
from t5x_lite.config.stages import each_stage
from t5x_lite.data.objectives.mixture import members_of
from t5x_lite.data.rows.batches import TextData
from t5x_lite.data.rows.streams import TextStream
from t5x_lite.data.store.corpus import Corpus
from t5x_lite.data.tasks.kinds.table import metrics_of
from t5x_lite.data.tasks.load import load_task
from t5x_lite.errors import BAD_CONFIG, USAGE, UserError, nearest
from t5x_lite.model.check import plan_objective_checked
from t5x_lite.progress import columns, say
from t5x_lite.report.page import short
from t5x_lite.report.papers import check_papers
from t5x_lite.resolve import Resolved
from t5x_lite.training.check import check_training
from t5x_lite.training.checkpoint import KEPT
from t5x_lite.training.stages import Stage, address_of, plan_stages
from t5x_lite.training.starting import check_init_from

# The smallest share of the longest window that all cells' windows may be shortened to
_SHORTEST_WINDOW = 0.9


class Cell(NamedTuple):
    """One cell of a comparison, with its cost and the steps that the budget buys.

    Attributes:
        config: settings of its first seed, with the steps that the budget buys.
        stages: its stages, with the settings of the first seed; a single one if the config has no
            stages.
        costs: mean cost of a step of each stage.
        seconds_per_step: seconds per step of each stage: measured on this machine, or a lower bound
            if no step count depends on them.
        baseline: name of the cell that it is compared with: the first one under the same budget.
    """

    name: str
    config: RunConfig
    stages: tuple[Stage, ...]
    costs: tuple[StepCost, ...]
    seconds_per_step: tuple[float, ...]
    baseline: str

    @property
    def resolved(self) -> Resolved:
        """Resolved settings of the last stage, whose model is the one that is compared."""
        return self.stages[-1].resolved

    @property
    def data(self) -> TextData:
        """The text of the last stage, as the model reads it."""
        return self.stages[-1].data

    @property
    def cost(self) -> StepCost:
        """Cost of one step of the last stage."""
        return self.costs[-1]

    @property
    def corpus(self) -> Corpus:
        """The corpus of the last stage."""
        return self.data.corpus

    @property
    def inherited(self) -> Mapping[str, float]:
        """Amount spent on the model that the cell starts from, in each unit."""
        return inherited(self.stages[0].resolved.config)

    @property
    def total(self) -> dict[str, float]:
        """Total amount that one run of the cell spends on its stages, in each unit."""
        total: dict[str, float] = {}
        for stage, cost, seconds in zip(
            self.stages, self.costs, self.seconds_per_step, strict=True
        ):
            for unit, amount in spent(cost, seconds).items():
                total[unit] = total.get(unit, 0.0) + stage.steps * amount
        return total

    @property
    def loss_tokens(self) -> float:
        """Number of tokens that one run of the cell predicts."""
        of_stages = zip(self.stages, self.costs, strict=True)
        return sum(stage.steps * cost.loss_tokens for stage, cost in of_stages)

    @property
    def epochs(self) -> float:
        """Epochs of the last stage's text that one run of the cell reads, in all its stages."""
        text = self.corpus.manifest["train"]
        of_stages = zip(self.stages, self.costs, strict=True)
        return sum(
            stage.steps * cost.raw_tokens / text["tokens"]
            for stage, cost in of_stages
            if stage.data.corpus.manifest["train"] == text
        )

    def with_config(self, config: RunConfig) -> "Cell":
        """Return the cell with other settings that cost the same."""
        directories = [stage.directory for stage in self.stages]
        stages = tuple(plan_stages(config, directories))
        return self._replace(config=config, stages=stages)


class SeededRun(NamedTuple):
    """A cell with one seed: an ordinary training run in its own directory.

    Attributes:
        trunks: directories of the stages before the last, which other runs may share.
    """

    cell: Cell
    seed: int
    directory: Path
    trunks: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        """Name of the run's directory."""
        return self.directory.name

    @property
    def stages(self) -> list[Stage]:
        """The stages of the cell, with the seed of this run."""
        stages = []
        for stage, directory in zip(self.cell.stages, (*self.trunks, self.directory), strict=True):
            config = dataclasses.replace(stage.resolved.config, seed=self.seed)
            if stages:
                config = dataclasses.replace(config, init_from=address_of(stages[-1].directory))
            resolved = dataclasses.replace(stage.resolved, config=config)
            data = dataclasses.replace(stage.data, seed=self.seed)
            stages.append(Stage(resolved, data, directory))
        return stages

    @property
    def resolved(self) -> Resolved:
        """Resolved settings of the last stage, with the seed of this run."""
        return self.stages[-1].resolved


def plan_cells(
    config: CompareConfig,
    workdir: Path,
    measured: bool = False,
) -> list[Cell]:
    """Return every cell with its cost and its number of steps, under each budget.

    Args:
        measured: True to time a step of each cell, which compiles it, even if no number of steps
            depends on the time.

    Raises:
        UserError: for anything that cannot be run.
    """
    cells = comparable_cells(config)

    # Prepare the text of each cell and count what a step costs.
    stages, costs = {}, {}
    for name, cell in cells.items():
        stages[name] = plan_stages(cell, _directories(workdir, name, cell))
        first = stages[name][0]
        check_init_from(first.resolved, first.data.tokenizer)
        costs[name] = tuple(step_cost(stage.resolved, stage.data) for stage in stages[name])
    _check_texts(config, {name: of_cell[-1] for name, of_cell in stages.items()})

    is_timed = measured or config.match == "seconds"
    seconds = _seconds_per_step(stages, costs, workdir, is_timed)

    # Find the number of steps of each cell under each budget.
    spent_by_cell = {
        name: [spent(*of_stage) for of_stage in zip(costs[name], seconds[name], strict=True)]
        for name in cells
    }
    inherited_by_cell = {name: inherited(cell) for name, cell in cells.items()}
    planned = []
    for budget in config.budgets or (config.budget,):
        steps = steps_of_cells(config, budget, spent_by_cell, inherited_by_cell)
        suffix = _suffix(config, budget)
        baseline = next(iter(cells)) + suffix
        for name, cell in cells.items():
            budgeted = with_budget(cell, steps[name], config.evaluations, config.score_curves)
            of_cell = plan_stages(budgeted, _directories(workdir, name + suffix, cell))
            # Where an objective's options change during the run, the mean cost of a step depends on
            # the number of steps, so it is counted again.
            costs_now = tuple(step_cost(stage.resolved, stage.data) for stage in of_cell)
            planned.append(
                Cell(name + suffix, budgeted, tuple(of_cell), costs_now, seconds[name], baseline)
            )
    return planned


def comparable_cells(config: CompareConfig) -> dict[str, RunConfig]:
    """Return the cells, such that all read the same text in the same order. No text is needed.

    Raises:
        UserError: for cells that cannot be compared.
    """
    if config.equal_windows:
        cells = with_equal_windows(config.cells)
    else:
        cells = with_shared_block(config.cells)
    seeds = {cell.seed for cell in cells.values()}
    if len(seeds) > 1:
        reason = f"cells have different seeds ({sorted(seeds)}), so different orders of the text"
        fix = "set one seed in the base; for several seeds per cell, set seeds"
        raise UserError(BAD_CONFIG, f"seed: {reason}; {fix}")
    for name, cell in cells.items():
        if cell.task.name:
            raise UserError(BAD_CONFIG, f"cells.{name}.task: cells learn objectives; leave it out")
        if cell.data.epochs:
            reason = "the budget says how long a cell is trained; leave it out"
            raise UserError(BAD_CONFIG, f"cells.{name}.data.epochs: {reason}")
    return cells


def _seconds_per_step(
    stages: Mapping[str, Sequence[Stage]],
    costs: Mapping[str, Sequence[StepCost]],
    workdir: Path,
    is_timed: bool,
) -> dict[str, tuple[float, ...]]:
    """Return the seconds per step, by cell and stage.

    They are measured if `is_timed`. Otherwise only the matrix products are counted, which gives a
    lower bound that is quick to estimate.
    """
    timings = Timings(workdir / "seconds_per_step.json")
    seconds = {}
    for name, of_cell in stages.items():
        if is_timed:
            announce = partial(say, f"{name}: measuring a step")
            seconds[name] = tuple(
                timings.of(stage.resolved, stage.data, announce) for stage in of_cell
            )
        else:
            rate = matmul_rate(of_cell[-1].resolved.model.dtype)
            seconds[name] = tuple(cost.flops / rate for cost in costs[name])
    return seconds


def _directories(workdir: Path, name: str, config: RunConfig) -> list[Path]:
    """Return the directories of a run's stages, assuming that it shares none with other runs."""
    trunks = [workdir / TRUNKS / f"{name}-{number + 1}" for number in range(len(config.stages) - 1)]
    return [*trunks, workdir / name]


def names_of_cells(config: CompareConfig) -> list[str]:
    """Return the name of every cell under every budget."""
    return [name for of_budget in names_by_budget(config).values() for name in of_budget.values()]


def names_by_budget(config: CompareConfig) -> dict[float, dict[str, str]]:
    """Return the names of cells: budget → name in the config → name under this budget."""
    budgets = config.budgets or (config.budget,)
    return {
        budget: {name: name + _suffix(config, budget) for name in config.cells}
        for budget in budgets
    }


def _suffix(config: CompareConfig, budget: float) -> str:
    """Return the suffix of a cell's name that states its budget; empty if there is only one."""
    return f"-{short(budget).replace(' ', '')}" if config.budgets else ""


def plan_comparison(
    config: CompareConfig,
    workdir: Path,
    only: Sequence[str] = (),
    measured: bool = False,
) -> tuple[list[Cell], list["SeededRun"], Questions]:
    """Return the cells, the runs and the extra evaluations of a comparison, after all checks.

    Nothing is trained. For the arguments see plan_cells and compare.

    Raises:
        UserError: for anything that cannot be run, and for names in `only` that do not exist.
    """
    check_papers(config.papers)
    cells = plan_cells(config, workdir, measured)
    runs = seeded_runs(config, cells, workdir)
    known = dict.fromkeys(name for run in runs for name in (run.cell.name, run.name))
    for name in only:
        if name not in known:
            raise UserError(USAGE, f"--cells={name}: no such cell; {nearest(name, known)}")
    for run in runs:
        _check_same_budget(run)
    questions = questions_of(config, cells)
    _check_decide_by(config)
    check_tasks(questions, {cell.name: cell.resolved.config for cell in cells})
    check_adaptation(
        questions.adaptation,
        {cell.name: (cell.resolved.config, cell.data.tokenizer.vocabulary) for cell in cells},
    )
    return cells, runs, questions


def _check_decide_by(config: CompareConfig) -> None:
    """Reject a name that no score can have, before anything is trained."""
    names = [name for name in SCORES if name != ADAPTED or config.adapt_tokens]
    for task in map(load_task, config.tasks):
        name = name_of_task_score(task.name, metrics_of(task)[0])
        names += [name, name + FROM_SCRATCH]
    if config.decide_by and config.decide_by not in names:
        hint = nearest(config.decide_by, names)
        raise UserError(BAD_CONFIG, f"decide_by: got {config.decide_by!r}; {hint}")


def _check_same_budget(run: SeededRun) -> None:
    """Reject a run that was started with another number of steps and so has another schedule."""
    path = run.directory / "config.json"
    if not path.exists():
        return
    before, now = (config.training.steps for config in (load_run_config(path), run.resolved.config))
    if before != now:
        reason = f"it was planned for {before:,} steps, now for {now:,}"
        mend = "give the budget that it was started with, or name another --workdir"
        raise UserError(BAD_CONFIG, f"budget: the run in {run.directory}: {reason}; {mend}")


def with_equal_windows(cells: dict[str, RunConfig]) -> dict[str, RunConfig]:
    """Give all cells the same window: the largest that fits the rows of every cell.

    If one cell's window were a token shorter, most of its rows would cross from one shuffled block
    into the next and lose context, while the rows of the other cells would not. Cells whose windows
    are already equal stay unchanged.

    Raises:
        UserError: if a cell's window would lose more than a tenth of its tokens, because this
            should not happen unnoticed.
    """
    windows = _windows_of(cells)
    # All rows of a mixture have one shape, which holds more text for some objectives than others.
    longest = max(map(min, windows))
    equal = cells
    while len(set(itertools.chain(*windows))) > 1:
        # Some objectives take only even windows, for example, so the shortest may not suit all.
        window = min(itertools.chain(*windows))
        equal = {
            name: dataclasses.replace(cell, data=dataclasses.replace(cell.data, window=window))
            for name, cell in cells.items()
        }
        windows = _windows_of(equal)
    shortest = min(itertools.chain(*windows))
    if shortest < _SHORTEST_WINDOW * longest:
        reason = f"their rows have room for different windows, {shortest} to {longest} raw tokens"
        fix = "choose data.lengths for similar windows, or set equal_windows=False to keep them"
        raise UserError(BAD_CONFIG, f"cells: {reason}; {fix}")
    return equal


def with_shared_block(cells: dict[str, RunConfig]) -> dict[str, RunConfig]:
    """Give all cells the same data.block, so that they read the same text in the same order.

    The block is as long as the longest window. Cells whose windows are all equal need none, and a
    data.block that is set is kept.
    """
    windows = set(itertools.chain(*_windows_of(cells)))
    block = max(windows) if len(windows) > 1 else 0
    shared = {}
    for name, cell in cells.items():
        data = dataclasses.replace(cell.data, block=cell.data.block or block)
        shared[name] = dataclasses.replace(cell, data=data)
    return shared


def _windows_of(cells: Mapping[str, RunConfig]) -> list[list[int]]:
    """Return the raw tokens in the windows of the objectives of each stage of each cell."""
    windows = []
    for cell in cells.values():
        each_stage(cell, check_training)
        for plan in each_stage(cell, plan_objective_checked):
            windows.append([member.window for member in plan.members])
    return windows


def _check_texts(config: CompareConfig, stages: Mapping[str, Stage]) -> None:
    """Reject example texts that are too long or lack a blank, before hours of training."""
    for key in GivenTexts._fields:
        texts = getattr(config, key)
        for text in texts:
            if texts.count(text) > 1:
                raise UserError(BAD_CONFIG, f"{key}: got {quoted(text)} twice; leave one out")
            needs_blank = key != "prompts"
            if not text or (needs_blank and "___" not in text):
                expected = "a text with ___" if needs_blank else "a text"
                raise UserError(BAD_CONFIG, f"{key}: got {quoted(text)}, expected {expected}")
            for name, stage in stages.items():
                lengths = stage.resolved.config.data.lengths
                room = max(lengths.sequence_length, lengths.inputs)
                if len(stage.data.tokenizer.encode(text)) + 4 > room:
                    reason = f"is longer than a row of {name}, {room} tokens"
                    raise UserError(BAD_CONFIG, f"{key}: {quoted(text)} {reason}; shorten it")


def seeded_runs(config: CompareConfig, cells: Sequence[Cell], workdir: Path) -> list[SeededRun]:
    """Return a run for every cell and seed, beginning with the first seed of every cell.

    Raises:
        UserError: if two runs would have the same name.
    """
    runs = []
    known: dict[str, Path] = {}
    for number in range(config.seeds):
        for cell in cells:
            seed = cell.resolved.config.seed + number
            name = f"{cell.name}-seed{seed}" if number else cell.name
            runs.append(SeededRun(cell, seed, workdir / name, _trunks(cell, seed, name, known)))
    names = [run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise UserError(BAD_CONFIG, f"cells: two runs would be called {name}; rename one")
    return runs


def _trunks(cell: Cell, seed: int, name: str, known: dict[str, Path]) -> tuple[Path, ...]:
    """Return the directories of all stages of a run except the last.

    Runs that begin with the same stages share their directories, so that these are trained once.

    Args:
        known: everything that determines a sequence of stages → its directory; updated in place.
    """
    trunks = []
    stages: list[Any] = [seed]
    for number, stage in enumerate(cell.stages[:-1], 1):
        stages.append(_decides_parameters(stage, is_first=number == 1))
        own = stage.directory.parent / f"{name}-{number}"
        trunks.append(known.setdefault(json.dumps(stages, sort_keys=True), own))
    return tuple(trunks)


def _decides_parameters(stage: Stage, is_first: bool) -> dict[str, Any]:
    """Return everything that determines the parameters at the end of a stage, given those at its
    beginning: the text, and every setting except how often it is evaluated and saved.
    """
    config = stage.resolved.config
    settings = flatten(to_dict(config))
    for key in settings_with(RunConfig, BUDGET):
        settings.pop(key, None)
    if not is_first:
        del settings["init_from"]  # the previous stage, wherever it is stored
    manifest = stage.data.corpus.manifest
    return settings | {
        "steps": config.training.steps,
        "start": to_dict(config.start),
        "text": [manifest["train"], manifest["tokenizer"]],
    }


def order_of_text(cell: Cell) -> dict[str, Any]:
    """Return everything that determines the token order of a cell.

    It is the same in all cells, unless they differ in settings of the data.
    """
    batches = cell.data.batches("train")
    shares: dict[str, float] = {}
    blocks = set()
    for stream, share in zip(batches.streams, batches.shares.tolist(), strict=True):
        if isinstance(stream, TextStream):
            blocks.add(stream.block or 0)
            shares[stream.source] = shares.get(stream.source, 0.0) + share
    return {
        "tokenizer": cell.corpus.manifest["tokenizer"],
        "training text": cell.corpus.manifest["train"]["sha256"],
        "validation text": cell.corpus.manifest["validation"]["sha256"],
        "shares of the sources": {source: round(share, 4) for source, share in shares.items()},
        "data.block": sorted(blocks),
    }


def plan_in_words(
    config: CompareConfig, cells: Sequence[Cell], tries: int = 0, at_least: bool = False
) -> str:
    """Return the parity sheet as text, with the time and disk space that all runs need.

    Args:
        tries: number of runs that tune the cells.
        at_least: True if the times are lower bounds, which count only the matrix products.
    """
    time = "time, at least" if at_least else "time"
    heading = ["cell", "parameters", "steps", "raw tokens", "epochs", "model tokens", "FLOPs"]
    rows = [[*heading, "padding", "rows cut", time]]
    for cell in cells:
        total = cell.total
        spent = [short(total[unit]) for unit in ("model_tokens", "flops")]
        rows.append(
            [
                cell.name,
                short(cell.cost.parameters),
                f"{total['steps']:,.0f}",
                short(total["raw_tokens"]),
                f"{cell.epochs:.1f}",
                *spent,
                f"{cell.cost.padding:.1%}",
                f"{cell.cost.rows_cut:.0%}",
                _duration(total["seconds"]),
            ]
        )
    lines = [columns(rows, "<" + ">" * (len(rows[0]) - 1))]
    seconds = config.seeds * sum(cell.total["seconds"] for cell in cells)
    runs_of_each = config.seeds + tries / len(cells)
    kept = KEPT + (config.evaluations if config.score_curves else 0)
    disk = runs_of_each * kept * sum(cell.cost.state_bytes for cell in cells)
    matched = f"matched by {config.match.replace('_', ' ')}"
    bound = "at least " if at_least else ""
    seeds_in_words = "1 seed" if config.seeds == 1 else f"{config.seeds} seeds"
    if config.max_seeds > config.seeds:
        seeds_in_words += f" (up to {config.max_seeds})"
    lines.append(
        f"{matched}; {len(cells)} cells × {seeds_in_words}: {bound}{_duration(seconds)} of "
        f"training, {disk / 1e6:,.0f} MB of checkpoints"
    )
    saved = seconds - config.seeds * _seconds_of_tree(config, cells)
    if saved > 0.01 * seconds:
        lines.append(
            f"stages that cells begin with are trained once: {bound}{_duration(saved)} less"
        )
    if tries:
        of_each = tries / len(cells) * config.tune_budget
        tuning = of_each * sum(cell.total["seconds"] for cell in cells)
        lines.append(
            f"tuning: {tries} tries with {config.tune_budget:g} of the budget each: "
            f"{bound}{_duration(tuning)}"
        )
    if config.adapt_tokens:
        read = f"{short(config.adapt_tokens)} raw tokens"
        lines.append(f"adaptation: {read} and a checkpoint more for each run that writes text")
    return "\n".join(lines)


def _seconds_of_tree(config: CompareConfig, cells: Sequence[Cell]) -> float:
    """Return the seconds that one seed of all cells takes, with shared stages trained once."""
    once = dataclasses.replace(config, seeds=1)
    stages = {}
    for run in seeded_runs(once, cells, Path()):
        places = (*run.trunks, run.directory)
        for place, stage, seconds in zip(
            places, run.cell.stages, run.cell.seconds_per_step, strict=True
        ):
            stages[place] = stage.steps * seconds
    return sum(stages.values())


def _duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours, as text.

    >>> _duration(42), _duration(600), _duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def questions_of(config: CompareConfig, cells: Sequence[Cell]) -> Questions:
    """Return the extra evaluations that every run gets."""
    # The validation of a mixture reads the whole text under each member, whatever their rates, so
    # members say more than mixtures.
    members = (members_of(cell.resolved.config.objective) for cell in cells)
    objectives = dict.fromkeys(itertools.chain.from_iterable(members))
    return Questions(
        spans=spans_of(config, cells),
        adaptation=plan_adaptation(config.adapt_tokens, [cell.data.plan for cell in cells]),
        objectives=tuple(objectives) if config.other_objectives else (),
        tasks=config.tasks,
        settings=config.finetune,
        grid=config.tune_finetune,
        from_scratch=config.from_scratch,
        given=GivenTexts(config.blanks, config.spans, config.prompts),
        curves=config.score_curves,
        fingerprints={task.name: fingerprints(task) for task in map(load_task, config.tasks)},
    )


def spans_of(config: CompareConfig, cells: Sequence[Cell]) -> list[Span]:
    """Return the held-out spans that all models are scored on.

    They are drawn from the validation text of the first cell, with as much text around them as
    fits the rows of every cell.

    Raises:
        UserError: if no span fits.
    """
    if not config.span_count:
        return []
    documents = validation_documents(cells[0].corpus)
    spans = draw_spans(documents, config.span_count, config.span_context)
    rows = {
        (cell.data.tokenizer, cell.resolved.config.data.lengths): None for cell in cells
    }  # without repeats: most cells share their tokenizer and lengths
    fitting = shortened(spans, list(rows))
    if not fitting:
        reason = "no document is long enough (ten words) for a span that fits every cell's rows"
        fix = "use longer documents or rows, or set it to 0"
        raise UserError(BAD_CONFIG, f"span_count: {reason}; {fix}")
    return fitting
