"""Write tokens, one after another, in programs of fixed shape: reading the prompt, and a loop that is compiled once for
each power of two of prompts and of what is written.

Shapes: B rows (of a beam search: rows × beams), P prompt slots, N slots to be written, V vocabulary.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from t5x_lite.config import Model
from t5x_lite.model import decoding
from t5x_lite.model.decoding import Cache, Weights


class Sampling(NamedTuple):
    """How the next token is chosen: temperature 0 takes the likeliest; top_k keeps the k likeliest (0: all) and what
    ties with the last of them, top_p the likeliest that together hold that probability (Holtzman et al., 2020).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


class Ends(NamedTuple):
    """What ends a text, and the ids that may be written: those below size."""

    eos: int
    size: int


class Prompt(struct.PyTreeNode):
    """What is read first: tokens of a decoder [B, P], `lengths` [B] of them real; and the row of an encoder, if any."""

    tokens: jax.Array
    lengths: jax.Array
    encoder: dict | None = None


class Written(struct.PyTreeNode):
    """Where the writing stands: ids [B, N], of which `count` are written in each row; the last one is not yet read."""

    cache: Cache
    ids: jax.Array
    lengths: jax.Array  # [B] tokens of the prompt
    done: jax.Array  # [B]: ended
    count: jax.Array
    key: jax.Array


@partial(jax.jit, static_argnums=0)
def prepare(config: Model, params: dict) -> Weights:
    """The parameters as writing wants them; made once for a model."""
    return decoding.weights(config, params)


def _read_prompt(config: Model, weights: Weights, prompt: Prompt, slots: int):
    """The logits [B, V] behind each prompt, and the cache, of so many slots."""
    rows, length = prompt.tokens.shape
    cache = decoding.empty(config, weights, rows, slots, prompt.encoder)
    places = jnp.broadcast_to(jnp.arange(length), prompt.tokens.shape)
    real = (places < prompt.lengths[:, None]).astype(jnp.int32)
    positions = places * real  # padding may lie past the table of positions
    both_ways = config.architecture == "prefix_decoder"
    hidden, cache = decoding.read(config, weights, cache, prompt.tokens, real, positions, 0, both_ways)
    last = hidden[jnp.arange(rows), prompt.lengths - 1]
    return decoding.next_logits(config, weights, last), cache


def _read_next(config: Model, weights: Weights, cache: Cache, ids, lengths, count, slots: int):
    """The logits [B, V] behind ids [B], which are number `count` of what is written, and the cache with them."""
    slot = cache.filled.shape[1] - slots + count - 1
    positions = (lengths + count - 1)[:, None]
    hidden, cache = decoding.read(config, weights, cache, ids[:, None], jnp.ones_like(positions), positions, slot)
    return decoding.next_logits(config, weights, hidden[:, 0]), cache


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def begin(config: Model, sampling: Sampling, ends: Ends, slots: int, weights, prompt: Prompt, key) -> Written:
    """Read the prompt, and write the first token; there is room for `slots` of them."""
    rows, length = prompt.tokens.shape
    last, cache = _read_prompt(config, weights, prompt, length + slots)
    ids = choose(_allowed(last, ends), jax.random.fold_in(key, 0), sampling)
    written = jnp.full((rows, slots), ends.eos).at[:, 0].set(ids)
    return Written(cache, written, prompt.lengths, ids == ends.eos, jnp.array(1), key)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=(4,))
def go_on(config: Model, sampling: Sampling, ends: Ends, weights, written: Written, until) -> Written:
    """Write on, until each row has `until` tokens or all have ended."""
    slots = written.ids.shape[1]

    def turn(w: Written) -> Written:
        last, cache = _read_next(config, weights, w.cache, w.ids[:, w.count - 1], w.lengths, w.count, slots)
        ids = choose(_allowed(last, ends), jax.random.fold_in(w.key, w.count), sampling)
        ids = jnp.where(w.done, ends.eos, ids)
        return w.replace(
            cache=cache, ids=w.ids.at[:, w.count].set(ids), done=w.done | (ids == ends.eos), count=w.count + 1
        )

    return jax.lax.while_loop(lambda w: (w.count < until) & ~w.done.all(), turn, written)


def _allowed(logits, ends: Ends):
    return jnp.where(jnp.arange(logits.shape[-1]) < ends.size, logits, -jnp.inf)


