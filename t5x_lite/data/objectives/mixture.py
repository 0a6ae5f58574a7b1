"""Parse the setting `objective`: one objective with its options, or a mixture of several
objectives with rates.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from t5x_lite.config.grammar import parse_sum
from t5x_lite.config.named import Named, find_named
from t5x_lite.config.permission import named_code
from t5x_lite.data.objectives import OBJECTIVES, UL2
from t5x_lite.data.objectives.annealed import is_annealed
from t5x_lite.data.objectives.contract import ContractError, check_parts
from t5x_lite.data.objectives.declaration import Bound, ObjectiveFunction, Traits
from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.rng import RowRng
from t5x_lite.data.tokenizers.vocabulary import Vocabulary
from t5x_lite.errors import BAD_CONFIG, UserError, user_errors

_ROWS = 3  # number of rows in a dry run
_MANY = 1000  # raw tokens; enough for the bound to show whether an objective uses sentinels


@dataclass(frozen=True)
class Objective(Named):
    """An objective with its options: `objective(tokens, rng, vocabulary)` returns a tuple of Pairs,
    and `bound(n)` a Bound.

    >>> str(parse_objective("span_corruption(noise_density=0.2)"))
    'span_corruption(noise_density=0.2)'
    """

    target: ObjectiveFunction = field(repr=False)

    def __call__(
        self, tokens: np.ndarray, rng: RowRng, vocabulary: Vocabulary
    ) -> tuple[Pairs, ...]:
        """Turn windows [rows, n], or [rows, 2, n] for an objective that reads two windows, into a
        tuple of one or two Pairs.
        """
        if self.has_own_code:
            return self.checked(tokens, rng, vocabulary)
        return self._parts(tokens, rng, vocabulary)  # tests check it against the contract

    def checked(self, tokens: np.ndarray, rng: RowRng, vocabulary: Vocabulary) -> tuple[Pairs, ...]:
        """Like `__call__`, but also check the result against the contract. The objective gets int32
        tokens, whatever type the store has, so that its arithmetic does not wrap around.

        Raises:
            UserError: if the objective fails, or breaks the contract.
        """
        windows, n = tokens.shape[0], tokens.shape[-1]
        what = f"objective {self.name}: failed on {windows} windows of {n} tokens"
        with user_errors(BAD_CONFIG, what):
            parts = self._parts(tokens.astype(np.int32), rng, vocabulary)
        try:
            check_parts(parts, tokens, self.bound, self.traits, vocabulary.size)
        except ContractError as error:
            raise UserError(BAD_CONFIG, f"objective {self.name}: {error}") from error
        return parts

    def _parts(self, tokens: np.ndarray, rng: RowRng, vocabulary: Vocabulary) -> tuple[Pairs, ...]:
        pairs = self.target(tokens, rng, vocabulary, **self.options)
        return pairs if isinstance(pairs, tuple) else (pairs,)

    def bound(self, n: int) -> Bound:
        """Return upper bounds on what n raw tokens become."""
        with user_errors(BAD_CONFIG, f"objective={self.name}: its bound failed on {n} tokens"):
            return Bound(*self.target.bound(n, **self.options))

    @cached_property
    def traits(self) -> Traits:
        """Traits that the objective declares for these options."""
        with user_errors(BAD_CONFIG, f"objective={self.name}: its traits failed"):
            return self.target.traits(**self.options)

    @cached_property
    def has_own_code(self) -> bool:
        """True if the objective, or a function that an option names, is the user's own."""
        options = (value for value in self.options.values() if isinstance(value, str))
        return self.name not in OBJECTIVES or bool(named_code(*options))

    @property
    def changes(self) -> bool:
        """True if an option changes during a run: see annealed.py."""
        return any(is_annealed(value) for value in self.options.values())

    @cached_property
    def uses_sentinels(self) -> bool:
        """True if masked spans are marked by sentinels."""
        return self.bound(_MANY).sentinels > 0

    def for_architecture(self, architecture: str) -> "Objective":
        """Return this objective with the options that the architecture needs."""
        options = self.target.adapt(architecture, self.options)
        return Objective(self.name, options, self.target)


