"""Effects of crossed factors: which differences are of the architecture, which of the objective,
and which of their product.

The cells of a comparison are crossed if each is named after a level of the first factor and one of
the second, as decoder-denoising is, and all combinations are there; those of a grid of two settings
are, too. The effect of a level is what it changes compared with the first level of its factor,
averaged over the levels of the other factor. The product of two levels is what the first changes
more under the second one.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from t5x_lite.comparison.statistics import (
    Rule,
    Scored,
    contrast,
    correlation_of_seeds,
    decide,
)

SEPARATOR = "-"  # between the levels in the name of a cell; levels may hold it, too

# Weights of cells: their weighted sum is the effect.
Weights = dict[str, float]


def levels_of(cells: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the levels of the first and of the second factor, in the order of the cells; None if
    the cells are not crossed.

    >>> levels_of(["gpt-lr=1e-2", "gpt-lr=1e-3", "bert-lr=1e-2", "bert-lr=1e-3"])
    (('gpt', 'bert'), ('lr=1e-2', 'lr=1e-3'))
    >>> levels_of(["encoder-a", "decoder-b"]) is None
    True
    """
    parts = cells[0].split(SEPARATOR)
    for place in range(1, len(parts)):
        one, other = (SEPARATOR.join(some) for some in (parts[:place], parts[place:]))
        ending, beginning = SEPARATOR + other, one + SEPARATOR
        first = [cell.removesuffix(ending) for cell in cells if cell.endswith(ending)]
        second = [cell.removeprefix(beginning) for cell in cells if cell.startswith(beginning)]
        crossed = {f"{level}{SEPARATOR}{another}" for level in first for another in second}
        if len(first) > 1 and len(second) > 1 and crossed == set(cells):
            return tuple(first), tuple(second)
    return None


def weights_of_effects(cells: Sequence[str]) -> dict[str, Weights]:
    """Return every effect of crossed cells with the weights of its cells.

    >>> for effect, weights in weights_of_effects(["e-a", "e-b", "d-a", "d-b"]).items():
    ...     print(f"{effect:16}", weights)
    d for e          {'e-a': -0.5, 'd-a': 0.5, 'e-b': -0.5, 'd-b': 0.5}
    b for a          {'e-a': -0.5, 'e-b': 0.5, 'd-a': -0.5, 'd-b': 0.5}
    d for e × b for a {'e-a': 1.0, 'e-b': -1.0, 'd-a': -1.0, 'd-b': 1.0}
    """
    levels = levels_of(cells)
    assert levels is not None
    (base, *others), (second_base, *second_others) = first, second = levels
    shared = set(first) & set(second)  # such levels are told apart by their place in the name

    def of_first(level: str) -> str:
        return f"{level}{SEPARATOR}" if shared else level

    def of_second(level: str) -> str:
        return f"{SEPARATOR}{level}" if shared else level

    effects: dict[str, Weights] = {}
    for level in others:
        effects[f"{of_first(level)} for {of_first(base)}"] = _averaged(
            [(f"{base}{SEPARATOR}{other}", f"{level}{SEPARATOR}{other}") for other in second]
        )
    for level in second_others:
        effects[f"{of_second(level)} for {of_second(second_base)}"] = _averaged(
            [(f"{one}{SEPARATOR}{second_base}", f"{one}{SEPARATOR}{level}") for one in first]
        )
    for level, other in product(others, second_others):
        names = (
            f"{of_first(level)} for {of_first(base)}",
            f"{of_second(other)} for {of_second(second_base)}",
        )
        effects[" × ".join(names)] = {
            f"{base}{SEPARATOR}{second_base}": 1.0,
            f"{base}{SEPARATOR}{other}": -1.0,
            f"{level}{SEPARATOR}{second_base}": -1.0,
            f"{level}{SEPARATOR}{other}": 1.0,
        }
    return effects


def _averaged(pairs: Sequence[tuple[str, str]]) -> Weights:
    """Return the weights of the mean of the differences: second minus first of each pair."""
    weights: Weights = {}
    for before, after in pairs:
        weights |= {before: -1 / len(pairs), after: 1 / len(pairs)}
    return weights


def effects_of(
    scored: Mapping[str, Mapping[str, Scored]],
    questions: Mapping[str, Mapping[str, str]],
    rule: Rule,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the effects in every score that all cells have and that measures the same in all.

    Args:
        scored: cell → score.
        questions: cell → score → what it measures; see statistics.scores_of.

    Returns:
        effect → score → what statistics.difference says. Empty if the cells are not crossed.
    """
    if levels_of(list(scored)) is None:
        return {}
    names = [
        name
        for name in next(iter(scored.values()))
        if all(name in of_cell for of_cell in scored.values())
        and len({questions[cell].get(name) for cell in scored}) == 1
    ]
    effects = {
        effect: {
            name: contrast(
                [scored[cell][name] for cell in weights],
                list(weights.values()),
                correlation_of_seeds([of_cell[name] for of_cell in scored.values()]),
            )
            for name in names
        }
        for effect, weights in weights_of_effects(list(scored)).items()
    }
    decide(
        {
            (effect, name): found
            for effect, of_effect in effects.items()
            for name, found in of_effect.items()
        },
        rule,
    )
    return effects
