"""The contract for the pairs that an objective returns. Tests check the objectives that ship; a
user's function is checked in every batch.
"""

from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import numpy as np

from t5x_lite.data.objectives.declaration import Bound, Traits
from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.ragged import Ragged

_RAGGED = [
    name for name, kind in get_type_hints(Pairs).items() if Ragged in (kind, *get_args(kind))
]


class ContractError(ValueError):
    """The pairs are not what the objective declares."""


def check_parts(
    parts: Any, tokens: np.ndarray, bound: Callable[[int], Bound], traits: Traits, vocab_size: int
) -> None:
    """Reject what an objective returned if it breaks the contract.

    Args:
        parts: what it returned, as a tuple.
        tokens: the windows that it was given, [rows, n] or [rows, 2, n].
        bound: function n → Bound.

    Raises:
        ContractError: with a message that says what was returned and what is expected.
    """
    if len(parts) != traits.pairs_per_window:
        raise ContractError(f"made {len(parts)} Pairs, its traits say {traits.pairs_per_window}")
    rows, n = tokens.shape[0], tokens.shape[-1]
    for pairs in parts:
        if not isinstance(pairs, Pairs):
            raise ContractError(f"returned {type(pairs).__name__}, expected Pairs")
        _check_ragged(pairs, rows)
        _check_ids(pairs, vocab_size)
        _check_weights(pairs)
        _check_optional(pairs, traits)
        _check_bound(pairs, n, bound(n), traits)


def _check_ragged(pairs: Pairs, rows: int) -> None:
    """Check that each field has one row per window, and as many values as its lengths add up to."""
    for name in _RAGGED:
        field = getattr(pairs, name)
        if field is None:
            continue
        if not isinstance(field, Ragged):
            raise ContractError(f"its {name} are {type(field).__name__}, expected Ragged")
        lengths, values = np.asarray(field.lengths), np.asarray(field.values)
        if lengths.shape != (rows,) or lengths.dtype.kind not in "iu":
            got = f"lengths of shape {lengths.shape} and type {lengths.dtype}"
            raise ContractError(f"its {name} have {got}, expected {rows} whole numbers")
        if values.shape != (lengths.sum(),) or lengths.min(initial=0) < 0:
            got = f"values of shape {values.shape} for lengths that add up to {lengths.sum()}"
            raise ContractError(f"its {name} have {got}; use Ragged.from_rows")
    for name, other in (("weights", "targets"), ("scored", "targets"), ("types", "inputs")):
        field = getattr(pairs, name)
        if field is not None and not np.array_equal(field.lengths, getattr(pairs, other).lengths):
            raise ContractError(f"its rows have other numbers of {name} than of {other}")


def _check_ids(pairs: Pairs, vocab_size: int) -> None:
    for name in ("inputs", "targets", "read"):
        ids = getattr(pairs, name).values
        if ids.dtype.kind not in "iu":
            raise ContractError(f"its {name} are of type {ids.dtype}, expected whole numbers")
        if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
            got = f"ids from {ids.min()} to {ids.max()}"
            raise ContractError(f"its {name} have {got}, the tokenizer has {vocab_size}")


def _check_weights(pairs: Pairs) -> None:
    weights = pairs.weights.values
    if weights.dtype.kind != "f":
        fix = "give Ragged.from_array dtype=np.float32"
        raise ContractError(f"its weights are of type {weights.dtype}, expected float32; {fix}")
    if not np.isfinite(weights).all() or weights.min(initial=0) < 0:
        raise ContractError("some of its weights are negative or not finite")


def _check_optional(pairs: Pairs, traits: Traits) -> None:
    """Check the fields that depend on the traits."""
    if (pairs.scored is not None) != traits.aligned:
        has = "have" if pairs.scored is not None else "have no"
        raise ContractError(
            f"its pairs {has} `scored`; declare Traits(aligned={not traits.aligned})"
        )
    read = pairs.read.lengths
    if (read[~np.asarray(pairs.reads_causally)] > 0).any() and not traits.looks_ahead:
        fix = "declare Traits(looks_ahead=True), or give Pairs reads_causally=True"
        raise ContractError(f"its pairs have `read`; {fix}")
    if ((read != 0) & (read != pairs.targets.lengths)).any():
        raise ContractError("its rows have other numbers of `read` than of targets")
    if traits.has_inputs and (pairs.targets.lengths[pairs.inputs.lengths == 0] > 0).any():
        raise ContractError(
            "some rows have targets and no inputs; declare Traits(has_inputs=False)"
        )
    if pairs.scored is not None:
        places = pairs.scored.values
        if places.dtype.kind not in "iu":
            raise ContractError(f"its `scored` are of type {places.dtype}, expected whole numbers")
        beyond = places >= np.repeat(pairs.inputs.lengths, pairs.scored.lengths)
        if beyond.any() or places.min(initial=0) < 0:
            raise ContractError("some of its `scored` are not places of its inputs")
    if pairs.labels is not None and np.shape(pairs.labels) != (len(pairs),):
        got = f"labels of shape {np.shape(pairs.labels)}"
        raise ContractError(f"its pairs have {got}, expected one for each of {len(pairs)}")
    given = (pairs.types is not None, pairs.labels is not None)
    if given != (traits.sentence_pairs, traits.sentence_pairs):
        wants = "both, for Traits(sentence_pairs=True)" if traits.sentence_pairs else "neither"
        raise ContractError(f"its pairs have types, labels: {given}, expected {wants}")


def _check_bound(pairs: Pairs, n: int, bound: Bound, traits: Traits) -> None:
    inputs, targets = pairs.inputs.lengths, pairs.targets.lengths
    both = inputs if traits.aligned else inputs + targets  # positions if both are on one stack
    made = tuple(int(lengths.max(initial=0)) for lengths in (inputs, targets, both))
    most = (bound.inputs, bound.targets, bound.both)
    if np.greater(made, most).any():
        got = f"made {made} inputs, targets and both of {n} tokens"
        raise ContractError(f"{got}, its bound is {most}; fix the bound")
