"""The declaration of an objective: a bound on the length of its outputs, and traits that the rest
of the system needs to know.

    @objective(bound=lambda n, *, noise_density=0.15: Bound(inputs=…, targets=…, both=…))
    def my_objective(tokens, rng, vocabulary, *, noise_density: ProperShare = 0.15) -> Pairs:

The annotation of an option is its allowed range: see config/ranges.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from t5x_lite.config import ModelDimensions
from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.rng import RowRng
from t5x_lite.data.tokenizers.vocabulary import Vocabulary


class Bound(NamedTuple):
    """Upper bounds on what a window of n raw tokens becomes. Some row attains each bound."""

    inputs: int
    targets: int
    both: int  # positions that inputs and targets take together on one stack
    # distinct sentinels in one pair
    sentinels: int = 0


@dataclass(frozen=True)
class Traits:
    """Properties of an objective with the given options."""

    aligned: bool = False  # targets are at positions of the inputs (masked LM); needs an encoder
    has_inputs: bool = True  # every row has inputs before its first target
    min_tokens: int = 2  # raw tokens in the shortest window
    window_multiple: int = 1  # window lengths are min_tokens plus a multiple of this
    # 2: tokens are [rows, 2, n]. The second window begins in a document other than the longest one
    # of the first window, and is filled with EOS after the end of that other document
    windows_per_row: int = 1
    # 2: it returns a tuple of two Pairs, which share one encoder_decoder row
    pairs_per_window: int = 1
    static: bool = False  # windows and masks are the same in every epoch
    sentence_pairs: bool = False  # pairs have token types and a label
    scores_inputs: bool = False  # pairs may set score_inputs
    # every token is predicted exactly once, from the tokens before it, so bits per byte are defined
    scores_whole_text: bool = False
    # The loss is an upper bound on −log p of the whole text, so bits per byte are bounded
    bounds_whole_text: bool = False
    continues_text: bool = False  # targets follow the inputs in the text, as in prefix_lm
    # A decoder reads other tokens than its targets, with bidirectional attention: see Pairs.read
    looks_ahead: bool = False
    # The inputs are the text before and after the targets, separated by marks
    fills_middle: bool = False
    # Loss to minimise: "heads", the losses of all heads, or one of your own,
    # my_module.MyLoss(option=value): see training/loss.py
    loss: str = "heads"
    # Function from the config's model to the model to train, which may have more heads and
    # companions
    model: Callable[[ModelDimensions], ModelDimensions] = lambda model: model


@runtime_checkable
class ObjectiveFunction(Protocol):
    """A pure function from windows of tokens to pairs, with its declaration."""

    __name__: str
    __doc__: str | None
    bound: Callable[..., Bound]  # called as bound(n, **options)
    traits: Callable[..., Traits]  # called as traits(**options)
    # called as adapt(architecture, options); returns the options that the architecture needs
    adapt: Callable[[str, dict], dict]

    def __call__(
        self, tokens: np.ndarray, rng: RowRng, vocabulary: Vocabulary, **options: Any
    ) -> Pairs | tuple[Pairs, ...]:
        """Turn windows [rows, n] into pairs; windows [rows, 2, n] if windows_per_row is 2."""
        ...


def objective(
    *,
    bound: Callable[..., Bound],
    traits: Traits | Callable[..., Traits] = Traits(),
    adapt: Callable[[str, dict], dict] = lambda architecture, options: options,
) -> Callable[[Callable], ObjectiveFunction]:
    """Declare a function to be an objective.

    Args:
        bound: function (n, **options) → Bound. It must grow with n.
        traits: Traits, or a function (**options) → Traits if they depend on the options.
        adapt: function (architecture, options) → options, for architectures that need options other
            than the given ones.
    """

    def declare(function: Callable) -> ObjectiveFunction:
        declared: Any = function
        declared.bound = bound
        declared.traits = traits if callable(traits) else lambda **options: traits
        declared.adapt = adapt
        return cast(ObjectiveFunction, declared)

    return declare
