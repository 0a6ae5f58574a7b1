"""Generate tokens one at a time: `prefill` reads the prompt, `decode` is a compiled loop.

Both have fixed shapes. The caller rounds prompt and output lengths up to powers of two, so that few
programs are compiled.

Shapes: B rows, P prompt slots, N output slots, K beams, V vocabulary. During a beam search the
decoder has B · K rows.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from t5x_lite.config import ModelDimensions
from t5x_lite.model.decoding import (
    DecoderState,
    DecodingWeights,
    decoding_weights,
    initial_state,
    next_logits,
    read_tokens,
)
from t5x_lite.model.heads import Params
from t5x_lite.model.parts.positions import position_limit


class Sampling(NamedTuple):
    """Options for choosing the next token.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: sample from the k likeliest tokens and any that tie with the k-th; 0: from all.
        top_p: sample from the fewest likeliest tokens that together hold this probability (nucleus
            sampling; Holtzman et al., 2020).
        first_token: id that every text is forced to begin with; None: the model chooses.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    first_token: int | None = None


class StopTokens(NamedTuple):
    """The ids that end a text, and the upper limit of the ids that may be generated.

    Attributes:
        ends: the ids that end a text; some models, such as LLaMA 3, have several. The first one
            pads texts that have ended.
        vocab_size: only ids below this are generated, because the model's vocabulary is padded.
    """

    ends: tuple[int, ...]
    vocab_size: int

    def is_end(self, ids: Array) -> Array:
        """Return True where an id ends a text."""
        return jnp.isin(ids, jnp.array(self.ends))


class Prompt(struct.PyTreeNode):
    """A batch of prompts."""

    tokens: Int[Array | np.ndarray, "B P"]  # the decoder's input, padded on the right
    lengths: Int[Array | np.ndarray, "B"]  # number of real tokens in each row
    encoder: dict[str, Any] | None = None  # the encoder's input, if there is an encoder


class DecodeState(struct.PyTreeNode):
    """The state of the decode loop after `count` tokens in each row.

    The last generated token has not been read by the decoder yet.
    """

    decoder: DecoderState
    ids: Int[Array, "B N"]
    prompt_lengths: Int[Array, "B"]
    done: Bool[Array, "B"]  # True for rows that have ended
    count: Int[Array, ""]
    key: Array


@partial(jax.jit, static_argnums=0)
def prepare_weights(config: ModelDimensions, params: Params) -> DecodingWeights:
    """Rearrange the parameters for decoding, once per model."""
    return decoding_weights(config, params)


def _read_prompt(config, weights, prompt: Prompt, slots: int) -> tuple[Array, DecoderState]:
    """Read the prompts; return the logits [B, V] after each, and the decoder's state.

    Args:
        slots: number of tokens that the state can hold, including the prompt.
    """
    tokens = jnp.asarray(prompt.tokens)
    rows, length = tokens.shape
    state = initial_state(config, weights, rows, slots, prompt.encoder)

    # Shorter prompts are padded on the right.
    index = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    is_real = (index < prompt.lengths[:, None]).astype(jnp.int32)
    positions = index * is_real  # padding could extend past the position table
    bidirectional = config.architecture == "prefix_decoder"
    hidden, state = read_tokens(
        config, weights, state, tokens, is_real, positions, 0, bidirectional
    )

    # The last real token of each prompt predicts the next token.
    last = hidden[jnp.arange(rows), prompt.lengths - 1]
    return next_logits(config, weights, last), state


def _read_next(config, weights, state: DecoderState, ids, prompt_lengths, count, output_slots: int):
    """Read the `count`-th generated token, ids [B]; return the next logits [B, V] and the state."""
    # All rows write to the same slot, after the longest prompt. Positions continue each row's own
    # prompt.
    prompt_slots = state.filled.shape[1] - output_slots
    positions = (prompt_lengths + count - 1)[:, None]
    # A row that has used up its positions keeps running until the others have ended; the caller
    # drops its extra tokens.
    limit = position_limit(config)
    positions = positions if limit is None else jnp.minimum(positions, limit - 1)
    is_real = jnp.ones_like(positions)
    slot = prompt_slots + count - 1
    hidden, state = read_tokens(config, weights, state, ids[:, None], is_real, positions, slot)
    return next_logits(config, weights, hidden[:, 0]), state


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def prefill(
    config: ModelDimensions,
    sampling: Sampling,
    stop: StopTokens,
    output_slots: int,
    weights: DecodingWeights,
    prompt: Prompt,
    key: Array,
) -> DecodeState:
    """Read the prompts, generate the first token, and reserve memory for `output_slots` tokens."""
    rows, length = prompt.tokens.shape
    logits, decoder = _read_prompt(config, weights, prompt, length + output_slots)
    if sampling.first_token is None:
        ids = sample(_allowed(logits, stop), jax.random.fold_in(key, 0), sampling)
    else:
        ids = jnp.full((rows,), sampling.first_token)
    output = jnp.full((rows, output_slots), stop.ends[0]).at[:, 0].set(ids)
    lengths = jnp.asarray(prompt.lengths)
    return DecodeState(decoder, output, lengths, stop.is_end(ids), jnp.array(1), key)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=(4,))
