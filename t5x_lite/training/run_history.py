"""The identity of a run, which each of its checkpoints carries, and its history: rollbacks, and
settings that were changed. Both are stored in run.json.
"""

import json
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from t5x_lite import manifest, storage
from t5x_lite.errors import NO_FILE, read_json, user_errors
from t5x_lite.training.checkpoint import complete_steps

FILE = "run.json"


def identity(workdir: Path) -> str:
    """Return the identity of the run in a directory, which each of its checkpoints carries; empty
    if there is none.
    """
    return _read(workdir)["id"]


def _read(workdir: Path) -> dict[str, Any]:
    """Read the identity and the history from run.json."""
    path = workdir / FILE
    if not path.exists():
        return {"id": "", "history": []}
    record = read_json(path, "bring it back, or remove it: each checkpoint has a copy")
    with user_errors(NO_FILE, f"{path}: no run wrote this; remove it, as checkpoints have a copy"):
        for event in record["history"]:
            if event["event"] == "rollback":
                _ = int(event["to"]), int(event["next_batch"])
        return {"id": str(record["id"]), "history": list(record["history"])}


def begin(workdir: Path) -> None:
    """Write run.json when a run begins. If the file was lost, restore it from the newest
    checkpoint.
    """
    if (workdir / FILE).exists():
        return
    # A new run has a new identity; a run whose file was lost keeps that of its checkpoints.
    record = {"id": secrets.token_hex(8), "history": []}
    directory = storage.durable_path(workdir / "checkpoints")
    for step in sorted(complete_steps(directory), reverse=True):
        with suppress(manifest.Damage):
            facts = manifest.read(directory / str(step))
            record = {"id": facts["run"], "history": facts.get("history", [])}
            break
    storage.write_durably(workdir / FILE, json.dumps(record, indent=2))


def events(workdir: Path) -> list[dict[str, Any]]:
    """Return the history of a run, oldest event first."""
    return _read(workdir)["history"]


def add(workdir: Path, event: dict[str, Any]) -> None:
    """Record an event of a run, before the run continues after it."""
    record = _read(workdir)
    record["history"].append(event)
    storage.write_durably(workdir / FILE, json.dumps(record, indent=2))
    storage.push(workdir)


def batch_number(events: Sequence[dict[str, Any]], step: int) -> int:
    """Return the number of the batch (from 0) that a step (from 1) reads. A run that went back does
    not read the same batches again.

    >>> went_back = {"event": "rollback", "from": 30, "to": 20, "next_batch": 30}
    >>> [batch_number([went_back], step) for step in (20, 21, 22)]
    [19, 30, 31]
    """
    # Only the last rollback before this step counts: it says which batch came next.
    for event in reversed(events):
        if event["event"] == "rollback" and step > event["to"]:
            return event["next_batch"] + step - event["to"] - 1
    return step - 1
