"""Worker of step_time.py: for each line of input, a number, run that many training steps of a
config without dropout. Prints the seconds of each step and the rates of the median step as JSON.

our_step.py bert|t5|gpt tiny|base|gpu KEY=VALUE…
"""

import json
import statistics
import sys
import time

import jax

from t5x_lite.config.files import load
from t5x_lite.data.store.prepare import prepare
from t5x_lite.resolve import resolve, text_data
from t5x_lite.training.loop import Run, setup_jax

ROWS = {"base": 4, "gpu": 32}
LENGTHS = {"base": 512, "gpu": 1024}  # of a decoder's rows; the others have 512 inputs
PUBLISHED = {"bert": "bert_base", "t5": "t5_base", "gpt": "gpt2_small"}

setup_jax()
family, size, *overrides = sys.argv[1:]
name, settings = f"{family}_tiny", {}
if size != "tiny":
    name = PUBLISHED[family]
    settings = {
        "data.source": "python_docs",  # text that every machine has
        "data.tokenizer": "sentencepiece(vocab_size=8192)",
        "data.batch_size": ROWS[size],
        "model.dropout": 0,
        "model.attention_dropout": 0,
        "model.ff_dropout": 0,
        "model.remat": False,
        "model.scan": False,
        "optimizer.name": "adamw",
    }
    if family == "gpt":
        settings["data.lengths.sequence_length"] = LENGTHS[size]
settings |= dict(override.split("=", 1) for override in overrides)
config = load(name, [f"{key}={value}" for key, value in settings.items()])
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
        rates = run.rates(statistics.median(times), 1)
        print(json.dumps({"seconds": times, **rates}), flush=True)
