"""Cost of a training step of each cell in a comparison, and the number of steps that the budget
buys. Both are known before anything is trained.
"""

import dataclasses
import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, median
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from t5x_lite import storage
from t5x_lite.config import CompareConfig, Optimizer, RunConfig, Start, to_dict
from t5x_lite.config.stages import UNTIL, as_run, stages_of
from t5x_lite.data.rows.batches import TextData, ledger
from t5x_lite.errors import BAD_CONFIG, UserError, read_json
from t5x_lite.model.transformer import count_active_parameters, count_parameters
from t5x_lite.resolve import Resolved
from t5x_lite.training import chosen_checkpoint, loop, run_directory
from t5x_lite.training.log import read_metrics
from t5x_lite.training.loss import step_flops

_TIMED_STEPS = 5
_SAVES = 4  # checkpoints per run: a killed run loses at most about a quarter
_WRITTEN_RECORDS = 50  # approximate number of training records per run in metrics.jsonl


@dataclass(frozen=True)
class StepCost:
    """Cost of one training step of a cell."""

    rows: int  # sequences per batch
    parameters: int
    active_parameters: int  # parameters used for one token
    raw_tokens: float  # tokens of the text that are read
    model_tokens: float  # encoder and decoder positions, without padding
    loss_tokens: float  # tokens that are predicted
    flops: float
    padding: float  # share of the positions that are padding
    rows_cut: float  # share of the rows that cross from one shuffled block of text into another
    state_bytes: int  # size of a checkpoint: parameters and optimizer state

    @property
    def flops_per_sequence(self) -> float:
        """FLOPs per sequence: M in table 2 of Raffel et al. (2020), but counted, not estimated."""
        return self.flops / self.rows


def step_cost(resolved: Resolved, data: TextData) -> StepCost:
    """Count what one step costs, without running the model."""
    batches = data.batches("train")
    rows, row = batches.batch_size, ledger(batches)
    return StepCost(
        rows=rows,
        parameters=count_parameters(resolved.model),
        active_parameters=count_active_parameters(resolved.model),
        raw_tokens=rows * row.raw_tokens,
        model_tokens=rows * row.model_tokens,
        loss_tokens=rows * row.loss_tokens,
        flops=rows * step_flops(resolved, batches.shape, row.scored),
        padding=row.padding,
        rows_cut=row.cut,
        state_bytes=loop.state_sizes(resolved)[0],
    )


def inherited(config: RunConfig) -> Counter[str]:
    """Return what was spent on the model that a run starts from, in each unit of config.match.

    This includes the models that it in turn started from. A model that was not trained here counts
    as nothing.
    """
    total: Counter[str] = Counter()
    seen: set[Path] = set()
    while config.init_from:
        address = run_directory.base_of(config)
        directory = address.directory
        if directory.resolve() in seen:  # an imported model starts from itself
            break
        seen.add(directory.resolve())
        resolved, _ = run_directory.read(directory)
        config = resolved.config
        # What the run did after the checkpoint is not inherited.
        steps = chosen_checkpoint.step_of(address)
        records = [
            record
            for record in read_metrics(directory / "metrics.jsonl")
            if record["split"] == "train" and record["step"] <= steps
        ]
        if not records:
            continue
        last, rows, shape = records[-1], config.data.batch_size, resolved.rows.shape
        # Runs with a task head log labels instead of tokens.
        scored = mean(one.get("loss_tokens", one.get("loss_labels", 0)) for one in records) / rows
        # The counts of a stage include earlier stages, which are added in their own turn.
        start = config.start
        read = last.get("raw_tokens", 0) - start.raw_tokens
        steps -= start.step
        # The log has the model tokens of a step only as a rate.
        model_tokens = last["tokens_per_second"] * last["step_seconds"]
        total.update(
            steps=steps,
            raw_tokens=round(steps * read / (last["step"] - start.step)),
            model_tokens=round(steps * model_tokens),
            flops=round(steps * rows * step_flops(resolved, shape, scored)),
            seconds=sum(record.get("train_seconds", 0) for record in records),
        )
    return total


