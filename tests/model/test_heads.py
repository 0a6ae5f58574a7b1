import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ALL_CELLS
from model.proofs import QUIET, check_gradients, random_params, small

from t5x_lite.config import Model
from t5x_lite.data.rows.batches import make_batches
from t5x_lite.data.tasks.kinds.table import KINDS
from t5x_lite.model.heads import (
    HEADS,
    LanguageModelHead,
    ModelOutput,
    SequenceLabelHead,
    head_params,
    logits,
)
from t5x_lite.resolve import resolve_model

LANGUAGE_MODEL_HEADS = {
    "tied": {"scale_logits": True},
    "untied": {"tie_embeddings": False},
    "BERT's": {"mlm_head": True, "architecture": "encoder"},
    "factorised": {"embedding_size": 3},
}


@pytest.mark.parametrize("kind", LANGUAGE_MODEL_HEADS)
def test_gradients_of_language_model_heads(kind):
    def head(part, x):
        kernel = jax.random.normal(jax.random.key(5), (part.config.embedding_size, 12))
        return part(x, kernel)[..., :11]

    check_gradients(LanguageModelHead(small(**LANGUAGE_MODEL_HEADS[kind])), head)


def test_gradients_of_the_sequence_label_head():
    check_gradients(SequenceLabelHead(small(num_classes=3)), lambda part, x: part(x[:, 0], QUIET))


def test_padded_embedding_rows_never_win():
    model = resolve_model(Model(d_model=16, num_heads=2), vocab_size=525, max_length=8)
    params = head_params(random_params(model))
    out = logits(model, params, jnp.ones((2, 16)))
    assert params["kernel"].shape[1] == out.shape[-1] == 640 > model.vocab_size
    assert (out[:, model.vocab_size :] < -1e8).all()


@pytest.mark.parametrize(("objective", "architecture"), ALL_CELLS)
def test_rows_have_what_their_heads_read(make, objective, architecture):
    """The keys that each head names are in the rows that data makes for it, and it reads no
    others.
    """
    resolved, corpus = make(objective, architecture)
    config = resolved.config
    row = make_batches(resolved.rows, config.data, config.seed, corpus, "train").batch_at(0)
    expected = {"encoder": {"mlm"}}.get(architecture, {"lm"})
    if "second=" in objective:
        expected |= {"sequence_label"}
    assert set(resolved.heads) == expected
    for name in resolved.heads:
        head = HEADS[name]
        assert set(head.row_keys) <= set(row)
        only = {key: jnp.asarray(row[key]) for key in head.row_keys}
        stack = "encoder" if "encoder_tokens" in row and architecture == "encoder" else "decoder"
        output = ModelOutput(jnp.zeros((*row[f"{stack}_tokens"].shape, 4)), {})
        assert head.read(output, only).shape[0] == 8
        assert np.isfinite(head.weight(only))


def test_every_head_is_that_of_some_rows(make):
    used = {
        head
        for objective, architecture in ALL_CELLS
        for head in make(objective, architecture)[0].heads
    }
    of_tasks = {way.head for kind in KINDS.values() for way in kind.formats.values()}
    of_two_decoders = make("causal_lm", "decoder", **{"model.backward_decoder": True})[0].heads
    assert used | of_tasks | {"auxiliary_lm", *of_two_decoders} == set(HEADS)
