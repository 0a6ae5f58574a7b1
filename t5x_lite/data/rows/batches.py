"""Batches as a pure function of the step: the same rows on any number of hosts, and after any
restart.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np

from t5x_lite.config import Data
from t5x_lite.data.rows.layouts import Row, RowShape, lay_out
from t5x_lite.data.rows.row_plan import RowPlan
from t5x_lite.data.rows.streams import RowStream, TextStream
from t5x_lite.data.rows.windows import BlockOrder, SequentialWindows, ShuffledWindows, StaticWindows
from t5x_lite.data.store.corpus import Corpus, Source, Split
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.errors import BAD_DATA, UserError

# Rows in one cycle of a mixture; each member makes at least one of them
_PATTERN_ROWS = 100_000
# Rows that are checked to find how many are cut; this reads no text
_ROWS_LOOKED_AT = 4096


def mixture_pattern(rates: list[float]) -> np.ndarray:
    """Return which member of a mixture makes each row of a repeating cycle. Each member appears in
    proportion to its rate, evenly spread.

    >>> mixture_pattern([0.5, 0.25, 0.25])[:8].tolist()
    [0, 1, 2, 0, 0, 1, 2, 0]
    """
    if len(rates) == 1:
        return np.zeros(1, np.int64)
    # Round down to whole rows, then give the remaining rows to the members that lost most.
    exact = np.array(rates) / sum(rates) * _PATTERN_ROWS
    counts = np.maximum(exact.astype(np.int64), 1)
    for _ in range(_PATTERN_ROWS - counts.sum()):
        counts[np.argmax(exact - counts)] += 1
    # Space each member's rows evenly over the cycle, then sort all rows by their position in it.
    member = np.repeat(np.arange(len(counts)), counts)
    position = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    return member[np.argsort(position, kind="stable")]


@dataclass(frozen=True)
class Batches:
    """The rows of one split. `rows` and `batch_at` are pure functions of their arguments.

    A mixture has several streams. In training, `pattern` repeats and says which stream makes the
    next row; each stream continues with its next row. In validation, the streams follow one
    another, and each is read once.
    """

    streams: tuple[RowStream, ...]
    pattern: np.ndarray
    batch_size: int
    first_row: int = 0  # first row of batch 0; more than 0 if a stage continues after earlier ones

    @property
    def shape(self) -> RowShape:
        """Shape of every row."""
        return self.streams[0].shape

    @property
    def endless(self) -> bool:
        """True for training splits, which are infinite."""
        return self.streams[0].endless

    @property
    def shares(self) -> np.ndarray:
        """Fraction of the rows that each stream makes: [streams]."""
        if self.endless:
            return self._rows_per_cycle / len(self.pattern)
        rows = np.array([stream.rows(1) for stream in self.streams])
        return rows / max(rows.sum(), 1)

    @property
    def raw_tokens(self) -> float:
        """Mean number of raw tokens that one batch reads."""
        raw_tokens = np.array([stream.raw_tokens for stream in self.streams])
        return float(raw_tokens @ self.shares) * self.batch_size

    @property
    def words(self) -> float:
        """Mean number of words that one batch reads; 0 if they were not counted."""
        words = np.array([stream.raw_tokens * stream.words_per_token for stream in self.streams])
        return float(words @ self.shares) * self.batch_size if words.all() else 0.0

    @property
    def validation_batches(self) -> int:
        """Number of batches that hold every row of a validation split once."""
        return -(-sum(stream.rows(1) for stream in self.streams) // self.batch_size)

    def num_steps(self, steps: int, epochs: int) -> int:
        """Return the number of steps of a run: `steps`, or the number of whole batches in `epochs`
        epochs if that is smaller (epochs=0: no limit).

        Raises:
            UserError: if the epochs hold no whole batch.
        """
        if not epochs:
            return steps
        ends = []  # rows of the mixture before each stream would start another epoch
        for number, stream in enumerate(self.streams):
            # Find the place in the pattern of this stream's first row after `epochs` epochs.
            places = np.flatnonzero(self.pattern == number)
            cycles, rest = divmod(stream.rows(epochs), len(places))
            ends.append(cycles * len(self.pattern) + int(places[rest]))
        left = min(ends) - self.first_row
        if left < self.batch_size:
            reason = f"data.epochs={epochs} has {left} rows, a batch {self.batch_size}"
            raise UserError(BAD_DATA, f"{reason}; give more text, or lower data.batch_size")
        return min(steps, left // self.batch_size)

    @cached_property
    def _rows_per_cycle(self) -> np.ndarray:
        """Number of rows of each stream in one cycle of the pattern."""
        return np.bincount(self.pattern, minlength=len(self.streams))

    @cached_property
    def _rank(self) -> np.ndarray:
        """For each place in the pattern, the number of rows of the same stream before it."""
        by_stream = np.argsort(self.pattern, kind="stable")
        ordered = self.pattern[by_stream]
        rank = np.empty_like(self.pattern)
        rank[by_stream] = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
        return rank

    def locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the index of each row's stream, and the index of the row in that stream. The
        latter is −1 after the end of a validation split.
        """
        if self.endless:
            cycle, place = np.divmod(indices, len(self.pattern))
            stream = self.pattern[place]
            return stream, cycle * self._rows_per_cycle[stream] + self._rank[place]
        # In validation, one stream follows another.
        ends = np.cumsum([stream.rows(1) for stream in self.streams])
        starts = np.append(0, ends[:-1])
        stream = np.minimum(np.searchsorted(ends, indices, side="right"), len(ends) - 1)
        return stream, np.where(indices < ends[-1], indices - starts[stream], -1)

    def rows(self, indices: Iterable[int]) -> Row:
        """Return the rows with these indices, stacked. A row after the end of a validation split is
        padding with weight 0.
        """
        numbers, inner = self.locate(np.fromiter(indices, np.int64))
        rows: Row = {}
        for number in np.unique(numbers):
            places = np.flatnonzero(numbers == number)
            stream = self.streams[number]
            pairs, row_of_pair = stream.pairs(np.maximum(inner[places], 0))
            # Lay out the rows of one stream, and put them at their places among all rows.
            part = lay_out(pairs, self.shape, stream.vocabulary, row_of_pair, len(places))
            if len(places) == len(numbers):
                rows = part
                break
            for key, value in part.items():
                if key not in rows:
                    rows[key] = np.empty((len(numbers), *value.shape[1:]), value.dtype)
                rows[key][places] = value
        is_padding = inner < 0
        if is_padding.any():
            for value in rows.values():
                value[is_padding] = 0
        return rows

    def batch_at(self, step: int, rows: Iterable[int] | None = None) -> Row:
        """Return batch number `step` (from 0): arrays [batch_size, …], or only the rows of the
        batch that are listed in `rows`.
        """
        wanted = range(self.batch_size) if rows is None else rows
        first = self.first_row + step * self.batch_size
        return self.rows(first + row for row in wanted)