def seconds_per_step(resolved: Resolved, data: TextData) -> float:
    """Measure the seconds per step: the median of a few steps after the first, which compiles."""
    loop.setup_jax(resolved.model.dtype)
    run = loop.Run(resolved, data)
    seconds = []
    with run.within():
        state = run.fresh_state()
        for step in range(1 + _TIMED_STEPS):
            batch = run.batch(run.batches, step)
            start = time.perf_counter()
            state, metrics = run.train_step(state, batch)
            jax.block_until_ready(metrics)
            seconds.append(time.perf_counter() - start)
    return median(seconds[1:])


@cache
def matmul_rate(dtype: str) -> float:
    """Measure the FLOP/s of matrix products on one device, and multiply by the number of devices.

    The measurement takes a fraction of a second, and is made once for each dtype.
    """
    size = 1024 if jax.default_backend() == "cpu" else 8192
    with jax.enable_x64(dtype == "float64"):
        x = jnp.ones((size, size), dtype)
        product = jax.jit(lambda x: x @ x)
        jax.block_until_ready(product(x))
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            jax.block_until_ready(product(x))
            seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds) * jax.device_count()


class Timings:
    """Seconds per step of each cell, measured once and kept in a file.

    A run that continues later must not measure again, because its number of steps may depend on
    the result.
    """

    def __init__(self, path: Path):
        self._path = path
        self._seconds: dict[str, float] = read_json(path, "remove it") if path.is_file() else {}

    def of(self, resolved: Resolved, data: TextData, on_measuring: Callable[[], None]) -> float:
        """Return the seconds per step of a cell with these settings on this kind of device.

        Args:
            on_measuring: called before a step is measured, unless the file already has the result.
        """
        device, config = jax.devices()[0].device_kind, resolved.config
        if config.start != Start():  # where a stage begins and ends does not change what it costs
            training = dataclasses.replace(config.training, steps=1)
            config = dataclasses.replace(as_run(config), training=training)
        settings = json.dumps([to_dict(config), device])
        key = hashlib.sha256(settings.encode()).hexdigest()[:16]
        if key not in self._seconds:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            on_measuring()
            self._seconds[key] = seconds_per_step(resolved, data)
            storage.write_durably(self._path, json.dumps(self._seconds, indent=2))
        return self._seconds[key]


def spent(cost: StepCost, seconds: float) -> dict[str, float]:
    """Return what one step spends, in each unit that cells can be matched by."""
    return in_each_unit(cost.raw_tokens, cost.model_tokens, cost.flops, seconds)


def in_each_unit(
    raw_tokens: float, model_tokens: float, flops: float, seconds: float
) -> dict[str, float]:
    """Return what one step spends, by the names of the units in CompareConfig.match."""
    return {
        "steps": 1.0,
        "raw_tokens": raw_tokens,
        "model_tokens": model_tokens,
        "flops": flops,
        "seconds": seconds,
    }


