"""Random numbers: a function of position, and never the same for two purposes."""

from collections import Counter
from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.data.rng import Purpose, RowRng, philox_key

SEEDS = (0, 1, 2**30, 2**31 - 2, 2**31 - 1)
STREAMS = range(1001)
EPOCHS = (0, 1, 2, 2**10, 2**19 + 1, 2**20)


# The table of the module: whatever draws owns its own bits.

Number = tuple[int, bool]  # the key, and whether the counter is that of a row


def streams_of_numbers(seed: int) -> list[Number]:
    """All that one seed draws from, by the table."""
    made = []
    for stream in STREAMS:
        made.append((philox_key(seed, Purpose.TRAINING_ROWS, stream), True))
        made.append((philox_key(seed, Purpose.VALIDATION_ROWS, stream), True))
    for stream, epoch in product(STREAMS, EPOCHS):
        made.append((philox_key(seed, Purpose.BLOCK_ORDER, stream, epoch), False))
        made.append((philox_key(seed, Purpose.STATIC_ORDER, stream, epoch), False))
        made.append((philox_key(seed, Purpose.BLOCK_OFFSET, stream, epoch), False))
    made.append((philox_key(seed, Purpose.PACKING), True))
    made += [(philox_key(seed, Purpose.PACKING, epoch=epoch), False) for epoch in EPOCHS]
    return made


def test_no_two_purposes_streams_epochs_or_seeds_share_a_number():
    made = [number for seed in SEEDS for number in streams_of_numbers(seed)]
    assert len(set(made)) == len(made)
    assert all(0 <= key < 2**128 for key, _ in made)


@given(*[st.tuples(*[st.integers(0, high) for high in (2**31 - 1, 1000, 2**20)])] * 2)
def test_any_two_keys_of_one_purpose_differ(one, other):
    for purpose in Purpose:
        same = philox_key(one[0], purpose, *one[1:]) == philox_key(other[0], purpose, *other[1:])
        assert same == (one == other)


def test_purposes_lie_further_apart_than_what_is_added_to_them():
    """An epoch stays below bit 40, a stream below bit 64, a seed below bit 95 of the key."""
    among_epochs = sorted(purpose for purpose in Purpose if purpose < 2**40)
    above_seeds = sorted(purpose for purpose in Purpose if purpose >= 2**40)
    assert [*among_epochs, *above_seeds] == sorted(set(Purpose))
    assert min(np.diff([*among_epochs, 2**40])) > 2**20
    assert min(above_seeds) >= 2**95
    assert sum(above_seeds) == above_seeds[0] | above_seeds[1] < 2**128  # bits of their own


def test_block_order_and_rows_of_one_key_differ_by_the_counter():
    key = philox_key(0, Purpose.BLOCK_ORDER)
    assert key == philox_key(0, Purpose.TRAINING_ROWS)
    order = np.random.Philox(key=key).random_raw(4000)
    rows = RowRng(key, np.arange(1000)).random_bits(4).reshape(-1)
    assert not set(order.tolist()) & set(rows.tolist())


def test_rows_draw_from_the_counters_that_the_table_states():
    """Bits 0-63 block of the row's index, 64-95 draw, 96-127 numbers per row, 128-191 piece."""
    key, index, n, piece = philox_key(5, Purpose.TRAINING_ROWS, 3), 12, 8, 7
    rng = RowRng(key, [index], piece)
    for draw in range(3):
        counter = index * n // 4 + (draw << 64) + (n << 96) + (piece << 128) + (1 << 192)
        expected = np.random.Philox(key=key, counter=counter).random_raw(n)
        assert (rng.random_bits(n)[0] == expected).all()


def test_random_numbers_of_pieces_of_other_lengths_are_others():
    words = [RowRng(0, [i]).random_bits(n).reshape(-1) for i in range(8) for n in range(1, 30)]
    words += [RowRng(0, [3], piece).random_bits(7).reshape(-1) for piece in (1, 2)]
    together = np.concatenate(words)
    assert len(np.unique(together)) == len(together)


# What is made of them.

rows = st.lists(st.integers(0, 10**12), min_size=1, max_size=9)


@given(rows, st.integers(1, 20), st.integers(0, 2**128 - 1))
def test_a_row_draws_the_same_alone_and_in_any_company(indices, n, key):
    together = RowRng(key, indices)
    first, second = together.random_bits(n), together.permutation(n)
    for row, index in enumerate(indices):
        alone = RowRng(key, [index])
        assert (alone.random_bits(n)[0] == first[row]).all()
        assert (alone.permutation(n)[0] == second[row]).all()


@given(rows, st.integers(1, 40))
def test_permutations_and_sort_keys_are_what_they_say(indices, n):
    rng = RowRng(0, indices)
    assert (np.sort(rng.permutation(n), axis=1) == np.arange(n)).all()
    keys = rng.sort_keys(n)
    assert all(len(set(row)) == n for row in keys.tolist())
    assert keys.max() < ~np.uint64(0)


@given(st.data(), st.integers(1, 12))
def test_a_subset_has_its_size_and_is_of_the_candidates(data, n):
    candidates = np.array(
        data.draw(st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1, max_size=6))
    )
    most = candidates.sum(1)
    counts = np.array([data.draw(st.integers(0, int(limit))) for limit in most])
    subset = RowRng(0, np.arange(len(candidates))).subset(candidates, counts)
    assert (subset.sum(1) == counts).all()
    assert not (subset & ~candidates).any()
    count = data.draw(st.integers(0, n))
    assert (RowRng(0, np.arange(4)).subset(n, count).sum(1) == count).all()


def test_subsets_and_integers_are_uniform():
    samples = 6000
    rng = RowRng(0, np.arange(samples))
    subsets = Counter(map(tuple, rng.subset(4, 2).tolist()))
    assert len(subsets) == 6
    sigma = np.sqrt(samples / 6 * 5 / 6)
    assert all(abs(count - samples / 6) < 4 * sigma for count in subsets.values())
    drawn = np.bincount(rng.integers(6)[:, 0], minlength=6)
    assert np.abs(drawn - samples / 6).max() < 4 * sigma
    high = np.arange(1, samples + 1)[:, None]
    limited = rng.integers(high, 3)
    assert ((limited >= 0) & (limited < high)).all()
