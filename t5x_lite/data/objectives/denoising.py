"""Text to text: a text is damaged, and what was lost, or the whole, is asked for."""

import math

import numpy as np

from t5x_lite.data.objectives import choices
from t5x_lite.data.objectives.choices import noise_count, span_count
from t5x_lite.data.objectives.pairs import Bound, Pairs, example, states
from t5x_lite.data.ragged import Ragged

__all__ = ["example"]  # the doctests'


def ended(values: np.ndarray, mask: np.ndarray, vocabulary, mode: str = "") -> Ragged:
    """UL2's mode token, if there is one, then of [rows, n] what the mask keeps, then EOS."""
    (rows, n), first = values.shape, int(bool(mode))
    whole, kept = np.full((rows, first + n + 1), vocabulary.eos, np.int32), np.ones((rows, first + n + 1), bool)
    whole[:, first:-1], kept[:, first:-1] = values, mask
    if mode:
        whole[:, 0] = vocabulary[f"[{mode}]"]
    return Ragged.kept(whole, kept)


def all_of(tokens: np.ndarray, vocabulary) -> Ragged:
    """The rows as they are, then EOS."""
    return ended(tokens, np.ones(tokens.shape, bool), vocabulary)


def replace_spans(tokens: np.ndarray, mask: np.ndarray, vocabulary, mode: str = "") -> Pairs:
    """Each run of masked tokens becomes one sentinel in the inputs; the targets are each sentinel with what it stands
    for. Both end in EOS (Raffel et al., 2020, figure 2; there the targets end in a last sentinel, the code has EOS).
    """
    starts = mask.copy()
    starts[:, 1:] &= ~mask[:, :-1]
    hidden, first = Ragged.kept(tokens, mask), starts[mask]
    spans = Ragged(np.flatnonzero(first), np.count_nonzero(starts, axis=1))
    sentinels = vocabulary.sentinel(spans.within)
    noisy = tokens.astype(np.int32)
    noisy[starts] = sentinels
    lengths = hidden.lengths + spans.lengths + 1
    targets = np.full(lengths.sum(), vocabulary.eos, np.int32)
    places = np.arange(len(first)) + np.cumsum(first) + hidden.of_row  # sentinels and EOS come between
    targets[places] = hidden.values
    targets[places[spans.values] - 1] = sentinels
    return Pairs(ended(noisy, starts | ~mask, vocabulary, mode), Ragged(targets, lengths))


def _span_bound(n, *, noise_density=0.15, mean_span_length=3.0, random_roll=False, mode=""):
    noise = noise_count(n, noise_density)
    spans = span_count(n, noise_density, mean_span_length)
    spans += random_roll and noise > spans  # a roll can cut one span, of two tokens or more, in two
    extra = bool(mode)
    return Bound(n - noise + spans + 1 + extra, noise + spans + 1, n + 2 * spans + 2 + extra, spans)


@states(_span_bound)
def span_corruption(
    tokens, rng, vocabulary, *, noise_density=0.15, mean_span_length=3.0, random_roll=False, mode=""
) -> Pairs:
    """Drop random spans, each for one sentinel; ask for what was dropped (T5: Raffel et al., 2020, §3.3.4).

    noise_density: share of tokens dropped. mean_span_length: in tokens. random_roll: let a row end unmasked.
    mode: UL2's token before the inputs, R, S or X.

    >>> example(span_corruption, "the cat sat on the mat")
    ('the cat sat on the <extra_id_0></s>', '<extra_id_0>mat</s>')
    """
    mask = choices.random_spans(tokens.shape[1], rng, noise_density, mean_span_length, random_roll)
    return replace_spans(tokens, mask, vocabulary, mode)


def _iid_bound(n, *, noise_density=0.15):
    noise = noise_count(n, noise_density)
    spans = min(noise, n - noise + 1)
    return Bound(n - noise + spans + 1, noise + spans + 1, n + 2 * spans + 2, spans)


@states(_iid_bound)
def iid_denoising(tokens, rng, vocabulary, *, noise_density=0.15) -> Pairs:
    """Drop tokens independently, neighbours sharing one sentinel (Raffel et al., 2020, §3.2.4). It is the "denoising"
    of their architecture table, BERT's choice of tokens in T5's form. Exactly round(n · density) tokens are dropped.

    >>> example(iid_denoising, "the cat sat on the mat")
    ('the cat sat<extra_id_0>n the<extra_id_1>mat</s>', '<extra_id_0> o<extra_id_1> </s>')
    """
    mask = _iid(tokens, rng, noise_density)
    return replace_spans(tokens, mask, vocabulary)


def _iid(tokens, rng, noise_density):
    n = tokens.shape[1]
    return rng.subset(n, noise_count(n, noise_density))


def _drop_bound(n, *, noise_density=0.15):
    noise = noise_count(n, noise_density)
    return Bound(n - noise + 1, noise + 1, n + 2)


@states(_drop_bound)
def drop_tokens(tokens, rng, vocabulary, *, noise_density=0.15) -> Pairs:
    """Drop tokens and leave no mark; ask for them (Raffel et al., 2020, table 3: i.i.d. noise, drop tokens).

    >>> example(drop_tokens, "the cat sat on the mat")
    ('the cat satn themat</s>', ' o </s>')
    """
    mask = _iid(tokens, rng, noise_density)
    return Pairs(ended(tokens, ~mask, vocabulary), ended(tokens, mask, vocabulary))


