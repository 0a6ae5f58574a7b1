"""The named axes of arrays: what each axis counts, and which mesh axis splits it.

A parameter is declared with the names of its axes, such as ("embed", "mlp"). Everything else
follows from these names: which devices hold it, whether weight decay and Muon's orthogonalisation
apply to it, and whether decoding transposes it.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

BATCH = ("data", "fsdp", "expert")  # mesh axes that split the rows of a batch

Kind = Literal[
    "activation",  # of activations only
    "feature",  # inputs and outputs of dense kernels
    "rows",  # rows of a lookup table
    "stack",  # several parameters of the same kind, such as those of scanned layers
    "other",
]


class Axis(NamedTuple):
    """A named axis of parameters or activations.

    Attributes:
        split_by: mesh axis that splits it; None: every device holds all of it.
        meaning: what it counts, for the documentation.
    """

    split_by: str | tuple[str, ...] | None
    kind: Kind
    meaning: str


AXES = {
    "batch": Axis(BATCH, "activation", "rows of a batch"),
    "sequence": Axis(None, "activation", "positions"),
    # `fsdp` splits axes that are as wide as the model or its embeddings. If both axes of a kernel
    # are, it splits the inputs.
    "embed": Axis("fsdp", "feature", "d_model, as one axis of a kernel"),
    "pooled": Axis("fsdp", "feature", "d_model, as its other axis, and before the output layer"),
    "embedding": Axis(
        "fsdp", "other", "the width of the tables of tokens, positions and token types"
    ),
    "preconditioner": Axis("fsdp", "other", "rows of a matrix in the state of an optimizer"),
    # `tensor` splits heads, the feed-forward part and the vocabulary.
    "heads": Axis("tensor", "feature", "query heads × head_dim"),
    "kv_heads": Axis("tensor", "feature", "key and value heads × head_dim"),
    "mlp": Axis("tensor", "feature", "d_ff"),
    "vocab": Axis("tensor", "rows", "rows of the token table, and columns of the output layer"),
    # `expert` splits the experts of a mixture.
    "experts": Axis("expert", "stack", "experts of a mixture of experts"),
    # All other axes are whole on each device.
    "layers": Axis(None, "stack", "layers of a stack"),
    "cells": Axis(None, "feature", "cells of an LSTM, and their gates"),
    "factor": Axis(None, "feature", "the width of factorised embeddings"),
    "positions": Axis(None, "rows", "rows of a position table"),
    "types": Axis(None, "rows", "rows of the token type table"),
    "buckets": Axis(None, "other", "buckets of relative distances"),
    "distance": Axis(None, "other", "relative distances"),
    "head_dim": Axis(None, "other", "features of one head"),
    "norm": Axis(None, "other", "features of a norm"),
    "classes": Axis(None, "other", "labels, and the experts that a router chooses from"),
    "adapter": Axis(None, "other", "ranks, prompts and bottlenecks that adapt a frozen model"),
    "own": Axis(None, "other", "anything else, of a part of your own"),
}

Names = tuple[str, ...]  # names of the axes of one parameter
Rules = tuple[tuple[str, str | tuple[str, ...] | None], ...]


def check_names(names: Sequence[str | None]) -> None:
    """Raise ValueError for names that are not in AXES: flax would silently leave them unsplit."""
    unknown = set(names) - set(AXES) - {None}
    if unknown:
        raise ValueError(f"unknown axis names {unknown}, expected some of {list(AXES)}")


def _of_one(names: Sequence[str | None]) -> list[str | None]:
    """Return the axes of one parameter, without those along which several are stacked."""
    return [name for name in names if name is None or AXES[name].kind != "stack"]


def stays_wide(names: Sequence[str | None]) -> bool:
    """True for parameters that are never rounded to the compute dtype: biases, weights of norms,
    and kernels that map to a few classes.

    >>> stays_wide(("layers", "experts", "mlp")), stays_wide(("embed", "classes"))
    (True, True)
    >>> stays_wide(("layers", "embed", "mlp"))
    False
    """
    return len(_of_one(names)) < 2 or names[-1] == "classes"


def is_kernel(names: Names) -> bool:
    """True for a dense kernel [in, out], or several of them stacked.

    >>> is_kernel(("layers", "embed", "heads")), is_kernel(("vocab", "embedding"))
    (True, False)
    >>> is_kernel(("layers", "experts", "mlp", "embed"))
    True
    """
    inner = [str(name) for name in _of_one(names)]
    if len(inner) != 2:
        return False
    # A kernel maps features to features or to logits.
    inputs, outputs = inner
    return AXES[inputs].kind == "feature" and (
        AXES[outputs].kind == "feature" or outputs in ("vocab", "classes")
    )


def is_table(names: Names) -> bool:
    """True for a lookup table [rows, width]."""
    return len(names) == 2 and AXES[names[0]].kind == "rows"


def parameter_rules(kv_heads: int, tensor: int) -> Rules:
    """Return which mesh axis splits each axis of a parameter. If a name has several rules, the
    first one whose mesh axis is still free applies.

    Args:
        kv_heads: number of K/V heads.
        tensor: size of the mesh axis `tensor`. If it is larger than the number of K/V heads, each
            device holds all K/V heads, and computes the one that its query heads attend to.
    """
    return (
        *((name, "fsdp") for name, axis in AXES.items() if axis.split_by == "fsdp"),
        *device_rules(kv_heads, tensor),
    )


def device_rules(kv_heads: int, tensor: int) -> Rules:
    """Return the rules inside a training step, after parameters were gathered over `fsdp`."""
    rules: list[tuple[str, str | None]] = []
    for name, axis in AXES.items():
        if axis.kind == "activation":
            continue
        is_split = axis.split_by in ("tensor", "expert")
        # If `tensor` does not divide the K/V heads, each device has all of them.
        if name == "kv_heads" and kv_heads % tensor:
            is_split = False
        rules.append((name, str(axis.split_by) if is_split else None))
    return tuple(rules)


def all_rules(kv_heads: int, tensor: int, split_rows: bool = True) -> Rules:
    """Return the rules of all axes, for programs that the compiler partitions.

    Args:
        split_rows: False if the number of rows may be anything, as in generating and scoring texts.
    """
    rows = BATCH if split_rows else None
    return (("batch", rows), ("sequence", None), *parameter_rules(kv_heads, tensor))
