"""The charts of reports, as Vega-Lite specifications made with Altair."""

from collections.abc import Mapping, Sequence
from typing import Any

from t5x_lite.errors import UserError, optional_import
from t5x_lite.report.page import Chart

# Colours that colour-blind readers can tell apart, after Wong (2011), "Color blindness", Nature
# Methods. Neighbours in this order differ clearly on a white page and on a dark one.
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#3d9fd3", "#7f6fc7", "#808080"
)  # fmt: skip
_TEXT = {"labelColor": "currentColor", "titleColor": "currentColor"}
_CONFIG = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        **_TEXT, "gridColor": "#8884", "domainColor": "#888", "tickColor": "#888",
        "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal",
    },
    "legend": {**_TEXT, "labelFontSize": 12, "orient": "bottom", "columns": 3, "labelLimit": 240},
}  # fmt: skip
_WIDTH, _HEIGHT = 460, 260

Curve = Sequence[Sequence[float]]  # [step, value]


def _altair() -> Any:
    return optional_import("altair", "report", "charts")


def _finished(chart: Any) -> dict[str, Any]:
    """Return the Vega-Lite specification of an Altair chart, in the style of the reports."""
    return chart.configure(**_CONFIG).to_dict()


def curves(
    trained: Mapping[str, Curve],
    evaluated: Mapping[str, Curve],
    y: str,
    axes: Mapping[str, Mapping[str, float]] | None = None,
    groups: Mapping[str, str] | None = None,
    log: bool = False,
    caption: str = "",
) -> list[Chart]:
    """Draw curves by step: thin lines for training, thick lines with dots for validation.

    Args:
        trained: name of a run → its training curve.
        evaluated: name of a run → its validation curve.
        y: title of the y-axis.
        axes: unit of the x-axis → name of a run → amount per step. The first unit is drawn, and
            the others can be chosen in a browser. None: steps.
        groups: name of a run → group whose runs share a colour. None: each run has its own.
        log: True for a logarithmic y-axis.

    Returns:
        One chart; none if there is nothing to draw or altair is not installed.
    """
    try:
        alt = _altair()
    except UserError:
        return []
    names = list(dict.fromkeys([*trained, *evaluated]))
    groups = groups or {name: name for name in names}
    # Groups without a curve in this chart count, too: colours are the same throughout a report.
    colours = list(dict.fromkeys(groups.values()))
    shown = list(dict.fromkeys(groups[name] for name in names))
    axes = axes or {"step": dict.fromkeys(names, 1)}
    x, scales = next(iter(axes.items()))

    def rows(of_names: Mapping[str, Curve]) -> list[dict[str, Any]]:
        return [
            {"run": name, "group": groups[name], "x": step * scales[name], "y": value}
            for name, curve in of_names.items()
            for step, value in curve
        ]

    encoding = _encoding_of_curves(x, y, log)
    encoding["color"] = alt.Color(
        "group",
        type="nominal",
        title=None,
        scale=alt.Scale(domain=colours, range=_colours(colours)),
        legend=alt.Legend(values=shown),
    )
    layers = []
    if rows(trained):
        data = alt.Data(values=rows(trained))
        layers.append(alt.Chart(data).mark_line(strokeWidth=1, opacity=0.55).encode(**encoding))
    if rows(evaluated):
        data = alt.Data(values=rows(evaluated))
        thick = alt.Chart(data).mark_line(strokeWidth=2.5, point={"size": 40})
        layers.append(thick.encode(**encoding))
    if not layers:
        return []
    chart = alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT, usermeta={"axes": axes})
    described = f"{y} by {x} of {', '.join(names)}"
    return [Chart(_finished(chart), caption or f"{y} by {x}", described)]


def _encoding_of_curves(x: str, y: str, log: bool) -> dict[str, Any]:
    """Return the axes and the tooltip of `curves`, whose rows have run, group, x and y."""
    alt = _altair()
    return {
        "x": alt.X(
            "x",
            type="quantitative",
            title=x,
            axis=alt.Axis(format="~s", tickCount=5),
            scale=alt.Scale(nice=False),
        ),
        "y": alt.Y(
            "y",
            type="quantitative",
            title=y,
            axis=alt.Axis(tickCount=6, grid=not log),
            scale=alt.Scale(zero=False, type="log" if log else "linear"),
        ),
        "detail": alt.Detail("run", type="nominal"),
        "tooltip": [
            alt.Tooltip("run", type="nominal"),
            alt.Tooltip("x", type="quantitative", title=x, format=",.4~s"),
            alt.Tooltip("y", type="quantitative", title=y, format=".4f"),
        ],
    }


