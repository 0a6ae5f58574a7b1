"""Every objective and every architecture learns: far below what counting tokens gives, in the same
150 steps. One of them in every run of the tests.
"""

import jax
import numpy as np
import pytest
from model.proofs import random_params

from t5x_lite.resolve import text_data
from t5x_lite.training.log import mean_metrics
from t5x_lite.training.loop import Run

STEPS = 150
LENGTHS = {
    "encoder": {"sequence_length": 66},
    "encoder_decoder": {"inputs": 40, "targets": 40},
}
LEARNED = [
    ("causal_lm", "decoder"),
    pytest.param("masked_lm", "encoder", marks=pytest.mark.slow),
    pytest.param("prefix_lm", "prefix_decoder", marks=pytest.mark.slow),
    pytest.param("span_corruption", "encoder_decoder", marks=pytest.mark.slow),
    pytest.param("iid_denoising", "decoder", marks=pytest.mark.slow),
]


def entropy(corpus) -> float:
    """Nats per token of the unigram distribution of the training text."""
    p = np.bincount(corpus.tokens("train")) / len(corpus.tokens("train"))
    return float(-(p[p > 0] * np.log(p[p > 0])).sum())


@pytest.fixture
def optimized():
    """Compiled as for users: it pays where many steps are made."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


def train_and_evaluate(make, objective, architecture, **more):
    """The figures of the last step and of the validation split, and the corpus."""
    settings = {
        "model.d_model": 64,
        "model.positions": "rotary",
        "data.batch_size": 32,
        "optimizer.learning_rate": 3e-3,
        "optimizer.warmup_steps": 10,
        "training.steps": STEPS,
    }
    if architecture in LENGTHS:
        settings["data.lengths"] = LENGTHS[architecture]
    resolved, corpus = make(objective, architecture, **(settings | more))
    run = Run(resolved, text_data(resolved, corpus))
    with run.within():
        state = run.fresh_state()
        for step in range(STEPS):
            state, figures = run.train_step(state, run.batch(run.batches, step))
        trained = mean_metrics(jax.device_get(figures["sums"]))
        return trained, run.evaluate(state.params), corpus


@pytest.mark.parametrize(("objective", "architecture"), LEARNED)
@pytest.mark.usefixtures("optimized")
def test_learns(make, objective, architecture):
    trained, evaluated, corpus = train_and_evaluate(make, objective, architecture)
    assert evaluated["loss"] < 0.75 * entropy(corpus)
    assert trained["loss"] == pytest.approx(evaluated["loss"], rel=0.35)


@pytest.mark.slow
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(
    ("objective", "architecture"),
    [("causal_lm", "decoder"), ("masked_lm", "encoder"), ("span_corruption", "encoder_decoder")],
)
def test_an_lstm_learns(make, objective, architecture):
    settings = {"model.mixer": "lstm", "model.positions": "none", "model.feed_forward": "none"}
    trained, evaluated, corpus = train_and_evaluate(make, objective, architecture, **settings)
    assert evaluated["loss"] < 0.75 * entropy(corpus)
    assert trained["loss"] == pytest.approx(evaluated["loss"], rel=0.35)


@pytest.mark.parametrize("architecture", ["decoder", "prefix_decoder", "encoder_decoder"])
def test_gradients_of_what_no_target_sees_are_strictly_zero(make, architecture):
    """Only the first targets are scored: what the decoder reads after the last of them gets no
    gradient at all.
    """
    settings = {"model.tie_embeddings": False, "data.batch_size": 1}
    resolved, corpus = make("prefix_lm", architecture, **settings)
    run = Run(resolved, text_data(resolved, corpus))
    batch = run.batch(run.batches, 0)
    weights = np.array(batch["decoder_weights"])
    targets = np.flatnonzero(weights[0])
    last = targets[len(targets) // 2]
    weights[0, last + 1 :] = 0
    tokens = np.arange(weights.size)[None]  # all different: an embedding's row tells its position
    batch |= {"decoder_weights": weights, "decoder_tokens": tokens}
    if "encoder_tokens" in batch:
        batch["encoder_tokens"] = batch["encoder_tokens"] * 0 + 300
    segments = np.asarray(batch["decoder_segments"])[0]
    is_input = np.asarray(batch.get("decoder_prefix", np.zeros_like(tokens)))[0].astype(bool)
    params = random_params(resolved.model, stddev=0.1)
    with run.within():
        gradient, _ = jax.jit(run.program.loss.gradient)(params, batch, None)
    found = np.asarray(gradient["embedding"]).any(1)[: tokens.size]
    scored = set(segments[np.flatnonzero(weights[0])])
    expected = [s in scored and (is_input[i] or i <= last) for i, s in enumerate(segments)]
    assert found.tolist() == expected
    assert not all(expected)
