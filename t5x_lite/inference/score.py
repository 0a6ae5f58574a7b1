"""How likely texts are to a model: by the chain rule if it reads left to right, by masks if it reads both ways."""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.config import Model
from t5x_lite.data.layouts import Shape, lay_out
from t5x_lite.data.objectives import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.errors import USAGE, Refusal
from t5x_lite.inference.fill import blanks, framed
from t5x_lite.inference.generate import encoded, slots
from t5x_lite.model.heads import head_weights, logits
from t5x_lite.model.transformer import Transformer
from t5x_lite.training.rundir import Trained

_ROWS = 8  # computed at a time


class Score(NamedTuple):
    """What a text got. kind: "log_probability", of the text or given its context, or "pseudo_log_likelihood"."""

    text: str
    kind: str
    nats: float  # the sum over its tokens; EOS does not count
    tokens: int
    bits_per_byte: float  # of its UTF-8; of a lossy tokenizer not comparable with others'


def score(trained: Trained, texts: list[str], context: str = "") -> list[Score]:
    """Of each text, behind the context.

    A decoder scores the text, or the text given the context; longer ones than its rows in pieces, each from the start.
    A prefix decoder and an encoder-decoder need a context, which they read both ways. An encoder scores a text by its
    pseudo-log-likelihood (Salazar et al., 2020: each token given all others), or what fills the one blank (___) of a
    context by the chain rule: blank after blank from left to right, with what was filled in before.
    """
    if trained.config.model.architecture == "encoder":
        return [_blank(trained, context, text) if context else _pseudo(trained, text) for text in texts]
    if not context and trained.config.model.architecture != "decoder":
        raise Refusal(USAGE, "score: this model scores a text given another; give the other with --context")
    (before,) = encoded(trained, [context])
    ids = [trained.tokenizer.encode(text) for text in texts]
    each = target_log_probabilities(trained, [before] * len(ids), ids)
    return [_scored(text, "log_probability", nats) for text, nats in zip(texts, each, strict=True)]


def _scored(text: str, kind: str, nats: np.ndarray) -> Score:
    total = float(np.sum(nats, dtype=np.float64))
    return Score(text, kind, total, len(nats), -total / math.log(2) / max(len(text.encode()), 1))


def target_log_probabilities(trained: Trained, inputs: list[np.ndarray], targets: list[np.ndarray]) -> list[np.ndarray]:
    """log P of each target token given the inputs and the targets before it, in nats."""
    model, most = trained.config.model, trained.config.model.max_length
    two = model.architecture == "encoder_decoder"
    pieces = []  # (number of the text, inputs, targets)
    for number, (before, ids) in enumerate(zip(inputs, targets, strict=True)):
        size = most - (0 if two else len(before))
        if size < 1 or (two and model.positions == "learned" and len(before) > most):
            raise Refusal(USAGE, f"score: the context has {len(before)} tokens, the model reads {most}; shorten it")
        pieces += [(number, before, ids[start : start + size]) for start in range(0, len(ids), size)]
    found = [[] for _ in targets]
    for start in range(0, len(pieces), _ROWS):
        group = pieces[start : start + _ROWS]
        group += group[:1] * (_ROWS - len(group)) if len(pieces) > _ROWS else []
        pairs = Pairs(Ragged.of([before for _, before, _ in group]), Ragged.of([ids for _, _, ids in group]))
        longest = [slots(int(max(part.lengths)), most) for part in (pairs.inputs, pairs.targets)]
        both = slots(int(max(pairs.inputs.lengths + pairs.targets.lengths)), most)
        shape = Shape(*longest, 0) if two else Shape(0, both, 0, model.architecture == "prefix_decoder")
        of_rows = np.asarray(_targets(model, trained.params, lay_out(pairs, shape, trained.tokenizer.vocabulary)))
        for (number, before, ids), row in zip(group[: len(pieces) - start], of_rows, strict=False):
            first = 0 if two else len(before)
            found[number].append(row[first : first + len(ids)])
    return [np.concatenate(parts) if parts else np.zeros(0) for parts in found]


@partial(jax.jit, static_argnums=0)
def _targets(model: Model, params: dict, row: dict):
    """log P of the targets [B, D]."""
    hidden, weights = Transformer(model, packed=False).apply({"params": params}, row), head_weights(params)

    def of_row(part):
        hidden, targets = part
        return jnp.take_along_axis(jax.nn.log_softmax(logits(model, weights, hidden)), targets[:, None], 1)[:, 0]

    return jax.lax.map(of_row, (hidden, row["decoder_targets"]))


def _masked(trained: Trained, rows: list[np.ndarray], asked: list[int], answers: list[int]) -> np.ndarray:
    """log P of each answer at one position of each row of ids."""
    found = []
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        ids, at = Ragged.of(rows[part]), Ragged.of([[i] for i in asked[part]])
        pairs = Pairs(ids, Ragged.of([[i] for i in answers[part]]), scored=at)
        length = slots(int(max(ids.lengths)), trained.config.model.max_length)
        row = lay_out(pairs, Shape(length, 0, 1), trained.tokenizer.vocabulary)
        found.append(np.asarray(_answers(trained.config.model, trained.params, row)))
    return np.concatenate(found) if found else np.zeros(0)


@partial(jax.jit, static_argnums=0)
def _answers(model: Model, params: dict, row: dict):
    hidden = Transformer(model, packed=False).apply({"params": params}, row)[:, 0]
    logp = jax.nn.log_softmax(logits(model, head_weights(params), hidden))
    return jnp.take_along_axis(logp, row["encoder_targets"], 1)[:, 0]


def _pseudo(trained: Trained, text: str) -> Score:
    ids = trained.tokenizer.encode(text)
    row, mask = framed(trained, [ids]), trained.tokenizer.vocabulary["[MASK]"]
    hidden = []
    for i in range(len(ids)):
        hidden.append(row.copy())
        hidden[-1][i + 1] = mask  # behind [CLS]
    return _scored(text, "pseudo_log_likelihood", _masked(trained, hidden, list(range(1, len(ids) + 1)), list(ids)))


def _blank(trained: Trained, context: str, text: str) -> Score:
    parts = blanks(trained, context)
    if len(parts) != 2:
        raise Refusal(USAGE, f"score: {context!r} has {len(parts) - 1} blanks, expected one, written ___")
    ids, mask = trained.tokenizer.encode(text), trained.tokenizer.vocabulary["[MASK]"]
    rows = []
    for known in range(len(ids)):
        filled = np.concatenate([ids[:known], np.full(len(ids) - known, mask)])
        rows.append(framed(trained, [parts[0], filled, parts[1]]))
    first = 1 + len(parts[0])
    return _scored(text, "log_probability", _masked(trained, rows, list(range(first, first + len(ids))), list(ids)))
