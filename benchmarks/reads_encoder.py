"""Check that a decoder uses its encoder. Compares the validation loss of encoder-decoders with the
right inputs and with the inputs of the row before: if both are alike, the decoder ignores the
encoder and is only a language model of the targets.

    python benchmarks/reads_encoder.py WORKDIR [WORKDIR …]

Prints one line of JSON for each run.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp

from t5x_lite.config import Mesh
from t5x_lite.training import loaded_model, loop, run_directory


class WithOtherInputs(loop.Evaluator):
    """An evaluator that gives each row the encoder inputs of the row before."""

    def batch(self, batches, step):
        """Return batch number `step`, with its encoder arrays rolled by one row."""
        row = super().batch(batches, step)
        return {
            key: jnp.roll(array, 1, 0) if key.startswith("encoder") else array
            for key, array in row.items()
        }


def main(workdir: Path) -> None:
    """Print the loss and accuracy with both kinds of inputs as one line of JSON."""
    resolved, _ = run_directory.read(workdir)
    loop.setup_jax(resolved.model.dtype)
    loaded = loaded_model.load(workdir)
    data = run_directory.open_data(workdir, resolved, loaded.tokenizer)
    here = replace(resolved, config=replace(resolved.config, mesh=Mesh()), model=loaded.model)
    record = {"run": workdir.name}
    for name, kind in (("own", loop.Evaluator), ("other", WithOtherInputs)):
        evaluator = kind(here, data, jax.local_devices()[:1])
        with evaluator.within():
            figures = evaluator.evaluate(loaded.params)
        record |= {f"{name}_{key}": round(figures[key], 3) for key in ("loss", "accuracy")}
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(Path(argument))
