"""Every objective and every architecture learns: far below what counting tokens gives, in the same 150 steps."""

import jax
import numpy as np
import pytest

from t5x_lite.training import metrics
from t5x_lite.training.loop import Run
from t5x_lite.training.step import create_state

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


@pytest.mark.parametrize(("objective", "architecture"), LEARNED)
def test_learns(make, objective, architecture):
    more = {"model.width": 64, "data.batch_size": 32, "optimizer.learning_rate": 5e-3, "optimizer.warmup": 10}
    more |= {"data.lengths": {"inputs": 40, "targets": 40}} if architecture == "encoder_decoder" else {}
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


def test_gradients_of_what_is_not_asked_are_strictly_zero(make):
    """Positions of weight 0 after the last target: their tokens get no gradient, not a small one."""
    from t5x_lite.training.step import make_gradient

    run = Run(*make("iid_denoising", "encoder_decoder", **{"model.tied": False}))
    batch = run.batch(run.batches, 0)
    with run.within():
        state = create_state(run.config, run.optimizer, run.mesh)
        grads, _ = jax.jit(make_gradient(run.config))(state.params, batch, None)
    used = set(np.unique(batch["encoder_tokens"])) | set(np.unique(batch["decoder_tokens"]))
    for token, row in enumerate(np.asarray(grads["embedding"])):
        if token not in used:
            assert not row.any()