def _full_bound(n, **options):
    return Bound(n + 1, n + 1, 2 * n + 2)


@states(_full_bound)
def mass_style(tokens, rng, vocabulary, *, noise_density=0.15) -> Pairs:
    """Put [MASK] for random tokens; ask for the whole text (Raffel et al., 2020, table 3: MASS-style). Song et al.
    (2019) mask one span.

    >>> example(mass_style, "the cat sat on the mat")
    ('the cat sat[MASK][MASK]n the[MASK]mat</s>', 'the cat sat on the mat</s>')
    """
    mask = _iid(tokens, rng, noise_density)
    return Pairs(all_of(np.where(mask, vocabulary["[MASK]"], tokens), vocabulary), all_of(tokens, vocabulary))


@states(_full_bound)
def bert_style(tokens, rng, vocabulary, *, noise_density=0.15, random_rate=0.1) -> Pairs:
    """Put [MASK] or, for a tenth of them, a random token for random tokens; ask for the whole text (Raffel et al.,
    2020, §3.1.4 and table 3: BERT-style).

    >>> example(bert_style, "the cat sat on the mat")
    ('the cat sat[MASK][MASK]n the[MASK]mat</s>', 'the cat sat on the mat</s>')
    """
    mask = _iid(tokens, rng, noise_density)
    n = tokens.shape[1]
    low, high = vocabulary.ordinary
    noise = np.where(rng.uniform(n) < random_rate, low + rng.integers(high - low, n), vocabulary["[MASK]"])
    return Pairs(all_of(np.where(mask, noise, tokens), vocabulary), all_of(tokens, vocabulary))


@states(_full_bound)
def deshuffling(tokens, rng, vocabulary) -> Pairs:
    """Shuffle the tokens; ask for them in order (Liu et al., 2019, in Raffel et al., 2020, table 3).

    >>> example(deshuffling, "the cat sat")
    ('tsc  teaath</s>', 'the cat sat</s>')
    """
    shuffled = np.take_along_axis(tokens, rng.order(tokens.shape[1]), 1)
    return Pairs(all_of(shuffled, vocabulary), all_of(tokens, vocabulary))


@states(_full_bound)
def sentence_permutation(tokens, rng, vocabulary) -> Pairs:
    """Shuffle the sentences; ask for them in order (BART: Lewis et al., 2020, §2.2).

    >>> example(sentence_permutation, "It is. So be it. Yes.", row=2)
    (' So be it.It is. Yes.</s>', 'It is. So be it. Yes.</s>')
    """
    return Pairs(all_of(_permuted(tokens, rng, vocabulary), vocabulary), all_of(tokens, vocabulary))


def _permuted(tokens, rng, vocabulary):
    sentence = choices.sentences(tokens, vocabulary)
    places = np.take_along_axis(rng.order(tokens.shape[1]), sentence, 1)  # the same number for a whole sentence
    return np.take_along_axis(tokens, np.argsort(places, axis=1, kind="stable"), 1)


@states(_full_bound)
def text_infilling(
    tokens, rng, vocabulary, *, noise_density=0.3, mean_span_length=3.0, permute_sentences=False
) -> Pairs:
    """Put one [MASK] for a span of any length, even none; ask for the whole text (BART: Lewis et al., 2020, §2.2).
    Their final model also permutes the sentences.

    Exactly round(n · noise_density) tokens are hidden, in spans of Poisson(mean_span_length) tokens, the last one cut
    to what is left; there are no more spans than hidden tokens.

    >>> example(text_infilling, "the cat sat on the mat")
    ('t[MASK]a[MASK]at on the mat</s>', 'the cat sat on the mat</s>')
    """
    n = tokens.shape[1]
    damaged = _permuted(tokens, rng, vocabulary) if permute_sentences else tokens
    noise = noise_count(n, noise_density)
    lengths = _poisson(rng.uniform(noise), mean_span_length)
    before = np.cumsum(lengths, axis=1) - lengths
    used = before < noise
    lengths = np.where(used, np.minimum(lengths, noise - before), 0)
    lengths[:, -1] += noise - lengths.sum(1)  # what is left where nearly all were empty
    spans = np.count_nonzero(used, axis=1)
    items = np.arange(n) < (n - noise + spans)[:, None]  # the tokens that stay and the spans, in any order
    is_span = rng.subset(items, spans)
    sizes = items.astype(np.int64)
    sizes[is_span] = lengths[used]
    source = np.minimum(np.cumsum(sizes, axis=1) - sizes, n - 1)  # where in the text an item begins
    shown = np.where(is_span, vocabulary["[MASK]"], np.take_along_axis(damaged, source, 1))
    return Pairs(ended(shown, items, vocabulary), all_of(tokens, vocabulary))


def _poisson(uniform: np.ndarray, mean: float) -> np.ndarray:
    """Poisson numbers of uniform ones, by the inverse of the distribution."""
    terms = [math.exp(-mean)]
    while len(terms) < mean or terms[-1] > 2.0**-60:
        terms.append(terms[-1] * mean / len(terms))
    return np.searchsorted(np.cumsum(terms), uniform, side="right")