def parse_objective(spec: str) -> Objective:
    """Parse one objective, such as "span_corruption(mean_span_length=2)".

    Raises:
        UserError: for an unknown name or option, or a value that is out of range.
    """
    named = find_named(spec, OBJECTIVES, "objective", "objective")
    if not hasattr(named.target, "bound"):
        fix = "put @objective(bound=…) before it, as in data/objectives/declaration.py"
        raise UserError(BAD_CONFIG, f"objective={named.name}: has no bound; {fix}")
    return Objective(named.name, named.options, named.target)


def parse_mixture(spec: str) -> list[tuple[float, Objective]]:
    """Parse one objective, or a sum of several with rates. Return (fraction of the rows, objective)
    for each.

    As in algebra, a rate before brackets applies to every term inside them. "ul2" stands for the
    mean of Tay et al.'s seven denoisers: in a sum it counts as one term.

    >>> mixture = parse_mixture("3 * causal_lm + prefix_lm(split=0.5)")
    >>> [(rate, objective.name) for rate, objective in mixture]
    [(0.75, 'causal_lm'), (0.25, 'prefix_lm')]
    """
    terms = []
    for rate, term in parse_sum(spec, "objective"):
        members = UL2 if term == "ul2" else [term]
        for member in members:
            terms.append(((1.0 if rate is None else rate) / len(members), member))
    total = math.fsum(rate for rate, _ in terms)
    return [(rate / total, parse_objective(term)) for rate, term in terms]


def check_vocabulary(objective: Objective, window: int, vocabulary: Vocabulary) -> None:
    """Reject a tokenizer without the special ids that the objective needs for a window of `window`
    tokens.
    """
    needed = objective.bound(window).sentinels
    if needed > vocabulary.sentinels:
        fix = "set data.add_specials=True"
        if vocabulary.sentinels:
            fix = "shorten data.lengths or raise mean_span_length"
        raise UserError(
            BAD_CONFIG,
            f"objective {objective.name}: a window of {window} tokens can need {needed} "
            "sentinels, the tokenizer has "
            f"{vocabulary.sentinels}; {fix}",
        )
    dry_run(objective, window, vocabulary)


def dry_run(objective: Objective, window: int, vocabulary: Vocabulary) -> None:
    """Make rows of ordinary tokens, so that missing special ids and mistakes in a user's function
    are found before training.
    """
    windows = objective.traits.windows_per_row
    shape = (_ROWS, window) if windows == 1 else (_ROWS, windows, window)
    tokens = np.full(shape, vocabulary.ordinary_ids[0], np.int32)
    what = f"objective {objective.name}"
    together = objective.checked(tokens, RowRng(0, np.arange(_ROWS)), vocabulary)
    if not objective.has_own_code:
        return
    # A row must be a function of its tokens and its random numbers, and of nothing else.
    for row in range(_ROWS):
        alone = objective(tokens[row : row + 1], RowRng(0, [row]), vocabulary)
        for pairs, one in zip(together, alone, strict=True):
            before, (again,) = vars(pairs.each()[row]), one.each()
            for name, value in vars(again).items():
                if not np.array_equal(before[name], value):
                    reason = f"the {name} of a row change when it is made again, alone"
                    fix = "take all random numbers from rng, and nothing from other rows"
                    raise UserError(BAD_CONFIG, f"{what}: {reason}; {fix}")


def members_of(spec: str) -> list[str]:
    """Return the objectives of a mixture as text, each once.

    >>> members_of("15 * causal_lm + masked_next_token")
    ['causal_lm', 'masked_next_token']
    """
    return list(dict.fromkeys(member for _, member in parse_sum(spec, "objective")))
