"""Denoising objectives, text to text: read a corrupted text; predict what was removed, or the whole
text.
"""

import math
from typing import Annotated, Literal

import numpy as np

from t5x_lite.config.ranges import ProperShare, Range, Share
from t5x_lite.data.objectives.declaration import Bound, objective
from t5x_lite.data.objectives.language import Mode
from t5x_lite.data.objectives.noise import (
    iid_noise,
    noise_count,
    random_spans,
    sentence_ids,
    span_count,
)
from t5x_lite.data.objectives.pairs import Mask, Pairs, Tokens, example
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rng import RowRng
from t5x_lite.data.tokenizers.vocabulary import Vocabulary

__all__ = ["example"]  # for the doctests

MeanSpanLength = Annotated[float, Range(1, 500)]
RandomRoll = bool | Literal["single_span"]


def with_eos(values: Tokens, mask: Mask, vocabulary: Vocabulary, mode: str = "") -> Ragged:
    """Select the tokens [rows, n] where the mask is true, and append EOS. UL2's mode token, if
    there is one, comes first.
    """
    rows, n = values.shape
    first = 1 if mode else 0
    framed = np.full((rows, first + n + 1), vocabulary.eos, np.int32)
    kept = np.ones(framed.shape, bool)
    framed[:, first:-1] = values
    kept[:, first:-1] = mask
    if mode:
        framed[:, 0] = vocabulary[f"[{mode}]"]
    return Ragged.from_mask(framed, kept)


def full_text(tokens: Tokens, vocabulary: Vocabulary) -> Ragged:
    """Return the rows unchanged, with EOS appended."""
    return with_eos(tokens, np.ones(tokens.shape, bool), vocabulary)


def replace_spans(tokens: Tokens, mask: Mask, vocabulary: Vocabulary, mode: str = "") -> Pairs:
    """Replace each run of masked tokens in the inputs by one sentinel. The targets hold each
    sentinel followed by the tokens that it replaces. Both end in EOS (Raffel et al., 2020; in their
    figure 2 the targets end in a final sentinel, but the released code ends them in EOS).
    """
    starts_span = mask.copy()
    starts_span[:, 1:] &= ~mask[:, :-1]

    # Sentinels are numbered from 0 in each row.
    noise = Ragged.from_mask(tokens, mask)
    is_first = starts_span[mask]  # True for noise tokens that begin a span
    # For each span, the index of its first token among all noise tokens.
    spans = Ragged(np.flatnonzero(is_first), np.count_nonzero(starts_span, axis=1))
    sentinels = vocabulary.sentinel(spans.positions)

    noisy = tokens.astype(np.int32)
    noisy[starts_span] = sentinels
    inputs = with_eos(noisy, starts_span | ~mask, vocabulary, mode)

    # In the targets, a noise token moves right by one place for each sentinel up to its own span's,
    # and by one for the EOS of each earlier row.
    lengths = noise.lengths + spans.lengths + 1
    targets = np.full(lengths.sum(), vocabulary.eos, np.int32)
    places = np.arange(len(is_first)) + np.cumsum(is_first) + noise.row_ids
    targets[places] = noise.values
    targets[places[spans.values] - 1] = sentinels
    return Pairs(inputs, Ragged(targets, lengths))


def _span_bound(
    n, *, noise_density=0.15, mean_span_length=3.0, random_roll=False, mode=""
) -> Bound:
    noise = noise_count(n, noise_density)
    spans = span_count(n, noise_density, mean_span_length)
    # A roll can cut a span of two or more tokens in two.
    if _is_rolled(random_roll, spans) and noise > spans:
        spans += 1
    mode_token = 1 if mode else 0
    return Bound(
        inputs=n - noise + spans + 1 + mode_token,
        targets=noise + spans + 1,
        both=n + 2 * spans + 2 + mode_token,
        sentinels=spans,
    )


def _is_rolled(random_roll: RandomRoll, spans: int) -> bool:
    """Return True if the mask is rolled; "single_span" rolls only a mask with a single span."""
    return spans == 1 if random_roll == "single_span" else random_roll


