"""Plans as text, tables and charts."""

import math
import re
from collections.abc import Iterable, Sequence

from t5x_lite.hardware import PRICES_AS_OF
from t5x_lite.planning.collectives import by_axis
from t5x_lite.planning.compiler import Compiled
from t5x_lite.planning.plan import Plan
from t5x_lite.planning.search import arranged
from t5x_lite.report import charts
from t5x_lite.report.page import Page, Section, Table

_GiB = 2**30
_CLOSE = 0.85  # share of the memory up to which an estimate is trusted: it has been 18 % too low
_SHOWN = 10  # plans of a search that are listed


def show(name: str, plan: Plan, compiled: Compiled | None = None) -> str:
    """Format a plan as a page of text, with the compiler's figures if they are given."""
    sections = [
        _heading(name, plan),
        _parameters(plan),
        _memory(plan, compiled),
        _step(plan, compiled),
        _run(plan),
    ]
    return "\n\n".join("\n".join(section) for section in sections)


def _heading(name: str, plan: Plan) -> list[str]:
    """Format the devices, the mesh and the batch size."""
    shown = [f"{axis} {size}" for axis, size in plan.mesh.items() if size > 1]
    devices = "device" if plan.topology.count == 1 else "devices"
    mesh = ", ".join([f"{plan.topology.count} {devices}", *shown])
    lines = [f"{name} on {plan.topology}: {mesh}; batches of {plan.rows:,} rows"]
    return [*lines, plan.arrangement] if plan.arrangement else lines


def _parameters(plan: Plan) -> list[str]:
    """Format the number of parameters, in all and per module, the largest first."""
    lines = [f"{'parameters':<34}{plan.parameters:>20,}"]
    if plan.active_parameters < plan.parameters:
        share = plan.active_parameters / plan.parameters
        lines.append(
            f"  {'that a token is computed with':<32}{plan.active_parameters:>20,}{share:>8.1%}"
        )
    for name, count in sorted(plan.modules.items(), key=lambda item: -item[1]):
        lines.append(f"  {name:<32}{count:>20,}{count / plan.parameters:>8.1%}")
    return lines


def _memory(plan: Plan, compiled: Compiled | None) -> list[str]:
    """Format the memory per device, whether it fits, and the largest arrays."""
    lines = [f"{'memory of a device':<34}{'GiB':>20}"]
    for name, size in plan.memory.items():
        lines.append(f"  {name:<32}{_gib(size):>20}")
    lines.append(f"  {'in use at a time, an estimate':<32}{_gib(plan.memory_in_all):>20}")
    if compiled:
        lines.append(f"  {'the compiler':<32}{_gib(compiled.peak):>20}")
        if compiled.arguments is not None and compiled.temporaries is not None:
            both = compiled.arguments + compiled.temporaries
            lines.append(f"  {'  its arguments + temporaries':<32}{_gib(both):>20}")
    # The compiler knows if it fits. Without it, an estimate close to the limit is not trusted.
    fits = plan.fits if compiled is None else compiled.fits
    if plan.room is not None:
        verdict = "it fits" if fits else "it does not fit: " + _what_would_help(plan)
        if fits and compiled is None and plan.memory_in_all > _CLOSE * plan.room:
            verdict = "it may fit; the compiler knows"
        lines.append(f"  {'of':<32}{_gib(plan.room):>20}  {verdict}")
    lines.append("  the largest besides the state:")
    for value in plan.largest:
        place = _place(value.place) or value.operation.replace("_", " ")
        lines.append(f"  {value.shape:<42}{_gib(value.size):>10}  {place}")
    return lines


def _what_would_help(plan: Plan) -> str:
    """Return the settings that save the most memory."""
    config, advice = plan.config, []
    # If even the fully sharded state is too large, only more devices help.
    if plan.room and plan.state_in_all / plan.topology.count > plan.room:
        devices = math.ceil(plan.state_in_all / plan.room)
        state = _gib(plan.state_in_all / plan.topology.count)
        return f"the state alone takes {state} GiB of each device; take {devices} at least"
    if plan.room and plan.state > plan.room / 2 and plan.mesh["fsdp"] < plan.topology.count:
        advice.append("split the state over more devices with mesh.fsdp")
    if not config.model.remat:
        advice.append("set model.remat=True")
    rows = config.data.batch_size // config.training.microbatches
    if rows > plan.mesh["data"] * plan.mesh["fsdp"]:
        advice.append("raise training.microbatches")
    elif not advice:
        advice.append("split rows with mesh.sequence, or layers with mesh.tensor")
    return ", ".join([*advice, "or ask --search"])


