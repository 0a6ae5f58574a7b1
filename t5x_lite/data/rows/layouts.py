"""Layouts place pairs on the stacks of an architecture, as rows of fixed length.

A row is a dict with flat keys, for E encoder and D decoder positions, K scored positions, and at
most S segments:

    encoder_tokens, encoder_segments, encoder_positions                     [E]
    encoder_types (sentence pairs)                                          [E]
    encoder_labels (sentence pairs)                                         []
    encoder_scored, encoder_targets, encoder_weights (aligned pairs)        [K]
    decoder_tokens, decoder_segments, decoder_positions                     [D]
    decoder_targets, decoder_weights                                        [D]
    decoder_prefix (prefix decoders, and rows that look ahead)              [D]
    label_values (tasks with a head)                                        [S, k]
    label_positions, label_weights, label_groups                            [S]

Segments count from 1; 0 is padding. An encoder attends within its segment. A decoder attends to the
past of its segment, and to the positions marked in decoder_prefix. Label s belongs to segment
s + 1. Labels of one group (counted from 1) belong to one example.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.tokenizers.vocabulary import Vocabulary

Row = dict[str, np.ndarray]


@dataclass(frozen=True)
class RowShape:
    """Number of positions in each stack of a row; 0 if there is no such stack."""

    encoder: int = 0
    decoder: int = 0
    scored: int = 0  # slots for the scored positions of an encoder, only for aligned pairs
    bidirectional_prefix: bool = False  # a decoder attends to its inputs in both directions
    looks_ahead: float = 0.0  # share of decoder rows that are bidirectional (pairs with `read`)
    labels: int = 0  # slots for labels of segments, only for tasks with a head
    # Most positions of one segment, if a row is made for several segments; 0: as many as the row
    segment: int = 0
    prompt: int = 0  # positions of a soft prompt, which each segment has in addition

    @property
    def longest(self) -> int:
        """Number of positions in the longer stack."""
        return max(self.encoder, self.decoder)

    @property
    def longest_segment(self) -> int:
        """Most positions of one segment. Positions count from 0 in each segment, so this is how far
        a model has to count.
        """
        return self.segment or self.longest

    def holds(self, inputs: int, targets: int, both: int) -> bool:
        """Return True if this many inputs and targets fit the row; without an encoder, if `both`
        fits the decoder.
        """
        if not self.encoder:
            return both <= self.decoder
        return inputs <= self.encoder and targets <= (self.scored or self.decoder)


def lay_out(
    pairs: Pairs,
    shape: RowShape,
    vocabulary: Vocabulary,
    row_of_pair: np.ndarray | None = None,
    rows: int = 0,
    starts: np.ndarray | None = None,
) -> Row:
    """Lay out pairs as rows, each pair as a segment of its own. Return the arrays that the module
    docstring lists, each [rows, …].

    Args:
        row_of_pair: row of each pair, ascending and below `rows`. By default, each pair is a row.
            The pairs of a row must fit the shape.
        rows: number of rows; needed only with row_of_pair.
        starts: [pairs] first id that a decoder reads in each segment; by default, the start token.
    """
    if row_of_pair is None:
        row_of_pair, rows = np.arange(len(pairs)), len(pairs)
    row = {}
    if shape.encoder:
        row |= _encoder(pairs, shape, vocabulary, row_of_pair, rows)
    if pairs.labels is not None:
        assert len(pairs) == rows, "a label is of a row, which holds one pair"
        row["encoder_labels"] = pairs.labels.astype(np.int32)
    if shape.scored:
        row |= _scored_positions(pairs, shape, vocabulary, row_of_pair, rows)
    if shape.decoder:
        starts = np.full(len(pairs), vocabulary.start) if starts is None else starts
        row |= _decoder(pairs, shape, vocabulary, starts, row_of_pair, rows)
    if shape.labels:
        row |= _segment_labels(pairs, shape, row_of_pair, rows)
    return row


def row_types(
    shape: RowShape, sentence_pairs: bool = False
) -> dict[str, tuple[tuple[int, ...], type[np.generic]]]:
    """Return the shape and type of each array in a row of an objective, without making a row."""
    types: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {}

    def add(stack: str, length: int, *kinds: str, of: type[np.generic] = np.int32) -> None:
        types.update({f"{stack}_{kind}": ((length,), of) for kind in kinds})

    if shape.encoder:
        add("encoder", shape.encoder, "tokens", "segments", "positions")
    if sentence_pairs:
        add("encoder", shape.encoder, "types")
        types["encoder_labels"] = (), np.int32
    if shape.scored:
        add("encoder", shape.scored, "scored", "targets")
        add("encoder", shape.scored, "weights", of=np.float32)
    if shape.decoder:
        add("decoder", shape.decoder, "tokens", "segments", "positions", "targets")
        add("decoder", shape.decoder, "weights", of=np.float32)
    if shape.bidirectional_prefix or shape.looks_ahead:
        add("decoder", shape.decoder, "prefix", of=np.bool_)
    return types


def _segment_labels(pairs: Pairs, shape: RowShape, row_of_pair, rows: int) -> Row:
    """Put the labels of pairs into the label slots of their rows."""
    labels = pairs.segment_labels
    assert labels is not None, "rows with slots for labels are made of pairs that have some"
    first_pair_of_row = np.searchsorted(row_of_pair, row_of_pair)
    place = _placer(np.ones(len(pairs), np.int64), row_of_pair, rows, shape.labels)

    # Positions count from the start of the row, and groups from the first group of the row.
    lengths = (
        pairs.inputs.lengths if shape.encoder else pairs.inputs.lengths + pairs.targets.lengths
    )
    starts = np.cumsum(lengths) - lengths
    starts = starts - starts[first_pair_of_row]
    is_new_group = np.append(True, labels.groups[1:] != labels.groups[:-1])
    number = np.cumsum(is_new_group)
    groups = number - number[first_pair_of_row] + 1
    dtype = np.float32 if labels.values.dtype.kind == "f" else np.int32
    values = np.zeros((rows, shape.labels, labels.values.shape[1]), dtype)
    slot = np.arange(len(pairs)) - first_pair_of_row
    values[row_of_pair, slot] = labels.values
    return {
        "label_values": values,
        "label_positions": place(labels.positions + starts),
        "label_weights": place(labels.weights, 0, np.float32),
        "label_groups": place(groups),
    }


def _encoder(pairs: Pairs, shape: RowShape, vocabulary: Vocabulary, row_of_pair, rows: int) -> Row:
    """Put the inputs on the encoder."""
    place = _placer(pairs.inputs.lengths, row_of_pair, rows, shape.encoder)
    row = _stack("encoder", pairs.inputs, place, vocabulary, row_of_pair)
    if pairs.types is not None:
        row["encoder_types"] = place(pairs.types.values)
    return row


def _scored_positions(
    pairs: Pairs, shape: RowShape, vocabulary: Vocabulary, row_of_pair, rows: int
) -> Row:
    """Put the scored positions of aligned pairs into their slots, with targets and weights."""
    assert pairs.scored is not None, "an encoder is scored on aligned pairs"
    # `scored` counts from the start of its pair. The row needs positions from its own start.
    starts = pairs.inputs.starts
    first_pair_of_row = np.searchsorted(row_of_pair, row_of_pair)
    starts = starts - starts[first_pair_of_row]
    place = _placer(pairs.scored.lengths, row_of_pair, rows, shape.scored)
    return {
        "encoder_scored": place(pairs.scored.values + pairs.scored.broadcast(starts)),
        "encoder_targets": place(pairs.targets.values, vocabulary.pad),
        "encoder_weights": place(pairs.weights.values, 0, np.float32),
    }


def _decoder(
    pairs: Pairs, shape: RowShape, vocabulary: Vocabulary, starts, row_of_pair, rows: int
) -> Row:
    """Put the targets on the decoder, after the inputs if no encoder reads them. The decoder reads
    them shifted right within their segment: position j holds stream[j − 1] and predicts stream[j].
    """
    inputs, stream, weights = pairs.inputs, pairs.targets, pairs.weights
    # Pairs with `read` read other tokens than their targets, with bidirectional attention unless
    # they set `reads_causally`.
    reads_others = pairs.read.lengths > 0
    sees_both_ways = reads_others & ~np.asarray(pairs.reads_causally)
    read = stream
    if reads_others.any():
        read = Ragged.where(reads_others, pairs.read, stream)
    if not shape.encoder:
        scores_inputs = np.asarray(pairs.score_inputs)
        if shape.bidirectional_prefix:  # inputs that attend in both directions cannot be scored
            scores_inputs = np.zeros(len(pairs), bool)
        input_weights = Ragged(inputs.broadcast(scores_inputs.astype(np.float32)), inputs.lengths)
        read = Ragged.join(inputs, read)
        stream = Ragged.join(inputs, stream)
        weights = Ragged.join(input_weights, weights)

    # Shift right by one; each segment begins with its start token.
    shifted = np.empty_like(read.values)
    shifted[1:] = read.values[:-1]
    is_used = stream.lengths > 0
    shifted[stream.starts[is_used]] = starts[is_used]

    place = _placer(stream.lengths, row_of_pair, rows, shape.decoder)
    row = _stack("decoder", Ragged(shifted, stream.lengths), place, vocabulary, row_of_pair)
    row["decoder_targets"] = place(stream.values, vocabulary.pad)
    row["decoder_weights"] = place(weights.values, 0, np.float32)
    if shape.bidirectional_prefix or shape.looks_ahead:
        is_prefix = stream.broadcast(sees_both_ways)
        if shape.bidirectional_prefix:
            # With i inputs, positions 0 … i (the start token and all inputs) are known before the
            # first target.
            known = stream.broadcast(np.where(inputs.lengths > 0, inputs.lengths + 1, 0))
            is_prefix |= stream.positions < known
        row["decoder_prefix"] = place(is_prefix, False, bool)
    return row


def _stack(name: str, ids: Ragged, place: Callable, vocabulary: Vocabulary, row_of_pair) -> Row:
    """Return tokens, segments and positions of one stack."""
    # Number the pairs of each row from 1.
    segment = np.arange(len(row_of_pair)) - np.searchsorted(row_of_pair, row_of_pair) + 1
    return {
        f"{name}_tokens": place(ids.values, vocabulary.pad),
        f"{name}_segments": place(ids.broadcast(segment)),
        f"{name}_positions": place(ids.positions),
    }


def _placer(lengths: np.ndarray, row_of_pair: np.ndarray, rows: int, row_length: int) -> Callable:
    """Return `place(values, blank, dtype)`, which fills each row with the values of its pairs, one
    pair after another, and then with `blank`.
    """
    used = np.bincount(row_of_pair, lengths, rows)
    is_full = bool((used == row_length).all())
    is_used = np.arange(row_length) < used[:, None]

    def place(values, blank=0, dtype=np.int32) -> np.ndarray:
        if is_full:  # no padding: the values are the rows
            return values.astype(dtype, copy=False).reshape(rows, row_length)
        placed = np.full((rows, row_length), blank, dtype)
        placed[is_used] = values
        return placed

    return place
