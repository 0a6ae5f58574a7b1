"""Objectives: what is hidden and what is asked. Each is one pure function from windows of tokens to Pairs.

    objective(tokens [rows, n], rng, vocabulary, **options) → Pairs

To add one: write the function, state what it makes of n tokens (`bound`), and add its name to OBJECTIVES; one of your
own needs no place here, only a config that names it by its module: `objective = "my_module.my_objective(option=1)"`.
"""

import ast
import inspect
import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from t5x_lite.data.draws import Draws
from t5x_lite.data.objectives import denoising, language, masked
from t5x_lite.data.objectives.pairs import Bound, Pairs
from t5x_lite.data.vocabulary import Vocabulary
from t5x_lite.errors import BAD_CONFIG, Refusal, nearest, refusing
from t5x_lite.settings import own, parse_call

OBJECTIVES = {
    f.__name__: f
    for f in (
        language.causal_lm,
        language.prefix_lm,
        language.fill_in_the_middle,
        masked.masked_lm,
        denoising.span_corruption,
        denoising.iid_denoising,
        denoising.drop_tokens,
        denoising.mass_style,
        denoising.bert_style,
        denoising.deshuffling,
        denoising.text_infilling,
        denoising.sentence_permutation,
    )
}
_MANY = 1000  # raw tokens, enough for whatever an objective makes to show in its bound
_SHARES = ("noise_density", "mask_rate", "random_rate", "split", "fim_rate", "spm_rate")
_WORDS = {"choice": tuple(masked.CHOICES), "second": ("", "next", "order"), "mode": ("", "R", "S", "X")}


@dataclass(frozen=True)
class Objective:
    """An objective with its hyper-parameters: `objective(tokens, rng, vocabulary) → Pairs` and `bound(n) → Bound`."""

    name: str
    options: dict

    def __str__(self) -> str:
        """As in a config.

        >>> str(parse("span_corruption(noise_density=0.2)"))
        'span_corruption(noise_density=0.2)'
        """
        options = ", ".join(f"{key}={value!r}" for key, value in self.options.items())
        return f"{self.name}({options})" if options else self.name

    def __call__(self, tokens: np.ndarray, rng: Draws, vocabulary: Vocabulary) -> Pairs | tuple[Pairs, ...]:
        """Pairs of windows [rows, n], or [rows, pieces, n] where it reads several; a tuple where it makes several."""
        return find(self.name)(tokens, rng, vocabulary, **self.options)

    def bound(self, n: int) -> Bound:
        """The most that n raw tokens become."""
        if self.name in OBJECTIVES:
            return OBJECTIVES[self.name].bound(n, **self.options)
        with refusing(BAD_CONFIG, f"objective={self.name}: its bound failed on {n} tokens"):
            return Bound(*find(self.name).bound(n, **self.options))

    def option(self, key: str):
        """An option's value, given or by default; None where there is no such option."""
        return self.options.get(key, _defaults(find(self.name)).get(key))

    @property
    def aligned(self) -> bool:
        """Whether an encoder is asked at its own positions."""
        return find(self.name).aligned

    @property
    def makes_inputs(self) -> bool:
        """Whether there is anything to read before the first target, in every row."""
        return self.bound(_MANY).inputs > 0 and self.option("fim_rate") in (None, 1)

    @property
    def uses_sentinels(self) -> bool:
        """Whether hidden spans stand behind sentinels."""
        return self.bound(_MANY).sentinels > 0

    @property
    def pieces(self) -> int:
        """Windows that a row reads: two where the second sentence may be another row's."""
        return 2 if self.option("second") == "next" else 1

    @property
    def least(self) -> int:
        """Raw tokens it needs: one, or one on each side of a split, in each of its windows."""
        alone = (self.aligned and not self.option("second")) or self.bound(_MANY).inputs == 0
        return (1 if alone else 2) * (2 if self.option("mirrored") else 1)


@cache
def _defaults(function) -> dict:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def find(name: str):
    """The function of that name: one of OBJECTIVES, or `module.function` of the user's own. Raises Refusal."""
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    if "." not in name:
        raise Refusal(BAD_CONFIG, f"objective={name}: no such objective; {nearest(name, OBJECTIVES)}")
    found = own(name, f"objective={name}")
    if not hasattr(found, "bound"):
        raise Refusal(BAD_CONFIG, f"objective={name}: has no bound; put @states(bound) before it, as in pairs.py")
    return found


