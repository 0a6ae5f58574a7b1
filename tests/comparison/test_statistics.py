"""Means, intervals and differences against what is known of them."""

import numpy as np
import pytest

from t5x_lite.comparison.statistics import Sample, ratio_error, scores_of

SPANS = 400


def drawn(seed, spread_of_passages):
    """Bits and bytes of spans, ten from each passage."""
    random = np.random.default_rng(seed)
    passages = np.repeat(np.arange(SPANS // 10), 10)
    sizes = random.integers(5, 15, SPANS).astype(float)
    of_passage = random.normal(0, spread_of_passages, SPANS // 10)[passages]
    return sizes * (2 + of_passage + random.normal(0, 0.5, SPANS)), Sample(sizes, passages)


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_the_error_is_the_spread_over_samples(spread):
    """Also where spans of a passage are alike, of which a bootstrap of spans knows nothing."""
    ratios, errors = [], []
    for seed in range(200):
        amounts, sample = drawn(seed, spread)
        ratios.append(amounts.sum() / sample.sizes.sum())
        errors.append(ratio_error(amounts, sample))
    assert np.mean(errors) == pytest.approx(np.std(ratios), rel=0.15)


def test_one_passage_is_no_sample():
    amounts, sample = drawn(0, 0.5)
    assert ratio_error(amounts, sample._replace(passages=np.zeros(SPANS, int))) == 0.0


def test_cells_are_compared_with_their_baselines_where_the_question_is_one():
    values = {
        name: {0: {"loss": loss, "cb: accuracy": loss / 10}}
        for name, loss in zip("abcd", (3.0, 2.5, 2.0, 1.0), strict=True)
    }
    questions = {name: {"loss": "lm" if name != "d" else "mlm"} for name in values}
    none = Sample(np.ones(0), np.ones(0))
    baselines = {"a": "a", "b": "a", "c": "c", "d": "c"}
    scores = scores_of(values, none, questions, baselines, lambda score: score == "loss")
    assert "difference" not in scores["a"]["loss"]
    assert scores["b"]["loss"]["difference"]["mean"] == -0.5
    assert "difference" not in scores["c"]["loss"]
    assert "difference" not in scores["d"]["loss"]
    assert scores["d"]["cb: accuracy"]["difference"]["mean"] == pytest.approx(-0.1)
    for name, best in (("loss", "b"), ("cb: accuracy", "ac")):
        assert "".join(cell for cell in values if scores[cell][name]["is_best"]) == best
    assert scores["b"]["cb: accuracy"]["behind_best"]["mean"] == pytest.approx(-0.05)
    assert "behind_best" not in scores["a"]["cb: accuracy"]
