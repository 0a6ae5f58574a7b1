"""Streams: one text read by one objective, rows as a pure function of their index. Nothing sequential, no state."""

from bisect import bisect_left
from dataclasses import dataclass, fields, replace

import numpy as np

from t5x_lite.data.draws import Draws
from t5x_lite.data.layouts import Shape
from t5x_lite.data.objectives import Objective, Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.vocabulary import Vocabulary
from t5x_lite.data.windows import Fixed, Shuffled, Successive

VERSION = 2  # of the stream: a run goes on only with the one it was started with
_VALIDATION = 2**32  # keys the random numbers of validation rows, the same at every evaluation


@dataclass(frozen=True)
class Stream:
    """The rows of one text under one objective."""

    source: str  # its name
    windows: Shuffled | Fixed | Successive
    objective: Objective
    vocabulary: Vocabulary
    shape: Shape
    seed: int
    number: int = 0  # of the stream in its mixture: each draws random numbers of its own
    split_documents: bool = False

    @property
    def training(self) -> bool:
        """Whether its rows are without end, and not those of a validation split."""
        return not isinstance(self.windows, Successive)

    @property
    def shuffled(self) -> bool:
        """Whether it reads its text in the order that all objectives share."""
        return isinstance(self.windows, Shuffled)

    @property
    def window(self) -> int:
        """Raw tokens that a row reads."""
        return self.windows.size

    def rows(self, epochs: int) -> int:
        """Its rows before its text would be read more often than that."""
        return self.windows.rows(epochs)

    def raw(self, indices) -> list[np.ndarray]:
        """The raw tokens that each row reads."""
        return list(self.windows.read(self.windows.numbers(np.asarray(indices, np.int64))))

    def pieces(self, indices) -> list[list[np.ndarray]]:
        """What the objective is given of the window of each row: all of it, or, split, the piece of each document."""
        return [self._fitting(window) if self.split_documents else [window] for window in self.raw(indices)]

    def _fitting(self, window: np.ndarray) -> list[np.ndarray]:
        """The documents of a window. More pieces make more inputs and targets (an EOS, a sentinel each): what the row
        has no room for is shortened or left out.
        """
        kept, used = [], np.zeros(3, np.int64)

        def after(n):
            return used + (self.objective.bound(n)[:3] if n >= self.objective.least else (n, 0, n))

        for piece in np.split(window, np.flatnonzero(window == self.vocabulary.eos) + 1):
            n = bisect_left(range(1, len(piece) + 1), True, key=lambda n: not self.shape.holds(*after(n)))
            if n:
                kept.append(piece[:n])
                used = after(n)
        return kept

    def pairs(self, indices) -> tuple[Pairs, np.ndarray]:
        """The pairs of those rows, one a segment, and for each the place in `indices` of its row, ascending."""
        indices = np.asarray(indices, np.int64)
        numbers = self.windows.numbers(indices)
        key = self.number << 40 | (0 if self.training else _VALIDATION)
        made = []
        for rows, places, tokens in self._groups(indices, numbers):
            n = tokens.shape[1]
            if n < self.objective.least:
                made.append((rows, places, _unscored(tokens, self.objective.aligned)))
                continue
            if self.objective.pieces == 2:
                tokens = np.stack([tokens, self.windows.others(numbers[rows])[:, :n]], 1)
            pairs = self.objective(tokens, Draws(self.seed, key, numbers[rows], places), self.vocabulary)
            for part in pairs if isinstance(pairs, tuple) else (pairs,):
                made.append((rows, places, part))
        if len(made) == 1:
            return made[0][2], made[0][0]
        rows, places = (np.concatenate([part[i] for part in made]) for i in (0, 1))
        order = np.lexsort((places, rows))
        return _reordered([part[2] for part in made], order), rows[order]

    def _groups(self, indices, numbers) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(rows, places in the row, tokens [pieces, n]) of the pieces, those of one length together."""
        if self.training and not self.split_documents:
            return [(np.arange(len(indices)), np.zeros_like(indices), self.windows.read(numbers))]
        groups = {}
        for row, pieces in enumerate(self.pieces(indices)):
            for place, piece in enumerate(pieces):
                groups.setdefault(len(piece), []).append((row, place, piece))
        columns = (zip(*group, strict=True) for group in groups.values())
        return [(np.array(rows), np.array(places), np.stack(pieces)) for rows, places, pieces in columns]


def _unscored(tokens: np.ndarray, aligned: bool) -> Pairs:
    """Pieces that are read and not asked about."""
    none = Ragged.empty(len(tokens))
    return Pairs(Ragged.full(tokens), none, scored=none if aligned else None)


def _reordered(parts: list[Pairs], order: np.ndarray) -> Pairs:
    """The pairs of all parts as one, in that order."""
    if any(part.weights is not None for part in parts):
        parts = [replace(part, weights=part.scores()) for part in parts]
    made = {"score_inputs": np.concatenate([np.broadcast_to(p.score_inputs, len(p)) for p in parts])[order]}
    for name in (f.name for f in fields(Pairs) if f.name != "score_inputs"):
        given = [getattr(part, name) for part in parts]
        if isinstance(given[0], Ragged):
            made[name] = Ragged.stack(given).take(order)
        elif given[0] is not None:
            made[name] = np.concatenate(given)[order]
    return Pairs(**made)
