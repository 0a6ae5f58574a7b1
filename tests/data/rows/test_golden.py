"""The stream of every recipe, byte for byte: the SHA-256 of its first 200 batches on a small
committed corpus.

A change of the stream is a new number: raise streams.VERSION, which older checkpoints check, and
write the hashes anew with `PYTHONPATH=tests python tests/data/rows/test_golden.py`. They hold for
every numpy version this is tested with.
"""

import hashlib
import json

import pytest
from conftest import ALL_CELLS, ROOT, settings

from t5x_lite.config import RunConfig
from t5x_lite.config.files import build
from t5x_lite.data.rows import streams
from t5x_lite.data.rows.batches import make_batches
from t5x_lite.data.store.prepare import prepare
from t5x_lite.resolve import resolve

GOLDEN = ROOT / "tests" / "golden"
RECIPES = [(*cell, False) for cell in ALL_CELLS]
RECIPES += [(*cell, True) for cell in ALL_CELLS[::5] if "second" not in cell[0]]


def name(objective, architecture, split_documents) -> str:
    return f"{objective} on {architecture}" + (", documents split" if split_documents else "")


def stream_hash(objective, architecture, split_documents) -> str:
    more = {"data.split_documents": split_documents}
    config = build(RunConfig, settings(GOLDEN / "corpus.txt", objective, architecture, **more))
    corpus = prepare(config.data)
    resolved = resolve(config, corpus.tokenizer.vocabulary)
    batches = make_batches(resolved.rows, config.data, config.seed, corpus, "train")
    digest = hashlib.sha256()
    for step in range(200):
        for key, value in sorted(batches.batch_at(step).items()):
            digest.update(f"{key} {value.dtype.str} {value.shape} ".encode() + value.tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: name(*recipe))
def test_the_stream_is_what_it_was(recipe):
    golden = json.loads((GOLDEN / "streams.json").read_text())
    assert golden["version"] == streams.VERSION
    assert stream_hash(*recipe) == golden["streams"][name(*recipe)]


if __name__ == "__main__":
    hashes = {name(*recipe): stream_hash(*recipe) for recipe in RECIPES}
    text = json.dumps({"version": streams.VERSION, "streams": hashes}, indent=1) + "\n"
    (GOLDEN / "streams.json").write_text(text)
