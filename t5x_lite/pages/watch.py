"""The page that follows runs while they train: their curves, and their remaining time."""

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from t5x_lite.errors import NO_FILE, UserError, read_json
from t5x_lite.pages.server import Json, LocalServer, short_names
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
        described = []
        for name, path in find_runs(directories).items():
            known = query.get(name, "")
            described.append(describe(name, path, int(known) if known.isdecimal() else 0))
        return described

    return LocalServer(_PAGE, {"/runs": runs}, port=port)


def find_runs(directories: Sequence[Path]) -> dict[str, Path]:
    """Find the runs that are in the directories now: name → directory.

    A comparison contains runs, and a run contains its stages.
    """
    found = {}
    names = short_names([str(directory.resolve()) for directory in directories])
    for name, directory in zip(names, directories, strict=True):
        for inside in ("", "*/", "*/*/", "*/stages/*/"):
            for path in sorted(directory.glob(f"{inside}config.json")):
                below = path.parent.relative_to(directory)
                found[(Path(name) / below).as_posix()] = path.parent
    return found


def describe(name: str, directory: Path, known: int = 0) -> Json:
    """Return what the page shows about a run.

    This is its objective (or its task), its number of steps, the seconds since it last wrote
    something (None: nothing yet), and its records after the first `known`. `before` is the number
    of records before these. It is 0 if the run has gone back to an earlier step and has fewer
    records now. If the directory cannot be read, there is only an error.
    """
    path = directory / "config.json"
    try:
        config = read_json(path, "it belongs to a run")
        learns = config["task"]["name"] or config["objective"]
        steps = config["training"]["steps"]
        records, silent = _records(directory / "metrics.jsonl")
    except UserError as error:
        return {"name": name, "error": str(error)}
    except (LookupError, TypeError) as error:
        return {"name": name, "error": f"{path}: is not that of a run, it lacks {error}"}
    before = known if known <= len(records) else 0
    about = {"name": name, "learns": str(learns), "steps": steps, "silent": silent}
    return {**about, "before": before, "records": records[before:]}


def _records(path: Path) -> tuple[list[dict], float | None]:
    """Return the records of a run, and the seconds since the last one was written."""
    try:
        now = path.stat()
    except OSError:  # it has written none yet
        return [], None
    return _read(path, now.st_mtime_ns, now.st_size), time.time() - now.st_mtime


@lru_cache(maxsize=256)
def _read(path: Path, written_at: int, size: int) -> list[dict]:
    """Read the records of a file. Its time of writing and its size are keys of the cache."""
    return read_metrics(path)
