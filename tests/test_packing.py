"""Supervised sets: every example once an epoch, none shortened, none seen by another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.data.batches import Batches
from t5x_lite.data.layouts import Shape, lay_out
from t5x_lite.data.packing import Packed, plan
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.tokenizer import Tokenizer
from t5x_lite.errors import Refusal

SHAPES = [Shape(20, 12, 0), Shape(0, 24, 0), Shape(0, 24, 0, True)]


def packed(shape, count=200, seed=0):
    """Examples whose ids tell them apart: example i has i mod 256 in its inputs and its targets."""
    rng = np.random.default_rng(seed)
    longest = (shape.encoder or 12, 12)
    sides = [Ragged.of([[i % 256] * n for i, n in enumerate(rng.integers(1, most + 1, count))]) for most in longest]
    return Packed(*sides, Tokenizer().vocabulary, shape, seed)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 9)), min_size=1, max_size=80))
def test_a_plan_fits_and_is_not_much_worse_than_the_bound(sizes):
    sizes, room = np.array(sizes), np.array([20, 9])
    row_of = plan(sizes, room, np.argsort(-(sizes / room).max(1)))
    assert sorted(set(row_of)) == list(range(row_of.max() + 1))
    for stack in (0, 1):
        assert np.bincount(row_of, sizes[:, stack]).max() <= room[stack]
    least = (sizes.sum(0) / room).max()  # rows, if they could be filled to the last place
    assert row_of.max() + 1 <= 2 * sum((sizes / room).sum(0)) + 1
    assert row_of.max() + 1 >= least


@pytest.mark.parametrize("shape", SHAPES)
def test_every_example_once_an_epoch_in_other_company_and_order(shape):
    made = packed(shape)
    seen, company = [], []
    for epoch in (0, 1):
        rows = range(made.rows(epoch), made.rows(epoch + 1))
        pairs, row_of = made.pairs(rows)
        assert sorted(set(row_of)) == list(range(len(rows)))
        examples, _ = made.epoch(epoch)
        assert sorted(examples) == list(range(200))
        assert pairs.inputs.tolist() == made.inputs.take(examples).tolist()
        assert pairs.targets.tolist() == made.targets.take(examples).tolist()
        seen.append(examples.tolist())
        rows = (examples[row_of == row].tolist() for row in range(len(rows)))
        company.append({frozenset(row) for row in rows if len(row) > 1})
    assert seen[0] != seen[1]
    assert len(company[0] & company[1]) < 0.6 * len(company[0])
    some, places = made.pairs([7, made.rows(1) + 3, 2])
    assert places.tolist() == sorted(places)
    alone = [made.pairs([i])[0] for i in (7, made.rows(1) + 3, 2)]
    assert some.inputs.tolist() == [row for pairs in alone for row in pairs.inputs.tolist()]


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_hold_whole_examples_as_segments(shape):
    made = packed(shape)
    pairs, row_of = made.pairs(range(made.rows(1)))
    rows = lay_out(pairs, shape, made.vocabulary, row_of, made.rows(1))
    batch = Batches((made,), np.zeros(1, np.int64), made.rows(1)).batch_at(0)
    assert all((batch[key] == rows[key]).all() for key in rows)
    scored = rows["decoder_weights"] > 0
    assert scored.sum() == made.targets.lengths.sum()
    for row in range(made.rows(1)):
        for segment in range(1, rows["decoder_segments"][row].max() + 1):
            here = (rows["decoder_segments"][row] == segment) & scored[row]
            assert len(set(rows["decoder_targets"][row][here])) == 1  # of one example
    filled = sum((value > 0).mean() for key, value in rows.items() if key.endswith("_segments"))
    assert filled / (2 if shape.encoder else 1) > 0.8


def test_an_example_without_room_is_refused():
    with pytest.raises(Refusal, match=r"example 1 takes \[25\] positions, a row has \[24\].*\(1 are too long\)"):
        Packed(Ragged.of([[1], [2] * 20]), Ragged.of([[1], [2] * 5]), Tokenizer().vocabulary, SHAPES[1], 0)
