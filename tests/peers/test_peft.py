"""LoRA's updates, written for `peft` and put by it on the base that we export: the logits of the
adapted model. Classifiers that we fine-tune, read by `transformers`: theirs.
"""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("transformers", reason="make test-peers has it")
pytest.importorskip("torch")
pytest.importorskip("peft")

import peft as library
import torch
import transformers
from model.proofs import random_params
from peer_models import PEERS, TOLERANCE, make_peer, random_texts, read_peer, small_tokenizer

from t5x_lite.data.objectives.pairs import Pairs, SegmentLabels
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rows.layouts import RowShape, lay_out
from t5x_lite.interop import huggingface, peft
from t5x_lite.interop.huggingface import TaskHead
from t5x_lite.model import transformer
from t5x_lite.model.heads import HEADS, head_params, logits
from t5x_lite.training.adapt import merge_low_rank

HEAD_SETTINGS = {
    "class": {"num_classes": 3},
    "number": {"num_classes": 1},
    "choice": {"num_classes": 1},
    "span": {"token_classes": 2},
}


def adapted(name, tmp_path, **settings):
    """A model of random weights, with random updates and the head that settings add."""
    tokenizer = small_tokenizer()
    make_peer(PEERS[name], tokenizer.vocabulary.size, tmp_path / "peer")
    loaded = read_peer(tmp_path / "peer", tokenizer)
    model = replace(loaded.model, **settings)
    params = {**random_params(model, seed=1, stddev=0.2)}
    return loaded, model, params, tokenizer


def ids_of(tokenizer, count=3):
    return random_texts([7] * count, tokenizer.vocabulary.size)


def our_outputs(model, params, texts, tokenizer, head):
    """What the head of a task makes of each text, read from its first position."""
    read = Ragged.from_rows(texts)
    labels = SegmentLabels(
        np.zeros((len(texts), 2)),
        np.zeros(len(texts), int),
        np.ones(len(texts)),
        np.arange(len(texts)),
    )
    pairs = Pairs(read, Ragged.empty(len(texts)), segment_labels=labels)
    row = lay_out(pairs, RowShape(encoder=len(texts[0]), labels=1), tokenizer.vocabulary)
    row = {key: jnp.asarray(value) for key, value in row.items()}
    output = transformer.apply(model, params, row)
    outputs = HEADS[head].outputs(model, params, HEADS[head].read(output, row), row)
    return np.asarray(outputs if head == "span" else outputs[:, 0])


def their_outputs(peer, texts, head):
    ids = torch.tensor(np.stack(texts))
    with torch.no_grad():
        if head == "span":
            found = peer(input_ids=ids)
            return np.stack([found.start_logits, found.end_logits], -1)
        if head == "choice":  # all texts are answers to one question
            return peer(input_ids=ids[None]).logits.numpy().T
        return peer(input_ids=ids).logits.numpy()


@pytest.mark.parametrize("head", HEAD_SETTINGS)
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_models_of_tasks(tmp_path, name, head):
    if (name, head) == ("roberta", "choice"):
        pytest.skip("its head for choices has another pooler")
    settings = {"lm_head": False, **HEAD_SETTINGS[head]}
    _, model, params, tokenizer = adapted(name, tmp_path, **settings)
    labels = ("no", "yes", "perhaps") if head == "class" else ()
    class_name = huggingface.write(
        tmp_path / "out", model, params, tokenizer, task_head=TaskHead(head, labels)
    )
    peer_class = getattr(transformers, class_name)
    peer, report = peer_class.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    if head == "class":
        assert peer.config.id2label == dict(enumerate(labels))
    texts = ids_of(tokenizer)
    ours = our_outputs(model, params, texts, tokenizer, head)
    theirs = their_outputs(peer.eval(), texts, head)
    np.testing.assert_allclose(ours, theirs, atol=TOLERANCE)


@pytest.mark.parametrize("head", ["class", "span"])
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_updates_of_models_of_tasks(tmp_path, name, head):
    settings = {"lora_rank": 3, "lora_targets": ("query", "value", "wo", "embedding")}
    settings |= {"lm_head": False, **HEAD_SETTINGS[head]}
    loaded, model, params, tokenizer = adapted(name, tmp_path, **settings)
    task_head = TaskHead(head, ("no", "yes", "perhaps") if head == "class" else ())

    # The base is exported as it was pretrained, with its own head.
    _, merged = merge_low_rank(replace(model, lora_alpha=0.0), params)
    base_params = loaded.params | {key: merged[key] for key in merged if key in loaded.params}
    huggingface.write(tmp_path / "base", loaded.model, base_params, tokenizer)
    class_name = peft.write(tmp_path / "adapter", model, params, task_head=task_head)

    peer_class = getattr(transformers, class_name)
    more = {"num_labels": 3} if head == "class" else {}
    base = peer_class.from_pretrained(tmp_path / "base", **more)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Found missing adapter keys")
        peer = library.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    texts = ids_of(tokenizer)
    ours = our_outputs(model, params, texts, tokenizer, head)
    np.testing.assert_allclose(ours, their_outputs(peer, texts, head), atol=TOLERANCE)


@pytest.mark.parametrize(
    "targets",
    [
        ("query", "value"),
        ("key",),
        ("query", "key", "value", "out", "wi"),
        ("value", "embedding"),
    ],
)
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5 1.1"])
def test_updates_of_models_that_write(tmp_path, name, targets):
    if name == "gpt2" and "embedding" in targets:
        pytest.skip("its table is the output layer too")
    settings = {"lora_rank": 3, "lora_alpha": 12.0, "lora_targets": targets}
    loaded, model, params, tokenizer = adapted(name, tmp_path, **settings)
    _, base_params = merge_low_rank(replace(model, lora_alpha=0.0), params)
    base_class = huggingface.write(tmp_path / "base", loaded.model, base_params, tokenizer)
    assert peft.write(tmp_path / "adapter", model, params) == base_class

    base = getattr(transformers, base_class).from_pretrained(tmp_path / "base")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Found missing adapter keys")
        peer = library.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    texts = ids_of(tokenizer)
    ids = torch.tensor(np.stack(texts))
    targets_read = Ragged.from_rows(texts)
    if model.is_encoder_decoder:
        start = tokenizer.vocabulary.start
        shifted = torch.nn.functional.pad(ids[:, :-1], (1, 0), value=start)
        with torch.no_grad():
            theirs = peer(input_ids=ids, decoder_input_ids=shifted).logits.numpy()
        pairs, shape = Pairs(targets_read, targets_read), RowShape(encoder=7, decoder=7)
    else:
        with torch.no_grad():
            theirs = peer(input_ids=ids).logits.numpy()
        pairs, shape = Pairs(Ragged.empty(len(texts)), targets_read), RowShape(decoder=7)
    row = lay_out(pairs, shape, tokenizer.vocabulary)
    if not model.is_encoder_decoder:  # ours would begin with a start token
        row["decoder_tokens"] = np.stack(texts)
    row = jax.tree.map(jnp.asarray, row)
    hidden = transformer.apply(model, params, row).hidden_states
    ours = np.asarray(logits(model, head_params(params), hidden))
    np.testing.assert_allclose(ours[..., : theirs.shape[-1]], theirs, atol=TOLERANCE)
