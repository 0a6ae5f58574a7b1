import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5x_lite.config import Optimizer
from t5x_lite.training.losses import cross_entropy
from t5x_lite.training.optimizer import make_optimizer, make_schedule

ROWS, LENGTH, WIDTH, SIZE, PADDED = 3, 10, 6, 11, 16


def pieces():
    keys = jax.random.split(jax.random.key(0), 4)
    table = jax.random.normal(keys[0], (PADDED, WIDTH))
    hidden = jax.random.normal(keys[1], (ROWS, LENGTH, WIDTH))
    targets = jax.random.randint(keys[2], (ROWS, LENGTH), 0, SIZE)
    return table, hidden, targets, jax.random.bernoulli(keys[3], 0.7, (ROWS, LENGTH)).astype(jnp.float32)


def head(table, hidden):
    return jnp.where(jnp.arange(PADDED) < SIZE, hidden @ table.T, -1e9)


@pytest.mark.parametrize("chunk", [0, 1, 3, 5, 10, 99])
@pytest.mark.parametrize(("z_loss", "smoothing"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.2), (0.01, 0.1)])
def test_sums_and_gradients_against_plain_formulas(chunk, z_loss, smoothing):
    with jax.enable_x64(True):
        table, hidden, targets, weights = pieces()

        def plain(table, hidden):
            logits = (hidden @ table.T)[..., :SIZE]
            log_p = jax.nn.log_softmax(logits)
            labels = jax.nn.one_hot(targets, SIZE) * (1 - smoothing) + smoothing / SIZE
            z = jax.scipy.special.logsumexp(logits, -1)
            return ((-(labels * log_p).sum(-1) + z_loss * z**2) * weights).sum()

        def ours(table, hidden):
            return cross_entropy(head, table, hidden, targets, weights, SIZE, z_loss, smoothing, chunk)["objective"]

        found, wanted = (jax.value_and_grad(f, (0, 1))(table, hidden) for f in (ours, plain))
        for a, b in zip(found, wanted, strict=True):
            jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12), a, b)
        sums = cross_entropy(head, table, hidden, targets, weights, SIZE, z_loss, smoothing, chunk)
        likeliest = (hidden @ table.T)[..., :SIZE].argmax(-1)
        assert float(sums["correct"]) == float(((likeliest == targets) * weights).sum())
        assert float(sums["weight"]) == float(weights.sum())


def rate(step, **settings):
    config = Optimizer(learning_rate=2.0, warmup=10, **settings)
    return float(make_schedule(config, steps=110, raw_tokens=1000)(step - 1))


def test_schedules_by_their_closed_forms():
    for schedule in ("cosine", "linear", "inverse_square_root", "constant"):
        assert rate(1, schedule=schedule) == pytest.approx(0.2)
        assert rate(10, schedule=schedule) == pytest.approx(2.0)
    assert rate(60, schedule="cosine", final=0.1) == pytest.approx(2 * (0.1 + 0.9 / 2))
    assert rate(110, schedule="cosine", final=0.1) == pytest.approx(0.2)
    assert rate(60, schedule="linear") == pytest.approx(1.0)
    assert rate(500, schedule="linear", final=0.5) == pytest.approx(1.0)
    assert rate(40, schedule="inverse_square_root") == pytest.approx(1.0)
    assert rate(500, schedule="constant") == 2.0
    assert rate(35, schedule="linear", decay=60) == pytest.approx(1.0)


def test_schedules_in_tokens_are_those_in_steps():
    tokens = Optimizer(learning_rate=2.0, warmup=10_000, decay=60_000, unit="tokens")
    steps = Optimizer(learning_rate=2.0, warmup=10, decay=60)
    for step in (0, 5, 9, 30, 80):
        rates = [float(make_schedule(config, 110, 1000)(step)) for config in (tokens, steps)]
        assert rates[0] == pytest.approx(rates[1])


def test_t5s_schedule():
    """1 / √max(n, 10⁴) (Raffel et al., 2020, §3.1.2)."""
    config = Optimizer(learning_rate=0.01, schedule="inverse_square_root", warmup=10_000, warmup_from=1.0)
    schedule = make_schedule(config, 2**19, 1)
    for n in (1, 5000, 10_000, 40_000, 2**19):
        assert float(schedule(n - 1)) == pytest.approx(max(n, 10_000) ** -0.5, rel=1e-6)


def parameters():
    key = jax.random.key(1)
    layer = {"kernel": jax.random.normal(key, (3, 130, 140)), "bias": jnp.ones((3, 140))}
    return {"decoder": {"layers": layer}, "embedding": jax.random.normal(key, (150, 130))}


def test_adafactor_of_scanned_layers_is_that_of_each_layer():
    params = parameters()
    grads = jax.tree.map(jnp.cos, params)
    rule = make_optimizer(Optimizer(name="adafactor", clip=0.0), lambda step: 0.1)
    updates, _ = rule.update(grads, rule.init(params), params)
    alone = optax.adafactor(lambda step: 0.1)
    for i in range(3):
        layer, g = (jax.tree.map(lambda x, i=i: x[i], tree["decoder"]["layers"]) for tree in (params, grads))
        expected, _ = alone.update(g, alone.init(layer), layer)
        got = jax.tree.map(lambda x, i=i: x[i], updates["decoder"]["layers"])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, expected)


def test_adamw_by_its_formula_clipped_and_decaying_kernels_alone():
    config = Optimizer(weight_decay=0.5, clip=1.0, beta1=0.8, beta2=0.9)
    rule = make_optimizer(config, lambda step: 0.1)
    params = parameters()
    state, m, v = rule.init(params), {"kernel": 0, "bias": 0}, {"kernel": 0, "bias": 0}
    for t in (1, 2, 3, 4):
        grads = jax.tree.map(lambda x, t=t: jnp.cos(t * x), params)
        updates, state = rule.update(grads, state, params)
        norm = np.sqrt(sum(float((g**2).sum()) for g in jax.tree.leaves(grads)))
        for name, decayed in (("kernel", True), ("bias", False)):
            p, g, u = (np.asarray(tree["decoder"]["layers"][name], np.float64) for tree in (params, grads, updates))
            m[name] = 0.8 * m[name] + 0.2 * g / norm
            v[name] = 0.9 * v[name] + 0.1 * (g / norm) ** 2
            unbiased = m[name] / (1 - 0.8**t), v[name] / (1 - 0.9**t)
            expected = -0.1 * (unbiased[0] / (np.sqrt(unbiased[1]) + config.epsilon) + (0.5 * p if decayed else 0))
            np.testing.assert_allclose(u, expected, rtol=1e-4, atol=1e-6)
        params = optax.apply_updates(params, updates)
