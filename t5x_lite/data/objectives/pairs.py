"""Pairs of inputs and targets, the output of objectives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Integer

from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rng import RowRng
from t5x_lite.data.tokenizers.tokenizer import Tokenizer

Tokens = Integer[np.ndarray, "rows n"]
Mask = Bool[np.ndarray, "rows n"]

NOT_GIVEN = Ragged.empty(0)  # stands for an optional field of Pairs that is left out


class SegmentLabels(NamedTuple):
    """Labels that a head predicts for each pair, anywhere in a row: see data/tasks."""

    values: np.ndarray  # [pairs, k] class numbers, or values to regress
    # [pairs] position of the hidden state that the head reads, from the start of the pair
    positions: np.ndarray
    weights: np.ndarray  # [pairs] 0 if there is no label
    # [pairs] example of each pair; several pairs may be the answers to one question
    groups: np.ndarray

    def take(self, order: np.ndarray) -> "SegmentLabels":
        """Select pairs by index."""
        return SegmentLabels(*(column[order] for column in self))

    def arrays(self) -> list["SegmentLabels"]:
        """Return the labels of each pair as a list."""
        return [SegmentLabels(*row) for row in zip(*self, strict=True)]

    @classmethod
    def stack(cls, parts: Sequence["SegmentLabels"]) -> "SegmentLabels":
        """Concatenate the labels of several lists of pairs."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class Pair(SimpleNamespace):
    """One pair of Pairs: the same fields, as plain arrays."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of inputs that the model reads and targets that it predicts, as token ids, one pair per
    row.

    Attributes:
        inputs, targets: ids of a text-to-text pair, or of an aligned pair: see `scored`.
        weights: loss weight of each target; 1 if left out.
        scored: None for text to text, where the targets are a separate text. For aligned pairs
            (masked LM), the position of each target in the inputs.
        read: ids that a decoder reads instead of its targets, as many as there are targets. If a
            row is empty, or `read` is left out, the decoder reads its targets from left to right.
        reads_causally: bool [rows], or one value for all rows: `read` is also read from left to
            right, and not with bidirectional attention.
        score_inputs: bool [rows], or one value for all rows: a decoder that reads its inputs
            causally is scored on them too.
        types: token types of the inputs (BERT's segments A and B).
        labels: [rows] label of the pair as a whole, for the sequence label head (is B the next
            sentence?).
        segment_labels: labels of a task head for each pair; a row may hold several pairs.

    Use `take`, `concatenate` and `each` to select, concatenate and iterate. They loop over the
    fields of this class, so that none is forgotten.
    """

    inputs: Ragged
    targets: Ragged
    weights: Ragged = NOT_GIVEN
    scored: Ragged | None = None
    read: Ragged = NOT_GIVEN
    reads_causally: np.ndarray | bool = False
    score_inputs: np.ndarray | bool = False
    types: Ragged | None = None
    labels: np.ndarray | None = None
    segment_labels: SegmentLabels | None = None

    def __post_init__(self):
        rows = len(self.inputs.lengths)
        if self.weights is NOT_GIVEN:
            ones = np.ones(len(self.targets.values), np.float32)
            object.__setattr__(self, "weights", Ragged(ones, self.targets.lengths))
        if self.read is NOT_GIVEN:
            object.__setattr__(self, "read", Ragged.empty(rows))
        for name in ("reads_causally", "score_inputs"):
            flags = np.asarray(getattr(self, name), bool)
            object.__setattr__(self, name, np.broadcast_to(flags, rows))

    def __len__(self) -> int:
        return len(self.inputs.lengths)

    def _columns(self) -> dict[str, Any]:
        """Return the fields that are given, by name."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column for name, column in columns.items() if column is not None}

    def take(self, order: np.ndarray) -> "Pairs":
        """Select pairs by index, in the given order."""
        taken = {}
        for name, column in self._columns().items():
            is_array = isinstance(column, np.ndarray)
            taken[name] = column[order] if is_array else column.take(order)
        return Pairs(**taken)

    @classmethod
    def concatenate(cls, parts: Sequence["Pairs"]) -> "Pairs":
        """Concatenate pairs that have the same optional fields.

        Raises:
            ValueError: if some have an optional field that others lack.

        >>> one = Pairs(Ragged.from_rows([[1, 2]]), Ragged.from_rows([[3]]))
        >>> Pairs.concatenate([one, one]).inputs.tolist()
        [[1, 2], [1, 2]]
        """
        all_columns = [part._columns() for part in parts]
        names = all_columns[0].keys()
        if any(columns.keys() != names for columns in all_columns):
            given = sorted(set().union(*all_columns).difference(*all_columns))
            raise ValueError(f"some pairs have {', '.join(given)}, others have not")
        joined = {}
        for name in names:
            columns = [of_part[name] for of_part in all_columns]
            is_array = isinstance(columns[0], np.ndarray)
            joined[name] = np.concatenate(columns) if is_array else columns[0].stack(columns)
        return cls(**joined)

    def each(self) -> list[Pair]:
        """Return the pairs one by one, as plain arrays. A field that is not given is None."""
        nothing = dict.fromkeys(field.name for field in fields(self))
        pairs = [Pair(**nothing) for _ in range(len(self))]
        for name, column in self._columns().items():
            rows = column if isinstance(column, np.ndarray) else column.arrays()
            for pair, value in zip(pairs, rows, strict=True):
                setattr(pair, name, value)
        return pairs


def example(objective: Callable, text: str, row: int = 1, **options) -> tuple[str, str]:
    """Return the decoded inputs and targets that an objective makes from a text, with letters as
    tokens. Used for worked examples.

    >>> def halve(tokens, rng, vocabulary):
    ...     return Pairs(Ragged.from_array(tokens[:, :2]), Ragged.from_array(tokens[:, 2:]))
    >>> example(halve, "hi!")
    ('hi', '!')
    """
    tokenizer = Tokenizer()
    tokens = tokenizer.encode(text)[None]
    (pair,) = objective(tokens, RowRng(0, row), tokenizer.vocabulary, **options).each()
    return tokenizer.decode(pair.inputs), tokenizer.decode(pair.targets)
