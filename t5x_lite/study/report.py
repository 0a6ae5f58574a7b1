"""report.html (one file, readable offline) and report.md, from the results of a comparison."""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_STYLE = """
:root { color-scheme: light dark }
body {
  font: 16px/1.5 system-ui, sans-serif;
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem
}
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
td, th { padding: .3rem .7rem; border-bottom: 1px solid #8884; text-align: right }
td:first-child, th:first-child { text-align: left }
blockquote {
  margin: .5rem 0; padding: .2rem 1rem; border-left: 3px solid #8888; white-space: pre-wrap
}
mark { background: #ffe9a8; color: #222 }
svg { max-width: 100%; height: auto } small { color: #888 }
"""
_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))

Table = list[list[str]]  # rows of cells, the first its heading


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


def table(results: dict) -> Table:
    """The main table."""
    rows = [
        [
            "model",
            "objective",
            "parameters",
            "raw tokens",
            "model tokens",
            "loss tokens",
            "padding",
            "FLOPs",
            "seconds",
            "tokens/s",
            "validation loss",
            "accuracy",
        ]
    ]
    for name, run in results["members"].items():
        architecture = run["architecture"].replace("_", "-")
        row = [
            f"{name} ({architecture})",
            run["objective"],
            short(run["parameters"]),
            short(run["raw_tokens"]),
            short(run["model_tokens"]),
            short(run["loss_tokens"]),
            f"{run['padding']:.1%}",
            short(run["flops"]),
            f"{run['seconds']:.0f}",
            short(run["tokens_per_second"]),
            f"{run['loss']:.3f}",
            f"{run['accuracy']:.1%}",
        ]
        rows.append(row)
    return rows


def bits_table(results: dict) -> Table:
    """Bits per byte of the causal models beside the classical ones, best first; else empty."""
    members = results["members"].items()
    bits = {name: run["bits_per_byte"] for name, run in members if "bits_per_byte" in run}
    if not bits:
        return []
    bits |= results.get("ngram", {})
    heading = "bits per byte"
    if not results["corpus"]["lossless"]:
        heading += " (lossy tokenizer, not comparable)"
    ranked = sorted(bits.items(), key=lambda item: item[1])
    rows = [[name, f"{value:.3f}"] for name, value in ranked]
    return [["model of the validation text", heading], *rows]


class Answer(NamedTuple):
    """What a model made of a text."""

    model: str
    text: str
    answer: str


def answers(results: dict) -> Iterator[Answer]:
    """What each model made of each text."""
    for name, examples in results["examples"].items():
        for example in examples:
            text = example["text"]
            if "words" in example:
                for words in example["words"]:
                    shown = [f"{word} {probability:.1%}" for word, probability in words]
                    yield Answer(name, text, ", ".join(shown))
            elif "spans" in example:
                spans = [span.strip() or "(nothing)" for span in example["spans"]]
                yield Answer(name, text, " | ".join(spans))
            else:
                yield Answer(name, text, example["continuation"])


def notes(results: dict) -> list[str]:
    """What a reader must know to trust the numbers."""
    held_out = results["corpus"]["validation"]
    documents, tokens = f"{held_out['documents']:,} documents", f"{held_out['tokens']:,} tokens"
    return [
        f"Validation: {documents}, {tokens}, {held_out['bytes']:,} bytes.",
        "Loss: nats per scored token, each family by its own question: the losses of different "
        "objectives do not compare. Model tokens: positions of encoder and decoder. FLOPs: matrix "
        "products of forward and backward.",
        "Bits per byte: of the original text, the end of each document counted as a token.",
    ]


def write(results: dict, directory: Path) -> None:
    """Write report.md, report.html and its picture, curves.svg, into the directory."""
    (directory / "report.md").write_text(markdown(results), "utf-8")
    (directory / "report.html").write_text(html(results), "utf-8")
    picture = curves(results["members"], LOSS).replace(
        "<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1
    )
    (directory / "curves.svg").write_text(picture)


def markdown(results: dict) -> str:
    """The report as Markdown."""
    lines = [f"# {results['title']}", ""]
    for rows in (table(results), bits_table(results)):
        lines += markdown_table(rows)
    for model, text, answer in answers(results):
        quoted = answer.strip().replace("\n", "\n> ")
        lines += [f"**{model}**: {text}", "", f"> {quoted}", ""]
    lines += [f"{note}\n" for note in notes(results)]
    return "\n".join(lines)


