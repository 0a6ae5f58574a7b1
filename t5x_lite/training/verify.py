"""Check that runs, with their checkpoints, and exports have not changed since they were written."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from t5x_lite import manifest, storage
from t5x_lite.config.permission import NotPermitted
from t5x_lite.data.tokenizers import tokenizer as tokenizers
from t5x_lite.errors import UserError, read_json
from t5x_lite.manifest import Damage
from t5x_lite.training import run_directory, run_history
from t5x_lite.training.best import best_directory
from t5x_lite.training.checkpoint import check_whole, complete_steps, find_difference, is_complete
from t5x_lite.training.log import check_metrics, read_metrics


class Finding(NamedTuple):
    """Result of checking an export or one part of a run."""

    path: str
    what: str  # such as "step 500, 12 files, 9.1 MB"
    damage: str = ""  # what is wrong; empty: nothing


def verify(directory: Path) -> Iterator[Finding]:
    """Check everything in a directory that carries hashes: a run, an export, or several of them, as
    in the directory of a comparison.

    Yields:
        One Finding per checkpoint, export, tokenizer, and file of a run.
    """
    for place in _places(directory.resolve()):
        if _is_run(place):
            yield from _verify_run(place)
        if manifest.is_in(place):
            yield _verify_export(place)


def _is_run(place: Path) -> bool:
    """Return True for the directory of a run, even if some of it is missing."""
    return any((place / name).exists() for name in ("run.json", "corpus.json", "checkpoints"))


def _places(directory: Path) -> Iterator[Path]:
    """Yield a directory and all directories below it, except for those inside a run that cannot
    hold another run.
    """
    for place, below, _ in os.walk(directory):
        inside = {"checkpoints", "best", "tokenizer"} if _is_run(Path(place)) else set()
        below[:] = sorted(set(below) - inside)
        yield Path(place)


def _verify_run(workdir: Path) -> Iterator[Finding]:
    """Check the parts of a run, each independently of the others."""
    yield _finding(workdir / "config.json", "settings", lambda: _check_settings(workdir))
    yield _finding(workdir / "tokenizer", "tokenizer", lambda: _check_tokenizer(workdir))
    yield _finding(workdir / "metrics.jsonl", "metrics", lambda: _check_metrics(workdir))
    yield _finding(workdir / "run.json", "identity", lambda: _identity(workdir))
    # Checkpoints must belong to this run; if run.json is lost, to any.
    run = ""
    with suppress(UserError):
        run = run_history.identity(workdir)
    for checkpoints in (workdir / "checkpoints", best_directory(workdir)):
        where = storage.durable_path(checkpoints)
        for step in sorted(complete_steps(where)):

            def check(path: Any = where / str(step)) -> str:
                return _size_of(check_whole(path, run))

            finding = _finding(checkpoints / str(step), f"step {step}", check)
            if is_complete(where / str(step)):  # a run in progress may have removed it
                yield finding


def _verify_export(directory: Path) -> Finding:
    def check() -> str:
        facts = manifest.read(directory)
        manifest.check_files(directory, facts)
        return _size_of(facts)

    return _finding(directory, "export", check)


def _identity(workdir: Path) -> str:
    run = run_history.identity(workdir)
    if not run:
        raise Damage("it is missing")
    return run


def _check_settings(workdir: Path) -> str:
    """Compare config.json with the settings of the newest checkpoint."""
    resolved, _ = run_directory.read(workdir)
    settings = run_directory.fixed_settings(resolved.written_out)
    facts = _newest_facts(workdir)
    difference = find_difference(facts["settings"], settings) if facts else None
    if difference and facts:
        key, before, now = difference
        raise Damage(f"{key} is {now!r}, but checkpoint {facts['step']} was made with {before!r}")
    return f"{len(settings)} keys"


def _check_tokenizer(workdir: Path) -> str:
    # Two files record which tokenizer it was; both must agree with what is there now.
    found = tokenizers.load(workdir / "tokenizer").fingerprint
    recorded = []
    if (workdir / "corpus.json").exists():
        recorded.append(("corpus.json", read_json(workdir / "corpus.json", "bring it back")))
    facts = _newest_facts(workdir)
    if facts and facts["text"]:
        recorded.append((f"checkpoint {facts['step']}", facts["text"]))
    for name, text in recorded:
        if text.get("tokenizer") != found:
            raise Damage(f"it is {found}, but {name} has {text.get('tokenizer')}")
    return found


def _check_metrics(workdir: Path) -> str:
    path, facts = workdir / "metrics.jsonl", _newest_facts(workdir)
    if facts and facts.get("metrics"):
        check_metrics(path, facts["metrics"])
    return f"{len(read_metrics(path)):,} records"


def _newest_facts(workdir: Path) -> dict[str, Any] | None:
    """Return the facts in the newest manifest of a checkpoint that can be read, or None."""
    where = storage.durable_path(workdir / "checkpoints")
    for step in sorted(complete_steps(where), reverse=True):
        with suppress(Damage):
            return manifest.read(where / str(step))
    return None


def _size_of(facts: dict[str, Any]) -> str:
    files = facts["files"]
    return f"{len(files)} files, {sum(size for size, _ in files.values()) / 1e6:,.1f} MB"


def _finding(path: Path, name: str, check: Callable[[], str]) -> Finding:
    """Turn the result of a check, or the reason why it failed, into a Finding."""
    try:
        detail = check()
    except NotPermitted:  # nothing is damaged
        raise
    except (Damage, UserError) as error:
        return Finding(storage.address_of(path), name, str(error))
    return Finding(storage.address_of(path), f"{name}, {detail}" if detail else name)
