"""Report pages as data, and functions that write them as one offline HTML file and as Markdown."""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from t5x_lite import storage
from t5x_lite.errors import IO_ERROR, UserError, optional_import, user_errors
from t5x_lite.terminal import visible

# The beginning of a number, which a unit may follow; or a dash or an empty text in its place
_NUMBER = re.compile(r"[+-]?\.?\d|–$|$")
_TEMPLATE = Path(__file__).with_name("page.html.jinja")
_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
NO_CHARTS = "Install the extra .[report] to see charts here."


def short(number: float) -> str:
    """Return a number as short text with a unit prefix.

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
class Bold:
    """A table cell that is set in bold."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Table:
    """A table: rows of text or Bold, each as long as the heading.

    Attributes:
        texts: indices of the columns of texts that somebody wrote. They may be long, hold any
            character, and begin with a number without being one.
    """

    heading: Sequence[str]
    rows: Sequence[Sequence[str | Bold]]
    caption: str = ""
    texts: Collection[int] = ()

    @property
    def is_of_words(self) -> list[bool]:
        """Per column, True if it holds more than numbers: it is left-aligned and may wrap.

        >>> Table(["run", "steps", "objective"], [["a", "1,000", "ul2"]]).is_of_words
        [True, False, True]
        """
        columns = zip(self.heading, *self.rows, strict=True)
        return [
            number in self.texts or not all(_NUMBER.match(str(cell)) for cell in column)
            for number, (_, *column) in enumerate(columns)
        ]


@dataclass(frozen=True)
class Chart:
    """A chart with its caption.

    Attributes:
        spec: the chart in Vega-Lite.
        description: what the chart shows, for readers who cannot see it.
    """

    spec: dict[str, Any]
    caption: str
    description: str


@dataclass(frozen=True)
class Quote:
    """Text that a model wrote."""

    source: str  # the model, and the text that it was given
    text: str


Part = str | Table | Chart | Quote  # a str is a paragraph


@dataclass(frozen=True)
class Section:
    """A heading and the parts below it."""

    heading: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Page:
    """A page of a report."""

    title: str
    lead: str  # main results, in a sentence or two
    sections: Sequence[Section] = field(default_factory=list)


def write(page: Page, directory: Path) -> None:
    """Write report.html and report.md into the directory, and the first chart as chart.svg.

    There is no chart.svg if the page has no chart or charts cannot be drawn.
    """
    with user_errors(IO_ERROR, f"{directory}: the report cannot be written"):
        storage.write_durably(directory / "report.md", markdown(page))
        storage.write_durably(directory / "report.html", html(page))
        charts = [part for section in page.sections for part in section.parts]
        for chart in (part for part in charts if isinstance(part, Chart)):
            picture = _svg(chart)
            if picture:
                storage.write_durably(directory / "chart.svg", picture)
            break


def html(page: Page) -> str:
    """Return the page as one HTML file that can be read without a network.

    JavaScript is optional: it shows values under the mouse and lets readers change the x-axis.
    """
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )

    # Tests and filters that the template uses.
    tests: dict[str, Any] = environment.tests
    tests["table"] = lambda part: isinstance(part, Table)
    tests["chart"] = lambda part: isinstance(part, Chart)
    tests["quote"] = lambda part: isinstance(part, Quote)
    tests["best"] = lambda cell: isinstance(cell, Bold)
    environment.filters["svg"] = _svg
    environment.filters["inline_json"] = _inline_json
    environment.filters["breakable"] = _breakable

    # The script is large, so pages without charts leave it out.
    has_charts = any(isinstance(part, Chart) for part in _parts(page)) and _can_draw()
    return environment.from_string(_TEMPLATE.read_text("utf-8")).render(
        page=page, no_charts=NO_CHARTS, script=_vega() if has_charts else ""
    )


def _parts(page: Page) -> list[Part]:
    return [part for section in page.sections for part in section.parts]


def _can_draw() -> bool:
    """Return True if the package that draws charts is installed."""
    try:
        _vl_convert()
    except UserError:
        return False
    return True


def _vl_convert() -> Any:
    return optional_import("vl_convert", "report", "charts")


@cache
def _vega() -> str:
    """Return vega-embed and its dependencies as one script."""
    snippet = "window.vegaEmbed = vegaEmbed; window.dispatchEvent(new Event('vega'));"
    return _vl_convert().javascript_bundle(snippet).replace("</script", "<\\/script")


def _svg(chart: Chart) -> str:
    """Return the chart as SVG; empty if charts cannot be drawn."""
    if not _can_draw():
        return ""
    return _vl_convert().vegalite_to_svg(chart.spec)


def _breakable(text: str) -> markupsafe.Markup:
    """Let text wrap after an opening bracket or a comma, for lists of arguments or settings.

    >>> _breakable("ul2(a=1,b<2)")
    Markup('ul2(<wbr>a=1,<wbr>b&lt;2)')
    """
    return markupsafe.Markup(re.sub(r"([(,])", r"\1<wbr>", escape(text)))


def _inline_json(value: Any) -> str:
    """Return JSON that is safe inside a script element."""
    return json.dumps(value).replace("<", "\\u003c")


def markdown(page: Page) -> str:
    """Return the page as Markdown, without its charts."""
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
                quoted = _plain(visible(part.text.strip())).replace("\n", "\n> ")
                source = _plain(one_line(part.source))
                lines += [f"**{source}**", "", f"> {quoted}", ""]
            else:
                lines += [_plain(part), ""]
    return "\n".join(lines)


def one_line(text: str) -> str:
    r"""Return text on one line: spaces for line ends, and escapes for control characters.

    >>> one_line("a\r\nb\x1b[0m")
    'a b\\x1b[0m'
    """
    return visible(" ".join(text.split()))


def _plain(text: str) -> str:
    """Escape text so that Markdown does not read it as tags."""
    return text.replace("<", "&lt;")


def _markdown_table(table: Table) -> list[str]:
    """Return a table as lines of Markdown, with numbers aligned on the right."""
    rule = ["---" if is_of_words else "---:" for is_of_words in table.is_of_words]
    lines = [f"{_plain(table.caption)}", ""] if table.caption else []
    for row in (table.heading, rule, *table.rows):
        cells = []
        for cell in row:
            text = _plain(one_line(str(cell))).replace("|", "\\|")
            cells.append(f"**{text}**" if isinstance(cell, Bold) else text)
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]
