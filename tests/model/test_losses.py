import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.model.losses import LossSettings, VocabularyShard, class_sums, cross_entropy

ROWS, LENGTH, WIDTH, SIZE, PADDED = 4, 10, 6, 11, 16
VOCABULARY = VocabularyShard(SIZE, jnp.arange(PADDED))


def drawn():
    """A table, hidden states, targets, and weights of which some are 0."""
    keys = jax.random.split(jax.random.key(0), 4)
    table = jax.random.normal(keys[0], (PADDED, WIDTH))
    hidden = jax.random.normal(keys[1], (ROWS, LENGTH, WIDTH))
    targets = jax.random.randint(keys[2], (ROWS, LENGTH), 0, SIZE)
    weights = jax.random.bernoulli(keys[3], 0.7, (ROWS, LENGTH)).astype(jnp.float32)
    return table, hidden, targets, weights


def logits_of(table, hidden):
    return jnp.where(jnp.arange(PADDED) < SIZE, hidden @ table.T, -1e9)


@pytest.mark.parametrize("chunk", [0, 1, 3, 5, 10, 99])
@pytest.mark.parametrize(("z_loss", "smoothing"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.2), (0.01, 0.1)])
def test_sums_and_gradients_against_plain_formulas(chunk, z_loss, smoothing):
    with jax.enable_x64(True):
        table, hidden, targets, weights = drawn()
        settings = LossSettings(z_loss, smoothing, chunk)

        def plain(table, hidden):
            logits = (hidden @ table.T)[..., :SIZE]
            log_probabilities = jax.nn.log_softmax(logits)
            labels = jax.nn.one_hot(targets, SIZE) * (1 - smoothing) + smoothing / SIZE
            z = jax.scipy.special.logsumexp(logits, -1)
            by_position = -(labels * log_probabilities).sum(-1) + z_loss * z**2
            return (by_position * weights).sum()

        def ours(table, hidden):
            sums = cross_entropy(logits_of, table, hidden, targets, weights, VOCABULARY, settings)
            return sums["total_loss"], sums

        (total, sums), gradient = jax.value_and_grad(ours, (0, 1), has_aux=True)(table, hidden)
        expected, expected_gradient = jax.value_and_grad(plain, (0, 1))(table, hidden)
        close = {"rtol": 1e-10, "atol": 1e-12}
        np.testing.assert_allclose(total, expected, **close)
        for found, wanted in zip(gradient, expected_gradient, strict=True):
            np.testing.assert_allclose(found, wanted, **close)
        likeliest = (hidden @ table.T)[..., :SIZE].argmax(-1)
        nll = -jax.nn.log_softmax((hidden @ table.T)[..., :SIZE])
        by_target = jnp.take_along_axis(nll, targets[..., None], -1)[..., 0]
        assert float(sums["nll"]) == pytest.approx(float((by_target * weights).sum()), rel=1e-10)
        assert float(sums["correct"]) == float(((likeliest == targets) * weights).sum())
        assert float(sums["weight"]) == float(weights.sum())


def chunked(table, hidden, targets, weights):
    return cross_entropy(
        logits_of, table, hidden, targets, weights, VOCABULARY, LossSettings(chunk=3)
    )


def summed_by_a_scan(*arguments):
    """Microbatches one after the other, the sums carried on."""
    table, *rows = arguments
    parts = tuple(x.reshape(2, 2, *x.shape[1:]) for x in rows)

    def add(total, part):
        return jax.tree.map(jnp.add, total, chunked(table, *part)), None

    zeros = {name: jnp.zeros(()) for name in ("total_loss", "nll", "correct", "weight")}
    return jax.lax.scan(add, zeros, parts)[0]


def stacked_by_a_scan(*arguments):
    """Row by row, the sums of each kept."""
    table, *rows = arguments
    parts = tuple(x[:, None] for x in rows)
    stacked = jax.lax.map(lambda part: chunked(table, *part), parts)
    return jax.tree.map(lambda x: x.sum(), stacked)


WRAPPED = {
    "as it is": chunked,
    "jit": jax.jit(chunked),
    "remat": jax.checkpoint(chunked),
    "a scan that adds": summed_by_a_scan,
    "a scan that stacks": stacked_by_a_scan,
    "jit, remat and a scan": jax.jit(jax.checkpoint(summed_by_a_scan)),
}


@pytest.mark.parametrize("way", WRAPPED)
def test_total_loss_alone_has_a_gradient(way):
    """The right one, whatever the loss is wrapped in; that of another sum would be wrong, silently,
    and is refused by its name.
    """
    table, hidden, targets, weights = drawn()

    def sums(table, hidden):
        return WRAPPED[way](table, hidden, targets, weights)

    def plain(table, hidden):
        log_probabilities = jax.nn.log_softmax(logits_of(table, hidden))
        by_target = jnp.take_along_axis(log_probabilities, targets[..., None], -1)[..., 0]
        return -(by_target * weights).sum()

    gradient = jax.grad(lambda *x: 2 * sums(*x)["total_loss"], (0, 1))(table, hidden)
    expected = jax.grad(lambda *x: 2 * plain(*x), (0, 1))(table, hidden)
    for found, wanted in zip(gradient, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    for leaf in jax.tree.leaves(jax.grad(lambda *x: sums(*x)["weight"], (0, 1))(table, hidden)):
        assert not leaf.any()  # a constant of the batch
    for name in ("nll", "correct"):
        with pytest.raises(TypeError, match=rf"the gradient of \['{name}'\], but only total_loss"):
            jax.grad(lambda *x, name=name: sums(*x)[name])(table, hidden)

    def mixed(table, hidden):
        found = sums(table, hidden)
        return found["total_loss"] + found["nll"]

    with pytest.raises(TypeError, match="'nll', 'total_loss'"):
        jax.grad(mixed)(table, hidden)


def test_sums_that_nothing_depends_on_have_no_gradient():
    table, hidden, targets, weights = drawn()
    gradient = jax.grad(lambda table: 0.0 * table.sum())(table)
    both = jax.grad(
        lambda table: (table.sum() * 0.0, chunked(table, hidden, targets, weights)), has_aux=True
    )
    found, sums = both(table)
    np.testing.assert_array_equal(found, gradient)
    assert set(sums) == {"total_loss", "nll", "correct", "weight"}


def test_sums_of_classes_against_plain_formulas():
    """Rows of weight 0 count for nothing, whatever stands in them."""
    logits = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [np.nan, np.inf, 0.0]])
    labels, weights = np.array([0, 2, 1]), np.array([1.0, 1.0, 0.0])
    sums = class_sums(jnp.asarray(logits), jnp.asarray(labels), jnp.asarray(weights))
    expected = [
        np.log(np.exp(logits[row]).sum()) - logits[row, label] for row, label in ((0, 0), (1, 2))
    ]
    assert float(sums["nll"]) == float(sums["total_loss"]) == pytest.approx(sum(expected), rel=1e-6)
    assert (float(sums["correct"]), float(sums["weight"])) == (1.0, 2.0)
