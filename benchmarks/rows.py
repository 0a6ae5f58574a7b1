"""Measure how fast each pretraining recipe makes batches from a prepared store, on one core, in
million raw tokens per second.

    python benchmarks/rows.py [SOURCE] [COLLATOR]

SOURCE: the text; left out: built-in text. COLLATOR: the file run_t5_mlm_flax.py of transformers'
examples. If it is given, its collator takes turns with our span_corruption on windows of the same
size, and the median of the rounds' ratios is printed.
"""

import ast
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from record import keep

from t5x_lite.config import Data, Lengths, Model, RunConfig
from t5x_lite.data.rows.batches import make_batches
from t5x_lite.data.store.prepare import prepare
from t5x_lite.resolve import plan

ROWS, ROUNDS = 128, 15
T5 = Lengths(inputs=512, targets=114)
WIDE = Lengths(inputs=512, targets=512)
ROW = Lengths(sequence_length=512)
RECIPES = [
    ("span_corruption", "encoder_decoder", T5),
    ("span_corruption(random_roll=True)", "encoder_decoder", T5),
    ("iid_denoising", "encoder_decoder", Lengths(inputs=512, targets=164)),
    ("ul2", "encoder_decoder", WIDE),
    ("causal_lm", "decoder", ROW),
    ("fill_in_the_middle", "decoder", ROW),
    ("prefix_lm", "prefix_decoder", ROW),
    ("prefix_lm", "encoder_decoder", WIDE),
    ("masked_lm", "encoder", ROW),
    ("masked_lm(choice='word')", "encoder", ROW),
    ("masked_lm(choice='span')", "encoder", ROW),
    ("masked_lm(choice='salient')", "encoder", ROW),
    ("masked_lm(second='next')", "encoder", ROW),
    ("masked_lm(static=True)", "encoder", ROW),
    *(
        (name, "encoder_decoder", WIDE)
        for name in ("drop_tokens", "mass_style", "bert_style", "deshuffling")
    ),
    ("text_infilling(permute_sentences=True)", "encoder_decoder", WIDE),
]


def seconds(function, calls: int) -> float:
    """Return the mean seconds of one call of a function of the step."""
    start = time.perf_counter()
    for step in range(calls):
        function(step)
    return (time.perf_counter() - start) / calls


def collator(path: str, vocabulary):
    """Return the peer's collator.

    Its class is cut out of the script, so that the script's imports need not be installed.
    """
    wanted = "FlaxDataCollatorForT5MLM"
    tree = ast.parse(Path(path).read_text())
    (found,) = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == wanted
    ]
    found.decorator_list = []

    def shift(labels, pad, start):
        """Shift labels to the right, as the script's imported function does."""
        return np.concatenate([np.full((len(labels), 1), start, labels.dtype), labels[:, :-1]], 1)

    names: dict[str, Any] = {
        "np": np,
        "BatchEncoding": dict,
        "shift_tokens_right": shift,
        "List": list,
        "Dict": dict,
    }
    exec(
        compile(ast.Module([found], []), path, "exec"),
        names | {"PreTrainedTokenizerBase": object},
        names,
    )

    class Ids:
        """The part of a tokenizer that the collator uses."""

        eos_token_id = vocabulary.eos

        def __len__(self):
            return vocabulary.size

    made = names[wanted]()
    settings = {
        "tokenizer": Ids(),
        "noise_density": 0.15,
        "mean_noise_span_length": 3.0,
        "input_length": 512,
    }
    vars(made).update(
        settings,
        target_length=114,
        pad_token_id=vocabulary.pad,
        decoder_start_token_id=vocabulary.pad,
    )
    return made


def main(source: str = "python_docs", peer: str = "") -> None:
    """Time every recipe, then the peer's collator if it is given."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    corpus = prepare(Data(source=source))
    made, results, more = {}, {}, {}
    for objective, architecture, lengths in RECIPES:
        data = Data(source=source, batch_size=ROWS, lengths=lengths)
        config = RunConfig(objective=objective, data=data, model=Model(architecture=architecture))
        one = made[objective, architecture] = make_batches(plan(config), data, 0, corpus, "train")
        one.batch_at(0)
        rates = [one.raw_tokens / seconds(one.batch_at, 4) / 1e6 for _ in range(ROUNDS)]
        results[f"{objective} {architecture}"] = rates
        print(f"{objective:<42}{architecture:<16}{statistics.median(rates):6.1f} M/s", flush=True)
    if peer:
        ours = made["span_corruption", "encoder_decoder"]
        theirs = collator(peer, corpus.tokenizer.vocabulary)
        (stream,) = ours.streams
        examples = [{"input_ids": window.astype(np.int32)} for window in stream.read(range(ROWS))]
        rounds = [
            (seconds(ours.batch_at, 4), seconds(lambda _: theirs(examples), 2))
            for _ in range(ROUNDS)
        ]
        rates = [
            ours.raw_tokens / statistics.median(side) / 1e6 for side in zip(*rounds, strict=True)
        ]
        ratio = statistics.median(b / a for a, b in rounds)
        print(
            f"span_corruption {rates[0]:.1f} M/s, the collator {rates[1]:.1f} M/s, ratio "
            f"{ratio:.1f}"
        )
        more["seconds_a_batch_of_span_corruption_and_of_the_collator"] = rounds
    keep("rows", {"million_raw_tokens_a_second": results} | more)


if __name__ == "__main__":
    main(*sys.argv[1:])
