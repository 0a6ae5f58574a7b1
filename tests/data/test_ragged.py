"""Ragged arrays against plain lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.data.ragged import Ragged

row = st.lists(st.integers(0, 99), max_size=5)
rows = st.lists(row, min_size=1, max_size=7)
two_of_each = st.lists(st.tuples(row, row, st.booleans()), min_size=1, max_size=7)


@given(rows)
def test_rows_come_back(lists):
    ragged = Ragged.from_rows(lists)
    assert ragged.tolist() == lists
    assert ragged.lengths.tolist() == [len(row) for row in lists]
    assert ragged.positions.tolist() == [i for row in lists for i in range(len(row))]
    assert ragged.row_ids.tolist() == [number for number, row in enumerate(lists) for _ in row]
    ends = zip(ragged.starts, ragged.ends, strict=True)
    assert [ragged.values[start:end].tolist() for start, end in ends] == lists
    sums = np.array([sum(row) for row in lists])
    assert ragged.broadcast(sums).tolist() == [sum(row) for row in lists for _ in row]


@given(two_of_each)
def test_join_where_and_stack_are_those_of_lists(given_rows):
    a, b = (Ragged.from_rows([row[side] for row in given_rows]) for side in (0, 1))
    condition = np.array([row[2] for row in given_rows])
    assert Ragged.join(a, b, a).tolist() == [one + other + one for one, other, _ in given_rows]
    chosen = Ragged.where(condition, a, b).tolist()
    assert chosen == [one if first else other for one, other, first in given_rows]
    assert Ragged.stack([a, b]).tolist() == a.tolist() + b.tolist()


@given(rows, st.data())
def test_take_is_indexing(lists, data):
    order = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=9))
    taken = Ragged.from_rows(lists).take(np.array(order, np.int64))
    assert taken.lengths.tolist() == [len(lists[i]) for i in order]
    assert taken.values.tolist() == [value for i in order for value in lists[i]]


@given(st.integers(1, 5), st.integers(1, 5), st.data())
def test_arrays_and_masks_become_rows(count, n, data):
    values = np.arange(count * n).reshape(count, n)
    assert Ragged.from_array(values).tolist() == values.tolist()
    kept = data.draw(st.lists(st.booleans(), min_size=count * n, max_size=count * n))
    mask = np.array(kept).reshape(count, n)
    expected = [line[keep].tolist() for line, keep in zip(values, mask, strict=True)]
    assert Ragged.from_mask(values, mask).tolist() == expected
    assert Ragged.empty(count).tolist() == [[]] * count
