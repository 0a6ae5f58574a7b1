"""Continue texts: greedily, by sampling, or by beam search.

A decoder reads the start token and the prompt. Instead of the start token, an imported decoder
reads the ids that its own tokenizer puts before a text. A prefix decoder reads both
bidirectionally. In an encoder-decoder, the encoder reads the prompt and the decoder begins with the
start token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

import jax
import numpy as np

from t5x_lite.config import Checked, ModelDimensions, Seed
from t5x_lite.config.files import build
from t5x_lite.config.ranges import NonNegative, Positive, Range
from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rows.layouts import RowShape, lay_out
from t5x_lite.errors import USAGE, UserError
from t5x_lite.inference.buckets import bucket_length
from t5x_lite.inference.decode_loop import (
    Prompt,
    Sampling,
    StopTokens,
    beam_search,
    decode,
    prefill,
    prepare_weights,
)
from t5x_lite.inference.unmask import Unmasking, check_options, unmask
from t5x_lite.model.parts.positions import position_limit
from t5x_lite.parallel.placement import to_host
from t5x_lite.training.loaded_model import LoadedModel

GREEDY = Sampling()
_UNLIMITED = 1 << 62
_TOKENS_BETWEEN_STOP_CHECKS = 16  # the compiled loop cannot see stop strings


@dataclass(frozen=True)
class Options(Checked):
    """Options for continuing texts; see decode_loop.Sampling and decode_loop.beam_search."""

    SECTION = "generate"

    max_new_tokens: Annotated[int, Range(1, 2**16)] = 64
    temperature: Annotated[float, Range(0.0)] = 0.0
    top_k: NonNegative = 0
    top_p: Annotated[float, Range(1e-6, 1.0)] = 1.0
    seed: Seed = 0  # a sample depends on the seed and on the index of its prompt
    num_beams: Positive = 1  # above 1: return the best text of a beam search, without sampling
    length_penalty: Annotated[float, Range(0.0)] = 0.6
    stop: tuple = ()  # cut the text before the first of these strings
    # For models trained on masked_diffusion; see unmask.Unmasking
    unmask_steps: NonNegative = 0
    unmask_order: Literal["confidence", "random"] = "confidence"
    unmask_block: NonNegative = 0
    # Read names such as <extra_id_0> in a prompt as special tokens; False: read them as text
    special_tokens: bool = False

    def _contradictions(self) -> Iterator[str]:
        if not all(isinstance(word, str) and word for word in self.stop):
            yield f"generate: stop: got {self.stop!r}, expected texts that are not empty"
        if self.num_beams > 1 and self.temperature:
            yield (
                "generate: temperature samples, but num_beams searches for the likeliest text; set "
                "one of them"
            )
        if not self.temperature and (self.top_k or self.top_p < 1):
            yield (
                "generate: top_k and top_p restrict what is sampled, but nothing is; set a "
                "temperature"
            )


def _output_room(config: ModelDimensions, prompt: int) -> int:
    """Return how many tokens a model has positions for after a prompt of `prompt` tokens.

    The result is 0 or less if the prompt leaves no room.
    """
    # Only a learned position table limits the length.
    if position_limit(config) is None:
        return _UNLIMITED
    if config.is_encoder_decoder:
        return config.max_length if prompt <= config.max_length else 0
    return config.max_length - prompt


def with_room(loaded: LoadedModel, ids: np.ndarray, max_new_tokens: int) -> np.ndarray:
    """Truncate a prompt on the left, so that the position table has room for the generated tokens.

    At least half of the positions are left to the prompt.
    """
    if position_limit(loaded.model) is None:
        return ids
    return _end_of(loaded, ids, max_new_tokens)


def _output_rooms(loaded: LoadedModel, inputs: list[np.ndarray], max_new_tokens: int) -> list[int]:
    """Return how many tokens may be generated after each prompt.

    Raises:
        UserError: for an encoder, or if a prompt is too long for the position table.
    """
    config = loaded.model
    if config.architecture == "encoder":
        raise UserError(USAGE, "generate: an encoder writes no text; use fill")
    lengths = [len(ids) for ids in inputs]
    if not config.is_encoder_decoder:
        lengths = [len(loaded.after_start(ids)) - 1 for ids in inputs]
    rooms = [min(max_new_tokens, _output_room(config, length)) for length in lengths]
    if min(rooms) < 1:
        reason = f"a prompt has {max(lengths)} tokens, the model {config.max_length} positions"
        raise UserError(USAGE, f"generate: {reason}; shorten it")
    return rooms


@lru_cache(maxsize=1)
def _weights(loaded: LoadedModel):
    """Return the decoding weights, cached for the last model."""
    return prepare_weights(loaded.model, loaded.params)


def forget_weights() -> None:
    """Free the cached decoding weights of the last model."""
    _weights.cache_clear()


def _prompt(loaded: LoadedModel, inputs: list[np.ndarray]) -> Prompt:
    """Lay out the ids of prompts as a batch; an encoder's prompts must not be empty."""
    config, vocabulary = loaded.model, loaded.tokenizer.vocabulary
    # The encoder reads the prompt, and the decoder begins with the start token.
    if config.is_encoder_decoder:
        longest = max(len(ids) for ids in inputs)
        if not all(len(ids) for ids in inputs):
            raise UserError(
                USAGE,
                "generate: got an empty prompt, but the encoder must read something; write one",
            )
        length = bucket_length(longest, position_limit(config))
        one_target = Ragged.from_array(np.zeros((len(inputs), 1), np.int32))
        pairs = Pairs(Ragged.from_rows(inputs), one_target)
        starts = np.full(len(inputs), loaded.start)
        row = lay_out(pairs, RowShape(encoder=length, decoder=1), vocabulary, starts=starts)
        return Prompt(row["decoder_tokens"], np.ones(len(inputs), np.int32), row)

    # A single stack reads the start token (or the ids that replace it), then the prompt.
    whole = [loaded.after_start(ids) for ids in inputs]
    longest = max(map(len, whole))
    tokens = np.full((len(inputs), bucket_length(longest)), vocabulary.pad, np.int32)
    for row, ids in zip(tokens, whole, strict=True):
        row[: len(ids)] = ids
    return Prompt(tokens, np.array([len(ids) for ids in whole], np.int32))


