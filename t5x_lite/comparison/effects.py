"""Effects of crossed factors: which differences are of the architecture, which of the objective,
and which of their product.

The cells of a comparison are crossed if each is named after a level of the first factor and one of
the second, as in decoder-denoising, and all combinations are there. The effect of a level is what
it changes compared with the first level of its factor, averaged over the levels of the other
factor. The product of two levels is what the first changes more under the second one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from t5x_lite.comparison.statistics import (
    Rule,
    Scored,
    contrast,
    correlation_of_seeds,
    decide,
)

SEPARATOR = "-"  # between the levels in the name of a cell

# Weights of cells: their weighted sum is the effect.
Weights = dict[str, float]


def levels_of(cells: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the levels of the first and of the second factor, in the order of the cells; None if
    the cells are not crossed.

    >>> levels_of(["encoder-a", "encoder-b", "decoder-a", "decoder-b"])
    (('encoder', 'decoder'), ('a', 'b'))
    >>> levels_of(["encoder-a", "decoder-b"]) is None
    True
    """
    pairs = [tuple(cell.split(SEPARATOR)) for cell in cells]
    if any(len(pair) != 2 for pair in pairs):
        return None
    first, second = (tuple(dict.fromkeys(pair[place] for pair in pairs)) for place in (0, 1))
    is_crossed = len(first) > 1 and len(second) > 1 and len(cells) == len(first) * len(second)
    return (first, second) if is_crossed else None


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
    (base, *others), (second_base, *second_others) = levels
    effects: dict[str, Weights] = {}
    for level in others:
        effects[f"{level} for {base}"] = _averaged(
            [(f"{base}{SEPARATOR}{other}", f"{level}{SEPARATOR}{other}") for other in levels[1]]
        )
    for level in second_others:
        effects[f"{level} for {second_base}"] = _averaged(
            [(f"{one}{SEPARATOR}{second_base}", f"{one}{SEPARATOR}{level}") for one in levels[0]]
        )
    for level in others:
        for second in second_others:
            effects[f"{level} for {base} × {second} for {second_base}"] = {
                f"{base}{SEPARATOR}{second_base}": 1.0,
                f"{base}{SEPARATOR}{second}": -1.0,
                f"{level}{SEPARATOR}{second_base}": -1.0,
                f"{level}{SEPARATOR}{second}": 1.0,
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
