"""Reproduce a comparison from its report.json, and compare the scores.

A report contains the whole config of its comparison. On the same machine, with the same versions
and text, every score is equal to the last digit, unless the measured time of a step determines the
number of steps (match=seconds).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from t5x_lite import storage
from t5x_lite.comparison import run
from t5x_lite.config import CompareConfig
from t5x_lite.config.files import build_comparison
from t5x_lite.config.permission import check_named, grant
from t5x_lite.config.provenance import known_places, names_in
from t5x_lite.data.tasks.load import file_of, load_task
from t5x_lite.errors import BAD_CONFIG, IO_ERROR, USAGE, UserError, read_json, user_errors

Results = Mapping[str, Any]
_MARK = "rerun.sha256"  # file in the directory of a rerun that identifies the report


class Value(NamedTuple):
    """A score of one run."""

    cell: str
    score: str
    seed: int


def read_report(path: Path) -> tuple[CompareConfig, Results]:
    """Return the config of the comparison that wrote a report.json, and its results.

    Raises:
        UserError: if the file is not a report of compare, or if it names tasks in a Python file
            that is not permitted: a report is data, and must not run code by itself.
    """
    path = path / "report.json" if path.is_dir() else path
    expected = "expected the report.json of a comparison"
    results = read_json(path, expected)
    settings = results.get("config")
    if not isinstance(settings, dict) or not isinstance(results.get("cells"), dict):
        raise UserError(BAD_CONFIG, f"{path}: has no config of a comparison; {expected}")
    try:
        values_of(results)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(BAD_CONFIG, f"{path}: its scores cannot be read; {expected}") from error
    config = build_comparison(settings)
    grant(places=known_places(settings))
    # Report everything that is not permitted at once, except what Python files name in turn,
    # because these files have not been run yet.
    named = names_in(config)
    for task in config.tasks:
        file = file_of(task)
        if file:
            named.modules.add(file)
        else:
            named |= names_in(load_task(task))
    check_named(*named, str(path))
    return config, results


def rerun(path: Path, workdir: Path, jobs: int = 0) -> tuple[Results, list[str]]:
    """Train everything in a report again, in `workdir`, which is empty or holds an unfinished rerun
    of the same report.

    Args:
        jobs: number of runs to train at once; 0: as many as for the report, because the number of
            cores per run affects the last digits of its sums.

    Returns:
        The new results, and sentences that say how they compare with the report.
    """
    config, before = read_report(path)
    digest = hashlib.sha256(json.dumps(before, sort_keys=True).encode()).hexdigest()
    mark = workdir / _MARK
    is_begun = mark.is_file() and mark.read_text() == digest
    if not is_begun and workdir.is_dir() and any(workdir.iterdir()):
        reason = "is not empty, so what it holds would not be trained again"
        raise UserError(USAGE, f"--workdir={workdir}: {reason}; name another")
    with user_errors(IO_ERROR, f"{workdir}: cannot be written"):
        storage.make_directory(workdir)
        storage.write_durably(mark, digest)
    after = run.compare(config, workdir, jobs=jobs or before.get("jobs", 1))
    return after, compared(before, after)


def values_of(results: Results) -> dict[Value, float]:
    """Return every score of every run."""
    return {
        Value(cell, name, seed): value
        for cell, of in results["cells"].items()
        for name, score in of["scores"].items()
        for seed, value in zip(score["seed_numbers"], score["seeds"], strict=True)
    }


def compared(before: Results, after: Results) -> list[str]:
    """Return sentences that say whether the scores are equal and, if not, what else differs.

    >>> report = {"cells": {"gpt": {"scores": {"loss": {"seed_numbers": [0], "seeds": [2.5]}}}}}
    >>> compared(report, report)
    ['Every score is equal to the last digit (1 in all).']
    """
    old, new = values_of(before), values_of(after)
    if not old:
        return ["The report has no scores to compare."]
    missing = [value for value in old if value not in new]
    changes = {
        value: abs(new[value] - old[value])
        for value in old
        if value in new and new[value] != old[value]
    }
    more = len(new.keys() - old.keys())
    if not changes and not missing and not more:
        return [f"Every score is equal to the last digit ({len(old)} in all)."]
    sentences = []
    if changes:
        most = max(changes, key=changes.__getitem__)
        sentences.append(
            f"{len(changes)} of {len(old)} scores differ, at most by {changes[most]:.3g} "
            f"({_where(most)}: {new[most]:.6g} for {old[most]:.6g})."
        )
    if missing:
        sentences.append(f"{len(missing)} of {len(old)} are missing, such as {_where(missing[0])}.")
    if more:
        sentences.append(f"{more} scores are new.")
    return [*sentences, *_what_else_differs(before, after)]


def _where(value: Value) -> str:
    return f"{value.cell}, {value.score}, seed {value.seed}"


def _what_else_differs(before: Results, after: Results) -> Iterator[str]:
    """Yield a sentence for each fact about runs, text and machine that differs."""
    if after.get("jobs") != before.get("jobs"):
        yield f"--jobs={after.get('jobs')}, before {before.get('jobs')}."
    for cell, of in before["cells"].items():
        steps, now = of.get("steps"), after["cells"].get(cell, {}).get("steps")
        if now != steps:
            yield f"{cell}: {now:,.0f} steps, before {steps:,.0f}."
    for split, counts in before.get("corpus", {}).items():
        if counts != after["corpus"][split]:
            yield f"The {split} text is another."
    for key, value in before.get("environment", {}).items():
        now = after["environment"].get(key)
        if now != value:
            yield f"{key}: {now}, before {value}."