class RunData(Protocol):
    """The data of a run: text under its objectives (TextData), or the examples of a task
    (tasks.task_data.TaskData).
    """

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer that made the ids."""
        ...

    @property
    def manifest(self) -> dict[str, Any]:
        """Record of the data, which a run directory keeps in corpus.json. A run continues only if
        "tokenizer", "train" and "validation" are unchanged.
        """
        ...

    def batches(self, split: Split) -> Batches:
        """Return the batches of a split: "train" is infinite, "validation" is read once."""
        ...


@dataclass(frozen=True)
class TextData:
    """Text under the objectives of a run."""

    plan: RowPlan
    data: Data
    seed: int
    corpus: Corpus
    skip: int = 0  # raw tokens that earlier stages have read
    steps: int = 0  # steps of training, for options that change during it; 0: not known

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the corpus."""
        return self.corpus.tokenizer

    @property
    def manifest(self) -> dict[str, Any]:
        """Manifest of the token store."""
        return self.corpus.manifest

    def batches(self, split: Split) -> Batches:
        """Return the batches of a split."""
        batches = make_batches(self.plan, self.data, self.seed, self.corpus, split)
        if split != "train":
            return batches
        # Begin after the rows that earlier stages have read.
        in_a_row = batches.raw_tokens / batches.batch_size
        batches = replace(batches, first_row=round(self.skip / in_a_row))
        if not self.steps:
            return batches
        # Each stream has its share of the rows of the run.
        first = batches.first_row
        end = first + batches.num_steps(self.steps, self.data.epochs) * batches.batch_size
        streams = [
            replace(stream, span=(first * share, end * share))
            for stream, share in zip(batches.streams, batches.shares, strict=True)
            if isinstance(stream, TextStream)
        ]
        return replace(batches, streams=tuple(streams))


