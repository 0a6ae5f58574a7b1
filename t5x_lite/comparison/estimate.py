"""Estimate what a comparison needs on devices that you do not have yet. Like the plan of one run,
this needs no text, tokenizer or accelerator.

    cell ─► a plan of each stage ─► cost of a step ─► the steps that the budget buys ─► time, money
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from t5x_lite.comparison.adaptation import adapted_config, check_adaptation, plan_adaptation
from t5x_lite.comparison.budget import in_each_unit, inherited, steps_of_cells, with_budget
from t5x_lite.comparison.cells import comparable_cells, names_by_budget
from t5x_lite.comparison.tune import combinations
from t5x_lite.config import CompareConfig, RunConfig
from t5x_lite.config.stages import as_run, each_stage, stages_of
from t5x_lite.errors import BAD_CONFIG, UserError
from t5x_lite.hardware import PRICES_AS_OF, Topology
from t5x_lite.planning.plan import Assumptions, GiB, Plan, make_plan
from t5x_lite.planning.report import price_of_hour, what_would_help, why_no_time
from t5x_lite.progress import columns, messages_to, to_stderr
from t5x_lite.report.page import short
from t5x_lite.resolve import plan_objective


class Cost(NamedTuple):
    """Time and money of runs that follow one another on the same devices.

    Attributes:
        hours: duration; None if the speed of the devices is not known.
        dollars: price of all devices; None if it is not known.
    """

    hours: float | None
    dollars: float | None


def cost_of(plans: Iterable[Plan], times: float = 1.0) -> Cost:
    """Return the cost of all these runs, each made so many times."""
    plans = list(plans)
    hours = _sum((plan.days for plan in plans), 24 * times)
    return Cost(hours, _sum((plan.dollars for plan in plans), times))


def _sum(amounts: Iterable[float | None], factor: float = 1.0) -> float | None:
    """Return the sum times a factor; None if an amount is not known."""
    total = 0.0
    for amount in amounts:
        if amount is None:
            return None
        total += amount * factor
    return total


class CellEstimate(NamedTuple):
    """Resources that one run of a cell needs.

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
    def largest(self) -> Plan:
        """The plan of the stage, or the adaptation, that needs most memory."""
        adapted = (self.adapted,) if self.adapted else ()
        return max((*self.stages, *adapted), key=lambda plan: plan.memory_in_all)

    @property
    def steps(self) -> int:
        """Number of steps of all stages."""
        return sum(plan.config.training.steps for plan in self.stages)

    @property
    def flops(self) -> float:
        """FLOPs of all stages."""
        return sum(plan.flops * plan.config.training.steps for plan in self.stages)

    @property
    def cost(self) -> Cost:
        """Cost of all stages, without the adaptation."""
        return cost_of(self.stages)


class Estimate(NamedTuple):
    """Resources that a comparison needs, without evaluation and tasks.

    Attributes:
        cells: each cell under each budget.
        tries: number of tries that tune each cell.
    """

    config: CompareConfig
    cells: tuple[CellEstimate, ...]
    tries: int

    def parts(self) -> dict[str, Cost]:
        """Return the cost of training, tuning and adaptation, over all cells and seeds."""
        config = self.config
        stages = [plan for cell in self.cells for plan in cell.stages]
        adapted = [cell.adapted for cell in self.cells if cell.adapted]
        parts = {"training": cost_of(stages, config.seeds)}
        if self.tries:
            parts["tuning"] = cost_of(stages, self.tries * config.tune_budget)
        if adapted:
            parts["adaptation"] = cost_of(adapted, config.seeds)
        return parts

    @property
    def cost(self) -> Cost:
        """Return the cost of all parts together."""
        hours, dollars = zip(*self.parts().values(), strict=True)
        return Cost(_sum(hours), _sum(dollars))

    def as_json(self) -> dict[str, Any]:
        """Return the estimate as plain data."""
        cells = {
            cell.name: {
                "parameters": cell.plan.parameters,
                "steps": cell.steps,
                "flops": cell.flops,
                "memory": cell.largest.memory_in_all,
                "fits": cell.largest.fits,
                "step_seconds": cell.plan.step_seconds,
                **cell.cost._asdict(),
            }
            for cell in self.cells
        }
        return {
            "topology": str(self.cells[0].plan.topology),
            "seeds": self.config.seeds,
            "cells": cells,
            "parts": {name: cost._asdict() for name, cost in self.parts().items()},
            **self.cost._asdict(),
            "prices_as_of": PRICES_AS_OF,
        }


