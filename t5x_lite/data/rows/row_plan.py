"""Plan the rows of a run once: the objectives, the number of raw tokens in each window, and the
shape of a row.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import NamedTuple

from t5x_lite.config import Architecture, Lengths
from t5x_lite.data.objectives.mixture import Objective, parse_mixture
from t5x_lite.data.rows.layouts import RowShape
from t5x_lite.errors import BAD_CONFIG, UserError


class Member(NamedTuple):
    """One objective of a mixture."""

    rate: float  # fraction of the rows that it makes
    objective: Objective
    window: int  # raw tokens in its window


@dataclass(frozen=True)
class RowPlan:
    """Objectives, windows and shape of the rows of a run."""

    members: tuple[Member, ...]
    shape: RowShape  # shape of every row
    split_documents: bool

    @property
    def packed(self) -> bool:
        """True if a row may hold several segments."""
        return self.split_documents or any(
            m.objective.traits.pairs_per_window > 1 for m in self.members
        )

    @property
    def has_sentence_pairs(self) -> bool:
        """True if rows carry token types and a label."""
        return self.members[0].objective.traits.sentence_pairs

    @property
    def aligned(self) -> bool:
        """True if an encoder is scored at positions of its own inputs."""
        return self.members[0].objective.traits.aligned

    @property
    def masked(self) -> bool:
        """True if only masked tokens are predicted, always from the text on both sides."""
        traits = [member.objective.traits for member in self.members]
        return all(of_objective.aligned or of_objective.looks_ahead for of_objective in traits)

    @property
    def loss(self) -> str:
        """Name of the loss that is minimised: see Traits."""
        return self.members[0].objective.traits.loss

    @property
    def scores_whole_text(self) -> bool:
        """True if every token of the text is predicted exactly once, from the tokens before it."""
        return len(self.members) == 1 and self.members[0].objective.traits.scores_whole_text

    @property
    def bounds_whole_text(self) -> bool:
        """True if the loss is an upper bound on −log p of the whole text."""
        return len(self.members) == 1 and self.members[0].objective.traits.bounds_whole_text

    @property
    def continues_text(self) -> bool:
        """True if any objective predicts text from the text before it."""
        return any(member.objective.traits.continues_text for member in self.members)

    @property
    def inputs_end_in_eos(self) -> bool:
        """True if an encoder reads EOS after a text."""
        return self.uses_sentinels

    @property
    def uses_sentinels(self) -> bool:
        """True if any objective marks masked spans by sentinels."""
        return any(member.objective.uses_sentinels for member in self.members)

    @property
    def mode_of_sentinels(self) -> str:
        """UL2 mode of the first objective that uses sentinels; "" if there is none."""
        modes = [
            member.objective.options.get("mode", "")
            for member in self.members
            if member.objective.uses_sentinels
        ]
        return modes[0] if modes else ""

    def __str__(self) -> str:
        """Write the objectives, without their rates."""
        return " + ".join(str(member.objective) for member in self.members)


def plan_rows(
    objective: str,
    architecture: Architecture,
    lengths: Lengths,
    split_documents: bool = False,
    longest_window: int = 0,
) -> RowPlan:
    """Plan the rows of a run. This needs no tokenizer, so incompatible objectives and architectures
    are rejected when the config is loaded.

    Args:
        objective: one objective or a mixture, as in the config.
        longest_window: maximum number of raw tokens that a row reads; 0: as many as fit.

    Raises:
        UserError: if an objective cannot be laid out; the error says why.
    """
    # Fit each member's window by itself: members may read different numbers of tokens.
    members, shapes = [], []
    for rate, parsed in parse_mixture(objective):
        adapted = parsed.for_architecture(architecture)
        _check_architecture(adapted, architecture)
        window, shape = fit_window(adapted, architecture, lengths, longest_window)
        members.append(Member(rate, adapted, window))
        shapes.append(shape)
    # Sentence pairs mix neither with other rows nor with split documents.
    has_pairs = {member.objective.traits.sentence_pairs for member in members}
    if len(has_pairs) > 1:
        raise UserError(
            BAD_CONFIG, f"objective={objective}: rows with sentence pairs and without do not mix"
        )
    if True in has_pairs and split_documents:
        reason = "a row is one sentence pair; set it to False"
        raise UserError(BAD_CONFIG, f"data.split_documents: {reason} (objective {objective})")
    # A batch mixes rows of all members, and has one loss.
    if len({member.objective.traits.loss for member in members}) > 1:
        reason = "each has a loss of its own; train them in separate runs"
        raise UserError(BAD_CONFIG, f"objective={objective}: {reason}")
    # All rows have the shape of the largest member.
    scored = max(shape.scored for shape in shapes)
    looks_ahead = sum(member.rate for member in members if member.objective.traits.looks_ahead)
    shape = replace(shapes[0], scored=scored, looks_ahead=looks_ahead)
    return RowPlan(tuple(members), shape, split_documents)


def _check_architecture(objective: Objective, architecture: Architecture) -> None:
    """Reject an objective that the architecture cannot learn."""
    traits = objective.traits
    reason = ""
    if traits.aligned and architecture != "encoder":
        reason = (
            "it scores an encoder at its own positions, a decoder would see the answer; use "
            "architecture encoder"
        )
    elif not traits.aligned and architecture == "encoder":
        reason = (
            "an encoder alone writes no targets; use masked_lm, or an architecture with a decoder"
        )
    elif not traits.has_inputs and architecture == "encoder_decoder":
        reason = (
            "it has rows without inputs for the encoder; use prefix_lm, fim_rate=1, or "
            "architecture decoder"
        )
    elif not traits.has_inputs and architecture == "prefix_decoder":
        reason = (
            "it has rows without inputs for a prefix; use prefix_lm, fim_rate=1, or architecture "
            "decoder"
        )
    elif traits.pairs_per_window > 1 and architecture != "encoder_decoder":
        reason = "mirrored windows fill two stacks; use architecture encoder_decoder"
    elif traits.scores_inputs and architecture != "decoder":
        reason = "score_prefix needs a causal prefix; use architecture decoder"
    if reason:
        raise UserError(
            BAD_CONFIG, f"objective {objective.name} on architecture {architecture}: {reason}"
        )


def fit_window(
    objective: Objective, architecture: Architecture, lengths: Lengths, longest: int = 0
) -> tuple[int, RowShape]:
    """Return the largest window, in raw tokens, whose bound fits the row, and the row's shape.

    Args:
        longest: maximum number of raw tokens in the window; 0: as many as fit.
    """
    # Find the room of a row. An encoder may score any of its positions until its bound is known.
    if architecture == "encoder_decoder":
        room = RowShape(lengths.inputs, lengths.targets)
        setting = f"data.lengths={lengths.inputs}/{lengths.targets}"
    elif architecture == "encoder":
        room = RowShape(encoder=lengths.sequence_length, scored=lengths.sequence_length)
        setting = f"data.lengths.sequence_length={lengths.sequence_length}"
    else:
        prefix = architecture == "prefix_decoder"
        room = RowShape(decoder=lengths.sequence_length, bidirectional_prefix=prefix)
        setting = f"data.lengths.sequence_length={lengths.sequence_length}"

    # Bounds grow with the window: find the last one that fits by bisection.
    traits = objective.traits
    if longest and longest < traits.min_tokens:
        reason = f"too short for {objective.name}, which needs {traits.min_tokens} tokens"
        raise UserError(BAD_CONFIG, f"data.window={longest}: {reason}; raise it")
    most = longest or room.encoder + room.decoder
    windows = range(traits.min_tokens, most + 1, traits.window_multiple)
    fitting = bisect_left(windows, True, key=lambda n: not room.holds(*objective.bound(n)[:3]))
    if not fitting:
        raise UserError(
            BAD_CONFIG, f"{setting}: too short for any window of {objective.name}; raise it"
        )
    window = windows[fitting - 1]
    scored = objective.bound(window).targets if room.scored else 0
    return window, replace(room, scored=scored)
