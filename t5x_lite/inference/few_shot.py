"""Prompts of examples: a model is told what to do by text alone (in-context learning; Brown et al., 2020, §2)."""

import json
import random
import re
from pathlib import Path

from t5x_lite.errors import BAD_DATA, NO_FILE, USAGE, Refusal

TEMPLATE = "{input} => {target}\n"


def read(path: Path) -> list[dict]:
    """Examples from JSON lines with "input" and "target"."""
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(NO_FILE, f"--examples={path}: cannot be read ({error})") from error
    made = []
    for number, line in enumerate(lines, 1):
        try:
            found = json.loads(line or "{}")
        except ValueError as error:
            raise Refusal(BAD_DATA, f"{path}, line {number}: no JSON ({error})") from error
        if line.strip() and not (isinstance(found, dict) and {"input", "target"} <= found.keys()):
            raise Refusal(BAD_DATA, f'{path}, line {number}: expected {{"input": …, "target": …}}')
        made += [found] if line.strip() else []
    if not made:
        raise Refusal(BAD_DATA, f"{path}: holds no examples")
    return made


def prompt(examples: list[dict], query: str, shots: int, seed: int = 0, template: str = TEMPLATE) -> str:
    r"""`shots` examples, drawn without replacement, and the query, its target left open.

    >>> prompt([{"input": "sea", "target": "mer"}], "cheese", 1)
    'sea => mer\ncheese =>'
    """
    before, found, _ = template.partition("{target}")
    if not found or "{input}" not in before:
        raise Refusal(USAGE, f"--template={template!r}: expected one with {{input}} and, behind it, {{target}}")
    if shots > len(examples):
        raise Refusal(USAGE, f"--shots={shots}: the file has {len(examples)} examples")

    def shown(example):
        return re.sub(r"{(input|target)}", lambda place: str(example[place[1]]), template)

    chosen = random.Random(seed).sample(examples, shots)
    return "".join(map(shown, chosen)) + before.replace("{input}", query).rstrip(" ")
