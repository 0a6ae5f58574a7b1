"""The README's table of objectives, from their docstrings: `python -m t5x_lite.data.objectives.table` prints it."""

import re

from t5x_lite.data.objectives import OBJECTIVES
from t5x_lite.data.objectives.pairs import example

_TEXT = "the cat sat on the mat"
_SHOWN = {
    "sentence_permutation": {"text": "It is. So be it. Yes.", "row": 2},
    "fill_in_the_middle": {"text": _TEXT, "fim_rate": 1},
}
_FIRST = re.compile(r"(?P<meaning>.+?) \((?P<source>[^()]*\d{4}[^()]*)\)\.")  # meaning (source).


def table() -> str:
    """Markdown: of each objective its meaning, where it comes from, and what it makes of a text, letters as tokens."""
    lines = ["| objective | what it does | from | inputs | targets |", "|---|---|---|---|---|"]
    for name, objective in OBJECTIVES.items():
        said = _FIRST.match(" ".join(objective.__doc__.split()))
        shown = (f"`{text}`" if text else "" for text in example(objective, **_SHOWN.get(name, {"text": _TEXT})))
        lines.append(f"| `{name}` | {said['meaning']} | {said['source']} | {' | '.join(shown)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