def make_batches(plan: RowPlan, data: Data, seed: int, corpus: Corpus, split: str) -> Batches:
    """Return the batches of a split: "train" is shuffled and infinite, "validation" is read once
    and in order.

    Raises:
        UserError: if a source is too short for a row, or an objective needs two documents and there
            is only one.
    """
    vocabulary = corpus.tokenizer.vocabulary
    sources = [source for source in corpus.sources if len(source.tokens[split])]
    rates = [
        share * member.rate for share in source_rates(sources, data) for member in plan.members
    ]
    pattern = mixture_pattern(rates)
    # One stream for each source and member; windows come in the same order as the rates.
    if split == "train":
        windows = _training_windows(plan, data, seed, sources, pattern, vocabulary.eos)
    else:
        windows = _validation_windows(plan, sources)
    streams = [
        TextStream(
            source=source.name,
            windows=stream_windows,
            objective=member.objective,
            vocabulary=vocabulary,
            shape=plan.shape,
            seed=seed,
            number=number,
            split_documents=plan.split_documents,
            words_per_token=source.words_per_token,
        )
        for number, ((source, member), stream_windows) in enumerate(
            zip(product(sources, plan.members), windows, strict=True)
        )
    ]
    # Sentence pairs take their negatives from another document.
    for stream in streams:
        if stream.objective.traits.windows_per_row == 2 and len(stream.documents) < 2:
            reason = f"{split} has one document, but {stream.objective} needs two"
            fix = "give more text, or set data.document"
            raise UserError(BAD_DATA, f"data.source: {stream.source}: {reason}; {fix}")
    return Batches(tuple(streams), pattern, data.batch_size)