def first_and_rest(texts: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Split texts [T] into their first ids [texts], which begin the rows, and the rest [T − 1]."""
    return np.array([ids[0] for ids in texts]), [ids[1:] for ids in texts]


def _stop_tokens(loaded: LoadedModel) -> StopTokens:
    return StopTokens(loaded.ends, loaded.tokenizer.vocabulary.size)


def _until_end(rows, counts: Sequence[int], ends: tuple[int, ...]) -> list[np.ndarray]:
    """Return the first `count` ids of each row, cut before the first id that ends the text."""
    texts = []
    # Copy the rows, because the decode loop reuses their memory.
    for row, count in zip(to_host(rows).copy(), counts, strict=True):
        places = np.flatnonzero(np.isin(row[:count], ends))
        texts.append(row[: places[0] if len(places) else count])
    return texts


def generate_ids(
    loaded: LoadedModel,
    inputs: list[np.ndarray],
    max_new_tokens: int = 64,
    sampling: Sampling = GREEDY,
    seed: int = 0,
) -> list[np.ndarray]:
    """Return the ids generated after each input, without EOS."""
    (last,) = stream_ids(loaded, inputs, max_new_tokens, sampling, seed)
    return last


def stream_ids(
    loaded: LoadedModel,
    inputs: list[np.ndarray],
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    every: int = 0,
) -> Iterator[list[np.ndarray]]:
    """Yield the ids generated so far after each input, without EOS.

    A text ends at EOS or after max_new_tokens. It ends earlier if the model runs out of positions
    for it; this does not shorten the other texts of the batch.

    Args:
        every: number of tokens between yields, the first of which follows the first token; 0:
            yield once, at the end.

    Raises:
        UserError: if the model has no decoder, if a prompt is too long, or if an encoder's prompt
            is empty.
    """
    config, stop = loaded.model, _stop_tokens(loaded)
    rooms = _output_rooms(loaded, inputs, max_new_tokens)
    most = max(rooms)
    with loaded.within():
        weights, prompt = _weights(loaded), _prompt(loaded, inputs)
        state = prefill(
            config, sampling, stop, bucket_length(most), weights, prompt, jax.random.key(seed)
        )

    # The compiled loop returns after every `every` tokens, so that the text so far can be yielded.
    until = 1
    while True:
        count = int(to_host(state.count))
        is_done = bool(to_host(state.done).all()) or count == most
        if every or is_done:
            yield _until_end(state.ids, [min(count, room) for room in rooms], stop.ends)
        if is_done:
            return
        until = min(until + every, most) if every else most
        with loaded.within():
            state = decode(config, sampling, stop, weights, state, until)


def search_ids(
    loaded: LoadedModel,
    inputs: list[np.ndarray],
    num_beams: int,
    max_new_tokens: int = 64,
    length_penalty: float = 0.6,
) -> list[list[tuple[np.ndarray, float]]]:
    """Run a beam search; return a list of (ids, score) for each input, best first.

    See decode_loop.beam_search.
    """
    config, stop = loaded.model, _stop_tokens(loaded)
    rooms = _output_rooms(loaded, inputs, max_new_tokens)
    results: list[list[tuple[np.ndarray, float]]] = [[] for _ in inputs]
    # All texts of one search have the same token limit, so run a search for each limit.
    for most in set(rooms):
        numbers = [number for number, room in enumerate(rooms) if room == most]
        with loaded.within():
            prompt = _prompt(loaded, [inputs[number] for number in numbers])
            slots = bucket_length(most)
            all_ids, all_scores = beam_search(
                config, stop, num_beams, length_penalty, slots, _weights(loaded), prompt, most
            )
        found = zip(numbers, to_host(all_ids), to_host(all_scores), strict=True)
        for number, ids, scores in found:
            texts = _until_end(ids, [most] * len(ids), stop.ends)
            ranked = zip(texts, scores.tolist(), strict=True)
            results[number] = [(text, score) for text, score in ranked if np.isfinite(score)]
    return results


def encode_prompts(
    loaded: LoadedModel, prompts: Sequence[str], special_tokens: bool = False
) -> list[np.ndarray]:
    """Encode prompts, with the special tokens that an encoder reads around them.

    The inputs of an encoder-decoder end in EOS if it was trained that way (for span corruption and
    tasks). Those of an imported model begin with the ids that the model expects (BART: <s>).

    Args:
        special_tokens: read names of special tokens in a prompt as these tokens, not as text.
    """
    tokenizer = loaded.tokenizer
    encode = tokenizer.encode_with_specials if special_tokens else tokenizer.encode
    ends_in_eos = loaded.model.is_encoder_decoder and loaded.rows.inputs_end_in_eos
    eos = [loaded.tokenizer.vocabulary.eos] if ends_in_eos else []
    before = loaded.conventions.before_inputs
    return [np.concatenate([before, encode(prompt), eos]).astype(np.int32) for prompt in prompts]


def _checked_options(loaded: LoadedModel, prompts: Sequence[str], options: dict) -> Options:
    """Check that the model, the prompts and the options fit each other; return the options."""
    loaded.check_predicts_tokens("generate")
    checked = build(Options, options, "generate.")
    ids = loaded.tokenizer.vocabulary.size
    if isinstance(prompts, str):
        raise UserError(USAGE, f"generate: got the text {prompts!r}, expected a list of texts")
    check_options(loaded, _unmasking(checked), checked.num_beams)
    if checked.num_beams > ids:
        reason = f"got {checked.num_beams}, expected at most the {ids} ids of the tokenizer"
        raise UserError(USAGE, f"generate: num_beams: {reason}")
    return checked


def continue_texts(loaded: LoadedModel, prompts: Sequence[str], **options) -> list[str]:
    """Return the text that the model writes after each prompt.

    Args:
        options: the fields of Options.
    """
    *_, texts = stream_texts(loaded, prompts, 0, **options)
    return texts


def stream_texts(
    loaded: LoadedModel, prompts: Sequence[str], every: int = 4, **options
) -> Iterator[list[str]]:
    """Yield the texts written so far after each prompt.

    Each text only grows. The last yield is what `continue_texts` returns.

    Args:
        every: number of tokens between yields; 0: yield only at the end, unless there are stop
            strings, which are checked every 16 tokens.
        options: the fields of Options.
    """
    checked = _checked_options(loaded, prompts, options)
    if not prompts:
        yield []
        return
    inputs = encode_prompts(loaded, prompts, checked.special_tokens)
    yield from _stream(loaded, inputs, every, checked)


def continue_inputs(loaded: LoadedModel, inputs: list[np.ndarray], **options) -> list[str]:
    """Return the text that the model writes after each encoded prompt.

    Args:
        options: the fields of Options.
    """
    *_, texts = _stream(loaded, inputs, 0, build(Options, options, "generate."))
    return texts


class Written(NamedTuple):
    """The text that a model has written so far after a prompt.

    Attributes:
        prompt: the ids that the model has read.
        ids: the ids that the model has written.
        text: the written ids as text; while writing goes on, without an incomplete last character.
    """

    prompt: np.ndarray
    ids: np.ndarray
    text: str


def stream_written(
    loaded: LoadedModel, prompt: str, *, cut: bool = False, every: int = 4, **options
) -> Iterator[Written]:
    """Yield the text written so far after one prompt. The text only grows.

    Args:
        cut: truncate the prompt on the left if it leaves no room in a row for max_new_tokens, for
            which at most half of the row is reserved.
        every: number of tokens between yields.
        options: the fields of Options except `stop` and `num_beams`.
    """
    checked = _checked_options(loaded, [prompt], options)
    for name in ("stop", "num_beams"):
        if name in options:
            reason = "is not for a text that is shown token by token"
            raise UserError(USAGE, f"generate: {name} {reason}; leave it out, or use generate")
    (read,) = encode_prompts(loaded, [prompt], checked.special_tokens)
    if cut:
        read = _end_of(loaded, read, checked.max_new_tokens)
    sampling = Sampling(checked.temperature, checked.top_k, checked.top_p)
    ids, text = np.zeros(0, np.int32), ""
    for (ids,) in _written(loaded, [read], sampling, every, checked):
        text = loaded.tokenizer.decode_after(read, ids)
        yield Written(read, ids, _settled(text, ()))
    yield Written(read, ids, text)


def _end_of(loaded: LoadedModel, ids: np.ndarray, max_new_tokens: int) -> np.ndarray:
    """Truncate a prompt on the left, so that a training row has room for it and the new tokens."""
    length = loaded.model.max_length
    if not loaded.model.is_encoder_decoder:
        length -= min(max_new_tokens, length // 2) + loaded.extra_start
    return ids[max(len(ids) - length, 0) :]


def _unmasking(options: Options) -> Unmasking:
    return Unmasking(options.unmask_steps, options.unmask_order, options.unmask_block)


def _stream(
    loaded: LoadedModel, inputs: list[np.ndarray], every: int, options: Options
) -> Iterator[list[str]]:
    """Yield the texts written so far; see stream_texts."""
    stop = options.stop

    def texts_of(written: Sequence[np.ndarray]) -> list[str]:
        both = zip(inputs, written, strict=True)
        return [loaded.tokenizer.decode_after(prompt, ids) for prompt, ids in both]

    # A beam search has no text to show before it ends.
    if options.num_beams > 1:
        beams = search_ids(
            loaded, inputs, options.num_beams, options.max_new_tokens, options.length_penalty
        )
        best = texts_of([candidates[0][0] for candidates in beams])
        yield [_before_stop(text, stop)[0] for text in best]
        return

    sampling = Sampling(options.temperature, options.top_k, options.top_p)
    if stop and not every:
        every = _TOKENS_BETWEEN_STOP_CHECKS
    texts = []
    for ids in _written(loaded, inputs, sampling, every, options):
        texts = [_before_stop(text, stop) for text in texts_of(ids)]
        if all(stopped for _, stopped in texts):
            break
        yield [text if stopped else _settled(text, stop) for text, stopped in texts]
    yield [text for text, _ in texts]


def _written(
    loaded: LoadedModel,
    inputs: list[np.ndarray],
    sampling: Sampling,
    every: int,
    options: Options,
) -> Iterator[list[np.ndarray]]:
    """Yield the ids written so far: token by token, or by unmasking for masked_diffusion."""
    most, seed = options.max_new_tokens, options.seed
    if not loaded.rows.bounds_whole_text:
        yield from stream_ids(loaded, inputs, most, sampling, seed, every)
        return
    for ids in unmask(loaded, inputs, most, sampling, seed, _unmasking(options)):
        yield _until_end(ids, [ids.shape[1]] * len(ids), loaded.ends)


def _before_stop(text: str, stop: tuple[str, ...]) -> tuple[str, bool]:
    """Cut a text before its first stop string; return the text, and True if it had one."""
    starts = [text.find(word) for word in stop]
    starts = [start for start in starts if start >= 0]
    if not starts:
        return text, False
    return text[: min(starts)], True


def _settled(text: str, stop: tuple[str, ...]) -> str:
    """Drop an unfinished end of a text: a partial character, or the start of a stop string."""
    text = text.rstrip("\ufffd")
    longest = max((len(word) for word in stop), default=0)
    for size in range(min(longest, len(text)), 0, -1):
        if any(word.startswith(text[-size:]) for word in stop):
            return text[:-size]
    return text