def _place(place: str) -> str:
    """Return the readable parts of jax's name for a place in the model.

    >>> _place("transpose(jvp(Transformer))/Transformer.encode/encoder")
    'backward: encoder'
    """
    parts = [part for part in place.split("/") if part and not re.search(r"jvp|[.]", part)]
    shown = "/".join(part for part in parts if part != "rematted_computation")
    return f"backward: {shown}" if "transpose(" in place and shown else shown


def _step(plan: Plan, compiled: Compiled | None) -> list[str]:
    """Format the tokens, FLOPs, traffic and time of a step."""
    lines = [f"{'a step':<34}"]
    for name, count in (
        ("raw tokens", plan.tokens.raw),
        ("model tokens", plan.tokens.model),
        ("loss tokens", plan.tokens.loss),
    ):
        lines.append(f"  {name:<32}{count * plan.rows:>20,.0f}")
    lines.append(f"  {'FLOPs':<32}{plan.flops:>20.3e}")
    if plan.computed_again:
        lines.append(f"  {'  computed again, besides':<32}{plan.computed_again:>20.3e}")
    for axes, size in plan.sent.items():
        lines.append(f"  {'sent over ' + axes + ', GB a device':<32}{size / 1e9:>20.2f}")
    if compiled and compiled.fits:
        for axes, size in by_axis(list(compiled.sent)).items():
            lines.append(f"  {'  the compiler, over ' + axes:<32}{size / 1e9:>20.2f}")
    # The roofline, and the time that the compiler expects.
    if not plan.seconds:
        reason = f"how fast {plan.topology.name} computes in {plan.config.model.dtype}"
        return [*lines, f"  {reason} is not known: no time, no price"]
    for name, seconds in plan.seconds.items():
        over = name if name in ("compute", "memory") else f"over {name}"
        lines.append(f"  {'roofline, ' + over + ', s':<32}{seconds:>20.4f}")
    for axes in plan.unknown:
        lines.append(f"  {'roofline, over ' + axes + ', s':<32}{'not known':>20}")
    but = f", if what is sent over {', '.join(plan.unknown)} takes less" if plan.unknown else ""
    lines.append(f"  bound by {plan.bound_by}: an MFU of {plan.max_mfu:.0%} at best{but}")
    seconds = compiled.seconds(plan.topology) if compiled else None
    if seconds and plan.peak:
        mfu = plan.flops / (plan.peak * plan.topology.count * seconds)
        lines.append(
            f"  {'the compiler expects, s':<32}{seconds:>20.4f}  an MFU of {mfu:.0%}, without what "
            "is sent and kernels written by hand"
        )
    return lines


def _run(plan: Plan) -> list[str]:
    """Format the tokens, days, dollars and energy of the whole run."""
    steps = plan.config.training.steps
    lines = [f"{'the run':<34}{steps:>20,} steps"]
    epochs = plan.epochs_of_sources()
    for source, tokens in plan.tokens_of_sources().items():
        often = f"  {epochs[source]:,.2f} epochs" if source in epochs else ""
        lines.append(f"  {'raw tokens of ' + (source or 'the text'):<32}{tokens:>20,.0f}{often}")
    lines.append(f"  {'PF-days':<32}{plan.pf_days:>20,.4g}")
    if plan.days is None:
        return lines
    mfu = plan.assumed.mfu
    name = f"days, at an MFU of {mfu:.0%}" if mfu else "days, by the roofline"
    too_much = "  more than the roofline has" if mfu and mfu > (plan.max_mfu or 1) else ""
    lines.append(f"  {name:<32}{plan.days:>20,.2f}{too_much}")
    if plan.dollars is not None:
        is_given = plan.assumed.dollars is not None
        source = "as given" if is_given else f"list price, {PRICES_AS_OF}"
        price = f"{plan.price:.2f} for a device and hour, {source}"
        lines.append(f"  {'dollars':<32}{plan.dollars:>20,.0f}  {price}")
    if plan.kilowatt_hours is not None:
        lines.append(f"  {'kWh':<32}{plan.kilowatt_hours:>20,.0f}  of the devices alone")
    return lines


