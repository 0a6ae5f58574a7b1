"""Layouts: who may look where. They put pairs on the stacks of an architecture, as rows of fixed length.

A row is a dict of flat arrays. `encoder_tokens`, `encoder_segments` and `encoder_positions` [E]; `decoder_tokens`,
`decoder_targets`, `decoder_weights`, `decoder_segments`, `decoder_positions` and `decoder_prefix` [D]; for aligned
pairs `encoder_scored`, `encoder_targets` and `encoder_weights` [K]. Segments count from 1; 0 is padding. An encoder
sees its own segment; a decoder its past within its segment, and what `decoder_prefix` marks.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np

from t5x_lite.config import Lengths, RunConfig
from t5x_lite.data.objectives import Objective, Pair, parse
from t5x_lite.data.tokenizer import Vocabulary
from t5x_lite.errors import BAD_CONFIG, Refusal


@dataclass(frozen=True)
class Shape:
    """How many positions each stack of a row has; 0 where there is no such stack."""

    encoder: int
    decoder: int
    scored: int  # slots for the scored positions of an encoder that is asked itself
    bidirectional_prefix: bool = False

    def holds(self, inputs: int, targets: int, both: int) -> bool:
        """Whether there is room for so many inputs and targets, or for both on one stack."""
        if not self.encoder:
            return both <= self.decoder
        return inputs <= self.encoder and targets <= (self.scored or self.decoder)


def plan(config: RunConfig) -> tuple[Objective, int, Shape]:
    """What the rows of a config are: its objective, the raw tokens of a window, and the shape they are laid out in.

    Raises Refusal for what cannot be laid out. Needs no tokenizer: this is known as soon as the config is read.
    """
    objective = match(parse(config.objective), config.model.architecture)
    return objective, *fit(objective, config.model.architecture, config.data.lengths)


def match(objective: Objective, architecture: str) -> Objective:
    """The objective as the architecture can be fed with it; raises Refusal, with the reason, where it cannot."""

    def refuse(reason):
        raise Refusal(BAD_CONFIG, f"objective {objective.name} on architecture {architecture}: {reason}")

    if objective.aligned and architecture != "encoder":
        refuse("it asks an encoder at its own positions, a decoder would see the answer; use architecture encoder")
    if not objective.aligned and architecture == "encoder":
        refuse("an encoder alone writes no targets; use masked_lm, or an architecture with a decoder")
    if not objective.makes_inputs and architecture == "encoder_decoder":
        refuse("it has no inputs for the encoder; use prefix_lm, or architecture decoder")
    if not objective.makes_inputs and architecture == "prefix_decoder":
        refuse("it has no inputs to be seen both ways; use prefix_lm, or architecture decoder")
    if objective.options.get("score_prefix") and architecture != "decoder":
        refuse("score_prefix needs a causal prefix; use architecture decoder")
    if objective.options.get("mirrored") and architecture != "encoder_decoder":
        refuse("mirrored fills two stacks; use architecture encoder_decoder")
    if objective.name == "prefix_lm" and architecture == "encoder_decoder":
        return Objective(objective.name, {**objective.options, "mirrored": True})
    return objective


def fit(objective: Objective, architecture: str, lengths: Lengths) -> tuple[int, Shape]:
    """The largest window, in raw tokens, whose bound fits the row, and the row's shape."""
    if architecture == "encoder_decoder":
        room, name = Shape(lengths.inputs, lengths.targets, 0), f"data.lengths={lengths.inputs}/{lengths.targets}"
    else:
        room, name = Shape(0, lengths.row, 0, architecture == "prefix_decoder"), f"data.lengths.row={lengths.row}"
    if architecture == "encoder":
        room = Shape(lengths.row, 0, lengths.row)
    step = 2 if objective.options.get("mirrored") else 1
    windows = range(objective.least, room.encoder + room.decoder + 1, step)
    fitting = bisect_left(windows, True, key=lambda n: not room.holds(*objective.bound(n)[:3]))  # bounds grow with n
    if not fitting:
        raise Refusal(BAD_CONFIG, f"{name}: too short for any window of {objective.name}; raise it")
    window = windows[fitting - 1]
    return window, replace(room, scored=objective.bound(window).targets if room.scored else 0)


def _stack(name: str, length: int, pieces: list[np.ndarray], pad: int) -> dict:
    """Tokens, segments and positions of one stack: the pieces one after another, then padding."""
    sizes = [len(piece) for piece in pieces]
    padding = length - sum(sizes)
    return {
        f"{name}_tokens": np.concatenate([*pieces, np.full(padding, pad)]).astype(np.int32),
        f"{name}_segments": np.repeat([*range(1, len(pieces) + 1), 0], [*sizes, padding]).astype(np.int32),
        f"{name}_positions": np.concatenate([np.arange(size) for size in (*sizes, padding)]).astype(np.int32),
    }


def _filled(length: int, pieces: list[np.ndarray], value, dtype) -> np.ndarray:
    used = np.concatenate(pieces)
    return np.concatenate([used, np.full(length - len(used), value)]).astype(dtype)


def lay_out(pairs: list[Pair], shape: Shape, vocabulary: Vocabulary) -> dict[str, np.ndarray]:
    """Pairs, each a segment of its own, as one row. They must fit the shape."""
    row = {}
    if shape.encoder:
        row |= _stack("encoder", shape.encoder, [pair.inputs for pair in pairs], vocabulary.pad)
    if shape.scored:
        starts = np.cumsum([0] + [len(pair.inputs) for pair in pairs])
        places = [start + pair.scored for start, pair in zip(starts, pairs, strict=False)]
        row["encoder_scored"] = _filled(shape.scored, places, 0, np.int32)
        row["encoder_targets"] = _filled(shape.scored, [pair.targets for pair in pairs], vocabulary.pad, np.int32)
        row["encoder_weights"] = _filled(shape.scored, [pair.weights for pair in pairs], 0, np.float32)
    if shape.decoder:
        row |= _decoder(pairs, shape, vocabulary)
    return row


def _decoder(pairs: list[Pair], shape: Shape, vocabulary: Vocabulary) -> dict:
    """The decoder's stream: the targets, behind the inputs where no encoder reads them, shifted right in its segment.

    Position j holds stream[j − 1] and is asked for stream[j]. With i inputs the positions 0 … i (the start token and
    all inputs) are known before the first target is asked for: they are the prefix.
    """
    before = [pair.inputs[:0] if shape.encoder else pair.inputs for pair in pairs]
    streams = [np.append(inputs, pair.targets) for inputs, pair in zip(before, pairs, strict=True)]
    start = [vocabulary.start]
    row = _stack("decoder", shape.decoder, [np.append(start, s)[: len(s)] for s in streams], vocabulary.pad)
    row["decoder_targets"] = _filled(shape.decoder, streams, vocabulary.pad, np.int32)
    weights = [np.append(np.full(len(i), float(p.score_inputs)), p.weights) for i, p in zip(before, pairs, strict=True)]
    row["decoder_weights"] = _filled(shape.decoder, weights, 0, np.float32)
    if shape.bidirectional_prefix:
        prefix = [np.arange(len(s)) <= len(i) if len(i) else s < 0 for i, s in zip(before, streams, strict=True)]
        row["decoder_prefix"] = _filled(shape.decoder, prefix, False, bool)
    return row
