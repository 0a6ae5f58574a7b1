"""A BERT of `transformers` is fine-tuned as a plain loop of torch does it: the same data in the
same order, no dropout, AdamW; the losses of 20 steps.
"""

import json

import numpy as np
import pytest

pytest.importorskip("transformers", reason="make test-peers has it")
pytest.importorskip("torch")

import torch
import transformers
from peer_models import PEERS, make_peer, read_peer, small_tokenizer

from t5x_lite import api
from t5x_lite.data.tasks.task_data import TaskData, TaskPlan
from t5x_lite.model.transformer import initialise
from t5x_lite.training import run_directory
from t5x_lite.training.log import read_metrics

STEPS, RATE = 20, 1e-3


@pytest.mark.parametrize("pairs", [False, True])
def test_losses_of_20_steps(tmp_path, pairs):
    tokenizer = small_tokenizer()
    peer = make_peer(PEERS["bert with two heads"], tokenizer.vocabulary.size, tmp_path / "hf")
    loaded = read_peer(tmp_path / "hf", tokenizer)
    run_directory.create(tmp_path / "base", loaded.config, tokenizer, loaded.params)

    # Examples of two labels, of one text or two.
    words = ("cat", "dog", "bird")
    records = [
        {"a": f"the {words[i % 3]} sees {i}", "b": f"it is {words[i % 2]}", "label": i % 2}
        for i in range(120)
    ]
    path = tmp_path / "task.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    second = ", text_pair=b" if pairs else ""
    settings = {
        "data.examples_per_row": 1,
        "data.batch_size": 4,
        "data.lengths.sequence_length": 40,
        "model.dropout": 0.0,
        "model.attention_dropout": 0.0,
        "optimizer.learning_rate": RATE,
        "optimizer.schedule": "constant",
        "optimizer.warmup_steps": 0,
        "optimizer.weight_decay": 0.0,
        "optimizer.epsilon": 1e-8,
        "optimizer.grad_clip_norm": 0.0,
        "training.steps": STEPS,
        "training.log_every": 1,
    }
    task = f"classify({path}, text=a{second}, labels=0|1)"
    api.finetune(tmp_path / "base", task, tmp_path / "run", **settings)
    ours = [
        record["loss"]
        for record in read_metrics(tmp_path / "run/metrics.jsonl")
        if record["split"] == "train"
    ]

    # The same in torch, from the same drawn layer.
    resolved, _ = run_directory.read(tmp_path / "run")
    rows = resolved.rows
    assert isinstance(rows, TaskPlan)
    data = TaskData(rows, tokenizer, resolved.config.data.batch_size, resolved.config.seed)
    drawn = initialise(resolved.model, resolved.config.seed)["classifier"]["output"]
    model = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "hf")
    model.bert.load_state_dict(peer.bert.state_dict())
    model.classifier.weight.data = torch.tensor(np.array(drawn["kernel"]).T.copy())
    model.classifier.bias.data = torch.tensor(np.array(drawn["bias"]))
    model.eval()  # no dropout
    optimizer = torch.optim.AdamW(model.parameters(), RATE, eps=1e-8, weight_decay=0.0)
    theirs = []
    for step in range(STEPS):
        row = data.batches("train").batch_at(step)
        inputs = {
            "input_ids": row["encoder_tokens"],
            "attention_mask": row["encoder_segments"] > 0,
            "token_type_ids": row["encoder_types"],
        }
        inputs = {name: torch.tensor(value).long() for name, value in inputs.items()}
        loss = model(**inputs, labels=torch.tensor(row["label_values"][:, 0, 0]).long()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    assert len(ours) == STEPS
    assert np.abs(np.array(ours) - np.array(theirs)).max() < 1e-3
    assert theirs[-1] < theirs[0]
