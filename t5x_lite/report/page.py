"""A report as data, and its two forms: one HTML file that needs no network, and Markdown."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from t5x_lite.errors import IO_ERROR, UserError, optional_import, user_errors

_NUMBER = re.compile(r"[+-]?\.?\d|–$|$")  # also with a unit, or that there is none
_TEMPLATE = Path(__file__).with_name("page.html.jinja")
_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
NO_CHARTS = "Charts are drawn where the extra .[report] is installed."


def short(number: float) -> str:
    """A number as people read it.

    >>> short(1234567), short(3.2e15), short(12345), short(812)
    ('1.23 M', '3.2 P', '12.3 k', '812')
    """
    for size, unit in _UNITS:
        if number >= size:
            return f"{number / size:.3g} {unit}"
    if number >= 1e4:
        return f"{number / 1e3:.3g} k"
    return f"{number:.4g}"


@dataclass(frozen=True)
class Best:
    """A cell of a table that is the best of its column."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Table:
    """Rows of text or Best, all as long as the heading."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str | Best]]
    caption: str = ""

    @property
    def is_of_words(self) -> list[bool]:
        """Of each column, whether it holds more than numbers: it stands on the left, and may wrap.

        >>> Table(["run", "steps", "objective"], [["a", "1,000", "ul2"]]).is_of_words
        [True, False, True]
        """
        columns = zip(self.heading, *self.rows, strict=True)
        return [not all(_NUMBER.match(str(cell)) for cell in column) for _, *column in columns]


@dataclass(frozen=True)
class Chart:
    """A picture.

    Attributes:
        spec: of vega-lite.
        description: what it shows, for those who do not see it.
    """

    spec: dict[str, Any]
    caption: str
    description: str


@dataclass(frozen=True)
class Quote:
    """What a model made of a text."""

    source: str  # which model, of which text
    text: str


Part = str | Table | Chart | Quote  # a str is a paragraph


@dataclass(frozen=True)
class Section:
    """A heading, and what stands below it."""

    heading: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Page:
    """A report."""

    title: str
    lead: str  # the answer, in a sentence or two
    sections: Sequence[Section] = field(default_factory=list)


def write(page: Page, directory: Path) -> None:
    """Write report.html and report.md into the directory, and the first chart as chart.svg."""
    with user_errors(IO_ERROR, f"{directory}: the report cannot be written"):
        (directory / "report.md").write_text(markdown(page), "utf-8")
        (directory / "report.html").write_text(html(page), "utf-8")
        charts = [part for section in page.sections for part in section.parts]
        for chart in (part for part in charts if isinstance(part, Chart)):
            picture = _svg(chart)
            if picture:
                (directory / "chart.svg").write_text(picture, "utf-8")
            break


def html(page: Page) -> str:
    """The page as one HTML file: readable without a network and without JavaScript, which adds
    values where the mouse is.
    """
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.tests["table"] = lambda part: isinstance(part, Table)
    environment.tests["chart"] = lambda part: isinstance(part, Chart)
    environment.tests["quote"] = lambda part: isinstance(part, Quote)
    environment.tests["best"] = lambda cell: isinstance(cell, Best)
    environment.filters["svg"] = _svg
    environment.filters["inline_json"] = _inline_json
    environment.filters["breakable"] = _breakable
    has_charts = any(isinstance(part, Chart) for part in _parts(page)) and _can_draw()
    return environment.from_string(_TEMPLATE.read_text("utf-8")).render(
        page=page, no_charts=NO_CHARTS, script=_vega() if has_charts else ""
    )


def _parts(page: Page) -> list[Part]:
    return [part for section in page.sections for part in section.parts]


def _can_draw() -> bool:
    try:
        _vl_convert()
    except UserError:
        return False
    return True


def _vl_convert() -> Any:
    return optional_import("vl_convert", "report", "charts")


@cache
def _vega() -> str:
    """Vega-embed with all that it needs, as one script."""
    snippet = "window.vegaEmbed = vegaEmbed; window.dispatchEvent(new Event('vega'));"
    return _vl_convert().javascript_bundle(snippet).replace("</script", "<\\/script")


def _svg(chart: Chart) -> str:
    """The picture as it stands in a page; empty where it cannot be drawn."""
    if not _can_draw():
        return ""
    return _vl_convert().vegalite_to_svg(chart.spec)


def _breakable(text: str) -> markupsafe.Markup:
    """Text that may wrap where a list of arguments or settings does.

    >>> _breakable("ul2(a=1,b<2)")
    Markup('ul2(<wbr>a=1,<wbr>b&lt;2)')
    """
    return markupsafe.Markup(re.sub(r"([(,])", r"\1<wbr>", escape(text)))


def _inline_json(value: Any) -> str:
    """JSON that may stand within a script element."""
    return json.dumps(value).replace("<", "\\u003c")


def markdown(page: Page) -> str:
    """The page as Markdown, its charts left out."""
    lines = [f"# {_plain(page.title)}", "", _plain(page.lead), ""]
    for section in page.sections:
        parts = [part for part in section.parts if not isinstance(part, Chart)]
        if not parts:
            continue
        lines += [f"## {section.heading}", ""]
        for part in parts:
            if isinstance(part, Table):
                lines += _markdown_table(part)
            elif isinstance(part, Quote):
                quoted = part.text.strip().replace("<", "&lt;").replace("\n", "\n> ")
                source = _plain(" ".join(part.source.split()))
                lines += [f"**{source}**", "", f"> {quoted}", ""]
            else:
                lines += [_plain(part), ""]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Text that Markdown does not take for tags."""
    return text.replace("<", "&lt;")


def _markdown_table(table: Table) -> list[str]:
    rule = ["---" if is_of_words else "---:" for is_of_words in table.is_of_words]
    lines = [f"{_plain(table.caption)}", ""] if table.caption else []
    for row in (table.heading, rule, *table.rows):
        cells = []
        for cell in row:
            text = _plain(str(cell)).replace("|", "\\|").replace("\n", " ")
            cells.append(f"**{text}**" if isinstance(cell, Best) else text)
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]
