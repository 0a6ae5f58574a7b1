"""Runs as a user has them, for the tests of this folder: their records, their last checkpoint."""

import time

import jax
import numpy as np

from t5x_lite.training.log import read_metrics

TIMES = (
    "tokens_per_second",
    "step_seconds",
    "device_memory",
    "seconds",
    "train_seconds",
    "mfu",
)


def figures(workdir) -> list[dict]:
    """The records of a run, times aside."""
    records = read_metrics(workdir / "metrics.jsonl")
    return [{key: value for key, value in record.items() if key not in TIMES} for record in records]


def saved_steps(workdir) -> list[int]:
    """The steps of the checkpoints of a run."""
    names = (path.name for path in (workdir / "checkpoints").iterdir())
    return sorted(int(name) for name in names if name.isdigit())


def saved_state(workdir) -> list[np.ndarray]:
    """Every array of the newest checkpoint, parameters and optimizer state, in order."""
    import orbax.checkpoint as ocp

    newest = workdir / f"checkpoints/{saved_steps(workdir)[-1]}"
    tree = ocp.StandardCheckpointer().restore(newest.resolve())
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def assert_same(a, b):
    """Two runs ended bitwise the same."""
    assert figures(a) == figures(b)
    for x, y in zip(saved_state(a), saved_state(b), strict=True):
        assert x.dtype == y.dtype
        assert x.tobytes() == y.tobytes()


def wait_for(workdir, count):
    """Until the run has written that many records."""
    for _ in range(1200):
        if len(read_metrics(workdir / "metrics.jsonl")) >= count:
            return
        time.sleep(0.05)
    raise AssertionError("the run wrote no records")
