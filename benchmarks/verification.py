"""Measure how much the checking of checkpoints adds to saving and restoring them.

    python benchmarks/verification.py [ROUNDS]      (default: 5)

In each round, a state of 100 MB and one of 2 GB are saved with and without manifest and checksums,
and restored with --verify=full, files and off. A save is timed twice: until the call returns, for
which a run waits, and until it ends in the background.
"""

import statistics
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from record import keep

from t5x_lite import manifest
from t5x_lite.training import checkpoint as checkpoints_module
from t5x_lite.training.checkpoint import Checkpoints

SIZES = {"100 MB": 25_000_000, "2 GB": 500_000_000}
ARRAYS = 40
SETTINGS = {"model.vocab_size": 1}


@contextmanager
def unchecked():
    """Let saves write an empty manifest, without hashes of files and checksums of arrays."""

    def write(directory, facts, leave_out=()):
        with mock.patch.object(manifest, "_hash_files", return_value={}):
            write_manifest(directory, facts, leave_out)

    write_manifest = manifest.write
    with (
        mock.patch.object(manifest, "write", write),
        mock.patch.object(checkpoints_module, "checksums", lambda arrays: [0] * len(arrays)),
    ):
        yield


def state_of(numbers: int) -> dict:
    """Return a state of float32 arrays that together have this many numbers."""
    draw = np.random.default_rng(0).standard_normal(numbers // ARRAYS, np.float32)
    arrays = {f"a{number}": jnp.asarray(draw + number) for number in range(ARRAYS)}
    return {"params": jax.block_until_ready(arrays)}


def timed(call) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def restore(place: Path, state: dict) -> None:
    """Restore a state, as a run that continues does."""
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    axes = {"params": dict.fromkeys(state["params"], ("embed",))}
    checkpoints = Checkpoints(place, SETTINGS, "run", read_only=True)
    shardings = jax.tree.map(lambda _: here, state)
    jax.block_until_ready(checkpoints.restore(checkpoints.newest, state, shardings, axes))
    checkpoints.close()


def measure(state: dict) -> dict[str, float]:
    """Return the seconds of every kind of save and restore, in one round."""
    seconds = {}
    for name, around in (("without manifest", unchecked), ("with manifest", nullcontext)):
        with tempfile.TemporaryDirectory() as place, around():
            checkpoints = Checkpoints(Path(place), SETTINGS, "run")
            called = timed(partial(checkpoints.save, 1, state))
            seconds[f"save, {name}: call"] = called
            seconds[f"save, {name}: to its end"] = called + timed(checkpoints.wait)
            checkpoints.close()
            if around is nullcontext:
                for level in manifest.LEVELS:
                    with manifest.verification(level):
                        took = timed(partial(restore, Path(place), state))
                    seconds[f"restore, --verify={level}"] = took
    return seconds


def main(rounds: int) -> None:
    """Measure all rounds, print the medians and keep all figures."""
    results = {}
    for size, numbers in SIZES.items():
        state = state_of(numbers)
        measure(state)  # not counted
        each = [measure(state) for _ in range(rounds)]
        results[size] = each
        for name in each[0]:
            median = statistics.median(one[name] for one in each)
            print(f"{size:8} {name:32} {median:8.3f} s", flush=True)
    keep("verification", results)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
