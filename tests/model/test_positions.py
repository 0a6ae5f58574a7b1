import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from model.proofs import MASK, QUIET, check_gradients, context, small

from t5x_lite.model.blocks import StackContext
from t5x_lite.model.masks import AttentionMask
from t5x_lite.model.parts import positions
from t5x_lite.model.parts.attention import SelfAttention
from t5x_lite.model.parts.rotary_scaling import SCALINGS

KINDS = {
    "shaw": "shaw(distance=2)",
    "rotary in part": "rotary(fraction=0.5, scaling='yarn(factor=2.0, length=4)')",
    "relative in each layer": "relative(buckets=4, distance=5, per_layer=True)",
}


def test_relative_buckets_cover_the_published_ranges():
    """As the paper says: 32 buckets, exact up to 8 (16 one-sided), logarithmic up to 128, all
    further ones together.
    """
    ahead = positions.relative_buckets(np.arange(0, 400), True, 32, 128)
    assert ahead[1:8].tolist() == list(range(17, 24))
    assert (np.diff(ahead[1:]) >= 0).all()
    assert set(ahead[128:]) == {31}
    back = positions.relative_buckets(-np.arange(0, 400), False, 32, 128)
    assert back[:16].tolist() == list(range(16))
    assert set(back[128:]) == {31}
    assert (positions.relative_buckets(np.arange(0, 9), False, 32, 128) == 0).all()


def test_rotary_depends_on_distance_alone():
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))

    def product(i, j):
        angles = positions.rotary_angles(10_000.0, 8)
        at_i, at_j = (positions.rotate(x, jnp.full((1, 1), p), angles) for x, p in ((q, i), (k, j)))
        return float((at_i * at_j).sum())

    assert product(3, 1) == pytest.approx(product(45, 43), abs=1e-5)
    assert product(3, 1) != pytest.approx(product(3, 2), abs=1e-3)


def test_features_that_are_not_rotated_know_no_order():
    kind = positions.make_positions(small(head_dim=6, positions="rotary(fraction=0.4)"))
    x = jax.random.normal(jax.random.key(0), (1, 2, 3, 6))
    rotated = kind.rotate(x, jnp.array([[4, 5, 6]]))
    assert (rotated[..., 2:] == x[..., 2:]).all()
    expected = positions.rotate(x[..., :2], jnp.array([[4, 5, 6]]), np.ones(1))
    np.testing.assert_allclose(rotated[..., :2], expected, rtol=1e-6)


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_angles_lie_between_those_of_pretraining_and_slower_ones(name):
    """They are never faster, nor slower than by the factor, and keep their order."""
    scaling = SCALINGS[name]()
    factor = getattr(scaling, "factor", 1.0)
    for base, width in ((1e4, 64), (5e5, 128), (1e6, 8)):
        angles = positions.rotary_angles(base, width)
        scaled = scaling.angles(angles, base)
        assert (scaled <= angles).all()
        assert (scaled * factor >= angles * (1 - 1e-12)).all()
        assert (np.diff(scaled) < 0).all()
        # Texts of pretraining turn the fastest pairs as before; the slowest are all interpolated.
        if name in ("llama3", "yarn"):
            assert scaled[0] == angles[0]
            assert width == 8 or scaled[-1] == pytest.approx(angles[-1] / factor)


def test_with_mimetic_init_two_heads_of_the_encoder_look_at_the_neighbours():
    model = {"architecture": "encoder_decoder", "positions": "relative", "num_heads": 4}
    config = small(**model, mimetic_init=True, init_stddev=0.02, d_model=8, dtype="float32")
    distances = np.arange(9)[None, :] - np.arange(9)[:, None]

    def weights_of_the_fifth(bidirectional):
        bias = positions.make_positions(config).bias_module()
        bias_BHTS, _ = bias.init_with_output(jax.random.key(0), distances, bidirectional)
        return np.asarray(jax.nn.softmax(bias_BHTS[0, :, 4]))

    encoder = weights_of_the_fifth(True)
    assert encoder[0, 3] > 0.9
    assert encoder[1, 5] > 0.9
    assert (encoder[2:] < 0.2).all()
    assert (weights_of_the_fifth(False) < 0.2).all()


