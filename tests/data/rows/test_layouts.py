"""Layouts, array by array: what stands where on each stack."""

import numpy as np
import pytest
from conftest import ALL_CELLS
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rows.layouts import RowShape, lay_out, row_types
from t5x_lite.data.tokenizers.vocabulary import Vocabulary

VOCABULARY = Vocabulary(size=100, ordinary=(range(10, 90),), pad=0, eos=1, bos=2)
PAD, BOS = VOCABULARY.pad, VOCABULARY.bos
TWO = Pairs(Ragged.from_rows([[11, 12], [13]]), Ragged.from_rows([[21, 22], [23]]))


def laid_out(pairs, shape, row_of_pair=None, rows=0) -> dict[str, list]:
    row = lay_out(pairs, shape, VOCABULARY, row_of_pair, rows)
    return {key: value.tolist() for key, value in row.items()}


def test_an_encoder_decoder_reads_inputs_and_predicts_targets_shifted_right():
    assert laid_out(TWO, RowShape(encoder=3, decoder=2)) == {
        "encoder_tokens": [[11, 12, PAD], [13, PAD, PAD]],
        "encoder_segments": [[1, 1, 0], [1, 0, 0]],
        "encoder_positions": [[0, 1, 0], [0, 0, 0]],
        "decoder_tokens": [[BOS, 21], [BOS, PAD]],
        "decoder_segments": [[1, 1], [1, 0]],
        "decoder_positions": [[0, 1], [0, 0]],
        "decoder_targets": [[21, 22], [23, PAD]],
        "decoder_weights": [[1, 1], [1, 0]],
    }


def test_a_decoder_reads_inputs_then_targets_and_is_scored_on_targets():
    assert laid_out(TWO, RowShape(decoder=5)) == {
        "decoder_tokens": [[BOS, 11, 12, 21, PAD], [BOS, 13, PAD, PAD, PAD]],
        "decoder_segments": [[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]],
        "decoder_positions": [[0, 1, 2, 3, 0], [0, 1, 0, 0, 0]],
        "decoder_targets": [[11, 12, 21, 22, PAD], [13, 23, PAD, PAD, PAD]],
        "decoder_weights": [[0, 0, 1, 1, 0], [0, 1, 0, 0, 0]],
    }


def test_two_pairs_of_a_row_are_two_segments_each_shifted_by_itself():
    assert laid_out(TWO, RowShape(decoder=7), np.array([0, 0]), 1) == {
        "decoder_tokens": [[BOS, 11, 12, 21, BOS, 13, PAD]],
        "decoder_segments": [[1, 1, 1, 1, 2, 2, 0]],
        "decoder_positions": [[0, 1, 2, 3, 0, 1, 0]],
        "decoder_targets": [[11, 12, 21, 22, 13, 23, PAD]],
        "decoder_weights": [[0, 0, 1, 1, 0, 1, 0]],
    }


def test_a_prefix_decoder_marks_all_that_is_known_before_the_first_target():
    row = laid_out(TWO, RowShape(decoder=7, bidirectional_prefix=True), np.array([0, 0]), 1)
    prefix = row["decoder_prefix"][0]
    assert prefix == [True, True, True, False, True, True, False]
    # Position 2 reads input 12 and predicts target 21, which no prefix position reads.
    read_by_prefix = np.array(row["decoder_tokens"][0])[prefix]
    assert not set(read_by_prefix) & {21, 22, 23}


def test_inputs_are_scored_where_asked_but_never_where_they_are_seen_both_ways():
    pairs = Pairs(TWO.inputs, TWO.targets, score_inputs=np.array([True, False]))
    weights = laid_out(pairs, RowShape(decoder=5))["decoder_weights"]
    assert weights == [[1, 1, 1, 1, 0], [0, 1, 0, 0, 0]]
    both_ways = RowShape(decoder=5, bidirectional_prefix=True)
    weights = laid_out(pairs, both_ways)["decoder_weights"]
    assert weights == [[0, 0, 1, 1, 0], [0, 1, 0, 0, 0]]


def test_an_encoder_carries_only_its_scored_positions():
    pairs = Pairs(
        inputs=Ragged.from_rows([[11, 12, 13], [14, 15]]),
        targets=Ragged.from_rows([[31, 33], [35]]),
        scored=Ragged.from_rows([[0, 2], [1]]),
        types=Ragged.from_rows([[0, 0, 1], [0, 1]]),
        labels=np.array([1, 0]),
    )
    row = laid_out(pairs, RowShape(encoder=4, scored=3))
    assert row["encoder_scored"] == [[0, 2, 0], [1, 0, 0]]
    assert row["encoder_targets"] == [[31, 33, PAD], [35, PAD, PAD]]
    assert row["encoder_weights"] == [[1, 1, 0], [1, 0, 0]]
    assert row["encoder_types"] == [[0, 0, 1, 0], [0, 1, 0, 0]]
    assert row["encoder_labels"] == [1, 0]


def test_scored_positions_of_a_later_segment_count_from_the_start_of_the_row():
    pairs = Pairs(
        inputs=Ragged.from_rows([[11, 12, 13], [14, 15]]),
        targets=Ragged.from_rows([[31, 33], [35]]),
        scored=Ragged.from_rows([[0, 2], [1]]),
    )
    row = laid_out(pairs, RowShape(encoder=6, scored=4), np.array([0, 0]), 1)
    assert row["encoder_scored"] == [[0, 2, 4, 0]]
    assert row["encoder_segments"] == [[1, 1, 1, 2, 2, 0]]


def test_a_label_is_of_a_row_with_one_pair():
    pairs = Pairs(TWO.inputs, TWO.targets, scored=TWO.targets, labels=np.array([1, 0]))
    with pytest.raises(AssertionError, match="one pair"):
        laid_out(pairs, RowShape(encoder=6, scored=4), np.array([0, 0]), 1)


def test_a_row_without_pairs_is_padding():
    row = laid_out(TWO, RowShape(decoder=4), np.array([0, 2]), 3)
    assert row["decoder_segments"][1] == row["decoder_weights"][1] == [0] * 4


lengths = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=6)


@given(lengths)
def test_full_rows_and_padded_rows_hold_the_same(sizes):
    """Rows that are exactly full take a short cut: it must give what the long way gives."""
    pairs = Pairs(
        Ragged.from_rows([[10 + n] * n for n, _ in sizes]),
        Ragged.from_rows([[20 + n] * n for _, n in sizes]),
    )
    used = sum(map(sum, sizes))
    one_row = np.zeros(len(sizes), np.int64)
    exact = lay_out(pairs, RowShape(decoder=used), VOCABULARY, one_row, 1)
    padded = lay_out(pairs, RowShape(decoder=used + 3), VOCABULARY, one_row, 1)
    for key, value in exact.items():
        assert (padded[key][:, :used] == value).all()
        assert padded[key].dtype == value.dtype
    assert not padded["decoder_segments"][:, used:].any()


@pytest.mark.parametrize(("objective", "architecture"), ALL_CELLS)
def test_types_of_a_row_are_known_before_there_is_one(make, batches_of, objective, architecture):
    plan = make(objective, architecture)[0].rows
    row = batches_of(objective, architecture).rows([0, 1])
    found = {key: (value.shape[1:], value.dtype.type) for key, value in row.items()}
    assert row_types(plan.shape, plan.has_sentence_pairs) == found
