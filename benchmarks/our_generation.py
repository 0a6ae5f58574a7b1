"""Worker of generation.py: for each line of input, a number, generate 64 tokens after prompts of 64
that many times, and print the seconds of each as JSON.

our_generation.py gpt2|t5 ROWS float32|bfloat16
"""

import json
import sys
import time
from dataclasses import replace

import numpy as np

from t5x_lite.config.files import load
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.inference.generate import generate_ids
from t5x_lite.model.transformer import initialise
from t5x_lite.resolve import plan, resolve_model
from t5x_lite.training.loaded_model import LoadedModel
from t5x_lite.training.loop import setup_jax

setup_jax()
family, rows, dtype = sys.argv[1:]
config = load({"gpt2": "gpt2_small", "t5": "published:t5_small"}[family])
described = replace(config.model, dtype=dtype, max_length=1024)
model = resolve_model(described, vocab_size=config.model.vocab_size, max_length=1024)
params = initialise(model, 0)
tokenizer = Tokenizer()
object.__setattr__(tokenizer.vocabulary, "eos", -1)  # no row ends early
loaded = LoadedModel(config, plan(config), model, tokenizer, params, 0)
prompts = [np.random.default_rng(i).integers(0, 256, 63) for i in range(int(rows))]
for line in sys.stdin:
    times = []
    for _ in range(int(line)):
        start = time.perf_counter()
        written = generate_ids(loaded, prompts, max_new_tokens=64)
        times.append(time.perf_counter() - start)
        assert all(len(ids) == 64 for ids in written)
    print(json.dumps(times), flush=True)
