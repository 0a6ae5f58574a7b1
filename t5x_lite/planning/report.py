"""Plans as text, tables and charts."""

import math
import re
from collections.abc import Iterable, Sequence

from t5x_lite.hardware import PRICES_AS_OF
from t5x_lite.model.flops import peak_flops
from t5x_lite.planning.compiler import Compiled
from t5x_lite.planning.plan import GiB, Plan
from t5x_lite.planning.search import arranged
from t5x_lite.planning.traffic import by_axis
from t5x_lite.progress import columns
from t5x_lite.report import charts
from t5x_lite.report.page import Page, Section, Table

_CLOSE = 0.85  # share of the memory up to which an estimate is trusted: one was 16 % too low
_SHOWN = 10  # number of plans that a search lists


# A line of a plan: a name, a figure and perhaps a remark on it; or a text.
Line = tuple[str, str] | tuple[str, str, str] | str


def show(name: str, plan: Plan, compiled: Compiled | None = None) -> str:
    """Format a plan as a page of text, with the compiler's figures if they are given."""
    sections = [
        _heading(name, plan),
        _parameters(plan),
        _memory(plan, compiled),
        _step(plan, compiled),
        _run(plan),
    ]
    lines = [line for section in sections for line in ("", *section)]
    return columns(lines[1:], "<><")


def _heading(name: str, plan: Plan) -> list[Line]:
    """The devices, the mesh and the batch size."""
    shown = [f"{axis} {size}" for axis, size in plan.mesh.items() if size > 1]
    devices = "device" if plan.topology.count == 1 else "devices"
    mesh = ", ".join([f"{plan.topology.count} {devices}", *shown])
    line = f"{name} on {plan.topology}: {mesh}; batches of {plan.rows:,} rows"
    return [line, plan.arrangement] if plan.arrangement else [line]


def _parameters(plan: Plan) -> list[Line]:
    """The number of parameters, in total and per module, the largest first."""
    counts = {"parameters": plan.parameters}
    if plan.active_parameters < plan.parameters:
        counts["  active for one token"] = plan.active_parameters
    for name, count in sorted(plan.modules.items(), key=lambda item: -item[1]):
        counts[f"  {name}"] = count
    first, *others = (
        (name, f"{count:,}", f"{count / plan.parameters:.1%}") for name, count in counts.items()
    )
    return [first[:2], *others]


def _memory(plan: Plan, compiled: Compiled | None) -> list[Line]:
    """The memory per device, whether it fits, and the largest arrays."""
    lines: list[Line] = [("memory per device", "GiB")]
    for name, size in plan.memory.items():
        lines.append((f"  {name}", _gib(size)))
    lines.append(("  peak, estimated", _gib(plan.memory_in_all)))
    if compiled:
        lines.append(("  peak, by the compiler", _gib(compiled.peak)))
        if compiled.arguments is not None and compiled.temporaries is not None:
            both = compiled.arguments + compiled.temporaries
            lines.append(("    its arguments + temporaries", _gib(both)))
    # The compiler knows whether it fits. Without it, an estimate close to the limit is not trusted.
    fits = plan.fits if compiled is None else compiled.fits
    if plan.room is not None:
        verdict = "it fits" if fits else "it does not fit: " + what_would_help(plan)
        if fits and compiled is None and plan.memory_in_all > _CLOSE * plan.room:
            verdict = "it may fit; ask the compiler"
        lines.append(("  of", _gib(plan.room), verdict))
    lines.append("  largest arrays besides the state:")
    for value in plan.largest:
        place = _place(value.place) or value.operation.replace("_", " ")
        lines.append((f"  {value.shape}", _gib(value.size), place))
    return lines


