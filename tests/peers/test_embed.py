"""Hidden states of models of `transformers` without a language model head."""

import numpy as np
import pytest

pytest.importorskip("transformers", reason="make test-peers has it")
pytest.importorskip("torch")

import torch
from peer_models import SIZES, T5, TOLERANCE, Peer, make_peer, read_peer, small_tokenizer

from t5x_lite.inference.embed import embed

BODIES = {
    "bert": Peer("Bert", "Model", {**SIZES, "max_position_embeddings": 40}),
    "bert classifier": Peer(
        "Bert", "ForSequenceClassification", {**SIZES, "max_position_embeddings": 40}
    ),
    "bert tagger": Peer("Bert", "ForTokenClassification", {**SIZES, "max_position_embeddings": 40}),
    "roberta": Peer("Roberta", "Model", {**SIZES, "max_position_embeddings": 42}),
    "roberta classifier": Peer(
        "Roberta", "ForSequenceClassification", {**SIZES, "max_position_embeddings": 42}
    ),
    "gpt2": Peer("GPT2", "Model", {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 40}),
    "t5": Peer("T5", "Model", T5),
    "t5 encoder": Peer("T5", "EncoderModel", T5),
    "t5 1.1 encoder": Peer("T5", "EncoderModel", {**T5, "feed_forward_proj": "gated-gelu"}),
    "llama": Peer("Llama", "Model", {**SIZES, "max_position_embeddings": 40}),
    "llama, tied": Peer("Llama", "Model", {**SIZES, "tie_word_embeddings": True}),
    "llama classifier": Peer("Llama", "ForSequenceClassification", {**SIZES, "pad_token_id": 0}),
}
TEXTS = ["the cat sees", "a dog.", "the old cat sings"]


@pytest.mark.parametrize("name", BODIES)
def test_hidden_states(name, tmp_path):
    tokenizer = small_tokenizer()
    vocabulary = tokenizer.vocabulary
    peer = make_peer(BODIES[name], vocabulary.size, tmp_path)
    loaded = read_peer(tmp_path, tokenizer)
    body = peer.base_model
    for text, ours in zip(TEXTS, embed(loaded, TEXTS, "none"), strict=True):
        ids = tokenizer.encode(text).tolist()
        if name.startswith(("bert", "roberta")):
            ids = [vocabulary["[CLS]"], *ids, vocabulary["[SEP]"]]
        elif name.startswith("t5"):
            # An encoder has [CLS] and [SEP] where its tokenizer has them.
            if loaded.model.architecture == "encoder":
                ids = [vocabulary["[CLS]"], *ids, vocabulary["[SEP]"]]
            else:
                ids = [*ids, vocabulary.eos]
        elif name.startswith("llama"):  # GPT-2's tokenizer puts nothing before a text
            ids = [vocabulary.start, *ids]
        with torch.no_grad():
            model = body.encoder if name == "t5" else body
            theirs = model(torch.tensor(ids)[None]).last_hidden_state[0].numpy()
        assert theirs.shape == ours.shape
        assert np.abs(theirs - ours).max() < TOLERANCE
        assert np.abs(theirs).max() > 0.1