def with_budget(
    cell: RunConfig, steps: int | Sequence[int], evaluations: int, keep: bool = False
) -> RunConfig:
    """Return the cell with this many steps, and its schedule (in steps or tokens) stretched to fit.

    A checkpoint is saved at every evaluation, or about every quarter of the run if that is more
    often.

    Args:
        steps: number of steps of the run, or of each of its stages.
        keep: True to keep a checkpoint at every evaluation.

    >>> from t5x_lite.config import Data, Lengths, Optimizer
    >>> schedule = Optimizer(warmup_steps=100, decay_steps=800)
    >>> cell = RunConfig(data=Data(lengths=Lengths(sequence_length=8)), optimizer=schedule)
    >>> for steps in 500, 2:
    ...     stretched = with_budget(cell, steps, evaluations=4)
    ...     schedule = stretched.optimizer
    ...     print(stretched.training.eval_every, schedule.warmup_steps, schedule.decay_steps)
    125 50 400
    1 0 2
    """
    of_stages = (steps,) if isinstance(steps, int) else tuple(steps)
    before = steps_of_stages(cell)
    ratios = [now / then for now, then in zip(of_stages, before, strict=True)]
    # A schedule may span all stages. Its warm-up is stretched with the first stage, so that a first
    # stage that several cells share stays the same in all of them. Its decay ends with the run.
    total = sum(of_stages)
    whole = total / cell.training.steps
    optimizer = _stretched(dataclasses.asdict(cell.optimizer), ratios[0], whole)
    stages = []
    for number, (stage, ratio) in enumerate(zip(cell.stages, ratios, strict=False)):
        changed = dict(stage)
        if number < len(cell.stages) - 1:
            changed[UNTIL] = sum(of_stages[: number + 1])
        if "optimizer" in changed:
            changed["optimizer"] = _stretched(changed["optimizer"], ratio, ratio)
        stages.append(changed)
    every = math.ceil(total / evaluations)
    training = dataclasses.replace(
        cell.training,
        steps=total,
        eval_every=every,
        checkpoint_every=min(every, math.ceil(total / _SAVES)),
        log_every=max(total // _WRITTEN_RECORDS, 1),
        keep_every=every if keep else cell.training.keep_every,
    )
    return dataclasses.replace(
        cell, optimizer=Optimizer(**optimizer), training=training, stages=tuple(stages)
    )


def _stretched(optimizer: Mapping[str, Any], warmup: float, decay: float) -> dict[str, Any]:
    """Return optimizer settings with the warm-up and decay steps multiplied by these ratios."""
    stretched = dict(optimizer)
    for name, ratio in (("warmup_steps", warmup), ("decay_steps", decay)):
        if name in stretched:
            stretched[name] = round(stretched[name] * ratio)
    if optimizer.get("decay_steps"):  # 0 must stay 0: the decay then ends with the run
        stretched["decay_steps"] = max(
            stretched["decay_steps"], stretched.get("warmup_steps", 0) + 1
        )
    return stretched


def steps_of_stages(config: RunConfig) -> tuple[int, ...]:
    """Return the number of steps of each stage, or of the run if it has no stages."""
    return tuple(stage.training.steps - stage.start.step for stage in stages_of(config))


def steps_of_cells(
    config: CompareConfig,
    budget: float,
    spent_by_cell: Mapping[str, Sequence[Mapping[str, float]]],
    inherited_by_cell: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> dict[str, tuple[int, ...]]:
    """Return the number of steps that the budget buys each cell, for each of its stages.

    The budget is divided among stages in proportion to their steps in the config. So stages that
    several cells begin with are equally long in those that have the same training.steps and have
    inherited the same, regardless of what comes after.

    Args:
        budget: amount in units of config.match; 0: what the first cell spends on the steps in its
            config.
        spent_by_cell: cell → stage → unit → what one step spends.
        inherited_by_cell: cell → unit → what was spent on the model that it starts from. What a
            cell has inherited beyond the cell with the least is part of its budget.

    Raises:
        UserError: if the budget does not buy a single step of some cell or stage.
    """
    unit = config.match.replace("_", " ")
    before = {name: of[config.match] for name, of in inherited_by_cell.items()}
    least = min(before.values(), default=0.0)
    first = next(iter(config.cells))
    if not budget:
        own = zip(steps_of_stages(config.cells[first]), spent_by_cell[first], strict=True)
        budget = sum(steps * of_step[config.match] for steps, of_step in own)
        budget += before.get(first, 0.0) - least
    steps = {}
    for name, of_stages in spent_by_cell.items():
        more = before.get(name, 0.0) - least
        total = config.cells[name].training.steps
        bought = []
        for number, of_stage in enumerate(steps_of_stages(config.cells[name])):
            cost, share = of_stages[number][config.match], of_stage / total
            bought.append(round((budget - more) * share / cost))
            if bought[-1] < 1:
                reason = f"a step of {name} costs {cost:,.4g} {unit}"
                if len(of_stages) > 1:
                    reason = f"stage {number + 1} has {share:.0%} of it, and {reason}"
                if more:
                    reason += f", and it has inherited {more:,.4g} more than others"
                raise UserError(BAD_CONFIG, f"budget: got {budget:,.4g}, but {reason}; raise it")
        steps[name] = tuple(bought)
    return steps
