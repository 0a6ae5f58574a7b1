"""Masked language modelling: predict masked tokens from the text on both sides."""

from collections.abc import Callable
from typing import Annotated

import numpy as np

from t5x_lite.config.named import OneOf
from t5x_lite.config.ranges import Share
from t5x_lite.data.objectives import noise
from t5x_lite.data.objectives.annealed import AnnealedShare, annealed, largest
from t5x_lite.data.objectives.declaration import Bound, Traits, objective
from t5x_lite.data.objectives.pairs import Mask, Pairs, Tokens, example
from t5x_lite.data.objectives.sentence_pairs import SENTENCE_PAIRS, PerRow, Second, WindowPairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rng import RowRng
from t5x_lite.data.tokenizers.vocabulary import Vocabulary
from t5x_lite.errors import BAD_CONFIG, UserError

__all__ = ["example"]  # for the doctests

# (tokens [rows, n], how many to choose [rows], rng, vocabulary) → mask of the chosen [rows, n], or
# the spans that are replaced as a whole
Choice = Callable[[Tokens, np.ndarray, RowRng, Vocabulary], Mask | noise.Spans]
CHOICES: dict[str, Choice] = {
    "token": noise.random_tokens,
    "word": noise.whole_words,
    "span": noise.spans_of_words,
    "short_span": noise.short_spans,
    "salient": noise.salient_spans,
}


ONE_OF_CHOICES = OneOf("choice", CHOICES)
ChoiceName = Annotated[str, ONE_OF_CHOICES]


def _masked_bound(
    n, *, noise_density: float | str = 0.15, mask_rate=0.8, random_rate=0.1, second="", **options
) -> Bound:
    if mask_rate + random_rate > 1:
        raise UserError(
            BAD_CONFIG,
            "objective=masked_lm: mask_rate + random_rate is more than 1; lower one of them",
        )
    special = 3 if second else 2  # [CLS] and one or two [SEP]
    return Bound(n + special, max(round(n * largest(noise_density)), 1), n + special)


def _masked_traits(*, second="", static=False, **options) -> Traits:
    return Traits(
        aligned=True,
        min_tokens=2 if second else 1,
        windows_per_row=2 if second == "next" else 1,
        static=static,
        sentence_pairs=bool(second),
    )


@objective(bound=_masked_bound, traits=_masked_traits)
def masked_lm(
    tokens: Tokens | WindowPairs,
    rng: RowRng,
    vocabulary: Vocabulary,
    *,
    noise_density: AnnealedShare = 0.15,
    mask_rate: Share = 0.8,
    random_rate: Share = 0.1,
    choice: ChoiceName = "token",
    second: Second = "",
    static: bool = False,
) -> Pairs:
    """Choose 15 % of the tokens, replace 80 % of these by [MASK] and 10 % by a random token, and
    keep 10 %; predict them in place (BERT: Devlin et al., 2019, §3.1). Special ids are never chosen
    or drawn.

    Args:
        noise_density: fraction of the tokens to choose; linear(0.3, 0.15) goes from the first to
            the second during the run, and validation uses the second.
        mask_rate: fraction of the chosen tokens that become [MASK].
        random_rate: fraction of the chosen tokens that become a random token.
        choice: how to choose. "token": single tokens, exactly that many. "word": whole words, at
            most that many tokens (BERT's later release). "span": spans of words, exactly that many
            tokens, each span replaced as a whole (SpanBERT: Joshi et al., 2020, §3.1, and released
            code). "short_span": spans of 1 to 3 tokens, which may cut words, exactly that many
            tokens, each span replaced as a whole (GPT-BERT: Charpentier and Samuel, 2024).
            "salient": names, numbers and dates, at most that many tokens. A function of your own:
            "my_module.my_choice", see docs/how-to/own-objective.md.
        second: read a sentence pair `[CLS] A [SEP] B [SEP]` from one document, with token types 0
            and 1 and a label. It is cut where a sentence or a line begins, if there is such a
            place. "next": in half of the rows B comes from another document; the label is 1 if B
            follows A (BERT's next sentence). "order": in half of the rows A and B are swapped; the
            label is 1 if they are not (ALBERT: Lan et al., 2020, §3.1). A row is shorter where a
            document ends, or where an incomplete sentence is left out.
        static: use the same windows and masks in every epoch, as in BERT's files; otherwise draw
            new ones each time (RoBERTa: Liu et al., 2019, §4.1).

    >>> example(masked_lm, "the cat sat on the mat")
    ('[CLS]the cat sat[MASK][MASK]n the[MASK]mat[SEP]', ' o ')
    >>> options = {"choice": "word", "noise_density": 0.3, "random_rate": 0.0}
    >>> example(masked_lm, "the cat sat on the mat", **options)
    ('[CLS]t[MASK][MASK] cat[MASK][MASK][MASK][MASK] on the mat[SEP]', 'the sat')
    >>> options = {"choice": "salient", "noise_density": 0.5, "mask_rate": 1.0, "random_rate": 0.0}
    >>> example(masked_lm, "On 3 May he saw Al.", **options)
    ('[CLS]On[MASK][MASK][MASK][MASK][MASK][MASK] he saw[MASK][MASK][MASK].[SEP]', ' 3 May Al')
    >>> example(masked_lm, "It is. So be it.", second="order")
    ('[CLS]It i[MASK].[SEP] So [MASK]e it.[SEP]', 'sb')
    """
    pairs = None
    if second:
        pairs = SENTENCE_PAIRS[second](tokens, rng, vocabulary)
        tokens = pairs.tokens
    mask, noisy = _masked(tokens, rng, vocabulary, noise_density, mask_rate, random_rate, choice)
    types = labels = None
    if pairs is None:
        inputs, positions = _framed(noisy, vocabulary)
    else:
        inputs, positions, types = _framed_pairs(noisy, pairs.cut, pairs.lengths, vocabulary)
        labels = pairs.labels
    chosen, scored = Ragged.from_mask(tokens, mask), Ragged.from_mask(positions, mask)
    return Pairs(inputs, chosen, scored=scored, types=types, labels=labels)