def what_would_help(plan: Plan) -> str:
    """Return the settings that save the most memory."""
    config, advice = plan.config, []
    # If even the fully sharded state is too large, only more devices help.
    if plan.room and plan.state_in_all / plan.topology.count > plan.room:
        devices = math.ceil(plan.state_in_all / plan.room)
        state = _gib(plan.state_in_all / plan.topology.count)
        return f"the state alone takes {state} GiB per device; use at least {devices} devices"
    if plan.room and plan.state > plan.room / 2 and plan.mesh["fsdp"] < plan.topology.count:
        advice.append("split the state over more devices with mesh.fsdp")
    if not config.model.remat:
        advice.append("set model.remat=True")
    rows = config.data.batch_size // config.training.microbatches
    if rows > plan.mesh["data"] * plan.mesh["fsdp"]:
        advice.append("raise training.microbatches")
    elif not advice:
        advice.append("split rows with mesh.sequence, or layers with mesh.tensor")
    return ", ".join([*advice, "or use --search"])


def _place(place: str) -> str:
    """Return the readable parts of jax's name for a place in the model.

    >>> _place("transpose(jvp(Transformer))/Transformer.encode/encoder")
    'backward: encoder'
    """
    parts = [part for part in place.split("/") if part and not re.search(r"jvp|[.]", part)]
    shown = "/".join(part for part in parts if part != "rematted_computation")
    return f"backward: {shown}" if "transpose(" in place and shown else shown


def _step(plan: Plan, compiled: Compiled | None) -> list[Line]:
    """The tokens, FLOPs, traffic and time of a step."""
    tokens = plan.tokens
    lines: list[Line] = [
        "a step",
        ("  raw tokens", f"{tokens.raw * plan.rows:,.0f}"),
        ("  model tokens", f"{tokens.model * plan.rows:,.0f}"),
        ("  loss tokens", f"{tokens.loss * plan.rows:,.0f}"),
        ("  FLOPs", f"{plan.flops:.3e}"),
    ]
    if plan.computed_again:
        lines.append(("    plus recomputation", f"{plan.computed_again:.3e}"))
    for axes, size in plan.sent.items():
        lines.append((f"  sent over {axes}, GB/device", f"{size / 1e9:.2f}"))
    if compiled and compiled.fits:
        for axes, size in by_axis(list(compiled.sent)).items():
            lines.append((f"    the compiler, over {axes}", f"{size / 1e9:.2f}"))
    # The roofline, and the time that the compiler expects.
    if not plan.seconds:
        return [*lines, f"  {why_no_time(plan)}"]
    for name, seconds in plan.seconds.items():
        over = name if name in ("compute", "memory") else f"over {name}"
        lines.append((f"  roofline, {over}, s", f"{seconds:.4f}"))
    for axes in plan.unknown:
        lines.append((f"  roofline, over {axes}, s", "not known"))
    but = f", unless traffic over {', '.join(plan.unknown)} takes longer" if plan.unknown else ""
    lines.append(f"  bound by {plan.bound_by}: an MFU of {plan.max_mfu:.0%} at best{but}")
    seconds = compiled.seconds(plan.topology) if compiled else None
    if seconds and plan.peak:
        mfu = plan.flops / (plan.peak * plan.topology.count * seconds)
        note = f"an MFU of {mfu:.0%}, not counting communication and hand-written kernels"
        lines.append(("  the compiler expects, s", f"{seconds:.4f}", note))
    return lines


def _run(plan: Plan) -> list[Line]:
    """The tokens, days, dollars and energy of the whole run."""
    steps, at_most = plan.config.training.steps, plan.config.data.epochs
    unit = f"steps, unless data.epochs={at_most} ends it earlier" if at_most else "steps"
    lines: list[Line] = [("the run", f"{steps:,}", unit)]
    epochs = plan.epochs_of_sources()
    for source, tokens in plan.tokens_of_sources().items():
        often = f"{epochs[source]:,.2f} epochs" if source in epochs else ""
        lines.append((f"  raw tokens of {source or 'the text'}", f"{tokens:,.0f}", often))
    lines.append(("  PF-days", f"{plan.pf_days:,.4g}"))
    if plan.days is None:
        return lines
    mfu = plan.assumed.mfu
    name = f"days, at an MFU of {mfu:.0%}" if mfu else "days, by the roofline"
    too_much = "more than the roofline allows" if plan.exceeds_roofline else ""
    lines.append((f"  {name}", f"{plan.days:,.2f}", too_much))
    if plan.dollars is not None:
        lines.append(("  dollars", f"{plan.dollars:,.0f}", price_of_hour(plan)))
    if plan.kilowatt_hours is not None:
        lines.append(("  kWh", f"{plan.kilowatt_hours:,.0f}", "devices only"))
    return lines