def choose(logits, key, sampling: Sampling):
    """One id for each row of logits [B, V]: the likeliest at temperature 0, else a sample of those that are kept.

    >>> choose(jnp.array([[0.0, 3.0, 1.0]]), jax.random.key(0), Sampling()).tolist()
    [1]
    """
    temperature, top_k, top_p = sampling
    if temperature == 0:
        return logits.argmax(-1)
    logits = (logits - logits.max(-1, keepdims=True)) / temperature  # at most 0, however low the temperature
    if top_k:
        kth = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))[0][:, -1:]
        logits = jnp.where(logits < kth, -jnp.inf, logits)
    if top_p < 1:
        ordered = -jnp.sort(-logits, -1)
        probabilities = jax.nn.softmax(ordered)
        kept = jnp.cumsum(probabilities, -1) - probabilities < top_p  # the likeliest id is always kept
        least = jnp.where(kept, ordered, jnp.inf).min(-1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return jax.random.categorical(key, logits)


class Beams(struct.PyTreeNode):
    """A beam search: K texts of each row that go on, and the K best that have ended."""

    cache: Cache  # of rows × K
    ids: jax.Array  # [B, K, N]
    scores: jax.Array  # [B, K]: log probabilities
    ended: jax.Array  # [B, K, N]
    ended_scores: jax.Array  # [B, K]: log probabilities by the length penalty; −inf where there is none
    count: jax.Array


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def beam_search(config: Model, ends: Ends, beams: int, penalty: float, slots: int, weights, prompt: Prompt, until):
    """The `beams` best texts of at most `until` tokens, best first: ids [B, K, N], EOS and what is behind it eos, and
    scores [B, K].

    A text that has ended scores log P / ((5 + length) / 6)^penalty, its EOS counted (Wu et al., 2016, eq. 14); a row is
    done when no text that goes on can become better than its worst one that has ended. Those cut off at `until` count
    as ended.
    """
    rows, length = prompt.tokens.shape
    eos, k = ends.eos, beams

    def penalised(scores, count):
        return scores / ((5 + count) / 6) ** penalty

    def pick(texts, index):
        """Of texts [B, K', N] those at index [B, K]."""
        return jnp.take_along_axis(texts, index[..., None], 1)

    def extended(b: Beams, logits, cache) -> Beams:
        """Each text by its likeliest next ids: 2 K in all, of which at least K go on."""
        logp = jax.nn.log_softmax(_allowed(logits, ends)).reshape(rows, -1, logits.shape[-1]) + b.scores[..., None]
        scores, flat = jax.lax.top_k(logp.reshape(rows, -1), min(2 * k, logp[0].size))
        parents, ids = flat // logits.shape[-1], flat % logits.shape[-1]
        texts = pick(b.ids, parents).at[:, :, b.count].set(ids)
        stops = (ids == eos) | (b.count + 1 >= until)
        # Those that end, with those that had ended before.
        all_ended = jnp.concatenate([b.ended, texts], 1)
        all_scores = [b.ended_scores, jnp.where(stops, penalised(scores, b.count + 1.0), -jnp.inf)]
        ended_scores, best = jax.lax.top_k(jnp.concatenate(all_scores, 1), k)
        # Those that go on.
        alive, index = jax.lax.top_k(jnp.where(ids == eos, -jnp.inf, scores), k)
        parents = jnp.take_along_axis(parents, index, 1)
        own = parents + jnp.arange(rows)[:, None] * b.scores.shape[1]
        cache = jax.tree.map(lambda x: x[own.reshape(-1)], cache)
        return Beams(cache, pick(texts, index), alive, pick(all_ended, best), ended_scores, b.count + 1)

    def turn(b: Beams) -> Beams:
        lengths, last = jnp.repeat(prompt.lengths, k), b.ids[:, :, b.count - 1].reshape(-1)
        logits, cache = _read_next(config, weights, b.cache, last, lengths, b.count, slots)
        return extended(b, logits, cache)

    def can_improve(b: Beams):
        best = penalised(b.scores[:, 0], jnp.where(penalty > 0, until, b.count + 1.0))
        return (best > b.ended_scores[:, -1]).any() & (b.count < until)

    logits, cache = _read_prompt(config, weights, prompt, length + slots)
    blank = jnp.full((rows, 1, slots), eos)
    none = jnp.full((rows, k), -jnp.inf)
    first = Beams(cache, blank, jnp.zeros((rows, 1)), jnp.full((rows, k, slots), eos), none, jnp.array(0))
    last = jax.lax.while_loop(can_improve, turn, extended(first, logits, cache))
    return last.ended, last.ended_scores
