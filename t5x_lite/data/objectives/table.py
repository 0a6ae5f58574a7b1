"""The table of objectives in the documentation, made from their docstrings.
`python -m t5x_lite.data.objectives.table` prints it.
"""

import re
from typing import Any

from t5x_lite.data.objectives import OBJECTIVES
from t5x_lite.data.objectives.pairs import example

_TEXT = "the cat sat on the mat"
_EXAMPLES: dict[str, dict[str, Any]] = {
    "sentence_permutation": {"text": "It is. So be it. Yes.", "row": 2},
    "fill_in_the_middle": {"text": _TEXT, "fim_rate": 1.0},
}
# The first sentence of a docstring: the meaning, then its source with a year in round brackets.
_FIRST_SENTENCE = re.compile(r"(?P<meaning>.+?) \((?P<source>[^()]*\d{4}[^()]*)\)\.")


def table() -> str:
    """Return a Markdown table with the meaning and source of each objective, and the inputs and
    targets that it makes from an example text with letters as tokens.
    """
    lines = ["| objective | what it does | from | inputs | targets |", "|---|---|---|---|---|"]
    for name, objective in OBJECTIVES.items():
        sentence = _FIRST_SENTENCE.match(" ".join((objective.__doc__ or "").split()))
        assert sentence, f"the docstring of {name} begins with no meaning and source"
        sides = example(objective, **_EXAMPLES.get(name, {"text": _TEXT}))
        inputs, targets = (f"`{side}`" if side else "" for side in sides)
        cells = [f"`{name}`", sentence["meaning"], sentence["source"], inputs, targets]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
