"""Which tokens an objective hides: each function returns a mask, bool [rows, n]."""

import numpy as np

from t5x_lite.data.draws import Draws
from t5x_lite.data.vocabulary import Vocabulary


def noise_count(n: int, noise_density: float) -> int:
    """How many of n tokens are noise: round(n · density), at least one, and one token stays."""
    return min(max(round(n * noise_density), 1), n - 1)


def span_count(n: int, noise_density: float, mean_span_length: float) -> int:
    """How many spans those tokens form: round(noise / mean), at least one, as many as leave a gap for each."""
    noise = noise_count(n, noise_density)
    return min(max(round(noise / mean_span_length), 1), noise, n - noise)


def composition(total: int, parts: int, rng: Draws) -> np.ndarray:
    """`parts` positive lengths that add up to `total`, every way equally likely: int64 [rows, parts]."""
    edges = np.zeros((len(rng), parts + 1), np.int64)
    edges[:, 1:-1] = np.nonzero(rng.subset(total - 1, parts - 1))[1].reshape(len(rng), parts - 1) + 1
    edges[:, -1] = total
    return edges[:, 1:] - edges[:, :-1]


def random_spans(n: int, rng: Draws, noise_density: float, mean_span_length: float, random_roll=False) -> np.ndarray:
    """Spans of noise (Raffel et al., 2020, §3.3.4 and their released code): lengths of noise and of gaps are random
    compositions, alternating, gap first, so that a row begins unmasked and ends masked; a roll ends that.
    """
    spans = span_count(n, noise_density, mean_span_length)
    noise = noise_count(n, noise_density)
    lengths = np.empty((len(rng), 2 * spans), np.int64)
    lengths[:, 1::2] = composition(noise, spans, rng)
    lengths[:, 0::2] = composition(n - noise, spans, rng)
    mask = np.repeat(np.arange(lengths.size) % 2 == 1, lengths.reshape(-1)).reshape(-1, n)
    if random_roll:
        mask = np.take_along_axis(mask, (np.arange(n) - rng.integers(n)) % n, 1)
    return mask


