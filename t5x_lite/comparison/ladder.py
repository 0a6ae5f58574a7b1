"""Scaling laws of a comparison with cells of several sizes, each trained for several lengths.

    cells ─► points (N, D, score) of each objective ─► fit ─► best sizes, compute multipliers

N counts all parameters, D the raw tokens read. Compute is k · N^q · D instead of 6 N D, with k and
q fitted to the FLOPs that were counted for the cells.

A law is fitted to the cells that read their text at most once. If these are enough, the others show
what repeats are worth (repeats.py); if not, the law counts repeats as new text.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_lite.comparison.repeats import RepeatedPoint, RepeatsLaw, determined_decays, fit_repeats
from t5x_lite.comparison.scaling import (
    Fit,
    Point,
    ScalingLaw,
    compute_multiplier,
    errors_left_out,
    fit,
    fit_power_law,
    interval,
)
from t5x_lite.comparison.scores import OF_SPANS
from t5x_lite.config import RunConfig
from t5x_lite.config.roles import SIZE, settings_with

_SCORES = ("loss", *OF_SPANS)  # scores that follow a scaling law
_AT_LEAST = 3  # minimum number of sizes, and of training lengths per size
_FURTHER = 10.0  # multiple of the largest budget to which the law is extrapolated

Cells = Mapping[str, Mapping[str, Any]]


def laws_of(
    cells: Cells, recipes: Mapping[str, Mapping[str, Any]], tuned: Collection[str] = ()
) -> dict[str, Any]:
    """Fit a scaling law to each objective for each score, and compare the objectives.

    Nothing is fitted to fewer than three sizes with three training lengths each.

    Args:
        cells: cells as in report.json.
        recipes: setting → cell → value, for the settings that differ. Cells of one law differ only
            in size and budget.
        tuned: settings tuned for each cell, in which cells of one law may differ.

    Returns:
        score → "objectives": objective → its points, law and best sizes; and "multipliers": the
        compute that an objective needs relative to the first one.
    """
    # Group the cells by objective, architecture and every other setting except size and budget.
    of_size = settings_with(RunConfig, SIZE) | set(tuned)
    ladders: dict[str, list[Mapping[str, Any]]] = {}
    for name, cell in cells.items():
        label = f"{cell['objective']}, {cell['architecture']}"
        for key, values in recipes.items():
            if key not in of_size and key not in ("objective", "model.architecture"):
                label += f", {key}={values[name]}"
        ladders.setdefault(label, []).append({"cell": name, **cell})

    laws: dict[str, Any] = {}
    for score in _SCORES:
        scored = {
            label: [rung for rung in rungs if score in rung["scores"]]
            for label, rungs in ladders.items()
        }
        scored = {label: rungs for label, rungs in scored.items() if _can_be_fitted(rungs)}
        if scored:
            # All objectives alike, so that their laws can be compared.
            once = {label: _read_once(rungs) for label, rungs in scored.items()}
            if not all(map(_can_be_fitted, once.values())):
                once = scored
            fits = {label: _fitted(rungs, score) for label, rungs in once.items()}
            budget = max(rung["flops"] for rungs in scored.values() for rung in rungs)
            laws[score] = {
                "objectives": {
                    label: _described(found, scored[label], once[label], score)
                    for label, found in fits.items()
                },
                # Losses of different objectives cannot be compared.
                "multipliers": _multipliers(fits, budget) if score != "loss" else [],
            }
    return laws


def _can_be_fitted(rungs: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if there are at least three sizes with three training lengths each."""
    lengths: dict[int, set[float]] = {}
    for rung in rungs:
        lengths.setdefault(rung["parameters"], set()).add(rung["raw_tokens"])
    return sum(len(of_size) >= _AT_LEAST for of_size in lengths.values()) >= _AT_LEAST


