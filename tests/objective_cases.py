"""What the tests of objectives share: every objective with its options, and windows to give it."""

import numpy as np
from hypothesis import strategies as st

from t5x_lite.data.objectives import OBJECTIVES
from t5x_lite.data.objectives.mixture import parse_objective
from t5x_lite.data.objectives.pairs import Pair, Pairs
from t5x_lite.data.rng import Purpose, RowRng, philox_key
from t5x_lite.data.tokenizers.tokenizer import Tokenizer

TOKENIZER = Tokenizer()
VOCABULARY = TOKENIZER.vocabulary
SPECIAL = VOCABULARY.specials
SPECS = [
    *OBJECTIVES,
    "prefix_lm(score_prefix=True)",
    "prefix_lm(split=0.3, mode='S')",
    "fill_in_the_middle(fim_rate=1, spm_rate=1)",
    "fill_in_the_middle(fim_rate=0)",
    "span_corruption(random_roll=True)",
    "span_corruption(mean_span_length=64, random_roll='single_span')",
    "span_corruption(noise_density=0.5, mean_span_length=8, mode='X')",
    "iid_denoising(noise_density=0.4)",
    "masked_lm(noise_density=0.3)",
    "masked_lm(choice='word')",
    "masked_lm(choice='span')",
    "masked_lm(choice='short_span')",
    "masked_lm(choice='salient')",
    "masked_lm(second='order')",
    "text_infilling(permute_sentences=True)",
]
window_lengths = st.integers(2, 250)
seeds = st.integers(0, 2**31 - 1)


def window(n: int, shift: int = 0) -> np.ndarray:
    """n different ordinary ids (up to 256)."""
    return ((np.arange(n) * 7 + shift) % 256).astype(np.uint16)


def window_with_sentinels(spec: str, n: int) -> np.ndarray:
    """A window of n ids, or of fewer where n would need more sentinels than there are."""
    enough = parse_objective(spec).bound(n).sentinels <= VOCABULARY.sentinels
    return window(n if enough else 60)


def text_rows(text: str, rows: int) -> np.ndarray:
    """The same text, letters as tokens, in so many rows."""
    return np.tile(TOKENIZER.encode(text), (rows, 1))


def row_rng(seed: int, rows: int) -> RowRng:
    """The random numbers of the first rows."""
    return RowRng(philox_key(seed, Purpose.TRAINING_ROWS), np.arange(rows))


def apply(spec: str, tokens: np.ndarray, seed: int = 0) -> tuple[Pairs, ...]:
    """What an objective makes of windows [rows, n]."""
    return parse_objective(spec)(tokens, row_rng(seed, len(tokens)), VOCABULARY)


def apply_to_one(spec: str, tokens: np.ndarray, seed: int = 0) -> list[Pair]:
    """The pairs that an objective makes of one window [n]."""
    return [pair for pairs in apply(spec, tokens[None], seed) for pair in pairs.each()]


def repeated(tokens: np.ndarray, rows: int) -> np.ndarray:
    """One window in so many rows."""
    return np.tile(tokens, (rows, 1))


def share_that_differs(frequencies: np.ndarray, expected: np.ndarray | float, rows: int) -> float:
    """The share of positions whose frequencies [n] differ by more than 3 σ from those of another
    sample of as many rows, or from an exact probability.
    """
    if isinstance(expected, float):
        p, samples = np.full(len(frequencies), expected), 1
    else:
        p, samples = (frequencies + expected) / 2, 2
    sigma = np.sqrt(p * (1 - p) / rows * samples)
    return float((np.abs(frequencies - expected) > 3 * np.maximum(sigma, 1e-9)).mean())
