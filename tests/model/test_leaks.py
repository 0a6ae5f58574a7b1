"""No leak and no deafness: perturb one raw token before objective and layout; the logit of a target
changes if, and only if, the target may see that token. Who may see what is worked out here from the
pairs alone.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from conftest import CELLS
from model.proofs import random_params

from t5x_lite.config import ModelDimensions
from t5x_lite.data.rows.batches import Batches, make_batches
from t5x_lite.data.rows.windows import SequentialWindows
from t5x_lite.model import transformer
from t5x_lite.model.heads import HEADS, head_params, logits

ROWS = 72  # of all cells, so that those of one architecture share a compiled function


def expected_visible(pairs, carried_by) -> list[set[int]]:
    """For each target, in the order of the row, the raw positions that it may see."""
    visible = []
    for pair in pairs:
        inputs = {carried_by[i] for i in pair.inputs.tolist() if i in carried_by}
        if pair.scored is not None:
            visible += [inputs] * len(pair.scored)
            continue
        before = set()
        for target in pair.targets.tolist():
            visible.append(inputs | before)
            before = before | ({carried_by[target]} if target in carried_by else set())
    return visible


def expected_places(shape, pairs) -> list[int]:
    """Where in the stack that is scored the logit of each target stands, again from the pairs
    alone.
    """
    if shape.scored:
        return list(range(sum(len(pair.targets) for pair in pairs)))
    at, places = 0, []
    for pair in pairs:
        at += 0 if shape.encoder else len(pair.inputs)
        places += range(at, at + len(pair.targets))
        at += len(pair.targets)
    return places


@functools.cache
def logits_of(model: ModelDimensions):
    """From a batch to the logits of what is scored, of a model of random parameters."""
    params = random_params(model, stddev=0.3)
    head = HEADS["mlm" if model.architecture == "encoder" else "lm"]

    @jax.jit
    def compute(batch):
        output = transformer.apply(model, params, batch)
        return logits(model, head_params(params), head.read(output, batch))

    return compute


@pytest.mark.parametrize(("segments", "positions"), [("one", "learned"), ("several", "relative")])
@pytest.mark.parametrize(("objective", "architecture"), CELLS)
def test_logits_see_what_they_may_and_nothing_else(
    make, objective, architecture, segments, positions
):
    if objective == "masked_lm":  # a random id may be that of another raw token
        objective = "masked_lm(mask_rate=1, random_rate=0)"
    settings = {"data.split_documents": segments == "several", "model.positions": positions}
    resolved, corpus = make(objective, architecture, **settings)
    (base,) = make_batches(resolved.rows, resolved.config.data, 0, corpus, "train").streams
    n = base.windows.size
    # All different: an id tells which raw token it is.
    tokens = (np.arange(n) * 5 % 256).astype(np.uint16)
    if segments == "several":
        tokens[[n // 3, 2 * n // 3]] = base.vocabulary.eos
    free = sorted(set(range(256)) - set(tokens.tolist()))[0]
    carried_by = {int(i): at for at, i in enumerate(tokens) if i < 256}
    perturbed = np.tile(tokens, (ROWS, 1))
    for at in carried_by.values():
        perturbed[at + 1, at] = free
    streams = [
        dataclasses.replace(base, windows=SequentialWindows(window, n, 1)) for window in perturbed
    ]
    rows = [Batches((stream,), np.zeros(1, int), 1).rows([0]) for stream in streams]
    batch = {key: np.concatenate([row[key] for row in rows]) for key in rows[0]}

    all_logits = np.asarray(logits_of(resolved.model)(batch))
    changed = (all_logits[1:] != all_logits[0]).any(-1)
    assert n < ROWS
    assert not changed[n:].any()  # rows that nothing was perturbed in
    pairs = streams[0].pairs([0])[0].each()
    places, may_see = expected_places(base.shape, pairs), expected_visible(pairs, carried_by)
    assert len(places) == len(may_see) > 0
    for place, visible in zip(places, may_see, strict=True):
        assert {at for at in carried_by.values() if changed[at, place]} == visible
