"""Language modelling: predict the text itself, all of it or from some point on."""

from typing import Literal

import numpy as np

from t5x_lite.config.ranges import Share
from t5x_lite.data.objectives.declaration import Bound, Traits, objective
from t5x_lite.data.objectives.pairs import Pairs, Tokens, example
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rng import RowRng
from t5x_lite.data.tokenizers.vocabulary import Vocabulary

__all__ = ["example"]  # for the doctests

Mode = Literal["", "R", "S", "X"]


_CAUSAL = Traits(has_inputs=False, min_tokens=1, scores_whole_text=True, continues_text=True)


@objective(bound=lambda n: Bound(0, n, n), traits=_CAUSAL)
def causal_lm(tokens: Tokens, rng: RowRng, vocabulary: Vocabulary) -> Pairs:
    """Predict every token from those before it (GPT: Radford et al., 2018, eq. 1). Only the future
    is hidden.

    >>> example(causal_lm, "the cat")
    ('', 'the cat')
    """
    return Pairs(Ragged.empty(len(tokens)), Ragged.from_array(tokens))


def _prefix_bound(n, *, split=0.0, score_prefix=False, mirrored=False, mode="") -> Bound:
    mode_token = 1 if mode else 0
    if mirrored:
        return Bound(n - n // 2 + 2 * mode_token, n // 2, n + 2 * mode_token)
    if split:
        prefix = _prefix_length(n, split)
        return Bound(prefix + mode_token, n - prefix, n + mode_token)
    return Bound(n - 1 + mode_token, n - 1, n + mode_token)


def _prefix_traits(*, split=0.0, score_prefix=False, mirrored=False, mode="") -> Traits:
    if mirrored:  # both halves have at least two tokens
        return Traits(
            min_tokens=4,
            window_multiple=2,
            pairs_per_window=2,
            scores_inputs=score_prefix,
            continues_text=True,
        )
    return Traits(scores_inputs=score_prefix, continues_text=True)


def _mirror_on_encoder_decoder(architecture: str, options: dict) -> dict:
    """Set mirrored=True for an encoder-decoder, unless it is set or the split is fixed: see
    prefix_lm.
    """
    if architecture == "encoder_decoder" and not options.get("split"):
        return {"mirrored": True, **options}
    return options


def _prefix_length(n: int, split: float) -> int:
    """Return the prefix length for a fixed split, leaving at least one token on each side."""
    return min(max(round(n * split), 1), n - 1)


@objective(bound=_prefix_bound, traits=_prefix_traits, adapt=_mirror_on_encoder_decoder)
def prefix_lm(
    tokens: Tokens,
    rng: RowRng,
    vocabulary: Vocabulary,
    *,
    split: Share = 0.0,
    score_prefix: bool = False,
    mirrored: bool = False,
    mode: Mode = "",
) -> Pairs | tuple[Pairs, ...]:
    """Read the text up to a point; predict the rest (Raffel et al., 2020, §3.2.3).

    Args:
        split: fraction of the text to read; 0: up to a uniformly random point.
        score_prefix: also score the prefix, when a causal decoder reads it.
        mirrored: cut the window into two halves of n tokens, and split one at u and the other at
            n − u. Inputs and targets of the two together have exactly n tokens each, so an
            encoder-decoder row has no padding.
        mode: UL2's mode token before the inputs: R, S or X.

    >>> example(prefix_lm, "the cat sat")
    ('th', 'e cat sat')
    """
    rows, n = tokens.shape
    if mirrored:
        half = n // 2
        point = rng.integers(max(half, 2) - 1) + 1
        halves = [(tokens[:, :half], point), (tokens[:, half:], n - half - point)]
        return tuple(_split_at(half, at, vocabulary, score_prefix, mode) for half, at in halves)
    if split:
        point = np.full((rows, 1), _prefix_length(n, split))
    else:
        point = rng.integers(n - 1) + 1
    return _split_at(tokens, point, vocabulary, score_prefix, mode)


def _split_at(
    tokens: Tokens, point: np.ndarray, vocabulary: Vocabulary, score_prefix: bool, mode: str
) -> Pairs:
    """Split rows at the point [rows, 1]: the tokens before it are the inputs, the others the
    targets.
    """
    is_prefix = np.arange(tokens.shape[1]) < point
    inputs = with_mode(Ragged.from_mask(tokens, is_prefix), vocabulary, mode)
    return Pairs(inputs, Ragged.from_mask(tokens, ~is_prefix), score_inputs=score_prefix)


def with_mode(inputs: Ragged, vocabulary: Vocabulary, mode: str) -> Ragged:
    """Put UL2's mode token (Tay et al., 2023, §3.1.3), if there is one, before the inputs."""
    if not mode:
        return inputs
    mode_tokens = np.full((len(inputs.lengths), 1), vocabulary[f"[{mode}]"])
    return Ragged.join(Ragged.from_array(mode_tokens), inputs)


def _middle_bound(n, *, fim_rate=0.5, spm_rate=0.5) -> Bound:
    if fim_rate:
        return Bound(n + 3, n + 1, n + 4)
    return Bound(0, n, n)


def _middle_traits(*, fim_rate=0.5, spm_rate=0.5) -> Traits:
    return Traits(
        has_inputs=fim_rate == 1,
        min_tokens=2 if fim_rate else 1,
        continues_text=fim_rate < 1,
        fills_middle=fim_rate > 0,
    )


@objective(bound=_middle_bound, traits=_middle_traits)
def fill_in_the_middle(
    tokens: Tokens,
    rng: RowRng,
    vocabulary: Vocabulary,
    *,
    fim_rate: Share = 0.5,
    spm_rate: Share = 0.5,
) -> Pairs:
    """Read what is before and after a gap; predict the gap (Bavarian et al., 2022, §3). The text is
    cut at two random points into prefix, middle and suffix. As in the paper, a causal decoder is
    scored on the whole sequence.

    Args:
        fim_rate: fraction of the rows that are cut; the others are plain causal_lm.
        spm_rate: fraction of the cut rows that have the order suffix, prefix, middle (SPM, in the
            variant of §3); the others have the order prefix, suffix, middle. The middle ends in
            EOS.

    >>> example(fill_in_the_middle, "the cat sat on", fim_rate=1.0, spm_rate=0.0)
    ('<fim_prefix>t<fim_suffix>sat on<fim_middle>', 'he cat </s>')
    >>> example(fill_in_the_middle, "the cat sat on", fim_rate=1.0, spm_rate=1.0)
    ('<fim_prefix><fim_suffix>sat on<fim_middle>t', 'he cat </s>')
    """
    rows, n = tokens.shape
    cuts = np.sort(rng.integers(n + 1, 2), axis=1)
    is_cut, is_spm = rng.uniform(1) < fim_rate, rng.uniform(1) < spm_rate

    # A row that is not cut is all middle, which is plain causal_lm.
    position = np.arange(n)
    in_prefix = is_cut & (position < cuts[:, :1])
    in_suffix = is_cut & (position >= cuts[:, 1:])
    prefix = Ragged.from_mask(tokens, in_prefix)
    middle = Ragged.from_mask(tokens, ~(in_prefix | in_suffix))
    suffix = Ragged.from_mask(tokens, in_suffix)

    def mark(token: int) -> Ragged:
        """Return one special token for each row that is cut, and none for the others."""
        return Ragged.from_mask(np.full((rows, 1), token), is_cut)

    prefix_mark = mark(vocabulary["<fim_prefix>"])
    suffix_mark = mark(vocabulary["<fim_suffix>"])
    middle_mark = mark(vocabulary["<fim_middle>"])
    psm = Ragged.join(prefix_mark, prefix, suffix_mark, suffix, middle_mark)
    spm = Ragged.join(prefix_mark, suffix_mark, suffix, middle_mark, prefix)
    inputs = Ragged.where(is_spm[:, 0], spm, psm)
    return Pairs(inputs, Ragged.join(middle, mark(vocabulary.eos)), score_inputs=True)
