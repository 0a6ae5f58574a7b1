"""Callbacks: the user's own code that a run calls, named in `training.callbacks`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from t5x_lite.config import RunConfig
from t5x_lite.config.named import Named, find_named
from t5x_lite.errors import BAD_CONFIG, user_errors


class Callback:
    """Base class of callbacks. Name yours by its module: `training.callbacks=my_module.Mine`.

    A callback is constructed with the run's directory and config, in the first process of the run
    only. An error in it ends the run.
    """

    def __init__(self, workdir: Path, config: RunConfig):
        self.workdir, self.config = workdir, config

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called after each step, with its loss, gradient norm, learning rate, …"""

    def on_log(self, record: Mapping[str, Any]) -> None:
        """Called with each record of metrics.jsonl."""

    def on_checkpoint(self, step: int, directory: Path) -> None:
        """Called when a checkpoint starts to be saved. It is complete when the next one starts, or
        when the run ends.
        """


class Callbacks:
    """The callbacks of a run, called one after another."""

    def __init__(self, workdir: Path, config: RunConfig, active: bool = True):
        # Only the process that writes the run directory calls them.
        self._made: list[tuple[str, Callback]] = []
        for name, named in find_callbacks(config).items() if active else ():
            with user_errors(BAD_CONFIG, f"training.callbacks: {name} cannot be made"):
                self._made.append((name, named(workdir, config)))

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of each callback.

        Raises:
            UserError: for any error that a callback raises.
        """
        for name, callback in self._made:
            # Name the callback, so that the error is not mistaken for one of the run itself.
            with user_errors(BAD_CONFIG, f"training.callbacks: {name}.{method} failed"):
                of_callback: Callable[..., None] = getattr(callback, method)
                of_callback(*arguments)


def find_callbacks(config: RunConfig) -> dict[str, Named]:
    """Find the classes that `training.callbacks` names.

    Raises:
        UserError: if one cannot be imported.
    """
    names = map(str, config.training.callbacks)
    return {name: find_named(name, {}, "training.callbacks", "callback") for name in names}