@objective(bound=_span_bound)
def span_corruption(
    tokens: Tokens,
    rng: RowRng,
    vocabulary: Vocabulary,
    *,
    noise_density: ProperShare = 0.15,
    mean_span_length: MeanSpanLength = 3.0,
    random_roll: RandomRoll = False,
    mode: Mode = "",
) -> Pairs:
    """Replace random spans by one sentinel each; predict the removed tokens (T5: Raffel et al.,
    2020, §3.3.4).

    Args:
        noise_density: fraction of the tokens to remove.
        mean_span_length: mean length of a span, in tokens.
        random_roll: rotate the mask along the row by a random number of tokens. Without a roll, a
            row begins unmasked and ends masked, so a single span is always the end of the row.
            "single_span" rolls only in that case.
        mode: UL2's mode token before the inputs: R, S or X.

    >>> example(span_corruption, "the cat sat on the mat")
    ('the cat sat on the <extra_id_0></s>', '<extra_id_0>mat</s>')
    """
    n = tokens.shape[1]
    rolled = _is_rolled(random_roll, span_count(n, noise_density, mean_span_length))
    mask = random_spans(n, rng, noise_density, mean_span_length, rolled)
    return replace_spans(tokens, mask, vocabulary, mode)


def _iid_bound(n, *, noise_density=0.15) -> Bound:
    noise = noise_count(n, noise_density)
    spans = min(noise, n - noise + 1)
    return Bound(n - noise + spans + 1, noise + spans + 1, n + 2 * spans + 2, spans)


@objective(bound=_iid_bound)
def iid_denoising(
    tokens: Tokens,
    rng: RowRng,
    vocabulary: Vocabulary,
    *,
    noise_density: ProperShare = 0.15,
) -> Pairs:
    """Drop tokens independently, neighbours sharing one sentinel (Raffel et al., 2020, §3.2.4).
    This is "denoising" in their architecture table: BERT's choice of tokens in T5's format. Exactly
    round(n · noise_density) tokens are dropped.

    >>> example(iid_denoising, "the cat sat on the mat")
    ('the cat sat<extra_id_0>n the<extra_id_1>mat</s>', '<extra_id_0> o<extra_id_1> </s>')
    """
    mask = iid_noise(tokens.shape[1], rng, noise_density)
    return replace_spans(tokens, mask, vocabulary)


def _drop_bound(n, *, noise_density=0.15) -> Bound:
    noise = noise_count(n, noise_density)
    return Bound(n - noise + 1, noise + 1, n + 2)


@objective(bound=_drop_bound)
def drop_tokens(
    tokens: Tokens,
    rng: RowRng,
    vocabulary: Vocabulary,
    *,
    noise_density: ProperShare = 0.15,
) -> Pairs:
    """Drop tokens without leaving a mark; predict them (Raffel et al., 2020, table 3: i.i.d. noise,
    drop tokens).

    >>> example(drop_tokens, "the cat sat on the mat")
    ('the cat satn themat</s>', ' o </s>')
    """
    mask = iid_noise(tokens.shape[1], rng, noise_density)
    return Pairs(with_eos(tokens, ~mask, vocabulary), with_eos(tokens, mask, vocabulary))


def _full_bound(n, **options) -> Bound:
    return Bound(n + 1, n + 1, 2 * n + 2)


@objective(bound=_full_bound)
def mass_style(
    tokens: Tokens,
    rng: RowRng,
    vocabulary: Vocabulary,
    *,
    noise_density: ProperShare = 0.15,
) -> Pairs:
    """Replace random tokens by [MASK]; predict the whole text (Raffel et al., 2020, table 3:
    MASS-style). The original MASS (Song et al., 2019) masks a single span.

    >>> example(mass_style, "the cat sat on the mat")
    ('the cat sat[MASK][MASK]n the[MASK]mat</s>', 'the cat sat on the mat</s>')
    """
    mask = iid_noise(tokens.shape[1], rng, noise_density)
    masked = np.where(mask, vocabulary["[MASK]"], tokens)
    return Pairs(full_text(masked, vocabulary), full_text(tokens, vocabulary))


@objective(bound=_full_bound)
def bert_style(
    tokens: Tokens,
    rng: RowRng,
    vocabulary: Vocabulary,
    *,
    noise_density: ProperShare = 0.15,
    random_rate: Share = 0.1,
) -> Pairs:
    """Replace random tokens, 90 % of them by [MASK] and 10 % by a random token; predict the whole
    text (Raffel et al., 2020, §3.1.4 and table 3: BERT-style).

    Args:
        noise_density: fraction of the tokens to replace.
        random_rate: fraction of the replaced tokens that become a random token.

    >>> example(bert_style, "the cat sat on the mat")
    ('the cat sat[MASK][MASK]n the[MASK]mat</s>', 'the cat sat on the mat</s>')
    """
    n = tokens.shape[1]
    mask = iid_noise(n, rng, noise_density)
    is_random = rng.uniform(n) < random_rate
    random = vocabulary.ordinary_ids[rng.integers(len(vocabulary.ordinary_ids), n)]
    noise = np.where(is_random, random, vocabulary["[MASK]"])
    return Pairs(
        full_text(np.where(mask, noise, tokens), vocabulary), full_text(tokens, vocabulary)
    )


