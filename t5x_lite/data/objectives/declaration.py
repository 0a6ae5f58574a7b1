"""What an objective declares: how much it makes of n tokens, and what the rest of the system must
know of it.

    @objective(bound=lambda n, *, noise_density=0.15: Bound(inputs=…, targets=…, both=…))
    def my_objective(tokens, rng, vocabulary, *, noise_density: ProperShare = 0.15) -> Pairs:

The ranges of its options are their annotations: see config/ranges.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.rng import RowRng
from t5x_lite.data.tokenizers.vocabulary import Vocabulary


class Bound(NamedTuple):
    """The most that an objective makes of n raw tokens, attained by some row."""

    inputs: int
    targets: int
    both: int  # inputs and targets of one pair together
    sentinels: int = 0


@dataclass(frozen=True)
class Traits:
    """What an objective is, with its options as given."""

    aligned: bool = False  # targets stand at positions of the inputs: masked LM, for an encoder
    has_inputs: bool = True  # every row has inputs before its first target
    min_tokens: int = 2  # raw tokens that a window has at least
    window_multiple: int = 1  # windows have a multiple of this many tokens more
    # 2: tokens are [rows, 2, n]; the second window begins in another document than the longest one
    # of the first, and has EOS where that ends
    windows_per_row: int = 1
    # 2: it returns a tuple of two Pairs, which share an encoder_decoder row
    pairs_per_window: int = 1
    static: bool = False  # the same windows and masks in every epoch
    sentence_pairs: bool = False  # pairs have types and a label
    scores_inputs: bool = False  # pairs may set score_inputs
    # Every token is predicted once from those before it, so that bits per byte can be told
    scores_whole_text: bool = False
    continues_text: bool = False  # targets follow the inputs in the text, as in prefix_lm
    looks_ahead: bool = False  # a decoder reads other tokens than its targets, both ways
    fills_middle: bool = False  # inputs are what is before and after the targets, as marks say


@runtime_checkable
class ObjectiveFunction(Protocol):
    """A pure function from windows of tokens to pairs, with its declaration."""

    __name__: str
    __doc__: str | None
    bound: Callable[..., Bound]  # (n, **options)
    traits: Callable[..., Traits]  # (**options)
    # (architecture, options) → the options that the architecture needs:
    adapt: Callable[[str, dict], dict]

    def __call__(
        self, tokens: np.ndarray, rng: RowRng, vocabulary: Vocabulary, **options: Any
    ) -> Pairs | tuple[Pairs, ...]:
        """Pairs of windows [rows, n]."""
        ...


def objective(
    *,
    bound: Callable[..., Bound],
    traits: Traits | Callable[..., Traits] = Traits(),
    adapt: Callable[[str, dict], dict] = lambda architecture, options: options,
) -> Callable[[Callable], ObjectiveFunction]:
    """Declare a function to be an objective.

    Args:
        bound: (n, **options) → Bound; it grows with n.
        traits: Traits, or a function of the options where they depend on them.
        adapt: (architecture, options given) → options, where an architecture needs others.
    """

    def declare(function: Callable) -> ObjectiveFunction:
        declared: Any = function
        declared.bound = bound
        declared.traits = traits if callable(traits) else lambda **options: traits
        declared.adapt = adapt
        return cast(ObjectiveFunction, declared)

    return declare