@objective(
    bound=lambda n, **options: Bound(0, n, n),
    traits=Traits(has_inputs=False, min_tokens=2, looks_ahead=True),
)
def masked_next_token(
    tokens: Tokens,
    rng: RowRng,
    vocabulary: Vocabulary,
    *,
    noise_density: AnnealedShare = 0.15,
    mask_rate: Share = 0.8,
    random_rate: Share = 0.1,
    choice: ChoiceName = "token",
) -> Pairs:
    """Mask tokens as BERT does; predict each at the position before it, as a language model does,
    but from the text on both sides (Charpentier and Samuel, 2024). A decoder can learn it together
    with causal_lm, in rows of the same shape: `causal_lm + masked_next_token`.

    Args:
        noise_density, mask_rate, random_rate, choice: as in masked_lm.

    >>> example(masked_next_token, "the cat sat", noise_density=0.3, random_rate=0.0)
    ('', 'the cat sat')
    """
    mask, noisy = _masked(tokens, rng, vocabulary, noise_density, mask_rate, random_rate, choice)
    weights = Ragged.from_array(mask.astype(np.float32), np.float32)
    targets, read = Ragged.from_array(tokens), Ragged.from_array(noisy)
    return Pairs(Ragged.empty(len(tokens)), targets, weights, read=read)


@objective(
    bound=lambda n, **options: Bound(0, n, n),
    traits=Traits(has_inputs=False, min_tokens=1, continues_text=True),
)
def meap(
    tokens: Tokens,
    rng: RowRng,
    vocabulary: Vocabulary,
    *,
    noise_density: AnnealedShare = 0.15,
    choice: ChoiceName = "token",
) -> Pairs:
    """Predict every token from those before it, some of which are masked (MEAP: Zhuang et al.,
    2025, §3). The decoder only looks back, so it generates text like one trained with causal_lm.

    Args:
        noise_density, choice: as in masked_lm; every chosen token is read as [MASK].

    >>> example(meap, "the cat sat")
    ('', 'the cat sat')
    """
    _, noisy = _masked(tokens, rng, vocabulary, noise_density, 1.0, 0.0, choice)
    read, targets = Ragged.from_array(noisy), Ragged.from_array(tokens)
    return Pairs(Ragged.empty(len(tokens)), targets, read=read, reads_causally=True)