def decode(
    config: ModelDimensions,
    sampling: Sampling,
    stop: StopTokens,
    weights: DecodingWeights,
    state: DecodeState,
    until: int,
) -> DecodeState:
    """Generate until each row has `until` tokens, or all rows have ended."""
    output_slots = state.ids.shape[1]

    def goes_on(state: DecodeState):
        return (state.count < until) & ~state.done.all()

    def generate_one(state: DecodeState) -> DecodeState:
        last = state.ids[:, state.count - 1]
        logits, decoder = _read_next(
            config, weights, state.decoder, last, state.prompt_lengths, state.count, output_slots
        )
        ids = sample(_allowed(logits, stop), jax.random.fold_in(state.key, state.count), sampling)
        ids = jnp.where(state.done, stop.ends[0], ids)  # a text that has ended stays ended
        return state.replace(
            decoder=decoder,
            ids=state.ids.at[:, state.count].set(ids),
            done=state.done | stop.is_end(ids),
            count=state.count + 1,
        )

    return jax.lax.while_loop(goes_on, generate_one, state)


def _allowed(logits, stop: StopTokens):
    """Set the logits of ids that the tokenizer lacks to −∞."""
    return jnp.where(jnp.arange(logits.shape[-1]) < stop.vocab_size, logits, -jnp.inf)


def sample(logits: Float[Array, "B V"], key: Array, sampling: Sampling) -> Int[Array, "B"]:
    """Sample one id for each row; at temperature 0, take the likeliest.

    >>> sample(jnp.array([[0.0, 3.0, 1.0]]), jax.random.key(0), Sampling()).tolist()
    [1]
    """
    temperature, top_k, top_p = sampling.temperature, sampling.top_k, sampling.top_p
    if temperature == 0:
        return logits.argmax(-1)
    # Shift the largest logit to 0, so that a very low temperature cannot overflow.
    logits = (logits - logits.max(-1, keepdims=True)) / temperature
    # Top-k: drop ids that are less likely than the k-th.
    if top_k:
        kth_best = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))[0][:, -1:]
        logits = jnp.where(logits < kth_best, -jnp.inf, logits)
    # Nucleus sampling: keep an id if the likelier ids together hold less than top_p.
    if top_p < 1:
        sorted_logits = -jnp.sort(-logits, -1)
        probabilities = jax.nn.softmax(sorted_logits)
        probability_before = jnp.cumsum(probabilities, -1) - probabilities
        kept = probability_before < top_p  # the likeliest id is always kept
        threshold = jnp.where(kept, sorted_logits, jnp.inf).min(-1, keepdims=True)
        logits = jnp.where(logits < threshold, -jnp.inf, logits)
    return jax.random.categorical(key, logits)


class Beams(struct.PyTreeNode):
    """The state of a beam search: per row, K live texts and the K best texts that have ended."""

    decoder: DecoderState  # with B · K rows
    ids: Int[Array, "B K N"]
    scores: Float[Array, "B K"]  # log probabilities of the live texts
    ended_ids: Int[Array, "B K N"]
    # Log probabilities with the length penalty; −inf where no text has ended yet:
    ended_scores: Float[Array, "B K"]
    count: Int[Array, ""]