def _training_windows(
    plan: RowPlan, data: Data, seed: int, sources: list[Source], pattern: np.ndarray, eos: int
) -> Iterator[ShuffledWindows | StaticWindows]:
    """Yield the windows of each member on each source. In the shuffled order of a source, the
    windows of all members follow one another in the order of the pattern. Static windows are at
    fixed positions of the text, so they are not part of that order.
    """
    sizes = [member.window for member in plan.members]
    static = [member.objective.traits.static for member in plan.members]
    block = data.block or max(sizes)
    # Where windows can cross into another block, each block ends in EOS. A given data.block always
    # implies this, so that all runs with the same block read the same tokens.
    crosses_blocks = bool(data.block) or len(set(sizes)) > 1
    needed = max(sizes)
    for number, source in enumerate(sources):
        tokens = source.tokens["train"]
        _check_length(source, "train", -(-needed // block) * block)
        order = BlockOrder(tokens, block, seed, number, eos if crosses_blocks else None)

        # For each row of the pattern: how many tokens of this source it reads, and where they begin
        # in the cycle.
        first_stream = number * len(sizes)
        tokens_read = np.zeros(len(sizes) * len(sources), np.int64)
        tokens_read[first_stream : first_stream + len(sizes)] = np.where(static, 0, sizes)
        read_by_row = tokens_read[pattern]
        starts = np.cumsum(read_by_row) - read_by_row
        cycle = int(read_by_row.sum())
        for stream, (size, is_static) in enumerate(zip(sizes, static, strict=True), first_stream):
            if is_static:
                yield StaticWindows(tokens, size, seed, stream)
            else:
                yield ShuffledWindows(order, size, cycle, starts[pattern == stream])


def _validation_windows(plan: RowPlan, sources: list[Source]) -> Iterator[SequentialWindows]:
    """Yield the windows of each member on each source, in the order of the text."""
    for source, member in product(sources, plan.members):
        min_tokens = member.objective.traits.min_tokens
        _check_length(source, "validation", min_tokens)
        yield SequentialWindows(source.tokens["validation"], member.window, min_tokens)


def _check_length(source: Source, split: str, needed: int) -> None:
    """Reject a source with fewer than `needed` tokens in a split."""
    tokens = len(source.tokens[split])
    if tokens < needed:
        reason = f"{split} has {tokens} tokens, its rows need {needed}"
        fix = "give more text, or raise data.unique_tokens where that is set"
        raise UserError(BAD_DATA, f"data.source: {source.name}: {reason}; {fix}")


def source_rates(sources: list[Source], data: Data) -> list[float]:
    """Return the fraction of the rows that each source makes: as given in the setting, or else in
    proportion to min(tokens, cap)^(1/temperature), where tokens counts the training text (Raffel
    et al., 2020, §3.5.2).
    """
    weights = [source.rate for source in sources]
    if not any(weights):
        sizes = [len(source.tokens["train"]) for source in sources]
        weights = [min(size, data.cap or size) ** (1 / data.temperature) for size in sizes]
    total = sum(weights)
    return [weight / total if total else 1 / len(sources) for weight in weights]


@dataclass(frozen=True)
class Ledger:
    """Contents of a row, as means over rows."""

    raw_tokens: float  # tokens of the text
    model_tokens: float  # encoder and decoder positions that are not padding
    loss_tokens: float  # sum of the loss weights
    scored: float  # positions that are predicted; each may have a weight other than 1
    padding: float  # fraction of the positions that are padding
    # Fraction of the raw tokens that does not fit into the rows (split documents, sentence pairs)
    left_out: float
    # Fraction of the rows whose window runs from one shuffled block of the text into another
    cut: float
    members: tuple["Ledger", ...] = ()  # one for each stream of a mixture


class Contents(NamedTuple):
    """Contents of several rows, in all."""

    positions: int  # positions of encoder and decoder
    tokens: int  # those that are not padding
    loss_tokens: float  # sum of the loss weights
    scored: int  # positions that are predicted


def count(rows: Row) -> Contents:
    """Count what rows hold. Padding has segment 0, and positions that are not scored weight 0."""
    segments = [value for key, value in rows.items() if key.endswith("_segments")]
    weights = [value for key, value in rows.items() if key.endswith("_weights")]
    return Contents(
        positions=sum(value.size for value in segments),
        tokens=sum(int(np.count_nonzero(value)) for value in segments),
        loss_tokens=sum(float(value.sum()) for value in weights),
        scored=sum(int(np.count_nonzero(value)) for value in weights),
    )


def ledger(batches: Batches, rows: int = 64) -> Ledger:
    """Compute the mean contents of a row, from the first `rows` rows of each stream."""
    members = tuple(_stream_ledger(stream, rows) for stream in batches.streams)

    def mean(name: str) -> float:
        return float(batches.shares @ [getattr(member, name) for member in members])

    return Ledger(
        raw_tokens=mean("raw_tokens"),
        model_tokens=mean("model_tokens"),
        loss_tokens=mean("loss_tokens"),
        scored=mean("scored"),
        padding=mean("padding"),
        left_out=mean("left_out"),
        cut=mean("cut"),
        members=members,
    )


def _stream_ledger(stream: RowStream, rows: int) -> Ledger:
    """Compute the mean contents of a row of one stream."""
    indices = list(range(min(rows, stream.rows(1))))
    if isinstance(stream, TextStream) and stream.objective.changes:
        first, end = stream.span  # rows from the whole run, since they change during it
        indices = np.linspace(first, max(end - 1, first), rows).astype(int).tolist()
    alone = Batches((stream,), np.zeros(1, np.int64), len(indices))
    counted = count(alone.rows(indices))
    return Ledger(
        raw_tokens=stream.raw_tokens,
        model_tokens=counted.tokens / len(indices),
        loss_tokens=counted.loss_tokens / len(indices),
        scored=counted.scored / len(indices),
        padding=1 - counted.tokens / counted.positions,
        left_out=stream.left_out(indices),
        cut=stream.cut(range(min(_ROWS_LOOKED_AT, stream.rows(1)))),
    )
