"""The address of a trained model: RUN, or RUN@STEP, RUN@10M-tokens, RUN@10M-words or RUN@best."""

from pathlib import Path
from typing import NamedTuple

from t5x_lite import storage
from t5x_lite.errors import USAGE, UserError


class ModelAddress(NamedTuple):
    """Where a trained model is: the directory of its run, and which of its checkpoints."""

    directory: Path
    checkpoint: str = ""  # a step, "10M-words" or "best"; empty: the newest or, on a task, the best

    @property
    def is_run(self) -> bool:
        """True if the directory holds a run."""
        return (self.directory / "config.json").exists()

    def __str__(self) -> str:
        mark = f"@{self.checkpoint}" if self.checkpoint else ""
        return f"{storage.durable_path(self.directory.resolve())}{mark}"


def locate(address: str | Path) -> ModelAddress:
    """Split the address of a trained model at its @, if it names a checkpoint.

    Raises:
        UserError: if nothing follows the @, or a bucket cannot be reached.

    >>> locate("runs/gpt@4000")
    ModelAddress(directory=PosixPath('runs/gpt'), checkpoint='4000')
    """
    address = str(address).rstrip("/") or "/"
    base, mark, checkpoint = address.rpartition("@")
    # The @ may be part of the name of the directory, or of one above it.
    is_name = "/" in checkpoint or (not storage.is_remote(address) and Path(address).exists())
    if not mark or is_name:
        return ModelAddress(storage.local_path(address))
    if not checkpoint:
        expected = "expected a step, an amount of text or best, such as RUN@4000"
        raise UserError(USAGE, f"{address}: got nothing after the @, {expected}")
    return ModelAddress(storage.local_path(base), checkpoint)
