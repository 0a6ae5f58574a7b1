"""Worker of generation.py in the peer's environment: generates with `transformers` + torch, with
models and prompts of the same shapes as our_generation.py.

peer_generation.py gpt2|t5 ROWS float32|bfloat16 dynamic|static
"""

import json
import sys
import time

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

family, rows, dtype, cache = sys.argv[1:]
torch.manual_seed(0)
if family == "gpt2":
    model = GPT2LMHeadModel(GPT2Config())
else:
    sizes = {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8}
    model = T5ForConditionalGeneration(
        T5Config(vocab_size=32128, decoder_start_token_id=0, **sizes)
    )
model = model.eval().to(getattr(torch, dtype))
model.generation_config.eos_token_id = None
model.generation_config.pad_token_id = 0
ids = torch.randint(1, 256, (int(rows), 64))
how = {
    "max_new_tokens": 64,
    "min_new_tokens": 64,
    "do_sample": False,
    "attention_mask": torch.ones_like(ids),
}
if cache == "static":
    how["cache_implementation"] = "static"
with torch.no_grad():
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            model.generate(ids, **how)
            times.append(time.perf_counter() - start)
        print(json.dumps(times), flush=True)
