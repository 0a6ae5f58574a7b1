"""Worker of step_time.py in the peer's environment: runs training steps of models of the same
shapes in `transformers` + torch, with AdamW and gradient clipping.

peer_step.py bert|t5|gpt tiny|base|gpu eager|compiled float32|autocast|bfloat16
"""

import json
import sys
import time

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

family, size, how, kind = sys.argv[1:]
torch.manual_seed(0)
tiny = size == "tiny"
ROWS = {"tiny": 8, "base": 4, "gpu": 32}[size]
LENGTH = {"tiny": 128, "base": 512, "gpu": 1024}[size]  # of GPT's rows
device = "cuda" if size == "gpu" else "cpu"


def ids(length, scored=None):
    """Return random ids: [ROWS, length]. With `scored`, they are labels of which all positions from
    `scored` on are ignored by the loss.
    """
    made = torch.randint(0, 8192, (ROWS, length), device=device)
    if scored is not None:
        made[:, scored:] = -100
    return made


# The model of the family and size, without dropout, and a batch for it.
if family == "gpt":
    drop = {
        "resid_pdrop": 0,
        "embd_pdrop": 0,
        "attn_pdrop": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    sizes = (
        {"vocab_size": 8192, "n_positions": 128, "n_embd": 128, "n_layer": 4, "n_head": 4}
        if tiny
        else {}
    )
    model = GPT2LMHeadModel(GPT2Config(**sizes, **drop))
    batch = {"input_ids": (tokens := ids(LENGTH)), "labels": tokens}
elif family == "bert":
    sizes = {
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 512,
    }
    sizes |= {"vocab_size": 8192, "max_position_embeddings": 130}
    drop = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    model = BertForMaskedLM(BertConfig(**(sizes if tiny else {}), **drop))
    length, scored = (130, 19) if tiny else (512, 77)
    batch = {"input_ids": ids(length), "labels": ids(length, scored)}
else:
    sizes = {
        "d_model": 128,
        "d_kv": 32,
        "d_ff": 320,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 8192,
    }
    sizes = (
        sizes | {"feed_forward_proj": "gated-gelu"}
        if tiny
        else {"d_model": 768, "d_ff": 3072, "num_layers": 12}
    )
    more = {} if tiny else {"num_heads": 12, "vocab_size": 32128}
    model = T5ForConditionalGeneration(
        T5Config(**sizes, **more, dropout_rate=0, decoder_start_token_id=0)
    )
    batch = {"input_ids": ids(116 if tiny else 512), "labels": ids(26 if tiny else 114)}

model = model.train().to(device)
if kind == "bfloat16":
    model = model.bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
forward = torch.compile(model) if how == "compiled" else model


def step():
    """Run one training step and return its loss."""
    with torch.autocast(device, dtype=torch.bfloat16, enabled=kind == "autocast"):
        loss = forward(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


for _ in range(3):
    step()
for line in sys.stdin:
    times = []
    for _ in range(int(line)):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    print(json.dumps({"seconds": times}), flush=True)
