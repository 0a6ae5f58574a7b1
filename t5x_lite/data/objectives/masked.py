"""Masked language modelling: an encoder is asked at its own positions."""

import numpy as np

from t5x_lite.data.objectives import choices
from t5x_lite.data.objectives.pairs import Bound, Pairs, example, states
from t5x_lite.data.ragged import Ragged

__all__ = ["example"]  # the doctests'

CHOICES = {
    "token": lambda tokens, count, rng, vocabulary: rng.subset(vocabulary.is_ordinary(tokens), count),
    "word": choices.whole_words,
    "span": choices.spans_of_words,
    "salient": choices.salient_spans,
}


def _masked_bound(n, *, noise_density=0.15, second="", **options):
    special = 3 if second else 2
    return Bound(n + special, max(round(n * noise_density), 1), n + special)


@states(_masked_bound, aligned=True)
def masked_lm(
    tokens,
    rng,
    vocabulary,
    *,
    noise_density=0.15,
    mask_rate=0.8,
    random_rate=0.1,
    choice="token",
    second="",
    static=False,
) -> Pairs:
    """Choose 15 % of the tokens, of which 80 % become [MASK], 10 % a random token, 10 % stay; ask for them where they
    stood (BERT: Devlin et al., 2019, §3.1). Special ids are never chosen or drawn.

    choice: single tokens, exactly that many; whole words, at most that many tokens (BERT's later release); spans of
    words, exactly that many (SpanBERT); salient spans, at most that many. second: a pair `[CLS] A [SEP] B [SEP]` with
    token types 0 and 1, cut at a random place, and a label for its own head: "next": B is replaced by another row's in
    half of the rows, 1 where it is not (BERT's next sentence); "order": A and B change places in half of the rows, 1
    where they do not (ALBERT: Lan et al., 2020, §3.1). static: the same windows and masks in every epoch, as BERT's
    files had them; else new ones each time (RoBERTa: Liu et al., 2019, §4.1).

    >>> example(masked_lm, "the cat sat on the mat")
    ('[CLS]the cat sat[MASK][MASK]n the[MASK]mat[SEP]', ' o ')
    >>> example(masked_lm, "the cat sat on the mat", choice="word", noise_density=0.3, random_rate=0)
    ('[CLS]t[MASK][MASK] cat[MASK][MASK][MASK][MASK] on the mat[SEP]', 'the sat')
    >>> options = {"choice": "salient", "noise_density": 0.5, "mask_rate": 1, "random_rate": 0}
    >>> example(masked_lm, "On 3 May she saw Paris.", **options)
    ('[CLS]On[MASK][MASK][MASK][MASK][MASK][MASK] she saw[MASK][MASK][MASK][MASK][MASK][MASK].[SEP]', ' 3 May Paris')
    >>> example(masked_lm, "It is. So be it.", second="order")
    ('[CLS]It [SEP]i[MASK]. So [MASK]e it.[SEP]', 'sb')
    """
    tokens, cut, labels = _pair(tokens, rng, second)
    rows, n = tokens.shape
    candidates = np.count_nonzero(vocabulary.is_ordinary(tokens), axis=1)
    count = np.minimum(np.maximum(np.rint(candidates * noise_density).astype(np.int64), 1), candidates)
    mask = CHOICES[choice](tokens, count, rng, vocabulary)
    chosen = Ragged.kept(tokens, mask)
    slots = _masked_bound(n, noise_density=noise_density).targets
    drawn = np.arange(slots) < chosen.lengths[:, None]
    fate = rng.uniform(slots)[drawn]
    low, high = vocabulary.ordinary
    noise = low + rng.integers(high - low, slots)[drawn]
    noisy = tokens.astype(np.int32)
    fates = [fate < mask_rate, fate < mask_rate + random_rate]
    noisy[mask] = np.select(fates, [vocabulary["[MASK]"], noise], chosen.values)
    shift = np.arange(n) + 1 if cut is None else np.arange(n) + 1 + (np.arange(n) >= cut)
    shift = np.broadcast_to(shift, noisy.shape)
    inputs = np.full((rows, n + (2 if cut is None else 3)), vocabulary["[SEP]"], np.int32)
    inputs[:, 0] = vocabulary["[CLS]"]
    if cut is None:
        inputs[:, 1:-1] = noisy
    else:
        np.put_along_axis(inputs, shift, noisy, 1)
    types = None if cut is None else Ragged.full(np.arange(n + 3) > cut + 1)
    return Pairs(Ragged.full(inputs), chosen, scored=Ragged.kept(shift, mask), types=types, labels=labels)


def _pair(tokens, rng, second):
    """Tokens [rows, n] as one text A and B, where B begins [rows, 1], and the label of each row [rows]."""
    if not second:
        return tokens, None, None
    n = tokens.shape[-1]
    cut, label = rng.integers(n - 1) + 1, rng.integers(2)
    if second == "next":
        own, other = tokens[:, 0], tokens[:, 1]
        return np.where((np.arange(n) < cut) | (label == 1), own, other), cut, label[:, 0]
    turned = np.take_along_axis(tokens, (np.arange(n) + cut) % n, 1)
    return np.where(label == 1, tokens, turned), np.where(label == 1, cut, n - cut), label[:, 0]
