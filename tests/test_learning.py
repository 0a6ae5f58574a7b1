"""Every objective and every architecture learns: far below what counting tokens gives, in the same 150 steps."""

import jax
import numpy as np
import pytest

from t5x_lite.training import metrics
from t5x_lite.training.loop import Run
from t5x_lite.training.step import create_state, make_gradient, make_sums

LEARNED = [
    ("masked_lm", "encoder"),
    ("causal_lm", "decoder"),
    ("prefix_lm", "prefix_decoder"),
    ("span_corruption", "encoder_decoder"),
    ("iid_denoising", "decoder"),
]


def entropy(corpus) -> float:
    """Nats per token of the unigram distribution of the training text."""
    p = np.bincount(corpus.tokens["train"]) / len(corpus.tokens["train"])
    return float(-(p[p > 0] * np.log(p[p > 0])).sum())


@pytest.fixture
def optimized():
    """Compiled as for users: it pays where many steps are made."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.mark.parametrize(("objective", "architecture"), LEARNED)
@pytest.mark.usefixtures("optimized")
def test_learns(make, objective, architecture):
    more = {"model.width": 64, "data.batch_size": 32, "optimizer.learning_rate": 3e-3, "optimizer.warmup": 10}
    more |= {"data.lengths": {"inputs": 40, "targets": 40}} if architecture == "encoder_decoder" else {}
    more |= {"data.lengths": {"row": 66}} if architecture == "encoder" else {}
    more |= {"model.positions": "rotary", "training.steps": 150}
    run = Run(*(found := make(objective, architecture, **more)))
    with run.within():
        state = create_state(run.config, run.optimizer, run.mesh)
        for step in range(150):
            state, sums = run.train_step(state, run.batch(run.batches, step))
        trained = metrics.means(jax.device_get(sums))
        evaluated = run.evaluate(state.params)
    assert evaluated["loss"] < 0.75 * entropy(found[1])
    assert trained["loss"] == pytest.approx(evaluated["loss"], rel=0.35)


@pytest.mark.parametrize("architecture", ["decoder", "prefix_decoder", "encoder_decoder"])
def test_gradients_of_what_no_target_sees_are_strictly_zero(make, architecture):
    """Only the first targets are scored: what the decoder reads after the last of them gets no gradient at all."""
    run = Run(*make("prefix_lm", architecture, **{"model.tied": False, "data.batch_size": 1}))
    batch = run.batch(run.batches, 0)
    weights = np.array(batch["decoder_weights"])
    targets = np.flatnonzero(weights[0])
    last = targets[len(targets) // 2]
    weights[0, last + 1 :] = 0
    tokens = np.arange(weights.size)[None]  # all different: an embedding's row tells its position
    batch |= {"decoder_weights": weights, "decoder_tokens": tokens}
    batch |= {"encoder_tokens": batch["encoder_tokens"] * 0 + 300} if "encoder_tokens" in batch else {}
    segments = np.asarray(batch["decoder_segments"])[0]
    inputs = np.asarray(batch.get("decoder_prefix", np.zeros_like(tokens)))[0].astype(bool)
    with run.within():
        state = create_state(run.config, run.optimizer, run.mesh)
        grads, _ = jax.jit(make_gradient(run.config))(state.params, batch, None)
    got = np.asarray(grads["embedding"]).any(1)[: tokens.size]
    scored = set(segments[np.flatnonzero(weights[0])])
    seen = [s in scored and (inputs[i] or i <= last) for i, s in enumerate(segments)]
    assert got.tolist() == seen
    assert not all(seen)


def test_labels_of_sentence_pairs_add_their_own_mean(make):
    """The gradient is that of nll / targets + label nll / rows, however many microbatches there are."""
    found = {}
    for parts in (1, 4):
        more = {"model.token_types": 2, "training.microbatches": parts, "model.dtype": "float32"}
        run = Run(*make("masked_lm(second='next')", "encoder", **more))
        with run.within():
            state = create_state(run.config, run.optimizer, run.mesh)
            batch = jax.device_get(run.batch(run.batches, 0))
            batch["encoder_weights"] = batch["encoder_weights"].copy()
            batch["encoder_weights"][0, 1:] = 0  # unequal numbers of targets
            found[parts] = jax.jit(make_gradient(run.config))(state.params, batch, None)
            if parts == 1:
                sums = make_sums(run.config)

                def mean(params, made=sums, batch=batch):
                    total = made(params, batch)
                    return total["objective"] / total["weight"] + total["label_nll"] / total["label_weight"]

                expected = jax.jit(jax.grad(mean))(state.params)
    for gradient, sums in found.values():
        assert sums["label_weight"] == 8
        for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-6)
    assert float(np.abs(expected["classifier"]["output"]["kernel"]).max()) > 0
    figures = metrics.means(jax.device_get(found[1][1]))
    assert figures["label_loss"] == pytest.approx(np.log(2), rel=0.3)
    assert 0 <= figures["label_accuracy"] <= 1