def _diffusion_bound(n, *, shifted=False) -> Bound:
    return Bound(0, n, n) if shifted else Bound(n + 2, n, n + 2)


def _diffusion_traits(*, shifted=False) -> Traits:
    return Traits(
        aligned=not shifted,
        has_inputs=not shifted,
        min_tokens=2 if shifted else 1,
        looks_ahead=shifted,
        bounds_whole_text=True,
    )


def _shift_in_decoders(architecture: str, options: dict) -> dict:
    """Set shifted, which follows from the architecture."""
    shifted = architecture != "encoder"
    if options.get("shifted", shifted) != shifted:
        wrong = f"masked_diffusion(shifted={not shifted})"
        reason = f"architecture {architecture} needs shifted={shifted}"
        raise UserError(BAD_CONFIG, f"objective: got {wrong}, but {reason}; leave the option out")
    return {**options, "shifted": shifted}


@objective(bound=_diffusion_bound, traits=_diffusion_traits, adapt=_shift_in_decoders)
def masked_diffusion(
    tokens: Tokens, rng: RowRng, vocabulary: Vocabulary, *, shifted: bool = False
) -> Pairs:
    """Mask a uniformly random number of tokens; predict the masked ones (MDLM: Sahoo et al., 2024;
    LLaDA: Nie et al., 2025). The loss is an upper bound on −log p of the text. The model generates
    text by unmasking it step by step.

    With k of n tokens masked, each masked token has the weight n/k. This is the loss of the papers,
    which mask each token with probability t ~ U(0, 1) and weight it by 1/t. There, k is uniform on
    0, …, n, the mean weight for a given k is (n + 1)/k, and k = 0 adds nothing. Averaging over t
    gives the same loss with less noise, and weights that add up to n. Neighbouring rows have values
    of k that are far apart, instead of the papers' antithetic t.

    Args:
        shifted: predict each token at the position before it, as masked_next_token does. The
            architecture decides: True for all but an encoder. The other value is rejected.

    >>> example(masked_diffusion, "the cat sat")
    ('[CLS][MASK]he[MASK][MASK]a[MASK][MASK][MASK]at[SEP]', 't ct s')
    """
    rows, n = tokens.shape
    count = 1 + (rng.spread() * n).astype(np.int64)
    mask = rng.subset(n, count)
    weight = (n / count).astype(np.float32)
    noisy = np.where(mask, vocabulary["[MASK]"], tokens).astype(np.int32)
    if shifted:
        weights = Ragged.from_array(mask * weight[:, None], np.float32)
        read = Ragged.from_array(noisy)
        return Pairs(Ragged.empty(rows), Ragged.from_array(tokens), weights, read=read)
    inputs, positions = _framed(noisy, vocabulary)
    targets, scored = Ragged.from_mask(tokens, mask), Ragged.from_mask(positions, mask)
    weights = Ragged(np.repeat(weight, count), count)
    return Pairs(inputs, targets, weights, scored=scored)


def _masked(
    tokens: Tokens,
    rng: RowRng,
    vocabulary: Vocabulary,
    noise_density: float | str,
    mask_rate: float,
    random_rate: float,
    choice: str,
) -> tuple[Mask, Tokens]:
    """Choose tokens and replace them. Return the mask of chosen tokens, and the tokens with the
    chosen ones replaced.
    """
    # Choose round(noise_density · ordinary tokens) of each row, but at least one.
    ordinary = np.count_nonzero(vocabulary.is_ordinary(tokens), axis=1)
    count = np.rint(ordinary * annealed(noise_density, rng)).astype(np.int64)
    count = np.minimum(np.maximum(count, 1), ordinary)
    found = _choose(choice, tokens, count, rng, vocabulary)
    mask = found if found.dtype == bool else found >= 0
    chosen = Ragged.from_mask(tokens, mask)

    # By default, replace 80 % by [MASK] and 10 % by a random token, and keep 10 %. Each token draws
    # for itself, except that all tokens of a span share one draw.
    row, draw = chosen.row_ids, chosen.positions
    shared_draw = draw if found.dtype == bool else found[mask]
    slots = _masked_bound(tokens.shape[1], noise_density=noise_density).targets
    uniform = rng.uniform(slots)[row, shared_draw]
    drawn = rng.integers(len(vocabulary.ordinary_ids), slots)[row, draw]
    random = vocabulary.ordinary_ids[drawn]
    becomes_mask = uniform < mask_rate
    becomes_random = uniform < mask_rate + random_rate
    noisy = tokens.astype(np.int32)
    noisy[mask] = np.select(
        [becomes_mask, becomes_random], [vocabulary["[MASK]"], random], chosen.values
    )
    return mask, noisy


