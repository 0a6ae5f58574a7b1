"""Train runs that a report relies on but does not show: tries of settings, and adaptations."""

from collections.abc import Sequence

from t5x_lite import storage
from t5x_lite.config import to_dict
from t5x_lite.errors import NOT_FINITE, UserError, expected_errors, read_json
from t5x_lite.progress import say
from t5x_lite.training.stages import Stage, train_stages


def train_side_run(name: str, stages: Sequence[Stage]) -> bool:
    """Train a run, or continue it if it was stopped.

    If its directories hold a run with other settings, that run is removed first.

    Returns:
        False if it diverges.
    """
    if any(_holds_another(stage) for stage in stages):
        for stage in stages:
            storage.remove_tree(stage.directory)
    say(f"{name}: training in {stages[-1].directory}")
    try:
        with expected_errors():
            train_stages(stages)
    except UserError as error:
        if error.code != NOT_FINITE:
            raise
        say(f"{name}: {error}")
        return False
    return True


def _holds_another(stage: Stage) -> bool:
    path = stage.directory / "config.json"
    return path.is_file() and read_json(path, "remove it") != to_dict(stage.resolved.config)