def price_of_hour(plan: Plan) -> str:
    """Return what one device costs, and who says so."""
    source = "as given" if plan.assumed.dollars is not None else f"list price, {PRICES_AS_OF}"
    return f"{plan.price:.2f} per device and hour, {source}"


def why_no_time(plan: Plan) -> str:
    """Return why the time of a step is not known, and what would help."""
    dtype, fix = plan.config.model.dtype, "set --tflops"
    if dtype != "bfloat16" and peak_flops(plan.topology.chip.kinds[0], "bfloat16"):
        fix += ", or model.dtype=bfloat16"
    return f"the speed of {plan.topology.name} in {dtype} is not known: no time, no price; {fix}"


def _gib(size: float) -> str:
    """Format a number of bytes in GiB."""
    return f"{size / GiB:,.2f}"


def show_splits(plan: Plan) -> str:
    """Format a table of the parameters: their shapes, sizes per device, and sharding."""
    rows = [("parameter", "shape", "MB/device", "split by")]
    for split in plan.splits:
        shape = " × ".join(map(str, split.shape))
        by = ", ".join(axis or "–" for axis in split.by)
        rows.append((split.path, shape, f"{split.bytes / 1e6:,.2f}", by))
    return columns(rows, "<<><")


def show_found(plans: Sequence[Plan]) -> str:
    """Format the best plans of a search, one per line."""
    rows: list[Sequence[str]] = [("s/step", "MFU ≤", "bound by", "GiB", "settings")]
    for plan in plans[:_SHOWN]:
        seconds = f"{plan.step_seconds:.4f}" if plan.step_seconds else "–"
        mfu = f"{plan.max_mfu:.0%}" if plan.max_mfu else "–"
        memory = _gib(plan.memory_in_all)
        rows.append((seconds, mfu, plan.bound_by or "–", memory, arranged(plan)))
    more = [f"and {len(plans) - _SHOWN} more that fit"] if len(plans) > _SHOWN else []
    return columns([*rows, *more], ">>>><")


_COLUMNS = (
    "devices",
    "slice",
    "mesh",
    "rows",
    "GiB",
    "s/step",
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
    return columns([_COLUMNS, *map(_scaled, plans)], ">" * len(_COLUMNS))


def scaling_page(name: str, plans: Sequence[Plan]) -> Page:
    """Build a page that shows plans on increasing numbers of devices as a chart and a table."""
    # One curve per resource: its seconds against the number of devices.
    parts: dict[str, list[tuple[float, float]]] = {}
    for plan in plans:
        for bound, seconds in plan.seconds.items():
            parts.setdefault(bound, []).append((plan.topology.count, seconds))
    longest = max((seconds for points in parts.values() for _, seconds in points), default=0.0)
    # Leave out tiny times, which would take up most of a chart with a log scale.
    parts = {
        bound: points
        for bound, points in parts.items()
        if max(seconds for _, seconds in points) > longest / 1000
    }
    caption = "Lower bounds of a step's time; the longest counts. The batch grows with the devices."
    drawn = charts.dots_and_lines(parts, parts, "devices", "seconds/step", caption)
    table = Table(_COLUMNS, [_scaled(plan) for plan in plans])
    first, last = plans[0], plans[-1]
    counts = f"{first.topology.count} to {last.topology.count:,} devices"
    lead = f"{name} on {counts}, as estimated by a roofline."
    return Page(f"{name}: weak scaling", lead, [Section("", [*drawn, table])])