def _gib(size: float) -> str:
    """Format a number of bytes in GiB."""
    return f"{size / _GiB:,.2f}"


def show_splits(plan: Plan) -> str:
    """Format a table of the parameters: their shapes, sizes per device, and sharding."""
    width = max(len(split.path) for split in plan.splits) + 2
    lines = [f"{'parameter':<{width}}{'shape':<24}{'MB a device':>12}  split by"]
    for split in plan.splits:
        shape = " × ".join(map(str, split.shape))
        by = ", ".join(axis or "–" for axis in split.by)
        lines.append(f"{split.path:<{width}}{shape:<24}{split.bytes / 1e6:>12,.2f}  {by}")
    return "\n".join(lines)


def show_found(plans: Sequence[Plan]) -> str:
    """Format the best plans of a search, one per line."""
    lines = [f"{'s a step':>10}{'MFU ≤':>8}{'bound by':>10}{'GiB':>8}  settings"]
    for plan in plans[:_SHOWN]:
        bound, mfu = plan.bound_by or "–", plan.max_mfu
        seconds = f"{plan.step_seconds:.4f}" if plan.step_seconds else "–"
        shown = f"{mfu:.0%}" if mfu else "–"
        lines.append(
            f"{seconds:>10}{shown:>8}{bound:>10}{_gib(plan.memory_in_all):>8}  {arranged(plan)}"
        )
    if len(plans) > _SHOWN:
        lines.append(f"and {len(plans) - _SHOWN} more that fit")
    return "\n".join(lines)


_COLUMNS = (
    "devices",
    "slice",
    "mesh",
    "rows",
    "GiB",
    "s a step",
    "bound by",
    "MFU ≤",
    "tokens/s ≤",
)


def _scaled(plan: Plan) -> list[str]:
    """Return a plan's row of the scaling table, with the cells of _COLUMNS."""
    seconds = plan.step_seconds
    tokens = plan.tokens.raw * plan.rows / seconds if seconds else None
    return [
        f"{plan.topology.count:,}",
        str(plan.topology),
        " × ".join(f"{axis} {size}" for axis, size in plan.mesh.items() if size > 1),
        f"{plan.rows:,}",
        _gib(plan.memory_in_all),
        f"{seconds:.4f}" if seconds else "–",
        plan.bound_by or "–",
        f"{plan.max_mfu:.0%}" if plan.max_mfu else "–",
        f"{tokens:,.0f}" if tokens else "–",
    ]


def show_scaling(plans: Iterable[Plan]) -> str:
    """Format plans on increasing numbers of devices as a table, one per line."""
    widths = (9, 15, 30, 10, 9, 11, 16, 8, 16)
    rows = [_COLUMNS, *map(_scaled, plans)]
    return "\n".join(
        "".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows
    )


def scaling_page(name: str, plans: Sequence[Plan]) -> Page:
    """Build a page that shows plans on increasing numbers of devices as a chart and a table."""
    # One curve per resource: its seconds against the number of devices.
    parts: dict[str, list[tuple[float, float]]] = {}
    for plan in plans:
        for bound, seconds in plan.seconds.items():
            parts.setdefault(bound, []).append((plan.topology.count, seconds))
    longest = max((seconds for points in parts.values() for _, seconds in points), default=0.0)
    # Leave out tiny ones: on a log scale they would take up most of the chart.
    parts = {
        bound: points
        for bound, points in parts.items()
        if max(seconds for _, seconds in points) > longest / 1000
    }
    caption = (
        "What a step needs by a roofline; the longest bounds it. The batch grows with the devices."
    )
    drawn = charts.dots_and_lines(parts, parts, "devices", "seconds a step", caption)
    table = Table(_COLUMNS, [_scaled(plan) for plan in plans])
    first, last = plans[0], plans[-1]
    lead = f"{name} on {first.topology.count} to {last.topology.count:,} devices, on paper."
    return Page(f"{name}: weak scaling", lead, [Section("", [*drawn, table])])
