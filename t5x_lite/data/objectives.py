"""Objectives: what is hidden and what is asked. Each is one pure function from a window of tokens to a Pair.

To add one: write the function, state what it makes of n tokens, and add its name to OBJECTIVES.
The doctests read letters as tokens: `letters("the cat")` has the ids of its characters.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from t5x_lite.data.tokenizer import Tokenizer, Vocabulary
from t5x_lite.errors import BAD_CONFIG, Refusal, nearest
from t5x_lite.settings import parse_call


@dataclass(frozen=True)
class Pair:
    """Inputs the model reads and targets it is asked for; int32 arrays.

    Text to text: `scored` is None, the targets are a text of their own. Aligned (masked LM): `scored` holds the
    position in `inputs` of each target. `weights` (float32) go with `targets`; `score_inputs` asks a decoder to be
    scored on its inputs too.
    """

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    scored: np.ndarray | None = None
    score_inputs: bool = False


class Bound(NamedTuple):
    """The most that an objective makes of n raw tokens: inputs, targets, the two of one pair together, sentinels."""

    inputs: int
    targets: int
    both: int
    sentinels: int = 0


def letters(text: str) -> np.ndarray:
    """The ids of a text in bytes, for worked examples."""
    return Tokenizer().encode(text)


def states(bound: Callable, aligned: bool = False) -> Callable:
    """Attach to an objective its `bound(n, **hyperparameters) → Bound`, and whether its pairs are aligned."""

    def attach(objective):
        objective.bound, objective.aligned = bound, aligned
        return objective

    return attach


def _text_pair(inputs, targets, **more) -> Pair:
    return Pair(inputs.astype(np.int32), targets.astype(np.int32), np.ones(len(targets), np.float32), **more)


@states(lambda n: Bound(0, n, n))
def causal_lm(tokens, rng, vocabulary) -> Pair:
    """Predict every token from those before it (GPT: Radford et al., 2018, eq. 1). Nothing is hidden but the future.

    >>> pair = causal_lm(letters("the cat"), None, Tokenizer().vocabulary)
    >>> Tokenizer().decode(pair.inputs), Tokenizer().decode(pair.targets)
    ('', 'the cat')
    """
    return _text_pair(tokens[:0], tokens)


def _prefix_bound(n, *, score_prefix=False, mirrored=False):
    half = n // 2
    return Bound(n - half, half, n) if mirrored else Bound(n - 1, n - 1, n)


@states(_prefix_bound)
def prefix_lm(tokens, rng, vocabulary, *, score_prefix=False, mirrored=False) -> Pair | tuple[Pair, Pair]:
    """Split at a uniform random point: read the first part, predict the rest (Raffel et al., 2020, §3.2.3).

    score_prefix: also score the prefix, where a causal decoder reads it. mirrored: two windows in one, split at u and
    at n − u, so that inputs and targets each fill exactly n (what an encoder-decoder row needs to have no padding).

    >>> pair = prefix_lm(letters("the cat sat"), np.random.default_rng(0), Tokenizer().vocabulary)
    >>> Tokenizer().decode(pair.inputs), Tokenizer().decode(pair.targets)
    ('the cat s', 'at')
    """
    if mirrored:
        half = len(tokens) // 2
        split = int(rng.integers(1, max(half, 2)))
        first, second = tokens[:half], tokens[half:]
        return _text_pair(first[:split], first[split:]), _text_pair(second[:-split], second[-split:])
    split = int(rng.integers(1, len(tokens)))
    return _text_pair(tokens[:split], tokens[split:], score_inputs=score_prefix)


def noise_count(n: int, noise_density: float) -> int:
    """How many of n tokens are noise: round(n · density), at least one, and one token stays."""
    return min(max(round(n * noise_density), 1), n - 1)


def span_count(n: int, noise_density: float, mean_span_length: float) -> int:
    """How many spans those tokens form: round(noise / mean), at least one, as many as leave a gap for each."""
    noise = noise_count(n, noise_density)
    return min(max(round(noise / mean_span_length), 1), noise, n - noise)


def _composition(total: int, parts: int, rng) -> np.ndarray:
    """`parts` positive lengths that add up to `total`, every way equally likely."""
    cuts = np.sort(rng.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=total)


def random_spans(n, rng, noise_density, mean_span_length, random_roll=False) -> np.ndarray:
    """A mask [n] of noise spans (Raffel et al., 2020, §3.3.4 and their released code): lengths of noise and of gaps
    are random compositions, alternating, gap first, so the mask begins unmasked and ends masked; a roll ends that.
    """
    spans = span_count(n, noise_density, mean_span_length)
    noise = noise_count(n, noise_density)
    lengths = np.empty(2 * spans, np.int64)
    lengths[1::2] = _composition(noise, spans, rng)
    lengths[0::2] = _composition(n - noise, spans, rng)
    mask = np.repeat(np.arange(2 * spans) % 2 == 1, lengths)
    return np.roll(mask, rng.integers(n)) if random_roll else mask


def replace_spans(tokens, mask, vocabulary) -> Pair:
    """Each run of masked tokens becomes one sentinel in the inputs; the targets are each sentinel with what it stands
    for. Both end in EOS (Raffel et al., 2020, figure 2; there the targets end in a last sentinel, the code has EOS).
    """
    starts = mask & ~np.concatenate(([False], mask[:-1]))
    span = np.cumsum(starts) - 1
    sentinels = vocabulary.sentinel(span)
    inputs = np.append(np.where(starts, sentinels, tokens)[starts | ~mask], vocabulary.eos)
    spans, hidden = int(span[-1]) + 1, tokens[mask]
    targets = np.full(len(hidden) + spans + 1, vocabulary.eos)
    targets[np.arange(len(hidden)) + span[mask] + 1] = hidden
    targets[np.flatnonzero(starts[mask]) + np.arange(spans)] = sentinels[starts]
    return _text_pair(inputs, targets)


def _span_bound(n, *, noise_density=0.15, mean_span_length=3.0, random_roll=False):
    noise = noise_count(n, noise_density)
    spans = span_count(n, noise_density, mean_span_length)
    spans += random_roll and noise > 1 and n - noise > spans - 1  # a roll can cut one span in two
    return Bound(n - noise + spans + 1, noise + spans + 1, n + 2 * spans + 2, spans)


@states(_span_bound)
def span_corruption(tokens, rng, vocabulary, *, noise_density=0.15, mean_span_length=3.0, random_roll=False) -> Pair:
    """Drop random spans, each for one sentinel; ask for what was dropped (T5: Raffel et al., 2020, §3.3.4).

    noise_density: share of tokens dropped. mean_span_length: in tokens. random_roll: let a row end unmasked.

    >>> vocabulary = Tokenizer().vocabulary
    >>> pair = span_corruption(letters("the cat sat on the mat"), np.random.default_rng(1), vocabulary)
    >>> Tokenizer().decode(pair.inputs)
    'the cat sat on the <extra_id_0></s>'
    >>> Tokenizer().decode(pair.targets)
    '<extra_id_0>mat</s>'
    """
    mask = random_spans(len(tokens), rng, noise_density, mean_span_length, random_roll)
    return replace_spans(tokens, mask, vocabulary)


def _iid_bound(n, *, noise_density=0.15):
    noise = noise_count(n, noise_density)
    spans = min(noise, n - noise + 1)
    return Bound(n - noise + spans + 1, noise + spans + 1, n + 2 * spans + 2, spans)


@states(_iid_bound)
def iid_denoising(tokens, rng, vocabulary, *, noise_density=0.15) -> Pair:
    """Drop tokens independently, neighbours sharing one sentinel: the "denoising" of the architecture table of Raffel
    et al. (2020, §3.2.4), BERT's choice of tokens in T5's form. Exactly round(n · density) tokens are dropped.

    >>> vocabulary = Tokenizer().vocabulary
    >>> pair = iid_denoising(letters("the cat sat on the mat"), np.random.default_rng(1), vocabulary)
    >>> Tokenizer().decode(pair.inputs)
    'the cat s<extra_id_0> on t<extra_id_1>e mat</s>'
    >>> Tokenizer().decode(pair.targets)
    '<extra_id_0>at<extra_id_1>h</s>'
    """
    mask = np.zeros(len(tokens), bool)
    mask[rng.choice(len(tokens), noise_count(len(tokens), noise_density), replace=False)] = True
    return replace_spans(tokens, mask, vocabulary)


def _masked_bound(n, *, noise_density=0.15, mask_rate=0.8, random_rate=0.1):
    scored = max(round(n * noise_density), 1)
    return Bound(n + 2, scored, n + 2)


@states(_masked_bound, aligned=True)
def masked_lm(tokens, rng, vocabulary, *, noise_density=0.15, mask_rate=0.8, random_rate=0.1) -> Pair:
    """Choose exactly round(15 %) of the tokens; of these 80 % become [MASK], 10 % a random token, 10 % stay; ask for
    all of them, in `[CLS] text [SEP]` (BERT: Devlin et al., 2019, §3.1). Special ids are never chosen or drawn.

    >>> vocabulary = Tokenizer().vocabulary
    >>> pair = masked_lm(letters("the cat sat on the mat"), np.random.default_rng(1), vocabulary)
    >>> Tokenizer().decode(pair.inputs)
    '[CLS]the cat sa[MASK] on t[MASK]e mat[SEP]'
    >>> Tokenizer().decode(pair.targets), pair.scored.tolist()
    ('ath', [10, 11, 17])
    """
    candidates = np.flatnonzero(vocabulary.is_ordinary(tokens))
    count = min(max(round(len(candidates) * noise_density), 1), len(candidates))
    chosen = np.sort(rng.choice(candidates, count, replace=False)) if count else candidates
    noisy = np.array(tokens, np.int32)
    fate = rng.random(count)
    noisy[chosen[fate < mask_rate]] = vocabulary.mask
    drawn = (fate >= mask_rate) & (fate < mask_rate + random_rate)
    noisy[chosen[drawn]] = rng.integers(*vocabulary.ordinary, size=int(drawn.sum()))
    inputs = np.concatenate(([vocabulary.cls], noisy, [vocabulary.sep]))
    return _text_pair(inputs, tokens[chosen], scored=(chosen + 1).astype(np.int32))


OBJECTIVES = {f.__name__: f for f in (causal_lm, prefix_lm, masked_lm, span_corruption, iid_denoising)}
_MANY = 1000  # raw tokens, enough for whatever an objective makes to show in its bound


@dataclass(frozen=True)
class Objective:
    """An objective with its hyper-parameters: `objective(tokens, rng, vocabulary) → Pair` and `bound(n) → Bound`."""

    name: str
    options: dict

    def __call__(self, tokens, rng, vocabulary):
        return partial(OBJECTIVES[self.name], **self.options)(tokens, rng, vocabulary)

    def bound(self, n: int) -> Bound:
        """The most that n raw tokens become."""
        return OBJECTIVES[self.name].bound(n, **self.options)

    @property
    def aligned(self) -> bool:
        """Whether an encoder is asked at its own positions."""
        return OBJECTIVES[self.name].aligned

    @property
    def makes_inputs(self) -> bool:
        """Whether there is anything to read before the first target."""
        return self.bound(_MANY).inputs > 0

    @property
    def uses_sentinels(self) -> bool:
        """Whether hidden spans stand behind sentinels."""
        return self.bound(_MANY).sentinels > 0

    @property
    def least(self) -> int:
        """Raw tokens it needs: one, or one on each side of a split, in each of its windows."""
        return (1 if self.aligned or not self.makes_inputs else 2) * (2 if self.options.get("mirrored") else 1)


def parse(spec: str) -> Objective:
    """Read the config's `objective`, such as "span_corruption(mean_span_length=2)"; refuse what it cannot mean."""
    name, options = parse_call(spec, "objective")
    if name not in OBJECTIVES:
        raise Refusal(BAD_CONFIG, f"objective={spec}: no such objective; {nearest(name, OBJECTIVES)}")
    parameters = inspect.signature(OBJECTIVES[name]).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    for key, value in options.items():
        if key not in defaults:
            hint = nearest(key, defaults) if defaults else "it has none"
            raise Refusal(BAD_CONFIG, f"objective={spec}: {name} has no option {key}; {hint}")
        is_flag = isinstance(defaults[key], bool)
        if isinstance(value, bool) != is_flag or not isinstance(value, bool | int | float):
            wanted = "True or False" if is_flag else "a number"
            raise Refusal(BAD_CONFIG, f"objective={spec}: {key} got {value!r}, expected {wanted}")
    values = defaults | options
    for key in ("noise_density", "mask_rate", "random_rate"):
        if key in values and not (0 < values[key] < 1 or (key != "noise_density" and 0 <= values[key] <= 1)):
            raise Refusal(BAD_CONFIG, f"objective={spec}: {key} got {values[key]}, expected a share between 0 and 1")
    if values.get("mean_span_length", 1) < 1:
        raise Refusal(BAD_CONFIG, f"objective={spec}: mean_span_length got {values['mean_span_length']}, expected ≥ 1")
    if values.get("mask_rate", 0) + values.get("random_rate", 0) > 1:
        raise Refusal(BAD_CONFIG, f"objective={spec}: mask_rate + random_rate is more than 1")
    return Objective(name, options)


def check_vocabulary(objective: Objective, window: int, vocabulary: Vocabulary) -> None:
    """Refuse a tokenizer without the special ids that the objective needs for a window of that many tokens."""
    if objective.aligned and None in (vocabulary.mask, vocabulary.cls, vocabulary.sep):
        raise Refusal(BAD_CONFIG, f"objective {objective.name}: the tokenizer has no [MASK], [CLS] or [SEP]; train one")
    needed = objective.bound(window).sentinels
    if needed > vocabulary.sentinels:
        raise Refusal(
            BAD_CONFIG,
            f"objective {objective.name}: a window of {window} tokens can need {needed} sentinels, the tokenizer has "
            f"{vocabulary.sentinels}; shorten data.lengths or raise mean_span_length",
        )
