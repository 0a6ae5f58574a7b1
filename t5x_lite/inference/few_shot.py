"""Few-shot prompts: solved examples show a model what to do (in-context learning; Brown et al.,
2020, §2).
"""

import json
import random
import re
from pathlib import Path
from typing import Any, TypedDict

from t5x_lite.errors import BAD_DATA, NO_FILE, USAGE, UserError

TEMPLATE = "{input} => {target}\n"


class Shot(TypedDict):
    """A solved example: an input and its target."""

    input: str
    target: str


def read_examples(path: Path) -> list[Shot]:
    """Read examples from JSON lines with "input" and "target".

    Raises:
        UserError: if the file cannot be read, has no examples, or has a line that is not an
            example.
    """
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(NO_FILE, f"--examples={path}: cannot be read ({error})") from error
    examples = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            example = json.loads(line)
        except ValueError as error:
            raise UserError(BAD_DATA, f"{path}, line {number}: no JSON ({error})") from error
        if not isinstance(example, dict) or not {"input", "target"} <= example.keys():
            raise UserError(
                BAD_DATA, f'{path}, line {number}: expected {{"input": …, "target": …}}'
            )
        examples.append(example)
    if not examples:
        raise UserError(BAD_DATA, f"{path}: contains no examples")
    return examples


def few_shot_prompt(
    examples: list[Shot], query: str, shots: int, seed: int = 0, template: str = TEMPLATE
) -> str:
    r"""Build a prompt from `shots` examples, drawn without replacement, and an unanswered query.

    Raises:
        UserError: if the template lacks {input} before {target}, or there are too few examples.

    >>> few_shot_prompt([{"input": "sea", "target": "mer"}], "cheese", 1)
    'sea => mer\ncheese =>'
    """
    before_target, found, _ = template.partition("{target}")
    if not found or "{input}" not in before_target:
        expected = "expected one with {input} and, after it, {target}"
        raise UserError(USAGE, f"--template={template!r}: {expected}")
    if shots > len(examples):
        raise UserError(USAGE, f"--shots={shots}: the file has {len(examples)} examples")

    def solved(example: Shot) -> str:
        values: Any = example
        return re.sub(r"{(input|target)}", lambda field: str(values[field[1]]), template)

    drawn = random.Random(seed).sample(examples, shots)
    open_query = before_target.replace("{input}", query).rstrip(" ")
    return "".join(map(solved, drawn)) + open_query
