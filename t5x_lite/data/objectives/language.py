"""Language modelling: the text is asked for as it stands, whole or from some point on."""

import numpy as np

from t5x_lite.data.objectives.pairs import Bound, Pairs, example, states
from t5x_lite.data.ragged import Ragged

__all__ = ["example"]  # the doctests'


@states(lambda n: Bound(0, n, n))
def causal_lm(tokens, rng, vocabulary) -> Pairs:
    """Ask for every token by those before it (GPT: Radford et al., 2018, eq. 1). Nothing is hidden but the future.

    >>> example(causal_lm, "the cat")
    ('', 'the cat')
    """
    return Pairs(Ragged.empty(len(tokens)), Ragged.full(tokens))


def _prefix_bound(n, *, split=0.0, score_prefix=False, mirrored=False, mode=""):
    extra = bool(mode)
    if mirrored:
        return Bound(n - n // 2 + 2 * extra, n // 2, n + 2 * extra)
    if split:
        return Bound(_fixed(n, split) + extra, n - _fixed(n, split), n + extra)
    return Bound(n - 1 + extra, n - 1, n + extra)


def _fixed(n: int, split: float) -> int:
    return min(max(round(n * split), 1), n - 1)


@states(_prefix_bound)
def prefix_lm(tokens, rng, vocabulary, *, split=0.0, score_prefix=False, mirrored=False, mode=""):
    """Read the text up to a point; ask for the rest (Raffel et al., 2020, §3.2.3).

    split: the share that is read; 0: up to a uniformly random point. score_prefix: also score the prefix, where a
    causal decoder reads it. mirrored: two windows in one, split at u and at n − u, so that inputs and targets each fill
    exactly n (what an encoder-decoder row needs to have no padding). mode: UL2's token before the inputs, R, S or X.

    >>> example(prefix_lm, "the cat sat")
    ('th', 'e cat sat')
    """
    rows, n = tokens.shape
    if mirrored:
        half = n // 2
        first = rng.integers(max(half, 2) - 1) + 1
        pieces = ((tokens[:, :half], first), (tokens[:, half:], n - half - first))
    elif split:
        pieces = ((tokens, np.full((rows, 1), _fixed(n, split))),)
    else:
        pieces = ((tokens, rng.integers(n - 1) + 1),)
    made = []
    for piece, point in pieces:
        read = np.arange(piece.shape[1]) < point
        inputs = with_mode(Ragged.kept(piece, read), vocabulary, mode)
        made.append(Pairs(inputs, Ragged.kept(piece, ~read), score_inputs=score_prefix))
    return tuple(made) if mirrored else made[0]


def with_mode(inputs: Ragged, vocabulary, mode: str) -> Ragged:
    """The inputs behind UL2's mode token (Tay et al., 2023, §3.1.3), where there is one."""
    if not mode:
        return inputs
    return Ragged.join(Ragged.full(np.full((len(inputs.lengths), 1), vocabulary[f"[{mode}]"])), inputs)


def _middle_bound(n, *, fim_rate=0.5, spm_rate=0.5):
    return Bound(n + 3, n + 1, n + 4) if fim_rate else Bound(0, n, n)


@states(_middle_bound)
def fill_in_the_middle(tokens, rng, vocabulary, *, fim_rate=0.5, spm_rate=0.5) -> Pairs:
    """Read what is before and behind a gap; ask for the gap (Bavarian et al., 2022, §3). The text is cut at two random
    places into prefix, middle and suffix. A causal decoder is scored on all of it, as they do.

    fim_rate: share of rows that are cut; the others are causal_lm. spm_rate: share of these in the order suffix,
    prefix, middle (their SPM, in the variant of §3); the others go prefix, suffix, middle. The middle ends in EOS.

    >>> example(fill_in_the_middle, "the cat sat on", fim_rate=1, spm_rate=0)
    ('<fim_prefix>t<fim_suffix>sat on<fim_middle>', 'he cat </s>')
    >>> example(fill_in_the_middle, "the cat sat on", fim_rate=1, spm_rate=1)
    ('<fim_prefix><fim_suffix>sat on<fim_middle>t', 'he cat </s>')
    """
    rows, n = tokens.shape
    cuts = np.sort(rng.integers(n + 1, 2), axis=1)
    cut, turned = rng.uniform(1) < fim_rate, rng.uniform(1) < spm_rate
    place = np.arange(n)
    prefix = Ragged.kept(tokens, cut & (place < cuts[:, :1]))
    middle = Ragged.kept(tokens, ~cut | (place >= cuts[:, :1]) & (place < cuts[:, 1:]))
    suffix = Ragged.kept(tokens, cut & (place >= cuts[:, 1:]))
    before, behind, here = (
        Ragged.kept(np.full((rows, 1), vocabulary[f"<fim_{name}>"]), cut) for name in ("prefix", "suffix", "middle")
    )
    psm = before, prefix, behind, suffix, here
    spm = before, behind, suffix, here, prefix
    inputs = Ragged.choose(turned[:, 0], Ragged.join(*spm), Ragged.join(*psm))
    end = Ragged.kept(np.full((rows, 1), vocabulary.eos), cut)
    return Pairs(inputs, Ragged.join(middle, end), score_inputs=True)
