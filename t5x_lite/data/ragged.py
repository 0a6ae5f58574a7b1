"""Rows of different lengths as two arrays, so that numpy handles all of them at once."""

from typing import NamedTuple

import numpy as np


class Ragged(NamedTuple):
    """`values` holds the rows one after another, `lengths` [rows] how long each is.

    >>> Ragged.join(Ragged.of([[1, 2], []]), Ragged.full([[7], [8]])).tolist()
    [[1, 2, 7], [8]]
    """

    values: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, rows, dtype=np.int32) -> "Ragged":
        """From a list of rows."""
        rows = [np.asarray(row, dtype) for row in rows]
        values = np.concatenate(rows) if rows else np.zeros(0, dtype)
        return cls(values, np.array([len(row) for row in rows], np.int64))

    @classmethod
    def full(cls, values, dtype=np.int32) -> "Ragged":
        """From an array [rows, n]: every row has all n."""
        values = np.asarray(values, dtype)
        return cls(values.reshape(-1), np.full(len(values), values.shape[1]))

    @classmethod
    def empty(cls, rows: int, dtype=np.int32) -> "Ragged":
        """Rows of nothing."""
        return cls(np.zeros(0, dtype), np.zeros(rows, np.int64))

    @classmethod
    def kept(cls, values: np.ndarray, mask: np.ndarray) -> "Ragged":
        """Of an array [rows, n] what a mask [rows, n] keeps."""
        return cls(values[mask].astype(np.int32, copy=False), np.count_nonzero(mask, axis=1))

    @classmethod
    def join(cls, *parts: "Ragged") -> "Ragged":
        """Row by row one part after another."""
        lengths = np.stack([part.lengths for part in parts], 1)
        which = np.repeat(np.arange(lengths.size) % len(parts), lengths.reshape(-1))
        values = np.empty(len(which), np.result_type(*(part.values for part in parts)))
        for i, part in enumerate(parts):
            values[which == i] = part.values
        return cls(values, lengths.sum(1))

    @classmethod
    def choose(cls, which: np.ndarray, one: "Ragged", other: "Ragged") -> "Ragged":
        """Rows of one where `which` [rows] is true, of the other where it is not."""
        lengths = np.where(which, one.lengths, other.lengths)
        values = np.empty(lengths.sum(), one.values.dtype)
        here = np.repeat(which, lengths)
        values[here] = one.values[np.repeat(which, one.lengths)]
        values[~here] = other.values[np.repeat(~which, other.lengths)]
        return cls(values, lengths)

    @classmethod
    def stack(cls, parts: list["Ragged"]) -> "Ragged":
        """The rows of one part, then the rows of the next."""
        return cls(np.concatenate([p.values for p in parts]), np.concatenate([p.lengths for p in parts]))

    @property
    def ends(self) -> np.ndarray:
        """Where in `values` each row ends."""
        return np.cumsum(self.lengths)

    @property
    def within(self) -> np.ndarray:
        """For each value its place in its row."""
        return np.arange(len(self.values)) - self.spread(self.ends - self.lengths)

    @property
    def of_row(self) -> np.ndarray:
        """For each value the number of its row."""
        return self.spread(np.arange(len(self.lengths)))

    def spread(self, of_rows: np.ndarray) -> np.ndarray:
        """What each row has [rows], for each of its values."""
        return np.repeat(of_rows, self.lengths)

    def arrays(self) -> list[np.ndarray]:
        """Row by row."""
        return np.split(self.values, self.ends[:-1])

    def tolist(self) -> list[list]:
        """As lists."""
        return [row.tolist() for row in self.arrays()]

    def take(self, order: np.ndarray) -> "Ragged":
        """Rows in another order."""
        lengths = self.lengths[order]
        shift = (self.ends - self.lengths)[order] - (np.cumsum(lengths) - lengths)
        return Ragged(self.values[np.repeat(shift, lengths) + np.arange(lengths.sum())], lengths)
