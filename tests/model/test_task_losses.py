"""The losses of tasks, each against its definition written out with loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.model.losses import choice_sums, class_sums, number_sums, span_sums

RNG = np.random.default_rng(0)


def log_softmax(values):
    shifted = np.asarray(values, float) - max(values)
    return shifted - np.log(np.exp(shifted).sum())


def check(sums, terms):
    """The sums are those of (nll, correct, weight) terms."""
    assert float(sums["nll"]) == pytest.approx(sum(nll * w for nll, _, w in terms), rel=1e-5)
    assert float(sums["correct"]) == sum(correct * w for _, correct, w in terms)
    assert float(sums["weight"]) == sum(w for _, _, w in terms)
    assert float(sums["total_loss"]) == pytest.approx(float(sums["nll"]))


def test_classes_of_segments():
    logits = RNG.normal(size=(3, 4, 5))
    labels, weights = RNG.integers(0, 5, (3, 4)), RNG.integers(0, 2, (3, 4)).astype(float)
    terms = []
    for row in range(3):
        for slot in range(4):
            log_p = log_softmax(logits[row, slot])
            label = labels[row, slot]
            terms.append((-log_p[label], float(log_p.argmax() == label), weights[row, slot]))
    check(class_sums(*map(jnp.asarray, (logits, labels, weights))), terms)


def test_numbers():
    predicted, labels = RNG.normal(size=(2, 3)), RNG.normal(size=(2, 3))
    weights = np.array([[1.0, 1, 0], [1, 0, 0]])
    terms = [
        ((p - y) ** 2, 0.0, w)
        for p, y, w in zip(predicted.flat, labels.flat, weights.flat, strict=True)
    ]
    check(number_sums(*map(jnp.asarray, (predicted, labels, weights))), terms)


def test_choices():
    groups = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 2, 2, 2, 2]])
    is_right = np.array([[0, 1, 0, 0, 1, 0], [1, 0, 0, 0, 1, 0]], float)
    scores, weights = RNG.normal(size=(2, 6)), (groups > 0).astype(float)
    scores[1, 0] = scores[1, 1]  # a tie is not correct
    terms = []
    for row in range(2):
        for group in range(1, groups[row].max() + 1):
            of_group = np.flatnonzero(groups[row] == group)
            log_p = log_softmax(scores[row, of_group])
            right = int(is_right[row, of_group].argmax())
            best = np.delete(log_p, right).max()
            terms.append((-log_p[right], float(log_p[right] > best), 1.0))
    check(choice_sums(*map(jnp.asarray, (scores, is_right, weights, groups))), terms)


def test_spans():
    segments = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1]])
    spans = np.array([[[1, 2], [3, 4]], [[0, 0], [0, 0]]])
    logits, weights = RNG.normal(size=(2, 6, 2)), np.array([[1.0, 1], [1, 0]])
    terms = []
    for row, slot in ((0, 0), (0, 1), (1, 0)):
        positions = np.flatnonzero(segments[row] == slot + 1)
        both = [log_softmax(logits[row, positions, side]) for side in (0, 1)]
        first, last = spans[row, slot] - positions[0]
        nll = -(both[0][first] + both[1][last]) / 2
        correct = both[0].argmax() == first and both[1].argmax() == last
        terms.append((nll, float(correct), 1.0))
    inputs = [jnp.asarray(array) for array in (logits, spans, weights, segments)]
    check(span_sums(*inputs), terms)
    gradient = jax.grad(lambda x: span_sums(x, *inputs[1:])["total_loss"])(inputs[0])
    assert np.isfinite(gradient).all()
    assert not np.asarray(gradient)[0, 5].any()  # padding
