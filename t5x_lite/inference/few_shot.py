"""Prompts of examples: a model is told what to do by text alone (in-context learning; Brown et al.,
2020, §2).
"""

import json
import random
import re
from pathlib import Path
from typing import TypedDict

from t5x_lite.errors import BAD_DATA, NO_FILE, USAGE, UserError

TEMPLATE = "{input} => {target}\n"


class Example(TypedDict):
    """One solved case."""

    input: str
    target: str


def read_examples(path: Path) -> list[Example]:
    """Examples from JSON lines with "input" and "target"."""
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
        raise UserError(BAD_DATA, f"{path}: holds no examples")
    return examples


def few_shot_prompt(
    examples: list[Example], query: str, shots: int, seed: int = 0, template: str = TEMPLATE
) -> str:
    r"""`shots` examples, drawn without replacement, then the query, its target left open.

    >>> few_shot_prompt([{"input": "sea", "target": "mer"}], "cheese", 1)
    'sea => mer\ncheese =>'
    """
    before_target, found, _ = template.partition("{target}")
    if not found or "{input}" not in before_target:
        expected = "expected one with {input} and, after it, {target}"
        raise UserError(USAGE, f"--template={template!r}: {expected}")
    if shots > len(examples):
        raise UserError(USAGE, f"--shots={shots}: the file has {len(examples)} examples")

    def solved(example: Example) -> str:
        return re.sub(r"{(input|target)}", lambda field: str(example[field[1]]), template)

    drawn = random.Random(seed).sample(examples, shots)
    open_query = before_target.replace("{input}", query).rstrip(" ")
    return "".join(map(solved, drawn)) + open_query
