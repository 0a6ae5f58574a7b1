"""Sentences, tables and charts about scaling laws, for the report of a comparison."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5x_lite.comparison.scaling import ScalingLaw
from t5x_lite.report import charts
from t5x_lite.report.page import Bold, Part, Table, short

_STEPS = 40  # points of a drawn line
_UNDETERMINED = 100.0  # largest ratio of an interval's bounds at which the value is determined
_COEFFICIENTS = ("E", "A", "alpha", "B", "beta")


def sentences(scaling: Mapping[str, Any]) -> list[str]:
    """Return sentences that say how much compute an objective needs, relative to another one."""
    said = []
    for of_score in scaling.values():
        for one in of_score["multipliers"]:
            if one["multiplier"][0] is not None and _is_determined(one["multiplier"]):
                said.append(
                    f"At {one['value']:.3f} bits per byte, {one['objective']} needs "
                    f"{_with_interval(one['multiplier'])} times the compute of {one['against']}."
                )
    return said


def parts(scaling: Mapping[str, Any], headings: Mapping[str, str]) -> list[Part]:
    """Return the tables and charts of all scores that laws were fitted to.

    Args:
        headings: score → its name in the report.
    """
    made: list[Part] = []
    for score, of_score in scaling.items():
        heading, objectives = headings[score], of_score["objectives"]
        made += [_coefficients(objectives, heading), _best_sizes(objectives, heading)]
        made += _repeats(objectives, heading)
        for label, of_one in objectives.items():
            made += _same_compute(label, of_one, heading)
        made += _frontier(objectives, heading)
    if made:
        made += [
            "L(N, D) = E + A / N^α + B / D^β (Hoffmann et al., 2022), fitted to every run by a "
            "Huber loss on logarithms. N: all parameters, D: raw tokens read, C = k · N^q · D. "
            "With unlimited text, L(N) = E + A / N^α; with an unlimited model, L(D) = E + B / D^β. "
            "α_C: L(C) = (C₀ / C)^α_C through the runs that no cheaper run beats (Kaplan et al., "
            "2020). Left out: how far the law of all other runs is off for the runs of one budget, "
            "for the worst of the budgets. Intervals: 95 %, from residuals with random signs. They "
            "are marked undetermined if "
            "wider than a factor of a hundred, as when the best size is the smallest or largest "
            "one that was trained. They assume that the form of the law is right. Best size: the "
            "one with the lowest loss for the compute; the last line of each objective goes beyond "
            "what was trained.",
        ]
        laws = [
            of_one for of_score in scaling.values() for of_one in of_score["objectives"].values()
        ]
        if any(of_one.get("repeats") for of_one in laws):
            made.append(
                "Laws and lines are of text that is read once. In other runs, the text and its "
                "repeats are worth U + U · R*_D · (1 − exp(−(D / U − 1) / R*_D)) new tokens, where "
                "U is the size of the text; with R*_N, parameters beyond the best number for U "
                "lose their worth in the same way (Muennighoff et al., 2023). R*_N also holds for "
                "the first pass over a text, where the law leaves it out."
            )
        elif any(point.get("epochs", 1.0) > 1 for one in laws for point in one["points"]):
            made.append(
                "Some runs read their text more than once. Too few read it once, so that the laws "
                "count repeats as new text."
            )
    return made


def _with_interval(bounded: Sequence[float | None]) -> str:
    """Return a value and its interval as text, or mark it as undetermined.

    >>> _with_interval([0.3412, 0.32, 0.3639]), _with_interval([2e6, 1.2e-3, 3e12])
    ('0.3412 (0.32 to 0.3639)', '2 M (undetermined)')
    """
    value, low, high = bounded
    if value is None:
        return "none"
    if not _is_determined(bounded):
        return f"{short(value)} (undetermined)"
    return f"{short(value)} ({short(low or 0.0)} to {short(high or 0.0)})"


def _is_determined(bounded: Sequence[float | None]) -> bool:
    """Return True if the ends of the interval differ by at most a factor of a hundred."""
    _, low, high = bounded
    return bool(low and high and high / low <= _UNDETERMINED)


def _coefficients(objectives: Mapping[str, Any], heading: str) -> Table:
    """Return the table of each objective's coefficients."""
    rows: list[list[str | Bold]] = []
    for label, of_one in objectives.items():
        law = of_one["law"]
        coefficients = [_with_interval(law[name]) for name in _COEFFICIENTS]
        exponents = (law["k"][0], law["q"][0], of_one["exponent_of_compute"])
        errors = of_one["error_of_left_out_budgets"].values()
        worst = f"{100 * max(errors):.1f} %" if errors else "none"
        rows.append([label, *coefficients, *map(short, exponents), worst])
    columns = ["objective", "E", "A", "α", "B", "β", "k", "q", "α_C", "left out"]
    return Table(columns, rows, f"Scaling law of {heading}")


