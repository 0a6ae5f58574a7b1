"""BLiMP by counting: the Kneser-Ney trigram model of the text that a run was trained on.

    python benchmarks/blimp_trigram.py WORKDIR 'blimp(DIR/*.jsonl)'

Which of two sentences is likelier, each after the end of a document and up to its own; a tie is
wrong. Prints the mean of the accuracies of the 67 paradigms.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from t5x_lite.compare.ngram import kneser_ney
from t5x_lite.config.files import load_task
from t5x_lite.data.store.prepare import prepare
from t5x_lite.data.tasks.examples import load_split
from t5x_lite.data.tasks.metrics import judge
from t5x_lite.training import run_directory


def sentence_nats(
    train: np.ndarray, sentences: list[np.ndarray], eos: int, size: int
) -> np.ndarray:
    """log P of each sentence of ids with the EOS that ends it, after an EOS."""
    framed = [np.concatenate([[eos, eos], ids, [eos]]) for ids in sentences]
    grams = np.concatenate([np.lib.stride_tricks.sliding_window_view(ids, 3) for ids in framed])
    nats = np.log(kneser_ney(train, grams, size))
    lengths = np.array([len(ids) - 2 for ids in framed])
    return np.add.reduceat(nats, np.cumsum(lengths) - lengths)


def main(workdir: Path, name: str) -> None:
    """Print one line of JSON."""
    resolved, tokenizer = run_directory.read(workdir)
    (source,) = prepare(resolved.config.data).sources
    task = replace(load_task(name), train="")
    start = time.perf_counter()
    examples = load_split(task, "validation").examples
    sentences = [tokenizer.encode(text) for example in examples for text in example.choices]
    vocabulary = tokenizer.vocabulary
    nats = sentence_nats(source.tokens["train"], sentences, vocabulary.eos, vocabulary.size)
    better, worse = nats.reshape(-1, 2).T
    predictions = [0 if is_better else None for is_better in better > worse]
    figures = judge(task, examples, predictions)
    figures["seconds"] = time.perf_counter() - start
    print(json.dumps(figures))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
