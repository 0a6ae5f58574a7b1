"""Write the tables of a report in LaTeX, for a paper: with booktabs, with numbers aligned on the
right, and with the captions that say what the intervals are.
"""

from collections.abc import Sequence

from t5x_lite.report.page import Bold, Page, Table, one_line

_HEADER = r"""% The tables of "{title}". In the preamble: \usepackage{{booktabs}}
"""
_ESCAPED = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "–": "--",
    "−": "$-$",
    "…": r"\ldots{}",
    "<": r"$<$",
    ">": r"$>$",
}


def escape(text: str) -> str:
    r"""Escape text for LaTeX.

    >>> print(escape("span_bits ± 3 %"))
    span\_bits $\pm$ 3 \%
    """
    return "".join(_ESCAPED.get(character, character) for character in one_line(text))


def tex(page: Page) -> str:
    """Return all tables of a page, each as a float with its caption and a numbered label."""
    tables = [
        (section.heading, part)
        for section in page.sections
        for part in section.parts
        if isinstance(part, Table)
    ]
    # A LaTeX comment ends with its line, so the title must be on one line.
    parts = [_HEADER.format(title=one_line(page.title))]
    parts += [_table(heading, table, number) for number, (heading, table) in enumerate(tables, 1)]
    return "\n".join(parts)


def _table(heading: str, table: Table, number: int) -> str:
    """Return a table as a float with its caption and label."""
    columns = "".join(_columns(table))
    rows = [" & ".join(map(escape, table.heading)), *map(_row, table.rows)]
    first, *others = (f"    {row} \\\\" for row in rows)
    caption = f"{heading}. {table.caption}" if table.caption else heading
    lines = [
        r"\begin{table}",
        r"  \centering\small",
        f"  \\caption{{{escape(caption)}.}}",
        f"  \\label{{tab:report-{number}}}",
        f"  \\begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        first,
        r"    \midrule",
        *others,
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def _columns(table: Table) -> list[str]:
    """Return LaTeX's specification of each column: lines of texts may break."""
    columns = []
    for number, of_words in enumerate(table.is_of_words):
        if number in table.texts:
            columns.append(r"p{0.7\linewidth}")
        else:
            columns.append("l" if of_words else "r")
    return columns


def _row(cells: Sequence[str | Bold]) -> str:
    """Return the cells of a row."""
    shown = []
    for cell in cells:
        text = escape(str(cell))
        shown.append(f"\\textbf{{{text}}}" if isinstance(cell, Bold) else text)
    return " & ".join(shown)
