from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model.proofs import ROW, random_params, small

from t5x_lite.data.rows.batches import make_batches
from t5x_lite.model import transformer
from t5x_lite.model.masks import MASKED, AttentionMask, Window, visible_keys

rng = np.random.default_rng(0)
SEGMENTS = np.array([[1, 1, 2, 2, 2, 3, 0, 0], [1, 1, 1, 1, 1, 1, 1, 2]])
PREFIX = rng.random((2, 8)) < 0.4


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["bidirectional", "causal", "prefix"])
def test_masks_are_what_their_docstring_says(kind, packed):
    """One pair of positions at a time."""
    segments = SEGMENTS if packed else np.minimum(SEGMENTS, 1)
    prefix = jnp.asarray(PREFIX) if kind == "prefix" else None
    ids = jnp.asarray(segments)
    made = AttentionMask(ids, ids, prefix, causal=kind != "bidirectional", packed=packed)
    found = np.broadcast_to(made.mask(), (2, 1, 8, 8))[:, 0]
    for row, query in np.argwhere(segments > 0):  # what padding attends to does not matter
        for key in range(8):
            expected = segments[row, key] == segments[row, query]
            if kind == "causal":
                expected &= key <= query
            if kind == "prefix":
                expected &= key <= query or bool(PREFIX[row, key])
            # A row that is not packed has one segment, then padding: after every causal query.
            if kind == "prefix" and not packed and segments[row, key] == 0:
                continue
            assert found[row, query, key] == expected, (row, query, key)


def test_a_bias_is_kept_where_visible_and_replaced_where_masked():
    ids = jnp.asarray(SEGMENTS)
    made = AttentionMask(ids, ids, causal=True, packed=True)
    position_bias = jnp.asarray(rng.normal(size=(1, 3, 8, 8)), jnp.float32)
    visible = np.broadcast_to(made.mask(), (2, 3, 8, 8))
    with_bias, without = np.asarray(made.bias(position_bias)), np.asarray(made.bias())
    assert (with_bias == np.where(visible, position_bias, MASKED)).all()
    assert (without == np.where(visible[:, :1], 0, MASKED)).all()


def test_distances_are_key_minus_query():
    ids = jnp.asarray(SEGMENTS)
    assert AttentionMask(ids, ids[:, :3]).distances()[5].tolist() == [-5, -4, -3]
    queries, keys = jnp.array([[7], [2]]), jnp.array([[5, 6, 7], [0, 1, 2]])
    decoding = AttentionMask(ids[:, :1], ids[:, :3], None, queries, keys)
    assert decoding.distances().tolist() == [[[-2, -1, 0]], [[-2, -1, 0]]]


def test_queries_after_the_first_key_see_what_was_read_before_them():
    """In decoding: of slots 0 to 4, slot 1 of the second row is padding, and two queries go to the
    slots 2 and 3.
    """
    filled = jnp.array([[1, 1, 1, 1, 0], [1, 0, 1, 1, 0]])
    queries = jnp.ones((2, 2), int)
    mask = AttentionMask(queries, filled, causal=True, query_places=jnp.array([2, 3])).mask()
    assert mask.astype(int).tolist() == [
        [[[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]],
        [[[1, 0, 1, 0, 0], [1, 0, 1, 1, 0]]],
    ]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 20])
def test_a_window_is_what_its_docstring_says(size, causal):
    """In each segment by itself, and its mean number of keys, counted."""
    places = np.arange(8)
    positions = jnp.array([[0, 1, 0, 1, 2, 0, 0, 0], [0, 1, 2, 3, 4, 5, 6, 0]])
    ids, known = jnp.asarray(SEGMENTS), {"positions": positions}
    options = {"causal": causal, "rules": (Window(size),), "of_queries": known, "of_keys": known}
    found = np.asarray(AttentionMask(ids, ids, packed=True, **options).mask())[:, 0]
    near = np.abs(places[:, None] - places) < size
    allowed = SEGMENTS[:, :, None] == SEGMENTS[:, None, :]
    if causal:
        allowed &= places <= places[:, None]
    real = SEGMENTS > 0
    assert (found[real] == (allowed & near)[real]).all()

    whole, known = jnp.ones((1, 8), int), {"positions": jnp.arange(8)[None]}
    options |= {"of_queries": known, "of_keys": known}
    counted = AttentionMask(whole, whole, **options).mask().sum() / 8
    assert Window(size).visible(8, bidirectional=not causal) == pytest.approx(float(counted))


