"""Streams: rows as a pure function of their index, with no state and no sequential reading."""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from t5x_lite.data.objectives.mixture import Objective
from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.objectives.sentence_pairs import longest_document
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rng import Purpose, RowRng, philox_key
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.data.rows.windows import Documents, SequentialWindows, ShuffledWindows, Windows
from t5x_lite.data.tokenizers.vocabulary import Vocabulary

VERSION = 5  # version of the stream: a run continues only with the version it was started with


class RowStream(Protocol):
    """Rows of pairs by index: text under an objective (TextStream), or the examples of a task
    (packing.PackedExamples).
    """

    @property
    def vocabulary(self) -> Vocabulary:
        """Special ids that layouts need."""
        ...

    @property
    def shape(self) -> RowShape:
        """Shape of every row."""
        ...

    @property
    def endless(self) -> bool:
        """True if rows continue after an epoch, as in training."""
        ...

    @property
    def raw_tokens(self) -> float:
        """Mean number of raw tokens that a row reads."""
        ...

    @property
    def words_per_token(self) -> float:
        """Mean number of words, separated by whitespace, in a raw token; 0: not counted."""
        ...

    def rows(self, epochs: int) -> int:
        """Return how many rows `epochs` epochs hold."""
        ...

    def epochs(self, rows: float) -> float:
        """Return the epochs completed after this many rows."""
        ...

    def pairs(self, indices: ArrayLike) -> tuple[Pairs, np.ndarray]:
        """Return the pairs of these rows, one per segment, and for each pair the position of its
        row in `indices`, ascending.
        """
        ...

    def left_out(self, indices: ArrayLike) -> float:
        """Return the fraction of these rows' raw tokens that does not fit into the rows."""
        ...

    def cut(self, indices: ArrayLike) -> float:
        """Return the fraction of these rows that join separate parts of the text."""
        ...