def test_gradients_of_the_relative_bias():
    def bias(part, x):
        by_head = jnp.broadcast_to(part(MASK.distances(), True), (2, 2, 5, 5))
        return jnp.einsum("bts,bhts->bht", x[..., :5], by_head)

    check_gradients(positions.RelativeBias(small(), 32, 128), bias)


@pytest.mark.parametrize("kind", ["rotary", "transformer_xl", *KINDS])
def test_gradients_of_attention_with_positions(kind):
    attention = SelfAttention(small(positions=KINDS.get(kind, kind), head_dim=4))
    check_gradients(attention, lambda part, x: part(x, context())[0])


def attention_of(kind: str):
    """What attention of these relative positions gives, and its parameters and x: [5, 6]."""
    config = small(positions=KINDS.get(kind, kind), head_dim=4, bias=False)
    x = jax.random.normal(jax.random.key(2), (1, 5, 6), jnp.float64)
    segments, module = jnp.ones((1, 5), int), SelfAttention(config)
    mask = AttentionMask(segments, segments)
    bidirectional = StackContext(segments, jnp.arange(5)[None], mask, mask.bias(), QUIET)
    variables = jax.eval_shape(
        lambda: nn.meta.unbox(module.init(jax.random.key(0), x, bidirectional))
    )
    rng = np.random.default_rng(0)
    variables = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), variables)
    y, _ = module.apply(variables, x, bidirectional)
    return y[0], variables["params"], np.asarray(x[0])


def by_hand(w, x, logit, value):
    """The same, one pair of positions at a time: logit(h, q, k, i, j) and value(v, i, j) as a paper
    writes them.
    """
    heads = []
    for h in range(2):
        columns = slice(4 * h, 4 * h + 4)
        q, k, v = (x @ w[name]["kernel"][:, columns] for name in ("query", "key", "value"))
        e = np.array([[logit(h, q[i], k[j], i, j) / 2 for j in range(5)] for i in range(5)])
        a = np.exp(e) / np.exp(e).sum(1, keepdims=True)
        heads.append([sum(a[i, j] * value(v[j], i, j) for j in range(5)) for i in range(5)])
    return np.concatenate(heads, -1) @ w["out"]["kernel"]


def test_relative_positions_of_shaw():
    """Equations 3 and 4 of the paper: a vector on the key and one on the value, by the distance
    clipped to ± 2.
    """
    with jax.enable_x64(True):
        found, w, x = attention_of("shaw")

        def near(i, j):
            return np.clip(j - i, -2, 2) + 2

        expected = by_hand(
            w,
            x,
            lambda h, q, k, i, j: q @ (k + w["shaw"]["keys"][near(i, j)]),
            lambda v, i, j: v + w["shaw"]["values"][near(i, j)],
        )
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 5), (2, 2), (2, 7), (5, 5), (6, 3), (16, 16)])
def test_what_is_shifted_is_what_would_be_gathered(T, S):
    scores = jax.random.normal(jax.random.key(0), (2, 3, T, T + S - 1))
    distances = np.arange(S)[None, :] - np.arange(T)[:, None]
    gathered = positions.gather_distances(scores, T - 1, distances)
    np.testing.assert_array_equal(positions.shift_distances(scores), gathered)


def test_relative_positions_of_transformer_xl():
    """Its four terms: content, the content's position, and a bias of either that is the same
    everywhere.
    """
    with jax.enable_x64(True):
        found, w, x = attention_of("transformer_xl")
        relative = w["relative"]

        def logit(h, q, k, i, j):
            projection = relative["project"]["kernel"][:, 4 * h : 4 * h + 4]
            r = positions.sinusoidal(jnp.array(j - i), 6) @ projection
            return q @ k + q @ r + relative["u"][h] @ k + relative["v"][h] @ r

        np.testing.assert_allclose(found, by_hand(w, x, logit, lambda v, i, j: v), rtol=1e-9)
