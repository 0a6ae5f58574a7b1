"""Worker of step_time.py: for each line of input, a number, run that many training steps of a
config without dropout, and print the seconds of each as JSON.

our_step.py bert|t5|gpt tiny|base KEY=VALUE…
"""

import json
import sys
import time

import jax

from t5x_lite.config.files import load
from t5x_lite.data.store.prepare import prepare
from t5x_lite.resolve import resolve, text_data
from t5x_lite.training.loop import Run, setup_jax

setup_jax()
family, size, *more = sys.argv[1:]
if size == "base":  # 4 rows of 512 positions, on text that every machine has
    more += [
        "data.source=python_docs",
        "data.tokenizer=sentencepiece(vocab_size=8192)",
        "data.batch_size=4",
    ]
    more += [f"model.{part}=0" for part in ("dropout", "attention_dropout", "ff_dropout")]
    more += ["model.remat=False", "model.scan=False"]
    more += ["optimizer.name=adamw"] + (
        ["data.lengths.sequence_length=512"] if family == "gpt" else []
    )
names = {"bert": "bert_base", "t5": "t5_base", "gpt": "gpt2_small"} if size == "base" else {}
config = load(names.get(family, f"{family}_tiny"), more)
corpus = prepare(config.data)
resolved = resolve(config, corpus.tokenizer.vocabulary)
run = Run(resolved, text_data(resolved, corpus))
with run.within():
    state = run.fresh_state()
    batch = run.batch(run.batches, 0)
    for _ in range(3):
        state, sums = run.train_step(state, batch)
    jax.block_until_ready(state)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            state, sums = run.train_step(state, batch)
            jax.block_until_ready((state, sums))
            times.append(time.perf_counter() - start)
        print(json.dumps(times), flush=True)