def words(tokens: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """The number of each token's word in its row, from 0: int64 [rows, n]. A word holds the blank before it;
    punctuation stands alone.
    """
    pieces = vocabulary.pieces
    starts = pieces.opens[tokens]
    starts[:, 0] = False
    starts[:, 1:] |= pieces.closes[tokens[:, :-1]]
    return np.cumsum(starts, axis=1)


def whole_words(tokens: np.ndarray, count: np.ndarray, rng: Draws, vocabulary: Vocabulary) -> np.ndarray:
    """Words in random order, each whole, as long as they fit into `count` [rows] tokens; one that does not is passed
    over (BERT's whole word masking, released code of May 2019). Words of special ids are never taken.
    """
    word = words(tokens, vocabulary)
    return _taken(word, vocabulary.is_ordinary(tokens), count, rng)


def _taken(unit: np.ndarray, allowed: np.ndarray, count: np.ndarray, rng: Draws) -> np.ndarray:
    """Units (numbered from 0 in each row) in random order, each whole or not at all, up to `count` [rows] tokens; one
    with a token that is not allowed is never taken."""
    rows, n = unit.shape
    flat = unit + n * np.arange(rows)[:, None]
    sizes = np.bincount(flat.reshape(-1), minlength=rows * n).reshape(rows, n)
    usable = (sizes > 0) & (np.bincount(flat[~allowed], minlength=rows * n).reshape(rows, n) == 0)
    keys = rng.keys(n)
    keys[~usable] = ~np.uint64(0)
    order = np.argsort(keys, axis=1)
    left, taken = np.array(count), np.zeros((rows, n), bool)
    for unit_of_row in order[:, : usable.sum(1).max()].T:
        at = np.arange(rows), unit_of_row
        fits = (sizes[at] <= left) & usable[at]
        taken[at] = fits
        left -= np.where(fits, sizes[at], 0)
        if not left.any():
            break
    return np.take_along_axis(taken, unit, 1)


LONGEST_SPAN = 10


def span_lengths(rng: Draws, count: int, p: float = 0.2, longest: int = LONGEST_SPAN) -> np.ndarray:
    """Lengths with P(l) ∝ p(1 − p)^(l − 1) on 1 … longest, mean 3.80 (SpanBERT: Joshi et al., 2020, §3.1)."""
    upto = np.cumsum(p * (1 - p) ** np.arange(longest))
    return np.searchsorted(upto / upto[-1], rng.uniform(count), side="right") + 1


def spans_of_words(tokens: np.ndarray, count: np.ndarray, rng: Draws, vocabulary: Vocabulary) -> np.ndarray:
    """Spans of whole words until `count` [rows] tokens are hidden (SpanBERT: Joshi et al., 2020, §3.1): a length in
    words, and a token to start at the word of, drawn from those not hidden yet; what the row has no room for, or
    reaches a special id, is cut off, and so is the end of the last span.
    """
    rows, n = tokens.shape
    word, allowed = words(tokens, vocabulary), vocabulary.is_ordinary(tokens)
    lengths, keys = span_lengths(rng, n), rng.keys(n)  # the order of the keys is the order of the starts
    keys[~allowed] = ~np.uint64(0)
    hidden, left = np.zeros((rows, n), bool), np.array(count)
    for length in lengths.T:
        first = np.take_along_axis(word, np.argmin(keys, axis=1)[:, None], 1)
        new = (word >= first) & (word < first + length[:, None])
        new &= ~np.logical_or.accumulate(new & ~allowed, axis=1) & ~hidden
        new &= np.cumsum(new, axis=1) <= left[:, None]
        hidden |= new
        left -= np.count_nonzero(new, axis=1)
        if not left.any():
            break
        keys[new] = ~np.uint64(0)
    return hidden


def salient_spans(tokens: np.ndarray, count: np.ndarray, rng: Draws, vocabulary: Vocabulary) -> np.ndarray:
    """Names, numbers and dates, each span whole, in random order, up to `count` [rows] tokens (salient spans: Guu et
    al., 2020, §3.4; the span choice behind T5's closed-book results, Roberts et al., 2020). They used a tagger; here
    the rule is: a word with a digit, or one with a capital that does not begin a sentence; neighbours form one span.
    """
    word, pieces = words(tokens, vocabulary), vocabulary.pieces
    rows, n = word.shape
    begins = np.diff(word, axis=1, prepend=-1) > 0
    begins[:, 1:] |= pieces.blank[tokens[:, :-1]]
    spoken = np.maximum.accumulate(np.where(pieces.blank[tokens], -1, np.arange(n)), axis=1)[:, :-1]  # last before it
    fresh = np.ones((rows, n), bool)  # nothing is before it, or the end of a sentence
    fresh[:, 1:] = (spoken < 0) | pieces.ends_sentence[np.take_along_axis(tokens, np.maximum(spoken, 0), 1)]
    digit = pieces.digit[tokens]
    digit[:, 1:-1] |= pieces.punctuation[tokens[:, 1:-1]] & digit[:, :-2] & digit[:, 2:]  # 5.5, 1,000
    marked = (digit | (begins & pieces.capital[tokens] & ~fresh)) & vocabulary.is_ordinary(tokens)
    of_word = word + n * np.arange(rows)[:, None]
    salient = np.bincount(of_word[marked], minlength=rows * n).reshape(rows, n) > 0
    salient = np.take_along_axis(salient, word, 1)
    unit = np.cumsum(np.diff(salient, axis=1, prepend=salient[:, :1]) | ~salient, axis=1) - ~salient[:, :1]
    return _taken(unit, salient, count, rng)


def sentences(tokens: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """The number of each token's sentence in its row, from 0: int64 [rows, n]. A blank behind . ! or ? begins
    the next one."""
    pieces = vocabulary.pieces
    opens = pieces.opens[tokens] & ~pieces.punctuation[tokens]
    opens[:, 0] = False
    opens[:, 1:] &= pieces.ends_sentence[tokens[:, :-1]]
    return np.cumsum(opens, axis=1)