@dataclass(frozen=True)
class TextStream:
    """Rows of one text under one objective."""

    source: str  # name of the source
    windows: Windows
    objective: Objective
    vocabulary: Vocabulary
    shape: RowShape
    seed: int
    number: int = 0  # index of the stream in its mixture; each stream draws its own random numbers
    split_documents: bool = False
    words_per_token: float = 0.0
    span: tuple[float, float] = (0.0, 0.0)  # first row of the run, and the row after the last one

    def __str__(self) -> str:
        return f"{self.objective} on {self.source}"

    @property
    def endless(self) -> bool:
        """True for training, False for a validation split."""
        return not isinstance(self.windows, SequentialWindows)

    @property
    def block(self) -> int | None:
        """Tokens per block in the order that all objectives share; None if the text is read in
        another order.
        """
        return self.windows.order.block if isinstance(self.windows, ShuffledWindows) else None

    @property
    def raw_tokens(self) -> float:
        """Number of raw tokens that a row reads."""
        return self.windows.size

    def rows(self, epochs: int) -> int:
        """Return how many rows `epochs` epochs of the text hold."""
        return self.windows.rows(epochs)

    def epochs(self, rows: float) -> float:
        """Return the epochs of the text completed after this many rows."""
        return self.windows.epochs(rows)

    def read(self, indices: ArrayLike) -> list[np.ndarray]:
        """Read the raw tokens of each row."""
        return list(self.windows.read(self.windows.window_ids(np.asarray(indices, np.int64))))

    def left_out(self, indices: ArrayLike) -> float:
        """Return the fraction of the raw tokens that does not fit into the rows. It is 0 unless
        documents are split or rows are sentence pairs.
        """
        windows = self.read(indices)
        if self.objective.traits.sentence_pairs:
            pairs, _ = self.pairs(indices)
            special = 3 * len(pairs)  # [CLS], [SEP], [SEP]
            return 1 - (len(pairs.inputs.values) - special) / sum(map(len, windows))
        if not self.split_documents:
            return 0.0
        kept = sum(len(piece) for window in windows for piece in self._pieces(window))
        return 1 - kept / sum(map(len, windows))

    def cut(self, indices: ArrayLike) -> float:
        """Return the fraction of these rows whose window runs from one shuffled block of the text
        into another.
        """
        return self.windows.cut(self.windows.window_ids(np.asarray(indices, np.int64)))

    def pairs(self, indices: ArrayLike) -> tuple[Pairs, np.ndarray]:
        """Return the pairs of these rows, one per segment, and for each pair the position of its
        row in `indices`, ascending.
        """
        indices = np.asarray(indices, np.int64)
        window_ids = self.windows.window_ids(indices)
        purpose = Purpose.TRAINING_ROWS if self.endless else Purpose.VALIDATION_ROWS
        key = philox_key(self.seed, purpose, self.number)
        traits = self.objective.traits

        # Call the objective on windows of one length at a time.
        parts: list[tuple[np.ndarray, np.ndarray, Pairs]] = []  # (rows, piece numbers, pairs)
        for group in self._groups(indices, window_ids):
            tokens, n = group.tokens, group.tokens.shape[1]
            # A piece that is too short for the objective is read but not scored.
            if n < traits.min_tokens:
                parts.append((group.rows, group.pieces, _unscored(tokens, traits.aligned)))
                continue
            ids = window_ids[group.rows]
            if traits.windows_per_row == 2:
                tokens = np.stack([tokens, self._elsewhere(tokens, ids)], 1)
            rng = RowRng(key, ids, group.pieces, self._progress(indices[group.rows]))
            for pairs in self.objective(tokens, rng, self.vocabulary):
                parts.append((group.rows, group.pieces, pairs))
        if len(parts) == 1:
            rows, _, pairs = parts[0]
            return pairs, rows

        # Sort by row, then by piece.
        rows = np.concatenate([rows for rows, _, _ in parts])
        pieces = np.concatenate([pieces for _, pieces, _ in parts])
        order = np.lexsort((pieces, rows))
        all_pairs = Pairs.concatenate([pairs for _, _, pairs in parts])
        return all_pairs.take(order), rows[order]

    def _progress(self, indices: np.ndarray) -> np.ndarray | float:
        """Return the fraction of the training that is done when each of these rows is read."""
        first, end = self.span
        if end <= first:
            return 1.0
        return np.clip((indices - first) / (end - first), 0.0, 1.0)

    def _elsewhere(self, tokens: np.ndarray, window_ids: np.ndarray) -> np.ndarray:
        """For each window [rows, n], read tokens of a document other than its longest one."""
        begin, _ = longest_document(tokens, self.vocabulary)
        places = self.windows.places(window_ids, begin)
        purpose = Purpose.TRAINING_NEGATIVES if self.endless else Purpose.VALIDATION_NEGATIVES
        rng = RowRng(philox_key(self.seed, purpose, self.number), window_ids)
        return self.documents.elsewhere(places, rng.uniform(1)[:, 0], tokens.shape[1])

    @cached_property
    def documents(self) -> Documents:
        """Documents of the text."""
        return Documents(self.windows.tokens, self.vocabulary.eos)

    def _groups(self, indices: np.ndarray, window_ids: np.ndarray) -> list["_Group"]:
        """Group the windows, or the pieces of windows, by length."""
        # The usual case: all windows are whole and have the same length.
        if self.endless and not self.split_documents:
            windows = np.asarray(self.windows.read(window_ids))
            return [_Group(np.arange(len(indices)), np.zeros_like(indices), windows)]

        by_length = defaultdict(list)
        for row, window in enumerate(self.windows.read(window_ids)):
            for number, piece in enumerate(self._pieces(window)):
                by_length[len(piece)].append((row, number, piece))
        groups = []
        for group in by_length.values():
            rows, numbers, pieces = zip(*group, strict=True)
            groups.append(_Group(np.array(rows), np.array(numbers), np.stack(pieces)))
        return groups

    def _pieces(self, window: np.ndarray) -> list[np.ndarray]:
        """Return the window or, with split_documents, its documents, each a segment of its own.
        Several documents become more inputs and targets than one (each adds an EOS and sentinels),
        so documents that do not fit the row are shortened or left out.
        """
        if not self.split_documents:
            return [window]
        kept = []
        inputs = targets = both = 0  # totals of the pieces so far

        def used_with(n: int) -> tuple[int, int, int]:
            """Return inputs, targets and both, with one more piece of n tokens."""
            if n < self.objective.traits.min_tokens:
                return inputs + n, targets, both + n
            bound = self.objective.bound(n)
            return inputs + bound.inputs, targets + bound.targets, both + bound.both

        # Keep as many tokens of each document as still fit.
        document_ends = np.flatnonzero(window == self.vocabulary.eos) + 1
        for document in np.split(window, document_ends):
            lengths = range(1, len(document) + 1)
            n = bisect_left(lengths, True, key=lambda n: not self.shape.holds(*used_with(n)))
            if n:
                kept.append(document[:n])
                inputs, targets, both = used_with(n)
        return kept


class _Group(NamedTuple):
    """Pieces of one length."""

    rows: np.ndarray  # row that each piece belongs to
    pieces: np.ndarray  # number of each piece in its row
    tokens: np.ndarray  # [pieces, n]


def _unscored(tokens: np.ndarray, aligned: bool) -> Pairs:
    """Make pairs of pieces that are read but not scored."""
    nothing = Ragged.empty(len(tokens))
    return Pairs(Ragged.from_array(tokens), nothing, scored=nothing if aligned else None)
