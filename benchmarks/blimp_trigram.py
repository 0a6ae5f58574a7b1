"""Evaluate a Kneser-Ney trigram model, counted on the text that a run was trained on, on BLiMP.

    python benchmarks/blimp_trigram.py WORKDIR 'blimp(DIR/*.jsonl)'

The model has to give the acceptable one of two sentences the higher probability; a tie counts as
wrong. Each sentence follows an EOS and includes the EOS that ends it. Prints the mean accuracy over
the 67 paradigms.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from t5x_lite.comparison.ngram import kneser_ney
from t5x_lite.data.store.prepare import prepare
from t5x_lite.data.tasks.examples import load_split
from t5x_lite.data.tasks.load import load_task
from t5x_lite.data.tasks.metrics import judge
from t5x_lite.training import run_directory


def sentence_nats(
    train: np.ndarray, sentences: list[np.ndarray], eos: int, size: int
) -> np.ndarray:
    """Return the log probability, in nats, of each sentence with its final EOS, after an EOS.

    Args:
        train: the token ids that the model is counted on.
        sentences: the token ids of each sentence, without EOS.
        eos: the id of EOS.
        size: the size of the vocabulary.
    """
    framed = [np.concatenate([[eos, eos], ids, [eos]]) for ids in sentences]
    grams = np.concatenate([np.lib.stride_tricks.sliding_window_view(ids, 3) for ids in framed])
    nats = np.log(kneser_ney(train, grams, size))
    lengths = np.array([len(ids) - 2 for ids in framed])
    return np.add.reduceat(nats, np.cumsum(lengths) - lengths)


def main(workdir: Path, name: str) -> None:
    """Print the task's metrics and the seconds as one line of JSON."""
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