@objective(bound=_full_bound)
def deshuffling(tokens: Tokens, rng: RowRng, vocabulary: Vocabulary) -> Pairs:
    """Shuffle the tokens; predict them in order (Liu et al., 2019, in Raffel et al., 2020,
    table 3).

    >>> example(deshuffling, "the cat sat")
    ('tsc  teaath</s>', 'the cat sat</s>')
    """
    shuffled = np.take_along_axis(tokens, rng.permutation(tokens.shape[1]), 1)
    return Pairs(full_text(shuffled, vocabulary), full_text(tokens, vocabulary))


@objective(bound=_full_bound)
def sentence_permutation(tokens: Tokens, rng: RowRng, vocabulary: Vocabulary) -> Pairs:
    """Shuffle the sentences; predict them in order (BART: Lewis et al., 2020, §2.2).

    >>> example(sentence_permutation, "It is. So be it. Yes.", row=2)
    (' So be it.It is. Yes.</s>', 'It is. So be it. Yes.</s>')
    """
    shuffled = _shuffle_sentences(tokens, rng, vocabulary)
    return Pairs(full_text(shuffled, vocabulary), full_text(tokens, vocabulary))


def _shuffle_sentences(tokens: Tokens, rng: RowRng, vocabulary: Vocabulary) -> Tokens:
    """Put the sentences of each row in a random order."""
    # Each sentence draws a distinct sort key, shared by all its tokens. The stable sort keeps the
    # order within a sentence.
    sentences = sentence_ids(tokens, vocabulary)
    new_order = np.take_along_axis(rng.permutation(tokens.shape[1]), sentences, 1)
    return np.take_along_axis(tokens, np.argsort(new_order, axis=1, kind="stable"), 1)


@objective(bound=_full_bound)
def text_infilling(
    tokens: Tokens,
    rng: RowRng,
    vocabulary: Vocabulary,
    *,
    noise_density: ProperShare = 0.3,
    mean_span_length: MeanSpanLength = 3.0,
    permute_sentences: bool = False,
) -> Pairs:
    """Replace each random span, which may be empty, by one [MASK]; predict the whole text (BART:
    Lewis et al., 2020, §2.2). Their final model also permutes the sentences.

    Exactly round(n · noise_density) tokens are masked. Span lengths are drawn from
    Poisson(mean_span_length). The last span is cut to the number of tokens that are left to mask,
    and there are no more spans than masked tokens.

    Args:
        noise_density: fraction of the tokens to mask.
        mean_span_length: mean length of a span, in tokens.
        permute_sentences: also shuffle the sentences of the inputs.

    >>> example(text_infilling, "the cat sat on the mat")
    ('t[MASK]a[MASK]at on the mat</s>', 'the cat sat on the mat</s>')
    """
    n = tokens.shape[1]
    text = _shuffle_sentences(tokens, rng, vocabulary) if permute_sentences else tokens
    noise = noise_count(n, noise_density)

    # Draw as many span lengths as there are noise tokens, and use them in order until every noise
    # token is in a span.
    lengths = _poisson(rng.uniform(noise), mean_span_length)
    masked_before = np.cumsum(lengths, axis=1) - lengths
    used = masked_before < noise
    lengths = np.where(used, np.minimum(lengths, noise - masked_before), 0)
    # The last span takes the rest if nearly all spans are empty.
    lengths[:, -1] += noise - lengths.sum(1)
    spans = np.count_nonzero(used, axis=1)

    # The inputs are a random sequence of items: n − noise tokens, each of length 1, and the spans.
    is_item = np.arange(n) < (n - noise + spans)[:, None]
    is_span = rng.subset(is_item, spans)
    item_lengths = is_item.astype(np.int64)
    item_lengths[is_span] = lengths[used]
    item_starts = np.minimum(np.cumsum(item_lengths, axis=1) - item_lengths, n - 1)
    items = np.where(is_span, vocabulary["[MASK]"], np.take_along_axis(text, item_starts, 1))
    return Pairs(with_eos(items, is_item, vocabulary), full_text(tokens, vocabulary))


def _poisson(uniform: np.ndarray, mean: float) -> np.ndarray:
    """Turn uniform numbers into Poisson numbers, by inverting the cumulative distribution."""
    probabilities = [math.exp(-mean)]
    while len(probabilities) < mean or probabilities[-1] > 2.0**-60:
        probabilities.append(probabilities[-1] * mean / len(probabilities))
    return np.searchsorted(np.cumsum(probabilities), uniform, side="right")
