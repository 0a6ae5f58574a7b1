"""Effects of crossed factors: which differences come from the architecture, which from the
objective, and which from their interaction.

The cells of a comparison are crossed if each name joins a level of the first factor, a level of the
second, and so on, as in decoder-denoising, and if all combinations exist. The cells of a grid of
several settings are crossed, too. The effect of a level is the change from the first level of its
factor, averaged over the levels of all other factors. The interaction of two levels is the effect
of one under the other, minus its effect under the first level of the other's factor. Interactions
of three levels are left out.
"""

import math
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

SEPARATOR = "-"  # between the levels in the name of a cell; a level may contain it, too
_MOST_CROSSED = 2  # maximum number of levels in an interaction

# Cell → weight. The weighted sum of the cells' scores is the effect.
Weights = dict[str, float]


def levels_of(cells: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the levels of each factor, in the order of the cells; empty if they are not crossed.

    >>> levels_of(["gpt-lr=1e-2", "gpt-lr=1e-3", "bert-lr=1e-2", "bert-lr=1e-3"])
    [('gpt', 'bert'), ('lr=1e-2', 'lr=1e-3')]
    >>> levels_of([f"{x}-{y}-{z}" for x in "ab" for y in "cd" for z in "ef"])
    [('a', 'b'), ('c', 'd'), ('e', 'f')]
    >>> levels_of(["encoder-a", "decoder-b"])
    []
    """
    parts = cells[0].split(SEPARATOR)
    for place in range(1, len(parts)):
        one, other = (SEPARATOR.join(some) for some in (parts[:place], parts[place:]))
        ending, beginning = SEPARATOR + other, one + SEPARATOR
        first = [cell.removesuffix(ending) for cell in cells if cell.endswith(ending)]
        rest = [cell.removeprefix(beginning) for cell in cells if cell.startswith(beginning)]
        crossed = {f"{level}{SEPARATOR}{another}" for level in first for another in rest}
        if len(first) > 1 and len(rest) > 1 and crossed == set(cells):
            # What follows the first factor may be crossed in turn.
            return [tuple(first), *(levels_of(rest) or [tuple(rest)])]
    return []


def weights_of_effects(cells: Sequence[str]) -> dict[str, Weights]:
    """Return every effect with the weights of its cells; empty if the cells are not crossed.

    >>> for effect, weights in weights_of_effects(["e-a", "e-b", "d-a", "d-b"]).items():
    ...     print(f"{effect}: {weights}")
    b instead of a: {'e-a': -0.5, 'e-b': 0.5, 'd-a': -0.5, 'd-b': 0.5}
    d instead of e: {'e-a': -0.5, 'e-b': -0.5, 'd-a': 0.5, 'd-b': 0.5}
    d instead of e × b instead of a: {'e-a': 1.0, 'e-b': -1.0, 'd-a': -1.0, 'd-b': 1.0}
    """
    factors = levels_of(cells)
    if not factors:
        return {}
    of_factors = []
    for number, levels in enumerate(factors):
        # Levels with the same name are told apart by their position in the names of cells.
        others = {level for other in factors if other is not levels for level in other}
        is_shared = bool(others & set(levels))
        before = SEPARATOR if is_shared and number > 0 else ""
        after = SEPARATOR if is_shared and number < len(factors) - 1 else ""
        of_factors.append(_weights_of_levels(levels, before, after))

    effects: dict[str, Weights] = {}
    for of_levels in product(*(one.items() for one in of_factors)):
        names = [name for name, _ in of_levels if name]
        if not 1 <= len(names) <= _MOST_CROSSED:  # without a name: the mean of all cells
            continue
        weights = effects[" × ".join(names)] = {}
        for levels in product(*(of_level.items() for _, of_level in of_levels)):
            cell = SEPARATOR.join(level for level, _ in levels)
            weights[cell] = math.prod(weight for _, weight in levels)
    return effects


def _weights_of_levels(levels: Sequence[str], before: str, after: str) -> dict[str, Weights]:
    """Return the weights of a factor's levels: for their mean, which has no name, and for each
    other level compared with the first.
    """
    base, *others = levels
    weights = {"": dict.fromkeys(levels, 1 / len(levels))}
    for level in others:
        name = f"{before}{level}{after} instead of {before}{base}{after}"
        weights[name] = {base: -1.0, level: 1.0}
    return weights


def effects_of(
    scored: Mapping[str, Mapping[str, Scored]],
    questions: Mapping[str, Mapping[str, str]],
    rule: Rule,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the effects on every score that all cells have and that measures the same in all.

    Args:
        scored: cell → score.
        questions: cell → score → what it measures; see statistics.scores_of.

    Returns:
        effect → score → the entries of statistics.contrast. Empty if the cells are not crossed.
    """
    weights_of = weights_of_effects(list(scored))
    effects: dict[str, dict[str, dict[str, Any]]] = {effect: {} for effect in weights_of}
    for name in next(iter(scored.values())):
        if not all(name in of_cell for of_cell in scored.values()):
            continue
        if len({questions[cell].get(name) for cell in scored}) > 1:
            continue
        correlation = correlation_of_seeds([of_cell[name] for of_cell in scored.values()])
        for effect, weights in weights_of.items():
            of_cells = [scored[cell][name] for cell in weights]
            effects[effect][name] = contrast(of_cells, list(weights.values()), correlation)
    decide(
        {
            (effect, name): found
            for effect, of_effect in effects.items()
            for name, found in of_effect.items()
        },
        rule,
    )
    return effects