def markdown_table(rows: Table) -> list[str]:
    """The lines of a table, and an empty one."""
    if not rows:
        return []
    heading, *body = rows
    rule = ["---"] + ["---:"] * (len(heading) - 1)
    lines = []
    for row in (heading, rule, *body):
        cells = [cell.replace("|", "\\|").replace("\n", " ") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def html(results: dict) -> str:
    """The report as one HTML page without any outside resource."""
    body = [html_table(table(results)), f"<h2>Loss</h2>{curves(results['members'], LOSS)}"]
    bits = bits_table(results)
    if bits:
        body.append(f"<h2>Against counting</h2>{html_table(bits)}")
    quoted = [
        f"<p><b>{escape(model)}</b>: {escape(text)}</p>"
        f"<blockquote><mark>{escape(answer)}</mark></blockquote>"
        for model, text, answer in answers(results)
    ]
    if quoted:
        body.append("<h2>What each model does</h2>" + "".join(quoted))
    body += [f"<p><small>{escape(note)}</small></p>" for note in notes(results)]
    return page(results["title"], "".join(body))


def page(title: str, body: str) -> str:
    """A page with a title, readable without a network."""
    title = escape(title)
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    body = f"<h1>{title}</h1>{body}"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>'


def html_table(rows: Table) -> str:
    """A table as HTML."""
    lines = []
    for number, row in enumerate(rows):
        tag = "td" if number else "th"
        cells = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


Curve = list[list[float]]  # [step, loss]


class _Axes(NamedTuple):
    """Where steps and losses lie in the picture, in its own units."""

    last_step: float
    lowest: float
    highest: float
    left: float
    right: float
    top: float
    bottom: float

    def x(self, step: float) -> float:
        return self.left + step / self.last_step * (self.right - self.left)

    def y(self, loss: float) -> float:
        share = (loss - self.lowest) / max(self.highest - self.lowest, 1e-9)
        return self.bottom - share * (self.bottom - self.top)


LOSS = "loss in nats by step, training thin, validation thick"


def curves(runs: dict[str, dict], title: str, width: int = 800, height: int = 360) -> str:
    """The "curve" (thin) and the "validation_curve" (thick) of each run, as inline SVG."""
    points = [point for run in runs.values() for point in run["curve"] + run["validation_curve"]]
    losses = [loss for _, loss in points]
    axes = _Axes(
        last_step=max(step for step, _ in points),
        lowest=min(losses),
        highest=max(losses),
        left=50,
        right=width - 20,  # half of the last number
        top=10,
        bottom=height - 30,
    )
    parts = _ticks(axes)
    for number, (name, run) in enumerate(runs.items()):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(_polyline(axes, run["curve"], colour, 1))
        parts.append(_polyline(axes, run["validation_curve"], colour, 2.5))
        parts += _dots(axes, run["validation_curve"], colour)
        # The names stand under the picture, two in a line.
        line, column = divmod(number, 2)
        place = f'x="{axes.left + column * width // 2}" y="{height + 16 + 20 * line}"'
        parts.append(f'<text {place} fill="{colour}" font-size="14">{escape(name)}</text>')
    whole_height = height + 20 * -(-len(runs) // 2) + 10
    opening = (
        f'<svg viewBox="0 0 {width} {whole_height}" role="img" '
        f'aria-label="{title}" font-family="system-ui, sans-serif">'
    )
    return f"{opening}{''.join(parts)}</svg>"


def _ticks(axes: _Axes, count: int = 5) -> list[str]:
    """Lines at some losses, and labels at some losses and steps."""
    parts = []
    for tick in range(count):
        share = tick / (count - 1)
        loss = axes.lowest + (axes.highest - axes.lowest) * share
        y = axes.y(loss)
        ends = f'x1="{axes.left}" x2="{axes.right}" y1="{y:.1f}" y2="{y:.1f}"'
        parts.append(f'<line {ends} stroke="#8883"/>')
        parts.append(_label(axes.left - 6, y + 4, "end", f"{loss:.2f}"))
        step = int(axes.last_step * share)
        parts.append(_label(axes.x(step), axes.bottom + 20, "middle", str(step)))
    return parts


def _label(x: float, y: float, anchor: str, text: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="12" fill="#888">{text}</text>'


def _polyline(axes: _Axes, curve: Curve, colour: str, thickness: float) -> str:
    points = " ".join(f"{axes.x(step):.1f},{axes.y(loss):.1f}" for step, loss in curve)
    line = f'fill="none" stroke="{colour}" stroke-width="{thickness}"'
    return f'<polyline points="{points}" {line}/>'


def _dots(axes: _Axes, curve: Curve, colour: str) -> list[str]:
    dots = [f'cx="{axes.x(step):.1f}" cy="{axes.y(loss):.1f}"' for step, loss in curve]
    return [f'<circle {dot} r="3" fill="{colour}"/>' for dot in dots]
