"""The stream of every recipe, byte for byte: the SHA-256 of its first 200 batches on a small committed corpus.

A change of the stream is a new number: raise streams.VERSION, which older checkpoints check, and write the hashes anew
with `python tests/test_golden.py`. They hold for every numpy version this is tested with.
"""

import hashlib
import json
from pathlib import Path

import pytest
from conftest import ALL_CELLS, settings

from t5x_lite.config import RunConfig
from t5x_lite.data import batches, streams
from t5x_lite.data.prepare import prepare
from t5x_lite.settings import build

HERE = Path(__file__).parent / "golden"
RECIPES = [(*cell, False) for cell in ALL_CELLS]
RECIPES += [(*cell, True) for cell in ALL_CELLS[::5] if "second" not in cell[0]]


def name(objective, architecture, split) -> str:
    return f"{objective} on {architecture}" + (", documents split" if split else "")


def stream_hash(objective, architecture, split) -> str:
    values = settings(HERE / "corpus.txt", objective, architecture, **{"data.split_documents": split})
    config = build(RunConfig, values)
    made = batches.make(config, prepare(config.data, say=lambda _: None), "train")
    digest = hashlib.sha256()
    for step in range(200):
        for key, value in sorted(made.batch_at(step).items()):
            digest.update(f"{key} {value.dtype.str} {value.shape} ".encode() + value.tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: name(*recipe))
def test_the_stream_is_what_it_was(recipe):
    golden = json.loads((HERE / "streams.json").read_text())
    assert golden["version"] == streams.VERSION
    assert stream_hash(*recipe) == golden["streams"][name(*recipe)]


if __name__ == "__main__":
    made = {name(*recipe): stream_hash(*recipe) for recipe in RECIPES}
    (HERE / "streams.json").write_text(json.dumps({"version": streams.VERSION, "streams": made}, indent=1) + "\n")