def parse(spec: str) -> Objective:
    """Read the config's `objective`, such as "span_corruption(mean_span_length=2)"; refuse what it cannot mean."""
    name, options = parse_call(spec, "objective")
    defaults = _defaults(find(name))

    def refuse(reason):
        raise Refusal(BAD_CONFIG, f"objective={spec}: {reason}")

    for key, value in options.items():
        if key not in defaults:
            refuse(f"{name} has no option {key}; {nearest(key, defaults) if defaults else 'it has none'}")
        kinds = ((bool, "True or False"), (int | float, "a number"), (str, "a word"))
        kind, wanted = next((k for k in kinds if isinstance(defaults[key], k[0])), (object, ""))  # a user's own: any
        if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
            refuse(f"{key} got {value!r}, expected {wanted}")
    if name not in OBJECTIVES:  # what its options mean is the user's
        return Objective(name, options)
    values = defaults | options
    for key in set(_SHARES) & set(values):
        if not (0 < values[key] < 1 or (key != "noise_density" and 0 <= values[key] <= 1)):
            refuse(f"{key} got {values[key]}, expected a share between 0 and 1")
    for key in set(_WORDS) & set(values):
        if values[key] not in _WORDS[key]:
            refuse(f"{key} got {values[key]!r}, expected one of {', '.join(map(repr, _WORDS[key]))}")
    if not 1 <= values.get("mean_span_length", 1) <= 500:
        refuse(f"mean_span_length got {values['mean_span_length']}, expected 1 to 500")
    if values.get("mask_rate", 0) + values.get("random_rate", 0) > 1:
        refuse("mask_rate + random_rate is more than 1; lower one of them")
    return Objective(name, options)


# The mixture of denoisers of Tay et al. (2023, table 1): regular, sequential and extreme ones, all at one rate.
UL2 = (
    "span_corruption(mean_span_length=3, noise_density=0.15, mode='R')",
    "span_corruption(mean_span_length=8, noise_density=0.15, mode='R')",
    "prefix_lm(split=0.75, mode='S')",
    "span_corruption(mean_span_length=3, noise_density=0.5, mode='X')",
    "span_corruption(mean_span_length=8, noise_density=0.5, mode='X')",
    "span_corruption(mean_span_length=64, noise_density=0.15, mode='X')",
    "span_corruption(mean_span_length=64, noise_density=0.5, mode='X')",
)


def mixture(spec: str) -> list[tuple[float, Objective]]:
    """Read one objective, or a sum of several with rates, as (share of the rows, objective).

    >>> [(rate, objective.name) for rate, objective in mixture("3 * causal_lm + prefix_lm(split=0.5)")]
    [(0.75, 'causal_lm'), (0.25, 'prefix_lm')]

    As in algebra, a rate before a bracket counts for each that stands in it. "ul2" is the mean of Tay et al.'s seven
    denoisers: as a term of a sum it counts once.
    """
    try:
        terms = _terms(ast.parse(spec.strip(), mode="eval").body)
    except (SyntaxError, ValueError, OverflowError, RecursionError):
        return [(1.0, parse(spec))]
    total = math.fsum(rate for rate, _ in terms)
    return [(rate / total, objective) for rate, objective in terms]


def _terms(node: ast.expr, rate: float = 1.0) -> list[tuple[float, Objective]]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _terms(node.left, rate) + _terms(node.right, rate)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        given = ast.literal_eval(node.left)
        if isinstance(given, int | float) and 1e-9 <= given * rate <= 1e9:
            return _terms(node.right, rate * given)
        raise ValueError
    if ast.unparse(node) == "ul2":
        return [(rate / len(UL2), parse(denoiser)) for denoiser in UL2]
    return [(rate, parse(ast.unparse(node)))]


def check_vocabulary(objective: Objective, window: int, vocabulary: Vocabulary) -> None:
    """Refuse a tokenizer without the special ids that the objective needs for a window of that many tokens."""
    needed = objective.bound(window).sentinels
    if needed > vocabulary.sentinels:
        fewer = "shorten data.lengths or raise mean_span_length"
        mend = fewer if vocabulary.sentinels else "set data.add_specials=True"
        raise Refusal(
            BAD_CONFIG,
            f"objective {objective.name}: a window of {window} tokens can need {needed} sentinels, the tokenizer has "
            f"{vocabulary.sentinels}; {mend}",
        )
    rehearse(objective, window, vocabulary)


def rehearse(objective: Objective, window: int, vocabulary: Vocabulary) -> None:
    """Make one row of ordinary tokens: what the tokenizer lacks, or a user's function does wrong, shows at once."""
    shape = (1, window) if objective.pieces == 1 else (1, objective.pieces, window)
    tokens = np.full(shape, vocabulary.ordinary[0], np.int32)
    most, what = objective.bound(window)[:3], f"objective {objective.name}"
    with refusing(BAD_CONFIG, f"{what}: failed on {window} tokens"):
        made = objective(tokens, Draws(0, 0, [0]), vocabulary)
        parts = made if isinstance(made, tuple) else (made,)
        sides = [(pairs.inputs.lengths, pairs.targets.lengths) for pairs in parts]
        ids = np.concatenate([values for pairs in parts for values in (pairs.inputs.values, pairs.targets.values)])
    for inputs, targets in sides:
        both = inputs if objective.aligned else inputs + targets  # on one stack
        found = int(inputs.max()), int(targets.max()), int(both.max())
        if any(a > b for a, b in zip(found, most, strict=True)):
            reason = f"made {found} inputs, targets and both of {window} tokens, its bound is {most}"
            raise Refusal(BAD_CONFIG, f"{what}: {reason}; mend the bound")
    if ids.min(initial=0) < 0 or ids.max(initial=0) >= vocabulary.size:
        raise Refusal(BAD_CONFIG, f"{what}: made ids from {ids.min()} to {ids.max()} of {vocabulary.size}; mend it")
