"""Estimate what a comparison needs on devices that you do not have yet. Like the plan of one run,
this needs no text, tokenizer or accelerator.

    cell ─► a plan of each stage ─► cost of a step ─► the steps that the budget buys ─► time, money
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from t5x_lite.comparison.adaptation import adapted_config, check_adaptation, plan_adaptation
from t5x_lite.comparison.budget import inherited, steps_of_cells, with_budget
from t5x_lite.comparison.cells import names_by_budget, with_equal_windows, with_shared_block
from t5x_lite.comparison.tune import combinations
from t5x_lite.config import CompareConfig, RunConfig
from t5x_lite.config.stages import as_run, each_stage, stages_of
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.hardware import PRICES_AS_OF, Topology
from t5x_lite.model.flops import peak_flops
from t5x_lite.planning.plan import Assumptions, GiB, Plan, make_plan
from t5x_lite.progress import columns, messages_to, to_stderr
from t5x_lite.report.page import short
from t5x_lite.resolve import plan_objective


class CellEstimate(NamedTuple):
    """What one run of a cell needs.

    Attributes:
        stages: the plan of each stage, with the steps that the budget buys.
        adapted: the plan of the run's adaptation; None if it is not adapted.
    """

    name: str
    stages: tuple[Plan, ...]
    adapted: Plan | None = None

    @property
    def plan(self) -> Plan:
        """The plan of the last stage, whose model is the one that is compared."""
        return self.stages[-1]

    @property
    def steps(self) -> int:
        """Number of steps of all stages."""
        return sum(plan.config.training.steps for plan in self.stages)

    @property
    def flops(self) -> float:
        """FLOPs of all stages."""
        return sum(plan.flops * plan.config.training.steps for plan in self.stages)

    @property
    def _plans(self) -> list[Plan]:
        return [*self.stages, *([self.adapted] if self.adapted else [])]

    @property
    def memory(self) -> int:
        """Peak memory per device of the stage, or the adaptation, that needs most, in bytes."""
        return max(plan.memory_in_all for plan in self._plans)

    @property
    def fits(self) -> bool | None:
        """True if all of it fits into the memory of a device; None if that is not known."""
        found = [plan.fits for plan in self._plans]
        return None if None in found else all(found)

    @property
    def is_too_fast(self) -> bool:
        """True if the assumed MFU is higher than the roofline allows."""
        mfu = self.plan.assumed.mfu
        return bool(mfu) and any(mfu > (plan.max_mfu or 1) for plan in self.stages)


class Estimate(NamedTuple):
    """What a comparison needs, without evaluation and tasks.

    Attributes:
        cells: each cell under each budget.
        tries: number of tries that tune each cell.
    """

    config: CompareConfig
    cells: tuple[CellEstimate, ...]
    tries: int

    def parts(self) -> dict[str, float | None]:
        """Return the hours of training, tuning and adaptation, over all cells and seeds; None if
        the speed of the devices is not known.
        """
        config = self.config
        training = _hours([plan for cell in self.cells for plan in cell.stages])
        parts = {"training": _times(training, config.seeds)}
        if self.tries:
            parts["tuning"] = _times(training, self.tries * config.tune_budget)
        adapted = [cell.adapted for cell in self.cells if cell.adapted]
        if adapted:
            parts["adaptation"] = _times(_hours(adapted), config.seeds)
        return parts

    @property
    def hours(self) -> float | None:
        """Hours that everything takes, one run after another; None if not known."""
        parts = self.parts().values()
        return None if None in parts else math.fsum(filter(None, parts))

    def dollars(self, hours: float | None) -> float | None:
        """Return the price of all devices for so many hours; None if it is not known."""
        plan = self.cells[0].plan
        return None if plan.price is None else _times(hours, plan.price * plan.topology.count)

    def as_json(self) -> dict[str, Any]:
        """Return the estimate as plain data."""
        cells = {
            cell.name: {
                "parameters": cell.plan.parameters,
                "steps": cell.steps,
                "flops": cell.flops,
                "memory": cell.memory,
                "fits": cell.fits,
                "step_seconds": cell.plan.step_seconds,
                "hours": _hours(cell.stages),
                "dollars": self.dollars(_hours(cell.stages)),
            }
            for cell in self.cells
        }
        return {
            "topology": str(self.cells[0].plan.topology),
            "seeds": self.config.seeds,
            "cells": cells,
            "hours": self.parts(),
            "hours_in_all": self.hours,
            "dollars_in_all": self.dollars(self.hours),
            "prices_as_of": PRICES_AS_OF,
        }


def estimate(
    config: CompareConfig, topology: Topology, assumed: Assumptions = Assumptions()
) -> Estimate:
    """Estimate what a comparison needs on the devices of a topology, which train one run at a time.

    Raises:
        UserError: for a cell that cannot be planned, and if cells are matched by seconds on devices
            whose speed is not known.
    """
    if config.equal_windows:
        cells = with_equal_windows(config.cells)
    else:
        cells = with_shared_block(config.cells)
    plans = {
        name: [make_plan(as_run(stage), topology, assumed) for stage in stages_of(cell)]
        for name, cell in cells.items()
    }
    for plan in itertools.chain(*plans.values()):
        if config.match == "seconds" and not plan.step_seconds:
            raise UserError(BAD_CONFIG, f"match=seconds: {_why_no_time(plan)}")
    adapted = _plan_adapted(config, cells, topology, assumed)

    # The steps that each budget buys, as when the cells are trained
    of_steps = {name: [_spent(plan) for plan in of_cell] for name, of_cell in plans.items()}
    before = {name: inherited(cell) for name, cell in cells.items()}
    estimates = []
    for budget, names in names_by_budget(config).items():
        steps = steps_of_cells(config, budget, of_steps, before)
        for name, of_cell in plans.items():
            stages = tuple(map(_with_steps, of_cell, steps[name]))
            estimates.append(CellEstimate(names[name], stages, adapted[name]))
    return Estimate(config, tuple(estimates), len(combinations(config.tune)))


def _plan_adapted(
    config: CompareConfig, cells: Mapping[str, RunConfig], topology: Topology, assumed: Assumptions
) -> dict[str, Plan | None]:
    """Plan the adaptation of each cell; None for a model that cannot be a prefix language model.

    Raises:
        UserError: if cells would read different amounts, or none can be adapted.
    """
    rows = [row for cell in cells.values() for row in each_stage(cell, plan_objective)[-1:]]
    adaptation = plan_adaptation(config.adapt_tokens, rows)
    if adaptation is None:
        return dict.fromkeys(cells)
    plans: dict[str, Plan | None] = dict.fromkeys(cells)
    last = {name: as_run(stages_of(cell)[-1]) for name, cell in cells.items()}
    with messages_to(to_stderr):
        able = check_adaptation(adaptation, {name: (one, None) for name, one in last.items()})
    for name in able:
        plans[name] = make_plan(adapted_config(last[name], adaptation), topology, assumed)
    return plans


def _spent(plan: Plan) -> Mapping[str, float]:
    """Return what one step spends, in each unit that cells can be matched by."""
    return {
        "steps": 1.0,
        "raw_tokens": plan.rows * plan.tokens.raw,
        "model_tokens": plan.rows * plan.tokens.model,
        "flops": plan.flops,
        "seconds": plan.step_seconds or math.nan,
    }


def _with_steps(plan: Plan, steps: int) -> Plan:
    """Return a plan with another number of steps."""
    return dataclasses.replace(plan, config=with_budget(plan.config, steps, evaluations=1))


def _hours(plans: Sequence[Plan]) -> float | None:
    """Return the hours that runs take, one after another; None if that is not known."""
    days = [plan.days for plan in plans]
    return None if None in days else 24 * math.fsum(filter(None, days))


def _times(hours: float | None, factor: float) -> float | None:
    return None if hours is None else hours * factor


_COLUMNS = ("parameters", "steps", "FLOPs", "GiB", "s/step", "bound by", "hours", "dollars")


def in_words(found: Estimate) -> str:
    """Format an estimate as a table of its cells, and what all runs take together."""
    config, plan = found.config, found.cells[0].plan
    rows: list[Sequence[str] | str] = [("a run of", *_COLUMNS)]
    for cell in found.cells:
        hours = _hours(cell.stages)
        rows.append(
            (
                cell.name,
                short(cell.plan.parameters),
                f"{cell.steps:,}",
                f"{cell.flops:.3g}",
                f"{cell.memory / GiB:,.2f}",
                f"{cell.plan.step_seconds:.3g}" if cell.plan.step_seconds else "–",
                "–" if cell.plan.assumed.mfu else cell.plan.bound_by or "–",
                _figure(hours),
                _figure(found.dollars(hours)),
            )
        )
    blank = [""] * (len(_COLUMNS) - 2)
    for name, hours in {**_totals(found), "in all": found.hours}.items():
        rows.append((name, *blank, _figure(hours), _figure(found.dollars(hours))))
    table = columns(rows, "<" + ">" * len(_COLUMNS))
    heading = f"{config.title}, on {plan.topology}, one run at a time"
    return "\n".join([heading, "", table, "", *_remarks(found)])


def _totals(found: Estimate) -> dict[str, float | None]:
    """Return the hours of each part, by what it is in words."""
    config, count = found.config, len(found.cells)
    seeds = "1 seed" if config.seeds == 1 else f"{config.seeds} seeds"
    share = f"{config.tune_budget:g} of a run"
    names = {
        "training": f"training: {count} cells × {seeds}",
        "tuning": f"tuning: {count} cells × {found.tries} tries, each {share}",
        "adaptation": f"adaptation: {short(config.adapt_tokens)} raw tokens for each run",
    }
    return {names[part]: hours for part, hours in found.parts().items()}


def _remarks(found: Estimate) -> list[str]:
    """Return what has to be known to read the table."""
    remarks = []
    too_large = [cell.name for cell in found.cells if cell.fits is False]
    plan = found.cells[0].plan
    if too_large and plan.room:
        names = ", ".join(too_large)
        fix = "raise training.microbatches, or set model.remat=True"
        remarks.append(f"more than the {plan.room / GiB:.0f} GiB of a device: {names}; {fix}")
    too_fast = [cell.name for cell in found.cells if cell.is_too_fast]
    if too_fast:
        at = f"an MFU of {plan.assumed.mfu:.0%}"
        remarks.append(f"{at} is more than the roofline allows for: {', '.join(too_fast)}")
    if any(cell.stages[1:] for cell in found.cells):
        remarks.append("stages that cells share are trained once, but are counted for each cell")
        remarks.append("parameters, s/step, bound by: of the last stage")
    untimed = [cell for cell in found.cells if not cell.plan.step_seconds]
    if untimed:
        names = "" if len(untimed) == len(found.cells) else f"{untimed[0].name}: "
        remarks.append(names + _why_no_time(untimed[0].plan))
    elif plan.assumed.mfu:
        remarks.append(f"times: at an MFU of {plan.assumed.mfu:.0%}")
    else:
        remarks.append("times: the least by the roofline; --mfu=0.4 plans with what you have seen")
    if not untimed and plan.price is not None:
        source = "as given" if plan.assumed.dollars is not None else f"list price, {PRICES_AS_OF}"
        remarks.append(f"dollars: {plan.price:.2f} per device and hour, {source}")
    more = f", seeds beyond {found.config.seeds}" if found.config.max_seeds else ""
    remarks.append(f"not counted: evaluation, tasks, compilation{more}")
    return remarks


def _why_no_time(plan: Plan) -> str:
    """Return why the time of a step is not known, and what would help."""
    chip, dtype = plan.topology.chip, plan.config.model.dtype
    fix = "set --tflops"
    if dtype != "bfloat16" and peak_flops(chip.kinds[0], "bfloat16"):
        fix += ", or model.dtype=bfloat16"
    return f"the speed of {plan.topology.name} in {dtype} is not known, so neither is time; {fix}"


def _figure(value: float | None) -> str:
    """Format hours or dollars; "–" if they are not known."""
    if value is None:
        return "–"
    if 0 < value < 0.01:
        return "< 0.01"
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
