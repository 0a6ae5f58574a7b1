"""The cells of a comparison, planned: what a step of each costs, how many its budget buys, and the
runs that are to be made. What cannot be run is refused here, before anything is trained.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from t5x_lite.compare.budget import (
    StepCost,
    Timings,
    matmul_rate,
    spent,
    step_cost,
    steps_of_cells,
    with_budget,
)
from t5x_lite.compare.evaluations import Questions, check_tasks
from t5x_lite.compare.span_bits import (
    Span,
    draw_spans,
    shortened,
    validation_documents,
)
from t5x_lite.config import CompareConfig, RunConfig
from t5x_lite.config.files import load_run_config
from t5x_lite.config.grammar import AllowedCode
from t5x_lite.data.rows.batches import TextData
from t5x_lite.data.rows.streams import TextStream
from t5x_lite.data.store.corpus import Corpus
from t5x_lite.data.store.prepare import prepare
from t5x_lite.errors import BAD_CONFIG, USAGE, UserError, nearest
from t5x_lite.model.check import plan_objective_checked
from t5x_lite.report.page import short
from t5x_lite.resolve import Resolved, resolve, text_data

Say = Callable[[str], None]


class Cell(NamedTuple):
    """One cell of a comparison, planned."""

    name: str
    resolved: Resolved  # of its first seed, with the steps that the budget buys
    data: TextData
    cost: StepCost  # of a step
    seconds: float  # that a step takes here, measured; or at least, if it is only to be told
    baseline: str  # the cell that it is compared with: the first of the same budget

    @property
    def corpus(self) -> Corpus:
        """The text that it reads."""
        return self.data.corpus

    @property
    def total(self) -> dict[str, float]:
        """What the whole run spends."""
        steps = self.resolved.config.training.steps
        return {unit: steps * amount for unit, amount in spent(self.cost, self.seconds).items()}


class SeededRun(NamedTuple):
    """A cell with one seed: an ordinary run."""

    cell: Cell
    seed: int
    directory: Path

    @property
    def name(self) -> str:
        """That of its directory."""
        return self.directory.name

    @property
    def resolved(self) -> Resolved:
        """Its config, with everything derived."""
        config = dataclasses.replace(self.cell.resolved.config, seed=self.seed)
        return dataclasses.replace(self.cell.resolved, config=config)

    @property
    def data(self) -> TextData:
        """What it reads, in the order of its seed."""
        return dataclasses.replace(self.cell.data, seed=self.seed)


def plan_cells(
    config: CompareConfig,
    workdir: Path,
    say: Say = print,
    allowed: AllowedCode = None,
    measured: bool = False,
) -> list[Cell]:
    """Every cell with its steps; what cannot be run is refused before anything is trained.

    Args:
        measured: whether a step of each is timed, which compiles it, though no step depends on it.
    """
    cells = with_shared_block(config.cells, allowed)
    seeds = {cell.seed for cell in cells.values()}
    if len(seeds) > 1:
        reason = f"cells differ in it ({sorted(seeds)}), and so in the order of their text"
        raise UserError(BAD_CONFIG, f"seed: {reason}; set the base's, and seeds for several")
    resolved, data, costs = {}, {}, {}
    for name, cell in cells.items():
        if cell.task.name:
            raise UserError(BAD_CONFIG, f"cells.{name}.task: cells learn objectives; leave it out")
        if cell.data.epochs:
            reason = "the budget says how long a cell is trained; leave it out"
            raise UserError(BAD_CONFIG, f"cells.{name}.data.epochs: {reason}")
        corpus = prepare(cell.data, say, allowed)
        resolved[name] = resolve(cell, corpus.tokenizer.vocabulary, allowed=allowed)
        data[name] = text_data(resolved[name], corpus)
        costs[name] = step_cost(resolved[name], data[name])
    _check_texts(config, resolved, data)

    timings = Timings(workdir / "seconds_per_step.json")
    seconds = {}
    for name in cells:
        if measured or config.match == "seconds":
            announce = partial(say, f"{name}: measuring a step")
            seconds[name] = timings.of(resolved[name], data[name], announce)
        else:
            seconds[name] = costs[name].flops / matmul_rate(resolved[name].model.dtype)
    spent_by_cell = {name: spent(costs[name], seconds[name]) for name in cells}
    planned = []
    for budget in config.budgets or (config.budget,):
        steps = steps_of_cells(config, budget, spent_by_cell)
        suffix = _suffix(config, budget)
        baseline = next(iter(cells)) + suffix
        for name, cell in cells.items():
            budgeted = with_budget(cell, steps[name], config.evaluations)
            of_cell = dataclasses.replace(resolved[name], config=budgeted, steps=steps[name])
            of_data = dataclasses.replace(data[name], data=budgeted.data)
            planned.append(
                Cell(name + suffix, of_cell, of_data, costs[name], seconds[name], baseline)
            )
    return planned


def names_of_cells(config: CompareConfig) -> list[str]:
    """The names of all cells, each under each budget."""
    budgets = config.budgets or (config.budget,)
    return [name + _suffix(config, budget) for budget in budgets for name in config.cells]


def _suffix(config: CompareConfig, budget: float) -> str:
    return f"-{short(budget).replace(' ', '')}" if config.budgets else ""


def plan_comparison(
    config: CompareConfig,
    workdir: Path,
    say: Say = print,
    allowed: AllowedCode = None,
    only: Sequence[str] = (),
    measured: bool = False,
) -> tuple[list[Cell], list["SeededRun"], Questions]:
    """All that is planned and refused before anything is trained; see plan_cells and compare."""
    cells = plan_cells(config, workdir, say, allowed, measured)
    runs = seeded_runs(config, cells, workdir)
    known = dict.fromkeys(name for run in runs for name in (run.cell.name, run.name))
    for name in only:
        if name not in known:
            raise UserError(USAGE, f"--cells={name}: no such cell; {nearest(name, known)}")
    for run in runs:
        _check_same_budget(run)
    questions = questions_of(config, cells)
    check_tasks(questions, {cell.name: cell.resolved.config for cell in cells}, say, allowed)
    return cells, runs, questions


def _check_same_budget(run: SeededRun) -> None:
    """Refuse a run that was begun with another number of steps: its schedule was another."""
    path = run.directory / "config.json"
    if not path.exists():
        return
    before, now = (config.training.steps for config in (load_run_config(path), run.resolved.config))
    if before != now:
        reason = f"it was planned for {before:,} steps, now for {now:,}"
        mend = "give the budget that it was begun with, or name another --workdir"
        raise UserError(BAD_CONFIG, f"budget: the run in {run.directory}: {reason}; {mend}")


def with_shared_block(
    cells: dict[str, RunConfig], allowed: AllowedCode = None
) -> dict[str, RunConfig]:
    """The cells with one data.block, that of the longest window, so that all read the same text in
    the same order, whatever their windows are.
    """
    plans = [plan_objective_checked(cell, allowed) for cell in cells.values()]
    windows = {member.window for plan in plans for member in plan.members}
    block = max(windows) if len(windows) > 1 else 0
    shared = {}
    for name, cell in cells.items():
        data = dataclasses.replace(cell.data, block=cell.data.block or block)
        shared[name] = dataclasses.replace(cell, data=data)
    return shared


def _check_texts(
    config: CompareConfig, resolved: dict[str, Resolved], data: dict[str, TextData]
) -> None:
    """Refuse, before hours of training, texts that no model could answer."""
    for key in ("blanks", "spans", "prompts"):
        for text in getattr(config, key):
            needs_blank = key != "prompts"
            if not isinstance(text, str) or not text or (needs_blank and "___" not in text):
                expected = "a text with ___" if needs_blank else "a text"
                raise UserError(BAD_CONFIG, f"{key}: got {text!r}, expected {expected}")
            for name, of_cell in resolved.items():
                lengths = of_cell.config.data.lengths
                room = max(lengths.sequence_length, lengths.inputs)
                if len(data[name].tokenizer.encode(text)) + 4 > room:
                    reason = f"is longer than a row of {name}, {room} tokens"
                    raise UserError(BAD_CONFIG, f"{key}: {text!r} {reason}; shorten it")


def seeded_runs(config: CompareConfig, cells: Sequence[Cell], workdir: Path) -> list[SeededRun]:
    """Every cell with every seed: the first seed of all cells first."""
    runs = []
    for number in range(config.seeds):
        for cell in cells:
            seed = cell.resolved.config.seed + number
            name = f"{cell.name}-seed{seed}" if number else cell.name
            runs.append(SeededRun(cell, seed, workdir / name))
    names = [run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise UserError(BAD_CONFIG, f"cells: two runs would be called {name}; rename one")
    return runs


def order_of_text(cell: Cell) -> dict[str, Any]:
    """What decides which tokens a cell reads, in which order: alike in all cells, unless their axes
    are of the data.
    """
    batches = cell.data.batches("train")
    shares: dict[str, float] = {}
    blocks = set()
    for stream, share in zip(batches.streams, batches.shares.tolist(), strict=True):
        if isinstance(stream, TextStream):
            blocks.add(stream.block or 0)
            shares[stream.source] = round(shares.get(stream.source, 0.0) + share, 4)
    return {
        "tokenizer": cell.corpus.manifest["tokenizer"],
        "training text": cell.corpus.manifest["train"]["sha256"],
        "validation text": cell.corpus.manifest["validation"]["sha256"],
        "shares of the sources": shares,
        "data.block": sorted(blocks),
    }


def plan_in_words(config: CompareConfig, cells: Sequence[Cell], at_least: bool = False) -> str:
    """The parity sheet, with the time and the disk that all runs will take.

    Args:
        at_least: whether the time is that of the matrix products alone.
    """
    time = "time, at least" if at_least else "time"
    rows = [["cell", "parameters", "steps", "raw tokens", "model tokens", "FLOPs", "padding", time]]
    for cell in cells:
        total = cell.total
        spent = [short(total[unit]) for unit in ("raw_tokens", "model_tokens", "flops")]
        rows.append(
            [
                cell.name,
                short(cell.cost.parameters),
                f"{total['steps']:,.0f}",
                *spent,
                f"{cell.cost.padding:.1%}",
                _duration(total["seconds"]),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *others = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        lines.append("  ".join([first, *(text.strip().rjust(len(text)) for text in others)]))
    seconds = config.seeds * sum(cell.total["seconds"] for cell in cells)
    # A checkpoint is written beside the one before, which then goes.
    disk = config.seeds * sum(cell.cost.state_bytes for cell in cells)
    matched = f"matched by {config.match.replace('_', ' ')}"
    duration = f"at least {_duration(seconds)}" if at_least else _duration(seconds)
    lines.append(
        f"{matched}; {len(cells)} cells × {config.seeds} seeds: {duration} of training, "
        f"{disk / 1e6:,.0f} MB of checkpoints"
    )
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> _duration(42), _duration(600), _duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def questions_of(config: CompareConfig, cells: Sequence[Cell]) -> Questions:
    """What all runs are asked."""
    objectives = dict.fromkeys(cell.resolved.config.objective for cell in cells)
    return Questions(
        spans=spans_of(config, cells),
        objectives=tuple(objectives) if config.other_objectives else (),
        tasks=config.tasks,
        settings=config.finetune,
        from_scratch=config.from_scratch,
    )


def spans_of(config: CompareConfig, cells: Sequence[Cell]) -> list[Span]:
    """The held-out spans that all models are asked for: of the validation text of the first cell,
    with as much around them as the rows of all have room for.
    """
    if not config.span_count:
        return []
    documents = validation_documents(cells[0].corpus)
    spans = draw_spans(documents, config.span_count, config.span_context)
    rows = {
        (cell.data.tokenizer, cell.resolved.config.data.lengths): None for cell in cells
    }  # most cells share theirs
    fitting = shortened(spans, list(rows))
    if not fitting:
        reason = "no document has ten words of which a span fits the rows of all cells"
        fix = "give longer ones or longer rows, or set it to 0"
        raise UserError(BAD_CONFIG, f"span_count: {reason}; {fix}")
    return fitting