def estimate(
    config: CompareConfig, topology: Topology, assumed: Assumptions = Assumptions()
) -> Estimate:
    """Estimate what a comparison needs on the devices of a topology, which train one run at a time.

    Raises:
        UserError: for cells that cannot be compared or planned, and if they are matched by seconds
            on devices whose speed is not known.
    """
    cells = comparable_cells(config)
    plans = {
        name: [make_plan(as_run(stage), topology, assumed) for stage in stages_of(cell)]
        for name, cell in cells.items()
    }
    for plan in itertools.chain(*plans.values()):
        if config.match == "seconds" and not plan.step_seconds:
            raise UserError(BAD_CONFIG, f"match=seconds: {why_no_time(plan)}")
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


def _spent(plan: Plan) -> dict[str, float]:
    """Return what one step spends, in each unit that cells can be matched by."""
    tokens, seconds = plan.tokens, plan.step_seconds or math.nan
    return in_each_unit(plan.rows * tokens.raw, plan.rows * tokens.model, plan.flops, seconds)


def _with_steps(plan: Plan, steps: int) -> Plan:
    """Return a plan with another number of steps."""
    return dataclasses.replace(plan, config=with_budget(plan.config, steps, evaluations=1))


_COLUMNS = ("parameters", "steps", "FLOPs", "GiB", "s/step", "bound by", "hours", "dollars")


def in_words(found: Estimate) -> str:
    """Format an estimate as a table of its cells, and what all runs take together."""
    rows: list[Sequence[str] | str] = [("a run of", *_COLUMNS)]
    for cell in found.cells:
        plan = cell.plan
        rows.append(
            (
                cell.name,
                short(plan.parameters),
                f"{cell.steps:,}",
                f"{cell.flops:.3g}",
                f"{cell.largest.memory_in_all / GiB:,.2f}",
                f"{plan.step_seconds:.3g}" if plan.step_seconds else "–",
                # A step that takes longer than the roofline is not bound by it.
                "–" if plan.assumed.mfu else plan.bound_by or "–",
                *map(_figure, cell.cost),
            )
        )
    blank = [""] * (len(_COLUMNS) - len(Cost._fields))
    for name, cost in {**_totals(found), "in all": found.cost}.items():
        rows.append((name, *blank, *map(_figure, cost)))
    table = columns(rows, "<" + ">" * len(_COLUMNS))
    topology = found.cells[0].plan.topology
    heading = f"{found.config.title}, on {topology}, one run at a time"
    return "\n".join([heading, "", table, "", *_remarks(found)])


def _totals(found: Estimate) -> dict[str, Cost]:
    """Return the cost of each part, by what it is in words."""
    config, count = found.config, len(found.cells)
    seeds = "1 seed" if config.seeds == 1 else f"{config.seeds} seeds"
    share = f"{config.tune_budget:g} of a run"
    names = {
        "training": f"training: {count} cells × {seeds}",
        "tuning": f"tuning: {count} cells × {found.tries} tries, each {share}",
        "adaptation": f"adaptation: {short(config.adapt_tokens)} raw tokens for each run",
    }
    return {names[part]: cost for part, cost in found.parts().items()}


def _remarks(found: Estimate) -> list[str]:
    """Return what has to be known to read the table."""
    remarks, plan = [], found.cells[0].plan
    too_large = {cell.name: cell.largest for cell in found.cells if cell.largest.fits is False}
    if too_large:
        help = what_would_help(next(iter(too_large.values())))
        remarks.append(f"do not fit: {', '.join(too_large)}; {help}")
    too_fast = [
        cell.name for cell in found.cells if any(plan.exceeds_roofline for plan in cell.stages)
    ]
    if too_fast:
        at = f"an MFU of {plan.assumed.mfu:.0%}"
        remarks.append(f"{at} is more than the roofline allows for: {', '.join(too_fast)}")
    if any(cell.stages[1:] for cell in found.cells):
        remarks.append("stages that cells share are trained once, but are counted for each cell")
        remarks.append("parameters, s/step, bound by: of the last stage")

    # Times and prices, or why they are not known
    untimed = [cell for cell in found.cells if cell.cost.hours is None]
    if untimed:
        name = "" if len(untimed) == len(found.cells) else f"{untimed[0].name}: "
        remarks.append(name + why_no_time(untimed[0].plan))
    elif plan.assumed.mfu:
        remarks.append(f"times: at an MFU of {plan.assumed.mfu:.0%}")
    else:
        remarks.append("times: the least by the roofline; --mfu=0.4 plans with what you have seen")
    if found.cost.dollars is not None:
        remarks.append(f"dollars: {price_of_hour(plan)}")
    more = f", seeds beyond {found.config.seeds}" if found.config.max_seeds else ""
    remarks.append(f"not counted: evaluation, tasks, compilation{more}")
    return remarks


def _figure(value: float | None) -> str:
    """Format hours or dollars; "–" if they are not known."""
    if value is None:
        return "–"
    if 0 < value < 0.01:
        return "< 0.01"
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