def _best_sizes(objectives: Mapping[str, Any], heading: str) -> Table:
    """Return the table of the best size and its score for each objective and compute."""
    rows: list[list[str | Bold]] = []
    for label, of_one in objectives.items():
        for best in of_one["best"]:
            keys = ("parameters", "tokens", "value", "for_one_percent")
            rows.append([label, short(best["flops"]), *(_with_interval(best[key]) for key in keys)])
    columns = ["objective", "FLOPs", "parameters", "tokens", heading, "× FLOPs for 1 % less"]
    return Table(columns, rows, f"Best size for each amount of compute, by {heading}")


def _repeats(objectives: Mapping[str, Any], heading: str) -> list[Table]:
    """Return the table of what repeated text is worth, of the objectives for which it is known."""
    rows: list[list[str | Bold]] = [
        [label, *(_with_interval(repeats[name]) for name in ("tokens_decay", "parameters_decay"))]
        for label, of_one in objectives.items()
        if (repeats := of_one.get("repeats"))
    ]
    columns = ["objective", "R*_D", "R*_N"]
    return [Table(columns, rows, f"What repeated text is worth, by {heading}")] if rows else []


def _law(of_one: Mapping[str, Any]) -> ScalingLaw:
    return ScalingLaw(**{name: bounded[0] for name, bounded in of_one["law"].items()})


def _compute(point: Mapping[str, Any]) -> str:
    """Return the compute to two digits, so that runs under one budget get the same name."""
    return f"{short(float(format(point['flops'], '.2g')))} FLOPs"


def _same_compute(label: str, of_one: Mapping[str, Any], heading: str) -> list[charts.Chart]:
    """Draw IsoFLOP curves (Hoffmann et al., 2022, §3.2): dots are runs, lines are the law."""
    law, points = _law(of_one), of_one["points"]
    sizes = [point["parameters"] for point in points]
    dots: dict[str, list[tuple[float, float]]] = {}
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in sorted(points, key=lambda point: point["flops"]):
        name = _compute(point)
        dots.setdefault(name, []).append((point["parameters"], point["value"]))
        lines[name] = [
            (size, law.loss(size, law.tokens_for(point["flops"], size)))
            for size in np.geomspace(min(sizes), max(sizes), _STEPS).tolist()
        ]
    caption = f"{label}: several sizes at the same compute; dots are runs, lines are the law"
    return charts.dots_and_lines(dots, lines, "parameters", heading, caption)


def _frontier(objectives: Mapping[str, Any], heading: str) -> list[charts.Chart]:
    """Draw the score that each objective reaches at its best size, by compute."""
    dots, lines = {}, {}
    for label, of_one in objectives.items():
        law, points = _law(of_one), of_one["points"]
        dots[label] = [(point["flops"], point["value"]) for point in points]
        budgets = [best["flops"] for best in of_one["best"]]
        span = np.geomspace(budgets[0], budgets[-1], _STEPS).tolist()
        lines[label] = [(flops, law.best_loss(flops)) for flops in span]
    caption = "By compute: dots are runs, lines are the law at the best size"
    return charts.dots_and_lines(dots, lines, "FLOPs", heading, caption)
