"""The page that follows runs while they train: their curves, and how long they will take."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from t5x_lite.errors import NO_FILE, UserError, read_json
from t5x_lite.pages.server import Json, LocalServer
from t5x_lite.training.log import read_metrics

_PAGE = Path(__file__).with_name("watch.html")


def watch_server(directories: Sequence[Path], port: int = 0) -> LocalServer:
    """Return the server of the page, for runs and for directories that hold runs.

    Raises:
        UserError: if a directory does not exist, or the port is taken.
    """
    for directory in directories:
        if not directory.is_dir():
            fix = "name a run, or a directory of runs"
            raise UserError(NO_FILE, f"{directory}: no such directory; {fix}")

    def runs(query: Mapping[str, str]) -> list[Json]:
        return [describe(name, path) for name, path in find_runs(directories).items()]

    def metrics(query: Mapping[str, str]) -> Json:
        path = find_runs(directories).get(query.get("run", ""))
        if path is None:
            raise UserError(NO_FILE, f"run: got {query.get('run')!r}, which is no run here")
        after = query.get("after", "")
        return records_after(path, int(after) if after.isdecimal() else 0)

    return LocalServer(_PAGE, {"/runs": runs, "/metrics": metrics}, port=port)


def find_runs(directories: Sequence[Path]) -> dict[str, Path]:
    """Find the runs in directories as they are now: name → directory. A comparison holds runs, and
    a run holds its stages.
    """
    found = {}
    for directory in directories:
        for inside in ("", "*/", "*/*/", "*/stages/*/"):
            for path in sorted(directory.glob(f"{inside}config.json")):
                name = path.parent.relative_to(directory.parent).as_posix()
                found[name] = path.parent
    return found


def describe(name: str, directory: Path) -> Json:
    """Return what the page says about a run: its objective, its steps, and how many seconds ago it
    has written something, or None. Of what is no run, return an error.
    """
    path = directory / "config.json"
    try:
        config = read_json(path, "it belongs to a run")
        learns = config["task"]["name"] or config["objective"]
        steps = config["training"]["steps"]
    except (UserError, LookupError, TypeError) as error:
        lacks = f"{path}: is not that of a run, it lacks {error}"
        return {"name": name, "error": str(error) if isinstance(error, UserError) else lacks}
    written = directory / "metrics.jsonl"
    silent = time.time() - written.stat().st_mtime if written.exists() else None
    return {"name": name, "learns": str(learns), "steps": steps, "silent": silent}


def records_after(directory: Path, count: int) -> Json:
    """Return the records of a run after the first `count`, and how many come before them: none, if
    the run has gone back to an earlier step and begun them anew.
    """
    records = read_metrics(directory / "metrics.jsonl")
    before = count if count <= len(records) else 0
    return {"before": before, "records": records[before:]}