def _choose(
    choice: str, tokens: Tokens, count: np.ndarray, rng: RowRng, vocabulary: Vocabulary
) -> Mask | noise.Spans:
    """Choose up to `count` [rows] ordinary tokens: a mask, or spans numbered from 0 in each row.

    Raises:
        UserError: if a function of the user's own returned anything else.
    """
    if choice in CHOICES:
        return CHOICES[choice](tokens, count, rng, vocabulary)
    function = ONE_OF_CHOICES.find(choice, "choice")  # as it is now: its module may have changed
    chosen = np.asarray(function(tokens, count, rng, vocabulary))
    expected = "expected a mask, bool [rows, n], or the number of each token's span, integers"
    if chosen.dtype.kind not in "bi":
        raise UserError(BAD_CONFIG, f"choice={choice}: returned {chosen.dtype}; {expected}")
    if chosen.shape != tokens.shape:
        got = f"returned shape {chosen.shape} for tokens of shape {tokens.shape}"
        raise UserError(BAD_CONFIG, f"choice={choice}: {got}; {expected}")
    mask = chosen if chosen.dtype == bool else chosen >= 0
    excess = mask.sum(1) - count
    if excess.max(initial=0) > 0:
        row = excess.argmax()
        got = f"chose {count[row] + excess[row]} tokens of a row, expected at most {count[row]}"
        fix = "" if chosen is mask else "; return bool for a mask, and -1 for tokens of no span"
        raise UserError(BAD_CONFIG, f"choice={choice}: {got}{fix}")
    if (mask & ~vocabulary.is_ordinary(tokens)).any():
        fix = "choose where vocabulary.is_ordinary(tokens)"
        raise UserError(BAD_CONFIG, f"choice={choice}: chose a special id; {fix}")
    if chosen is mask:
        return mask
    spans = chosen.astype(np.int64)
    for row, is_chosen in zip(spans, mask, strict=True):  # spans may have any numbers
        row[is_chosen] = np.unique(row[is_chosen], return_inverse=True)[1]
    return spans


def _framed(tokens: Tokens, vocabulary: Vocabulary) -> tuple[Ragged, np.ndarray]:
    """Return `[CLS] text [SEP]` and the position of each token in it [rows, n]."""
    rows, n = tokens.shape
    inputs = np.full((rows, n + 2), vocabulary["[SEP]"], np.int32)
    inputs[:, 0] = vocabulary["[CLS]"]
    inputs[:, 1:-1] = tokens
    return Ragged.from_array(inputs), np.broadcast_to(np.arange(n) + 1, (rows, n))


def _framed_pairs(
    tokens: Tokens, cut: PerRow, lengths: PerRow, vocabulary: Vocabulary
) -> tuple[Ragged, np.ndarray, Ragged]:
    """Return `[CLS] A [SEP] B [SEP]`, the position of each token in it [rows, n], and token types.

    Args:
        cut, lengths: [rows] index where B begins, and length of A and B together.
    """
    rows, n = tokens.shape
    # A moves right by one for [CLS], and B by two for [CLS] and the first [SEP].
    positions = np.arange(n) + 1 + (np.arange(n) >= cut[:, None])
    inputs = np.full((rows, n + 3), vocabulary["[SEP]"], np.int32)
    inputs[:, 0] = vocabulary["[CLS]"]
    np.put_along_axis(inputs, positions, tokens, 1)
    inputs[np.arange(rows), lengths + 2] = vocabulary["[SEP]"]
    place = np.arange(n + 3)
    is_used = place < lengths[:, None] + 3
    types = Ragged.from_mask((place > cut[:, None] + 1).astype(np.int32), is_used)
    return Ragged.from_mask(inputs, is_used), positions, types