def _read_once(rungs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the cells that read their text at most once."""
    return [rung for rung in rungs if rung.get("epochs", 1.0) <= 1.0]


def _repeated_points(
    rungs: Sequence[Mapping[str, Any]], once: Sequence[Mapping[str, Any]], score: str
) -> list[RepeatedPoint]:
    """Return one point per seed of the cells to which the law was not fitted."""
    return [
        RepeatedPoint(
            rung["parameters"], rung["raw_tokens"], rung["raw_tokens"] / rung["epochs"], value
        )
        for rung in rungs
        if rung not in once
        for value in _seeds(rung, score)
    ]


def _points(rungs: Sequence[Mapping[str, Any]], score: str) -> list[Point]:
    """Return one point per cell and seed."""
    return [
        Point(rung["parameters"], rung["raw_tokens"], value)
        for rung in rungs
        for value in _seeds(rung, score)
    ]


def _budgets(flops: Sequence[float]) -> dict[float, float]:
    """Map each amount of compute to a budget: a run within 5 % of the next cheaper one shares its
    budget.

    >>> _budgets([1.0e17, 1.04e17, 1.05e17, 3.0e17])
    {1e+17: 1e+17, 1.04e+17: 1e+17, 1.05e+17: 1e+17, 3e+17: 3e+17}
    """
    budgets: dict[float, float] = {}
    last = budget = 0.0
    for one in sorted(set(flops)):
        if one > 1.05 * last:
            budget = one
        budgets[one] = budget
        last = one
    return budgets


def _seeds(rung: Mapping[str, Any], score: str) -> Sequence[float]:
    return rung["scores"][score]["seeds"]


def _fitted(rungs: Sequence[Mapping[str, Any]], score: str) -> Fit[ScalingLaw]:
    """Fit the law of one score, with k and q from the FLOPs per token of the cells."""
    parameters = [rung["parameters"] for rung in rungs]
    flops_per_token = [rung["flops"] / rung["raw_tokens"] for rung in rungs]
    q, log_k = np.polyfit(np.log(parameters), np.log(flops_per_token), 1)
    return fit(_points(rungs, score), k=math.exp(log_k), q=float(q))


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the pairs (FLOPs, loss) whose loss is lower than the loss of every cheaper pair.

    >>> frontier([(1e9, 5.0), (2e9, 5.1), (2e9, 4.5), (4e9, 4.6), (4e9, 4.0)])
    [(1000000000.0, 5.0), (2000000000.0, 4.5), (4000000000.0, 4.0)]
    """
    best: list[tuple[float, float]] = []
    for flops, loss in sorted(points):
        if not best or loss < best[-1][1]:
            best.append((flops, loss))
    return best


def _described(
    found: Fit[ScalingLaw],
    rungs: Sequence[Mapping[str, Any]],
    once: Sequence[Mapping[str, Any]],
    score: str,
) -> dict[str, Any]:
    """Return one objective's points, law and best sizes, in the form of report.json.

    Args:
        once: the cells that the law was fitted to.
    """
    law, repeated = found.law, _repeated_points(rungs, once, score)
    repeats = fit_repeats(found, repeated) if repeated else None
    budgets = sorted({float(f"{rung['flops']:.2g}") for rung in rungs})

    def with_interval(quantity: Callable[[ScalingLaw], float]) -> list[float | None]:
        return _bounded(quantity(law), found.interval(quantity))

    coefficients = [field.name for field in dataclasses.fields(ScalingLaw)]
    values = [(rung["flops"], np.mean(rung["scores"][score]["seeds"])) for rung in rungs]
    by_compute = fit_power_law(*zip(*frontier(values), strict=True))
    budget_of = _budgets([rung["flops"] for rung in rungs])
    groups = [budget_of[rung["flops"]] for rung in once for _ in _seeds(rung, score)]
    left_out = errors_left_out(_points(once, score), groups)
    return {
        "exponent_of_compute": by_compute.exponent,
        "error_of_left_out_budgets": {f"{flops:g}": error for flops, error in left_out.items()},
        "points": [
            {
                "cell": rung["cell"],
                "parameters": rung["parameters"],
                "tokens": rung["raw_tokens"],
                "flops": rung["flops"],
                "value": value,
                "epochs": rung.get("epochs", 1.0),
                "predicted": _predicted(law, repeats, rung),
            }
            for rung in rungs
            for value in rung["scores"][score]["seeds"]
        ],
        "law": {
            name: with_interval(lambda law, name=name: getattr(law, name)) for name in coefficients
        },
        "repeats": repeats
        and {
            name: _bounded(*decay) if decay else [None, None, None]
            for name, decay in determined_decays(repeats, repeated).items()
        },
        "best": [
            {
                "flops": flops,
                "parameters": with_interval(lambda law, flops=flops: law.optimum(flops)[0]),
                "tokens": with_interval(lambda law, flops=flops: law.optimum(flops)[1]),
                "value": with_interval(lambda law, flops=flops: law.best_loss(flops)),
                "for_one_percent": with_interval(
                    lambda law, flops=flops: law.flops_for(0.99 * law.best_loss(flops)) / flops
                ),
            }
            for flops in (*budgets, _FURTHER * budgets[-1])
        ],
    }


def _predicted(law: ScalingLaw, repeats: Fit[RepeatsLaw] | None, rung: Mapping[str, Any]) -> float:
    size, epochs = (rung["parameters"], rung["raw_tokens"]), rung.get("epochs", 1.0)
    if repeats and epochs > 1:
        return repeats.law.loss(*size, rung["raw_tokens"] / epochs)
    return law.loss(*size)


def _multipliers(fits: Mapping[str, Fit[ScalingLaw]], budget: float) -> list[dict[str, Any]]:
    """Return how many times the compute of the first objective each other objective needs.

    All must reach the same score: the one that the worst of them reaches with the largest budget.
    """
    (first, of_first), *others = fits.items()
    reached = max(found.law.best_loss(budget) for found in fits.values())
    multipliers = []
    for label, found in others:
        needed = compute_multiplier(found.law, of_first.law, reached)
        pairs = zip(found.resampled, of_first.resampled, strict=True)
        resampled = [compute_multiplier(law, base, reached) for law, base in pairs]
        freedom = min(found.freedom, of_first.freedom)
        multipliers.append(
            {
                "objective": label,
                "against": first,
                "value": reached,
                "multiplier": _bounded(needed, interval(needed, resampled, freedom)),
            }
        )
    return multipliers


def _bounded(value: float, interval: tuple[float, float]) -> list[float | None]:
    """Return [value, low, high], with None in place of numbers that are not finite."""
    return [number if math.isfinite(number) else None for number in (value, *interval)]
