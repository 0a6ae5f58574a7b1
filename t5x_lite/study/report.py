"""report.html (one file, readable offline) and report.md, from the results of a comparison."""

from html import escape
from pathlib import Path

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
td, th { padding: .3rem .7rem; border-bottom: 1px solid #ddd; text-align: right }
td:first-child, th:first-child { text-align: left }
blockquote { margin: .5rem 0; padding: .2rem 1rem; border-left: 3px solid #ccc; white-space: pre-wrap }
mark { background: #ffe9a8 } svg { max-width: 100%; height: auto } small { color: #666 }
"""


def short(number: float) -> str:
    """A number as people read it.

    >>> short(1234567), short(3.2e15), short(812)
    ('1.23 M', '3.2 P', '812')
    """
    for size, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if unit == 'k' else size):.3g} {unit}"
    return f"{number:.4g}"


def table(results: dict) -> list[list[str]]:
    """The rows of the main table, the first its heading."""
    heading = ["model", "objective", "parameters", "raw tokens", "model tokens", "loss tokens", "padding", "FLOPs"]
    rows = [[*heading, "seconds", "tokens/s", "validation loss", "accuracy"]]
    for name, run in results["members"].items():
        numbers = (run[key] for key in ("parameters", "raw_tokens", "model_tokens", "loss_tokens"))
        rows.append([f"{name} ({run['architecture'].replace('_', '-')})", run["objective"], *map(short, numbers)])
        rows[-1] += [f"{run['padding']:.1%}", short(run["flops"]), f"{run['seconds']:.0f}"]
        rows[-1] += [short(run["tokens_per_second"]), f"{run['loss']:.3f}", f"{run['accuracy']:.1%}"]
    return rows


def bits(results: dict) -> list[list[str]]:
    """Bits per byte of the causal models beside the classical ones, best first; empty where there is none."""
    found = {name: run["bits_per_byte"] for name, run in results["members"].items() if "bits_per_byte" in run}
    if not found:
        return []
    found |= results.get("ngram", {})
    ranked = sorted(found.items(), key=lambda item: item[1])
    heading = "bits per byte" if results["corpus"]["lossless"] else "bits per byte (lossy tokenizer, not comparable)"
    return [["model of the validation text", heading], *([name, f"{value:.3f}"] for name, value in ranked)]


def _examples(results: dict):
    """(name, text, what the model made of it) for every example."""
    for name, made in results["examples"].items():
        for example in made:
            if "words" in example:
                for words in example["words"]:
                    yield name, example["text"], ", ".join(f"{word} {p:.1%}" for word, p in words)
            elif "spans" in example:
                yield name, example["text"], " | ".join(span.strip() or "(nothing)" for span in example["spans"])
            else:
                yield name, example["text"], example["continuation"]


def notes(results: dict) -> list[str]:
    """What a reader must know to trust the numbers."""
    held = results["corpus"]["validation"]
    return [
        f"Validation: {held['documents']:,} documents, {held['tokens']:,} tokens, {held['bytes']:,} bytes.",
        "Loss: nats per scored token, each family by its own question: the losses of different objectives do not "
        "compare. Model tokens: positions of encoder and decoder. FLOPs: matrix products of forward and backward.",
        "Bits per byte: of the original text, the end of each document counted as a token.",
    ]


def write(results: dict, directory: Path) -> None:
    """Write report.md and report.html into the directory."""
    (directory / "report.md").write_text(markdown(results))
    (directory / "report.html").write_text(html(results))


def markdown(results: dict) -> str:
    """The report as Markdown."""

    def lines(rows):
        if not rows:
            return []
        rule = ["---", *["---:"] * (len(rows[0]) - 1)]
        return [
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (rows[0], rule, *rows[1:])
        ] + [""]

    text = [f"# {results['title']}", "", *lines(table(results)), *lines(bits(results))]
    for name, prompt, answer in _examples(results):
        quoted = answer.strip().replace("\n", "\n> ")
        text += [f"**{name}**: {prompt}", "", f"> {quoted}", ""]
    return "\n".join([*text, *(f"{note}\n" for note in notes(results))])


def html(results: dict) -> str:
    """The report as one HTML page without any outside resource."""

    def rows(cells):
        if not cells:
            return ""
        lines = ("".join(f"<{tag}>{escape(c)}</{tag}>" for c in row) for tag, row in _tagged(cells))
        return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"

    done = "".join(
        f"<p><b>{escape(name)}</b>: {escape(prompt)}</p><blockquote><mark>{escape(answer)}</mark></blockquote>"
        for name, prompt, answer in _examples(results)
    )
    body = [
        f"<h1>{escape(results['title'])}</h1>{rows(table(results))}",
        f"<h2>Loss</h2>{curves(results)}",
        f"<h2>Against counting</h2>{rows(bits(results))}" if bits(results) else "",
        f"<h2>What each model does</h2>{done}" if done else "",
        "".join(f"<p><small>{escape(note)}</small></p>" for note in notes(results)),
    ]
    head = f'<meta charset="utf-8"><title>{escape(results["title"])}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>'


def _tagged(rows):
    return (("td" if i else "th", row) for i, row in enumerate(rows))


def curves(results: dict, width: int = 800, height: int = 360) -> str:
    """Training (thin) and validation (thick) loss by step, as inline SVG."""
    runs = results["members"]
    points = [p for run in runs.values() for p in run["curve"] + run["validation_curve"]]
    last, top = max(step for step, _ in points), max(loss for _, loss in points)
    low = min(loss for _, loss in points)
    left, bottom = 50, height - 30

    def at(step, loss):
        return left + step / last * (width - left - 10), bottom - (loss - low) / max(top - low, 1e-9) * (bottom - 10)

    def line(curve, colour, thickness):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in curve))
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in (at(*p) for p in curve))
        drawn = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{thickness}"/>'
        return drawn + (dots if thickness > 1 else "")

    parts = []
    for i in range(5):
        loss = low + (top - low) * i / 4
        y = at(0, loss)[1]
        parts.append(f'<line x1="{left}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" font-size="12">{loss:.2f}</text>')
        step = last * i // 4
        x = at(step, low)[0]
        parts.append(f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle" font-size="12">{step}</text>')
    for i, (name, run) in enumerate(runs.items()):
        colour = COLOURS[i % len(COLOURS)]
        parts += [line(run["curve"], colour, 1), line(run["validation_curve"], colour, 2.5)]
        parts.append(f'<text x="{width - 120}" y="{24 + 18 * i}" fill="{colour}" font-size="14">{escape(name)}</text>')
    label = "loss in nats by step, training thin, validation thick"
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
