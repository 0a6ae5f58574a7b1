"""Sets of examples: every example once an epoch, none shortened, none seen by another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rows.batches import Batches, ledger
from t5x_lite.data.rows.layouts import RowShape, lay_out
from t5x_lite.data.rows.packing import PackedExamples, pack
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import UserError

VOCABULARY = Tokenizer().vocabulary
SHAPES = [
    RowShape(encoder=20, decoder=12),
    RowShape(decoder=24),
    RowShape(decoder=24, bidirectional_prefix=True),
]
COUNT = 200


def repeated_ids(lengths) -> Ragged:
    """Rows whose ids tell them apart: row i holds i mod 256."""
    return Ragged.from_rows([[i % 256] * n for i, n in enumerate(lengths)])


def text_to_text(shape, seed=0) -> PackedExamples:
    rng = np.random.default_rng(seed)
    inputs = repeated_ids(rng.integers(1, (shape.encoder or 12) + 1, COUNT))
    targets = repeated_ids(rng.integers(1, 13, COUNT))
    return PackedExamples(Pairs(inputs, targets), VOCABULARY, shape, seed)


def aligned(labels=None) -> PackedExamples:
    """Sentence pairs for an encoder of 20 positions and 6 scored ones."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 21, COUNT)
    inputs = repeated_ids(lengths)
    scored = Ragged.from_rows(
        [np.sort(rng.choice(n, min(n, rng.integers(1, 4)), replace=False)) for n in lengths]
    )
    weights = [[(i % 7) + 0.5] * n for i, n in enumerate(scored.lengths)]
    pairs = Pairs(
        inputs=inputs,
        targets=repeated_ids(scored.lengths),
        weights=Ragged.from_rows(weights, float),
        scored=scored,
        types=Ragged.from_rows([np.arange(n) > n // 2 for n in lengths]),
        labels=labels,
    )
    return PackedExamples(pairs, VOCABULARY, RowShape(encoder=20, scored=6), seed=0)


def batches_of(*streams, batch_size) -> Batches:
    return Batches(streams, np.arange(len(streams)), batch_size)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 9)), min_size=1, max_size=80))
def test_a_plan_fits_and_is_not_much_worse_than_the_bound(sizes):
    sizes, room = np.array(sizes), np.array([20, 9])
    row_of_example = pack(sizes, room, np.argsort(-(sizes / room).max(1)))
    rows = row_of_example.max() + 1
    assert sorted(set(row_of_example)) == list(range(rows))
    for stack in (0, 1):
        assert np.bincount(row_of_example, sizes[:, stack]).max() <= room[stack]
    assert rows <= 2 * sum((sizes / room).sum(0)) + 1
    assert rows >= (sizes.sum(0) / room).max()  # if they could be filled to the last place


@pytest.mark.parametrize("shape", SHAPES)
def test_every_example_once_an_epoch_in_other_company_and_order(shape):
    packed = text_to_text(shape)
    orders, companies = [], []
    for epoch in (0, 1):
        rows = range(packed.rows(epoch), packed.rows(epoch + 1))
        pairs, row_of_pair = packed.pairs(rows)
        assert sorted(set(row_of_pair)) == list(range(len(rows)))
        examples, _ = packed.epoch(epoch)
        assert sorted(examples) == list(range(COUNT))
        assert pairs.inputs.tolist() == packed.examples.inputs.take(examples).tolist()
        assert pairs.targets.tolist() == packed.examples.targets.take(examples).tolist()
        orders.append(examples.tolist())
        together = [examples[row_of_pair == row].tolist() for row in range(len(rows))]
        companies.append({frozenset(row) for row in together if len(row) > 1})
    assert orders[0] != orders[1]
    assert len(companies[0] & companies[1]) < 0.6 * len(companies[0])


