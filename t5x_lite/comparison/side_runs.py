"""Train the runs that a report does not show, but rests on: tries of settings, and adaptations."""

from pathlib import Path

from t5x_lite import storage
from t5x_lite.config import to_dict
from t5x_lite.data.rows.batches import TextData
from t5x_lite.errors import NOT_FINITE, UserError, foreseen_errors, read_json
from t5x_lite.progress import say
from t5x_lite.resolve import Resolved
from t5x_lite.training.loop import train


def train_side_run(name: str, resolved: Resolved, data: TextData, directory: Path) -> bool:
    """Train a run, or continue it if it was stopped. What a run with other settings has left in its
    directory is removed.

    Returns:
        False if it diverges.
    """
    path = directory / "config.json"
    if path.is_file() and read_json(path, "remove it") != to_dict(resolved.config):
        storage.remove_tree(directory)
    say(f"{name}: training in {directory}")
    try:
        with foreseen_errors():
            train(resolved, data, directory)
    except UserError as error:
        if error.code != NOT_FINITE:
            raise
        say(f"{name}: {error}")
        return False
    return True
