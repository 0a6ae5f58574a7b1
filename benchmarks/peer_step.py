"""Worker of step_time.py, in the peer's environment: the same shapes in `transformers` + torch, AdamW, clipping.

peer_step.py bert|t5|gpt eager|compiled float32|autocast|bfloat16
"""

import json
import sys
import time

import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

VOCABULARY, ROWS = 8192, 8
family, how, kind = sys.argv[1:]
torch.manual_seed(0)


def ids(length):
    return torch.randint(0, VOCABULARY, (ROWS, length))


if family == "gpt":
    drop = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=128, n_embd=128, n_layer=4, n_head=4, **drop))
    batch = {"input_ids": (tokens := ids(128)), "labels": tokens}
elif family == "bert":
    sizes = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
    drop = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    model = BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, max_position_embeddings=130, **sizes, **drop))
    labels = torch.full((ROWS, 130), -100)
    labels[:, :19] = ids(19)
    batch = {"input_ids": ids(130), "labels": labels}
else:
    sizes = {"d_model": 128, "d_kv": 32, "d_ff": 320, "num_layers": 2, "num_heads": 4, "dropout_rate": 0}
    more = {"feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0}
    model = T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, **sizes, **more))
    batch = {"input_ids": ids(116), "labels": ids(26)}

model = model.train()
if kind == "bfloat16":
    model = model.bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
forward = torch.compile(model) if how == "compiled" else model


def step():
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
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
    print(json.dumps(times), flush=True)