@pytest.mark.parametrize("shape", SHAPES)
def test_any_rows_alone_are_the_same(shape):
    packed = text_to_text(shape)
    indices = (7, packed.rows(1) + 3, 2)
    some, places = packed.pairs(indices)
    assert places.tolist() == sorted(places)
    alone = [packed.pairs([index])[0] for index in indices]
    assert some.inputs.tolist() == [row for pairs in alone for row in pairs.inputs.tolist()]


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_hold_whole_examples_as_segments(shape):
    packed = text_to_text(shape)
    pairs, row_of_pair = packed.pairs(range(packed.rows(1)))
    rows = lay_out(pairs, shape, VOCABULARY, row_of_pair, packed.rows(1))
    batch = batches_of(packed, batch_size=packed.rows(1)).batch_at(0)
    assert all((batch[key] == rows[key]).all() for key in rows)
    is_scored = rows["decoder_weights"] > 0
    assert is_scored.sum() == packed.examples.targets.lengths.sum()
    for row in range(packed.rows(1)):
        for segment in range(1, rows["decoder_segments"][row].max() + 1):
            here = (rows["decoder_segments"][row] == segment) & is_scored[row]
            assert len(set(rows["decoder_targets"][row][here])) == 1  # of one example
    segments = [value for key, value in rows.items() if key.endswith("_segments")]
    assert np.mean([(value > 0).mean() for value in segments]) > 0.8


# Aligned pairs and labels.


def test_aligned_pairs_are_packed_with_their_weights_and_types():
    packed = aligned()
    assert packed.rows(1) < 0.8 * COUNT
    batch = batches_of(packed, batch_size=packed.rows(1)).batch_at(0)
    assert "encoder_labels" not in batch
    is_used = batch["encoder_weights"] > 0
    targets = batch["encoder_targets"][is_used]
    # Ids tell examples apart: each slot reads, at its position, the example that it is of.
    read = np.take_along_axis(batch["encoder_tokens"], batch["encoder_scored"], 1)[is_used]
    assert (read == targets).all()
    assert (batch["encoder_weights"][is_used] == targets % 7 + 0.5).all()
    assert is_used.sum() == packed.examples.targets.lengths.sum()
    assert batch["encoder_types"].sum() == packed.examples.types.values.sum()


def test_a_labelled_example_has_a_row_of_its_own():
    labels = np.arange(COUNT) % 3
    packed = aligned(labels)
    assert packed.rows(1) == COUNT
    batches = batches_of(packed, batch_size=8)
    order = []
    for step in range(2 * COUNT // 8):
        batch = batches.batch_at(step)
        assert all(len(value) == 8 for value in batch.values())
        assert batch["encoder_segments"].max() == 1
        examples = batch["encoder_tokens"][:, 0]
        assert (batch["encoder_labels"] == labels[examples]).all()
        order += examples.tolist()
        alone = batches.batch_at(step, [5])
        assert all((batch[key][5] == alone[key][0]).all() for key in batch)
    assert sorted(order[:COUNT]) == sorted(order[COUNT:]) == list(range(COUNT))
    assert order[:COUNT] != order[COUNT:]


@pytest.mark.parametrize("labels", [None, np.arange(COUNT) % 2])
def test_examples_mix_with_others_and_have_a_ledger(labels):
    """A set of examples is a stream like any other."""
    batches = batches_of(aligned(labels), aligned(labels), batch_size=6)
    assert batches.endless
    numbers, inner = batches.locate(np.arange(12))
    assert numbers.tolist() == [0, 1] * 6
    batch = batches.batch_at(0)
    for row, (number, index) in enumerate(zip(numbers[:6], inner[:6], strict=True)):
        alone = batches_of(batches.streams[number], batch_size=1).batch_at(index)
        assert all((batch[key][row] == alone[key][0]).all() for key in batch)
    row = ledger(batches)
    assert row.loss_tokens > 0
    assert 0 <= row.padding < 1
    assert row.left_out == 0
    assert batches.num_steps(10**6, epochs=1) == 2 * batches.streams[0].rows(1) // 6


def test_an_example_without_room_is_refused():
    examples = Pairs(repeated_ids([1, 20]), repeated_ids([1, 5]))
    words = r"example 1 takes \[25\] positions, a row has \[24\].*\(1 are too long\)"
    with pytest.raises(UserError, match=words):
        PackedExamples(examples, VOCABULARY, RowShape(decoder=24), 0)


def test_an_empty_set_is_refused():
    nothing = Pairs(Ragged.empty(0), Ragged.empty(0))
    with pytest.raises(UserError, match="no example to train on"):
        PackedExamples(nothing, VOCABULARY, RowShape(decoder=24), 0)