def dots_and_lines(
    dots: Mapping[str, Sequence[tuple[float, float]]],
    lines: Mapping[str, Sequence[tuple[float, float]]],
    x: str,
    y: str,
    caption: str,
) -> list[Chart]:
    """Draw dots and lines on two logarithmic axes, with one colour per name.

    Args:
        dots: name → points (x, y).
        lines: name → points (x, y) that a line connects.
        x: title of the x-axis.
        y: title of the y-axis.

    Returns:
        One chart; none if altair is not installed.
    """
    try:
        alt = _altair()
    except UserError:
        return []

    def data(of_names: Mapping[str, Sequence[tuple[float, float]]]) -> Any:
        return alt.Data(
            values=[
                {"name": name, "x": at, "y": value}
                for name, pairs in of_names.items()
                for at, value in pairs
            ]
        )

    names = list(dots)
    log = alt.Scale(type="log", nice=False, padding=12)
    encoding = {
        "x": alt.X("x:Q", title=x, scale=log, axis=alt.Axis(format="~s", tickCount=5)),
        "y": alt.Y("y:Q", title=y, scale=log, axis=alt.Axis(tickCount=6, format=".3~g")),
        "color": alt.Color(
            "name:N", title=None, scale=alt.Scale(domain=names, range=_colours(names))
        ),
        "tooltip": [
            alt.Tooltip("name:N"),
            alt.Tooltip("x:Q", title=x, format=",.4~s"),
            alt.Tooltip("y:Q", title=y, format=".4f"),
        ],
    }
    drawn = alt.Chart(data(lines)).mark_line(strokeWidth=1.5).encode(**encoding)
    marked = alt.Chart(data(dots)).mark_point(filled=True, size=55, opacity=1).encode(**encoding)
    chart = alt.layer(drawn, marked).properties(width=_WIDTH, height=_HEIGHT)
    return [Chart(_finished(chart), caption, f"{y} by {x} of {', '.join(names)}")]


def _colours(names: Sequence[str]) -> list[str]:
    """Return a colour for each name; with many names, colours repeat."""
    return [COLOURS[number % len(COLOURS)] for number in range(len(names))]


def intervals(
    values: Mapping[str, Mapping[str, float | None]],
    lines: Mapping[str, float],
    title: str,
    caption: str,
) -> list[Chart]:
    """Draw a dot with its interval for each name, and dashed lines for comparison.

    Args:
        values: name → mean, low and high.
        lines: name → value at which a dashed line is drawn.
        title: title of the x-axis.

    Returns:
        One chart; none if altair is not installed.
    """
    try:
        alt = _altair()
    except UserError:
        return []
    rows = [
        {"name": name, "value": of_name["mean"], "low": of_name["low"], "high": of_name["high"]}
        for name, of_name in values.items()
    ]
    order = [row["name"] for row in rows]
    data = alt.Data(values=rows)
    y = alt.Y("name", type="nominal", sort=order, title=None, axis=alt.Axis(labelLimit=220))
    x = alt.X("value", type="quantitative", title=title, scale=alt.Scale(zero=False))
    tooltip = [
        alt.Tooltip("name", type="nominal"),
        *(alt.Tooltip(key, type="quantitative", format=".4f") for key in ("value", "low", "high")),
    ]

    # The intervals, then the dots over them.
    layers = [
        alt.Chart(data).mark_rule(color=COLOURS[0], strokeWidth=2).encode(
            y=y,
            x=alt.X("low", type="quantitative", title=title, scale=alt.Scale(zero=False)),
            x2="high:Q",
        ),
        alt.Chart(data).mark_point(color=COLOURS[0], filled=True, size=70, opacity=1).encode(
            y=y, x=x, tooltip=tooltip
        ),
    ]  # fmt: skip
    if lines:
        ruled = alt.Data(values=[{"name": name, "value": value} for name, value in lines.items()])
        base = alt.Chart(ruled).encode(x=x)
        layers.append(
            base.mark_rule(strokeDash=[5, 4], color="#888").encode(
                tooltip=[tooltip[0], alt.Tooltip("value", type="quantitative", format=".4f")]
            )
        )
        layers.append(
            base.mark_text(angle=0, dy=-6, align="left", baseline="bottom", color="currentColor")
            .encode(text="name:N", y=alt.value(0))
        )  # fmt: skip
    chart = alt.layer(*layers).properties(width=_WIDTH, height=max(28 * len(rows), 60))
    return [Chart(_finished(chart), caption, f"{title} of {', '.join(order)}")]