@dataclass(frozen=True)
class Strictly:
    """Keys before the query alone: the first query has none."""

    def __call__(self, queries, keys):
        return keys["positions"][:, None, :] < queries["positions"][:, :, None]

    def visible(self, positions, bidirectional):
        return positions / 2


def test_a_query_that_rules_leave_no_key_attends_to_itself():
    ids, known = jnp.ones((1, 4), int), {"positions": jnp.arange(4)[None]}
    mask = AttentionMask(
        ids, ids, causal=True, rules=(Strictly(),), of_queries=known, of_keys=known
    ).mask()[0, 0]
    assert mask.astype(int).tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]


def hidden_states(**settings):
    """States of two layers, of which local layers attend to a window of 2 if they say so."""
    config = small(positions="rotary(base=50.0)", head_dim=4, dtype="float32", **settings)
    params = random_params(small(positions="rotary", head_dim=4, dtype="float32"))
    return transformer.apply(config, params, ROW).hidden_states


def test_layers_that_alternate_are_those_of_their_kind():
    local = {"local_rules": ("window(size=2)",), "local_positions": "rotary(base=7.0)"}
    window = {"attention_rules": ("window(size=2)",)}
    everywhere, nearby = hidden_states(), hidden_states(layer_pattern=("local",), **local)
    assert (hidden_states(layer_pattern=("global",), **local) == everywhere).all()
    same_angles = hidden_states(layer_pattern=("local",), local_rules=local["local_rules"])
    np.testing.assert_array_equal(same_angles, hidden_states(**window))
    mixed = [
        hidden_states(layer_pattern=pattern, **local)
        for pattern in (("local", "global"), ("global", "local"), ("global", "local", "local"))
    ]
    for found in mixed:
        assert (found != everywhere).any()
        assert (found != nearby).any()
    assert (mixed[0] != mixed[1]).any()
    np.testing.assert_array_equal(mixed[1], mixed[2])  # of two layers, these are the same


def test_the_keys_that_layers_see_are_counted_by_kind():
    config = small(
        num_layers=3,
        layer_pattern=("local", "global"),
        local_rules=("window(size=2)",),
        attention_rules=("window(size=4)",),
    )
    local, everywhere = Window(2).visible(5, False), Window(4).visible(5, False)
    found = visible_keys(config, 5, bidirectional=False, layers=3)
    assert found == pytest.approx((2 * local + everywhere) / 3)
    assert visible_keys(config, 5, bidirectional=False, layers=1) == local


ARCHITECTURES = {
    "encoder": "masked_lm",
    "decoder": "causal_lm",
    "prefix_decoder": "prefix_lm",
    "encoder_decoder": "span_corruption",
}


@pytest.mark.parametrize("split_documents", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rules_hold_in_every_stack_packed_or_not(make, architecture, split_documents):
    """One layer with a window of 2: a token changes the states of its neighbours alone."""
    settings = {"model.attention_rules": ("window(size=2)",), "model.num_layers": 1}
    settings["data.split_documents"] = split_documents
    resolved, corpus = make(ARCHITECTURES[architecture], architecture, **settings)
    config, model = resolved.config, resolved.model
    batches = make_batches(resolved.rows, config.data, config.seed, corpus, "train")
    row = {key: jnp.asarray(value) for key, value in batches.batch_at(0).items()}
    params = random_params(model, stddev=0.3)
    stack = "encoder" if architecture == "encoder" else "decoder"

    @jax.jit
    def states(tokens):
        rows = row | {f"{stack}_tokens": tokens}
        return transformer.apply(model, params, rows, resolved.rows.packed).hidden_states

    tokens = row[f"{stack}_tokens"]
    segments, place = np.asarray(row[f"{stack}_segments"]), tokens.shape[1] // 2
    changed = states(tokens.at[:, place].add(1)) - states(tokens)
    found = np.abs(np.asarray(changed)).max(-1) > 0
    places = np.arange(tokens.shape[1])
    near = np.abs(places - place) < 2
    if architecture in ("decoder", "encoder_decoder"):
        near &= places >= place
    own = segments == segments[:, place : place + 1]
    if architecture == "prefix_decoder":  # what follows, and what precedes a token of the prefix
        near = near & ((places >= place) | np.asarray(row["decoder_prefix"])[:, place : place + 1])
    real = segments > 0
    assert (found[real] == (near & own)[real]).all()
