"""Continue texts. A decoder reads the start token and the prompt, a prefix decoder the same both ways; an encoder reads
the prompt of an encoder-decoder, whose decoder begins with the start token.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.config import Model, at_least, between
from t5x_lite.data.layouts import Shape, lay_out
from t5x_lite.data.objectives import Pairs, mixture
from t5x_lite.data.ragged import Ragged
from t5x_lite.errors import USAGE, Refusal
from t5x_lite.inference.writing import Ends, Prompt, Sampling, beam_search, begin, go_on, prepare
from t5x_lite.settings import build
from t5x_lite.training.rundir import Trained

GREEDY = Sampling()
_LEAST = 16  # slots; more are powers of two, so that prompts of like length share one compiled program


def slots(length: int, most: int = 1 << 62) -> int:
    """How many are made for that length: a power of two, or `most` where they are less, but never too few.

    >>> slots(3), slots(17), slots(17, most=20)
    (16, 32, 20)
    """
    return max(min(max(_LEAST, 1 << (length - 1).bit_length()), most), length)


def _room(config: Model, longest: int, max_new: int) -> int:
    """How many tokens can be written behind the longest prompt. Raises Refusal where that is none."""
    if config.architecture == "encoder":
        raise Refusal(USAGE, "generate: an encoder writes no text; use fill")
    if config.positions != "learned":
        return max_new
    two = config.architecture == "encoder_decoder"
    room = config.max_length - (0 if two else longest)
    if min(room, config.max_length - longest + two) < 1:
        most = config.max_length
        raise Refusal(USAGE, f"generate: the prompt has {longest} tokens, the model {most} positions; shorten it")
    return min(max_new, room)


@lru_cache(maxsize=1)
def _weights(trained: Trained):
    return prepare(trained.config.model, trained.params)


def _prompt(trained: Trained, inputs: list[np.ndarray]) -> Prompt:
    config, vocabulary = trained.config.model, trained.tokenizer.vocabulary
    longest = max(len(ids) for ids in inputs)
    if config.architecture == "encoder_decoder":
        if not all(len(ids) for ids in inputs):
            raise Refusal(USAGE, "generate: got an empty prompt, but the encoder must read something; write one")
        length = slots(longest, config.max_length if config.positions == "learned" else 1 << 62)
        pairs = Pairs(Ragged.of(inputs), Ragged.full(np.zeros((len(inputs), 1))))
        row = {key: jnp.asarray(value) for key, value in lay_out(pairs, Shape(length, 1, 0), vocabulary).items()}
        return Prompt(row["decoder_tokens"], jnp.ones(len(inputs), jnp.int32), row)
    tokens = np.full((len(inputs), slots(longest + 1)), vocabulary.pad, np.int32)
    for row, ids in zip(tokens, inputs, strict=True):
        row[: len(ids) + 1] = [vocabulary.start, *ids]
    return Prompt(jnp.asarray(tokens), jnp.array([len(ids) + 1 for ids in inputs]))


def _begin(trained: Trained, inputs: list[np.ndarray], max_new: int):
    """What every way to write starts from: ends, weights, prompt, and how many tokens are written at most."""
    most = _room(trained.config.model, max(len(ids) for ids in inputs), max_new)
    ends = Ends(trained.tokenizer.vocabulary.eos, trained.tokenizer.vocabulary.size)
    return ends, _weights(trained), _prompt(trained, inputs), most


def _cut(rows, count: int, eos: int) -> list[np.ndarray]:
    """Each row up to its EOS, which is left out."""
    made = []
    for row in np.array(rows)[:, :count]:  # a copy: the loop writes on in the same memory
        stop = np.flatnonzero(row == eos)
        made.append(row[: stop[0]] if len(stop) else row)
    return made


def writing(
    trained: Trained, inputs: list[np.ndarray], max_new: int, sampling: Sampling, seed: int = 0, every: int = 0
) -> Iterator[list[np.ndarray]]:
    """Ids that the model has written after each input (ids), up to EOS, which is left out, or max_new of them (fewer
    where the model has no more positions): after `every` further tokens of each row (0: once, at the end).

    Raises Refusal for models without a decoder, and prompts that fill all positions.
    """
    config, (ends, weights, prompt, most) = trained.config.model, _begin(trained, inputs, max_new)
    written = begin(config, sampling, ends, slots(most), weights, prompt, jax.random.key(seed))
    until = 1
    while True:
        count, done = int(written.count), bool(written.done.all())
        if every or done or count == most:
            yield _cut(written.ids, count, ends.eos)
        if done or count == most:
            return
        until = min(until + every, most) if every else most
        written = go_on(config, sampling, ends, weights, written, until)


def generate(trained: Trained, inputs: list[np.ndarray], max_new: int = 64, sampling: Sampling = GREEDY, seed: int = 0):
    """What `writing` has at the end: ids for each input."""
    (made,) = writing(trained, inputs, max_new, sampling, seed)
    return made


def search(trained: Trained, inputs: list[np.ndarray], beams: int, max_new: int = 64, length_penalty: float = 0.6):
    """By beam search: of each input a list of (ids, score), best first; see writing.beam_search."""
    ends, weights, prompt, most = _begin(trained, inputs, max_new)
    ids, scores = beam_search(trained.config.model, ends, beams, length_penalty, slots(most), weights, prompt, most)
    return [
        [
            (text, float(score))
            for text, score in zip(_cut(row, most, ends.eos), of_row, strict=True)
            if np.isfinite(score)
        ]
        for row, of_row in zip(ids, np.asarray(scores), strict=True)
    ]


def encoded(trained: Trained, prompts: list[str]) -> list[np.ndarray]:
    """The ids of prompts; with EOS where an encoder reads them and is used to it, as models of span corruption are."""
    two = trained.config.model.architecture == "encoder_decoder"
    used = two and any(objective.uses_sentinels for _, objective in mixture(trained.config.objective))
    behind = [trained.tokenizer.vocabulary.eos] * used
    return [np.concatenate([trained.tokenizer.encode(prompt), behind]).astype(np.int32) for prompt in prompts]


@dataclass(frozen=True)
class Options:
    """How texts are continued; see Sampling and writing.beam_search."""

    max_new: int = between(1, 2**16, 64)  # tokens
    temperature: float = at_least(0.0, 0.0)
    top_k: int = at_least(0, 0)
    top_p: float = between(1e-6, 1.0, 1.0)
    seed: int = between(0, 2**31 - 1, 0)  # what is drawn depends on it and on the place among the prompts
    beams: int = at_least(1, 1)  # more: the best of a beam search, without sampling
    length_penalty: float = at_least(0.0, 0.6)
    stop: tuple = ()  # a text ends before the first of these strings


def _wanted(trained: Trained, prompts: list[str], options: dict) -> Options:
    wanted, ids = build(Options, options, "generate: "), trained.tokenizer.vocabulary.size
    if isinstance(prompts, str):
        raise Refusal(USAGE, f"generate: got the text {prompts!r}, expected a list of texts")
    if not all(isinstance(word, str) and word for word in wanted.stop):
        raise Refusal(USAGE, f"generate: stop: got {wanted.stop!r}, expected texts that are not empty")
    if wanted.beams > ids:
        raise Refusal(USAGE, f"generate: beams: got {wanted.beams}, expected at most the {ids} ids of the tokenizer")
    if wanted.beams > 1 and wanted.temperature:
        raise Refusal(USAGE, "generate: a temperature draws, beams search for the likeliest; set one of them")
    if not wanted.temperature and (wanted.top_k or wanted.top_p < 1):
        raise Refusal(USAGE, "generate: top_k and top_p say what is drawn from, but nothing is; set a temperature")
    return wanted


def continue_texts(trained: Trained, prompts: list[str], **options) -> list[str]:
    """What the model writes after each prompt, as text. options: those of Options."""
    *_, texts = stream(trained, prompts, 0, **options)
    return texts


def stream(trained: Trained, prompts: list[str], every: int = 4, **options) -> Iterator[list[str]]:
    """The texts after `every` further tokens (0: at the end); each only grows, and the last are what
    `continue_texts` returns.
    """
    wanted = _wanted(trained, prompts, options)
    if not prompts:
        yield []
        return
    inputs, stop = encoded(trained, prompts), wanted.stop
    if wanted.beams > 1:
        best = search(trained, inputs, wanted.beams, wanted.max_new, wanted.length_penalty)
        yield [_until(trained.tokenizer.decode(found[0][0]), stop)[0] for found in best]
        return
    sampling = Sampling(wanted.temperature, wanted.top_k, wanted.top_p)
    every = every or (16 if stop else 0)  # the loop itself knows no strings
    for ids in writing(trained, inputs, wanted.max_new, sampling, wanted.seed, every):
        found = [_until(trained.tokenizer.decode(row), stop) for row in ids]
        if all(stopped for _, stopped in found):
            break
        yield [text if stopped else _settled(text, stop) for text, stopped in found]
    yield [text for text, _ in found]


def _until(text: str, stop: tuple[str, ...]) -> tuple[str, bool]:
    """The text before the first of the stop strings, and whether there was one."""
    found = [at for at in (text.find(word) for word in stop if word) if at >= 0]
    return (text[: min(found)], True) if found else (text, False)


def _settled(text: str, stop: tuple[str, ...]) -> str:
    """Without an end that may still change: half a character, or the beginning of a stop string."""
    text = text.rstrip("\ufffd")
    longest = max((len(word) for word in stop), default=0)
    for size in range(min(longest, len(text)), 0, -1):
        if any(word.startswith(text[-size:]) for word in stop):
            return text[:-size]
    return text
