"""Rows of different lengths as two arrays, so that numpy can process all rows at once."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike


class Ragged(NamedTuple):
    """Rows of different lengths. `values` holds the rows one after another, and `lengths` [rows]
    the length of each row.

    >>> Ragged.join(Ragged.from_rows([[1, 2], []]), Ragged.from_array([[7], [8]])).tolist()
    [[1, 2, 7], [8]]
    """

    values: np.ndarray
    lengths: np.ndarray

    @classmethod
    def from_rows(cls, rows, dtype: DTypeLike = np.int32) -> "Ragged":
        """Make rows from a list of lists or arrays."""
        arrays = [_cast(row, dtype) for row in rows]
        values = np.concatenate(arrays) if arrays else np.zeros(0, dtype)
        return cls(values, np.array([len(array) for array in arrays], np.int64))

    @classmethod
    def from_array(cls, values: ArrayLike, dtype: DTypeLike = np.int32) -> "Ragged":
        """Make rows from an array [rows, n]; every row has length n."""
        array = _cast(values, dtype)
        return cls(array.reshape(-1), np.full(len(array), array.shape[1]))

    @classmethod
    def empty(cls, rows: int, dtype: DTypeLike = np.int32) -> "Ragged":
        """Make this many rows of length 0."""
        return cls(np.zeros(0, dtype), np.zeros(rows, np.int64))

    @classmethod
    def from_mask(cls, values: np.ndarray, mask: np.ndarray) -> "Ragged":
        """Select the values [rows, n] where the mask [rows, n] is true, as int32."""
        return cls(values[mask].astype(np.int32, copy=False), np.count_nonzero(mask, axis=1))

    @classmethod
    def join(cls, *parts: "Ragged") -> "Ragged":
        """Concatenate the parts row by row."""
        # Find the part that each value of the result comes from, and fill in the parts one by one.
        lengths = np.stack([part.lengths for part in parts], 1)
        part_of_value = np.repeat(np.arange(lengths.size) % len(parts), lengths.reshape(-1))
        values = np.empty(len(part_of_value), np.result_type(*(part.values for part in parts)))
        for number, part in enumerate(parts):
            values[part_of_value == number] = part.values
        return cls(values, lengths.sum(1))

    @classmethod
    def where(cls, condition: np.ndarray, a: "Ragged", b: "Ragged") -> "Ragged":
        """Take each row from `a` where the condition [rows] is true, otherwise from `b`."""
        lengths = np.where(condition, a.lengths, b.lengths)
        values = np.empty(lengths.sum(), a.values.dtype)
        from_a = np.repeat(condition, lengths)
        values[from_a] = a.values[np.repeat(condition, a.lengths)]
        values[~from_a] = b.values[np.repeat(~condition, b.lengths)]
        return cls(values, lengths)

    @classmethod
    def stack(cls, parts: list["Ragged"]) -> "Ragged":
        """Put the rows of each part after the rows of the part before it."""
        values = np.concatenate([part.values for part in parts])
        return cls(values, np.concatenate([part.lengths for part in parts]))

    @property
    def starts(self) -> np.ndarray:
        """Index in `values` where each row starts."""
        return self.ends - self.lengths

    @property
    def ends(self) -> np.ndarray:
        """Index in `values` after the last value of each row."""
        return np.cumsum(self.lengths)

    @property
    def positions(self) -> np.ndarray:
        """Position of each value in its row."""
        return np.arange(len(self.values)) - self.broadcast(self.starts)

    @property
    def row_ids(self) -> np.ndarray:
        """Index of the row that each value belongs to."""
        return self.broadcast(np.arange(len(self.lengths)))

    def broadcast(self, row_values: np.ndarray) -> np.ndarray:
        """Repeat each row's number, `row_values` [rows], for every value of that row."""
        return np.repeat(row_values, self.lengths)

    def arrays(self) -> list[np.ndarray]:
        """Return the rows as a list of arrays."""
        return np.split(self.values, self.ends[:-1])

    def tolist(self) -> list[list]:
        """Return the rows as lists."""
        return [row.tolist() for row in self.arrays()]

    def take(self, order: np.ndarray) -> "Ragged":
        """Select rows by index, in the given order."""
        lengths = self.lengths[order]
        # A value's old position in `values` is its new position plus the shift of its row.
        new_starts = np.cumsum(lengths) - lengths
        shift = self.starts[order] - new_starts
        sources = np.repeat(shift, lengths) + np.arange(lengths.sum())
        return Ragged(self.values[sources], lengths)


def _cast(values: ArrayLike, dtype: DTypeLike) -> np.ndarray:
    """Convert values to an array of this type.

    Raises:
        TypeError: if the values are floats and the type is an integer.
        OverflowError: if an integer does not fit the type.
    """
    array = np.asarray(values)
    if array.dtype == dtype or not array.size:
        return array.astype(dtype, copy=False)
    if array.dtype.kind == "f" and np.dtype(dtype).kind in "iu":
        reason = f"got {array.dtype}, expected whole numbers"
        raise TypeError(f"{reason}; for weights, give dtype=np.float32")
    cast = array.astype(dtype)
    if array.dtype.kind in "iu" and not np.array_equal(cast, array):
        raise OverflowError(f"got numbers up to {array.max()}, too large for {np.dtype(dtype)}")
    return cast