@dataclass(frozen=True)
class _BeamSearch:
    """How one beam search extends, ranks and ends its texts; see beam_search.

    Shapes: K live texts in each row, but 1 before the first step.
    """

    stop: StopTokens
    num_beams: int
    length_penalty: float
    until: int | Int[Array, ""]

    def penalised(self, scores: Array, length: Array | float) -> Array:
        """Apply the length penalty to the scores of texts (Wu et al., 2016, eq. 14)."""
        return scores / ((5 + length) / 6) ** self.length_penalty

    def extend(self, beams: Beams, logits: Float[Array, "BK V"], decoder: DecoderState) -> Beams:
        """Extend the live texts by one token each.

        With E ids that end a text, the (1 + E) K likeliest candidates are considered: at most E K
        of them end, so at least K stay live.
        """
        rows, vocab = len(beams.ids), logits.shape[-1]
        log_probabilities = jax.nn.log_softmax(_allowed(logits, self.stop))
        candidates = log_probabilities.reshape(rows, -1, vocab) + beams.scores[..., None]
        count = min((1 + len(self.stop.ends)) * self.num_beams, candidates[0].size)
        scores, flat = jax.lax.top_k(candidates.reshape(rows, -1), count)
        parents, ids = flat // vocab, flat % vocab
        texts = _take(beams.ids, parents).at[:, :, beams.count].set(ids)

        # Rank the candidates that end together with the texts that ended earlier.
        ends = self.stop.is_end(ids) | (beams.count + 1 >= self.until)
        new_scores = jnp.where(ends, self.penalised(scores, beams.count + 1.0), -jnp.inf)
        all_ended = jnp.concatenate([beams.ended_ids, texts], 1)
        all_scores = jnp.concatenate([beams.ended_scores, new_scores], 1)
        ended_scores, best = jax.lax.top_k(all_scores, self.num_beams)

        # Keep the best candidates that do not end, with the decoder state of their parents.
        live = jnp.where(self.stop.is_end(ids), -jnp.inf, scores)
        going_on, index = jax.lax.top_k(live, self.num_beams)
        parents = jnp.take_along_axis(parents, index, 1)
        flat_parents = parents + jnp.arange(rows)[:, None] * beams.scores.shape[1]
        decoder = jax.tree.map(lambda x: x[flat_parents.reshape(-1)], decoder)
        return Beams(
            decoder=decoder,
            ids=_take(texts, index),
            scores=going_on,
            ended_ids=_take(all_ended, best),
            ended_scores=ended_scores,
            count=beams.count + 1,
        )

    def can_improve(self, beams: Beams) -> Array:
        """True while some live text can beat the worst ended text of its row."""
        # Log probabilities only fall as a text grows, but a longer text is penalised less.
        best_length = jnp.where(self.length_penalty > 0, self.until, beams.count + 1.0)
        best_possible = self.penalised(beams.scores[:, 0], best_length)
        is_better = best_possible > beams.ended_scores[:, -1]
        return is_better.any() & (beams.count < self.until)


def _take(texts: Int[Array, "B K1 N"], index: Int[Array, "B K2"]) -> Int[Array, "B K2 N"]:
    """Select texts within each row by index."""
    return jnp.take_along_axis(texts, index[..., None], 1)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def beam_search(
    config: ModelDimensions,
    stop: StopTokens,
    num_beams: int,
    length_penalty: float,
    output_slots: int,
    weights: DecodingWeights,
    prompt: Prompt,
    until: int,
) -> tuple[Int[Array, "B K N"], Float[Array, "B K"]]:
    """Search for the `num_beams` best texts of at most `until` tokens in each row.

    A text that has ended scores log P / ((5 + length) / 6)^penalty, where the length includes EOS
    (Wu et al., 2016, eq. 14). A row is done when no live text can beat its worst ended text. Texts
    that are cut off at `until` count as ended.

    Returns:
        the ids, padded with EOS, and the scores, both best first; a score of −inf marks a missing
        text.
    """
    rows, prompt_slots = prompt.tokens.shape
    search = _BeamSearch(stop, num_beams, length_penalty, until)

    def step(beams: Beams) -> Beams:
        lengths = jnp.repeat(prompt.lengths, num_beams)
        last = beams.ids[:, :, beams.count - 1].reshape(-1)
        logits, decoder = _read_next(
            config, weights, beams.decoder, last, lengths, beams.count, output_slots
        )
        return search.extend(beams, logits, decoder)

    # The search starts from one empty text in each row, which branches into K.
    logits, decoder = _read_prompt(config, weights, prompt, prompt_slots + output_slots)
    start = Beams(
        decoder=decoder,
        ids=jnp.full((rows, 1, output_slots), stop.ends[0]),
        scores=jnp.zeros((rows, 1)),
        ended_ids=jnp.full((rows, num_beams, output_slots), stop.ends[0]),
        ended_scores=jnp.full((rows, num_beams), -jnp.inf),
        count=jnp.array(0),
    )
    beams = jax.lax.while_loop(search.can_improve, step, search.extend(start, logits, decoder))
    return beams.ended_ids, beams.ended_scores
