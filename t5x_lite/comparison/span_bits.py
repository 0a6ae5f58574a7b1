"""Span bits per byte, a score that all model families share: the number of bits that a model needs
per byte of held-out spans, given the text around them.

Spans are drawn in words, with a seed, so they are the same for every tokenizer. Each model is asked
in the way it was trained: a decoder continues the text before the span, a denoiser reads a sentinel
in its place, and an encoder fills masks from left to right. No model may end a span early: the ids
that would end it (EOS and all sentinels) are excluded at each token, and the probabilities of the
others are rescaled to sum to one. Otherwise a denoiser would pay for a possibility that an encoder,
which sees the number of masks, does not have.
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from t5x_lite.comparison.ngram import kneser_ney, unigram_probabilities
from t5x_lite.config import Lengths
from t5x_lite.data.rng import Purpose, RowRng, philox_key
from t5x_lite.data.rows.row_plan import RowPlan
from t5x_lite.data.store.corpus import Corpus
from t5x_lite.data.tokenizers.tokenizer import Tokenizer
from t5x_lite.inference.score import (
    TokenScores,
    score_at_sentinels,
    score_in_blanks,
    score_in_the_middle,
    score_targets,
)
from t5x_lite.training.loaded_model import LoadedModel

# What a model reads: only the text before the span, or the text on both sides.
Context = Literal["left", "both"]

_WORD = re.compile(r"\s*\S+")  # includes the white space before it; joined words are the text
# Span lengths are geometric as in SpanBERT, 3.8 words on average (Joshi et al., 2020, §3.1).
_STOP, _LONGEST_SPAN = 0.2, 10
_SHORTEST_LEFT = 4  # minimum number of words before a span
_PASSAGE = 1000  # maximum number of words in a passage
# Maximum number of special ids: in the inputs or targets of a row, and in a row that holds both
_IN_ONE_STACK, _IN_BOTH = 4, 5


class SpanBits(NamedTuple):
    """−log₂ p of each span: [spans]."""

    without_end: np.ndarray  # each token, given that the span does not end before it
    # Only for models that end what they fill in:
    beginning: np.ndarray | None = None  # p(the answer begins with the span)
    with_end: np.ndarray | None = None  # p(the answer is the span)


class Span(NamedTuple):
    """A span of held-out text with its context: left + text + right is contiguous text."""

    left: str
    text: str
    right: str
    passage: int = 0  # index of the passage it is drawn from; spans of one passage are more alike


def draw_spans(documents: list[str], count: int, context: int, seed: int = 0) -> list[Span]:
    """Draw spans of words, each with up to `context` words around it and at least four before it.

    Documents are cut into passages of up to a thousand words. A passage is drawn with a probability
    in proportion to its number of words; passages of fewer than ten words are left out. Documents
    are read in random order until there are at least as many passages as spans.

    >>> (span,) = draw_spans(["a b c d e f g h i j k l"], count=1, context=6)
    >>> span
    Span(left=' e f g h i j', text=' k', right='', passage=0)
    """
    # Read documents in random order and cut them into passages.
    order = RowRng(philox_key(seed, Purpose.DOCUMENTS_OF_SPANS), [0]).permutation(len(documents))[0]
    passages: list[list[str]] = []
    for number in order.tolist():
        words = _WORD.findall(documents[number])
        cut = (words[start : start + _PASSAGE] for start in range(0, len(words), _PASSAGE))
        passages += [passage for passage in cut if len(passage) >= _SHORTEST_LEFT + 6]
        if len(passages) >= count:
            break
    if not passages:
        return []

    # Draw the passage, the length and the place of every span.
    ends = np.cumsum([len(words) for words in passages])
    rng = RowRng(philox_key(seed, Purpose.SCORED_SPANS), range(count))
    words_at = rng.integers(int(ends[-1]))[:, 0]  # a random word determines the passage
    longer = (1 - _STOP) ** _LONGEST_SPAN  # share of lengths above the maximum, which are excluded
    share = rng.uniform(1)[:, 0] * (1 - longer)
    lengths = 1 + np.log1p(-share) // math.log1p(-_STOP)
    places = rng.uniform(2)
    spans = []
    for number in range(count):
        passage = int(np.searchsorted(ends, words_at[number], side="right"))
        words = passages[passage]
        length = int(min(lengths[number], len(words) - _SHORTEST_LEFT))
        around = min(max(context, _SHORTEST_LEFT), len(words) - length)
        # The context lies anywhere in the passage, and the span anywhere in the context, after at
        # least four words.
        first = int(places[number, 0] * (len(words) - around - length + 1))
        start = first + _SHORTEST_LEFT + int(places[number, 1] * (around - _SHORTEST_LEFT + 1))
        end, last = start + length, first + around + length
        left, text, right = words[first:start], words[start:end], words[end:last]
        spans.append(Span("".join(left), "".join(text), "".join(right), passage))
    return spans


def validation_documents(corpus: Corpus) -> list[str]:
    """Return the texts of the validation split, decoded from its tokens.

    With a lossy tokenizer they are not the original texts.
    """
    eos = corpus.tokenizer.vocabulary.eos
    texts = []
    for source in corpus.sources:
        tokens = np.asarray(source.tokens["validation"])
        ends = np.flatnonzero(tokens == eos)
        texts += [corpus.tokenizer.decode(ids) for ids in np.split(tokens, ends + 1) if len(ids)]
    return [text.removesuffix(corpus.tokenizer.name(eos)) for text in texts]


def shortened(spans: Sequence[Span], rows: Sequence[tuple[Tokenizer, Lengths]]) -> list[Span]:
    """Shorten the spans until they fit the rows of all models, and drop those that cannot fit.

    The words farthest from the span are removed first, then words from the end of the span.

    Args:
        rows: the tokenizer and the row lengths of each model.
    """
    fitting = (_shortened(span, rows) for span in spans)
    return [span for span in fitting if all(_fits(span, *of_model) for of_model in rows)]


def _shortened(span: Span, rows: Sequence[tuple[Tokenizer, Lengths]]) -> Span:
    left, text, right = (_WORD.findall(part) or [part] for part in span[:3])
    while not all(_fits(span, tokenizer, lengths) for tokenizer, lengths in rows):
        if len(left) + len(right) > _SHORTEST_LEFT:
            longer = left if len(left) >= len(right) else right
            del longer[0 if longer is left else -1]
        elif len(text) > 1:
            del text[-1]
            right = []  # it no longer follows the shortened span
        else:
            break
        span = Span("".join(left), "".join(text), "".join(right), span.passage)
    return span


def _fits(span: Span, tokenizer: Tokenizer, lengths: Lengths) -> bool:
    """Return True if a row of these lengths has room for the span, its context and special ids."""
    left, text, right = (len(tokenizer.encode(part)) for part in span[:3])
    if lengths.inputs:
        return max(left + right - lengths.inputs, text - lengths.targets) + _IN_ONE_STACK <= 0
    room = lengths.sequence_length - _IN_BOTH
    return left + text + right <= room


def scored_contexts(loaded: LoadedModel) -> tuple[Context, ...]:
    """Return the contexts in which a model can be asked for a span.

    Empty if its objectives neither continue a text nor fill gaps in it.
    """
    if loaded.rows.aligned or loaded.rows.uses_sentinels:
        return ("left", "both")
    assert isinstance(loaded.rows, RowPlan), "it was trained on text"
    traits = [member.objective.traits for member in loaded.rows.members]
    contexts: list[Context] = []
    if any(of_objective.continues_text for of_objective in traits):
        contexts.append("left")
    if any(of_objective.fills_middle or of_objective.looks_ahead for of_objective in traits):
        contexts.append("both")
    return tuple(contexts)


def span_bits(loaded: LoadedModel, spans: Sequence[Span], context: Context) -> SpanBits:
    """Return −log₂ p(span | context) of each span.

    With the context "left", models trained with masks or sentinels read no text after the span.
    """
    encode = loaded.tokenizer.encode
    before = [encode(span.left) for span in spans]
    after = [encode(span.right if context == "both" else "") for span in spans]
    asked = [encode(span.text) for span in spans]
    scores = _method(loaded, context)(loaded, before, after, asked)
    nats = np.zeros((3, len(spans)))
    # If an id ends the span, its score follows those of the span's tokens.
    is_ended = any(len(one.nats) > len(ids) for one, ids in zip(scores, asked, strict=True))
    for number, (one, ids) in enumerate(zip(scores, asked, strict=True)):
        assert one.goes_on_nats is not None
        assert one.ends_nats is not None
        beginning = one.nats[: len(ids)].sum()
        without_end = beginning - one.goes_on_nats[: len(ids)].sum()
        nats[:, number] = without_end, beginning, beginning + one.ends_nats[-1]
    bits = -nats / math.log(2)
    return SpanBits(*bits) if is_ended else SpanBits(bits[0])


def _method(loaded: LoadedModel, context: Context) -> Callable[..., list[TokenScores]]:
    """Return the function that scores spans in the way the model was trained."""
    vocabulary = loaded.tokenizer.vocabulary
    sentinels = vocabulary.sentinel(np.arange(vocabulary.sentinels))
    ends = (vocabulary.eos, *sentinels.tolist())
    if loaded.rows.uses_sentinels:
        return partial(score_at_sentinels, ends=ends)
    if loaded.rows.aligned or (context == "both" and loaded.rows.shape.looks_ahead):
        return partial(score_in_blanks, ends=ends)
    if context == "both":
        return partial(score_in_the_middle, ends=ends)
    return lambda loaded, before, after, asked: score_targets(loaded, before, asked, ends)


def counted_bits(corpus: Corpus, spans: Sequence[Span]) -> dict[str, np.ndarray]:
    """Return −log₂ p(span | the text before it) of each span, for n-gram models of the training
    text: model → [spans].
    """
    tokens, vocabulary = corpus.tokens("train"), corpus.tokenizer.vocabulary
    # One trigram per token of each span; owners are the indices of the spans.
    trigrams, owners = [], []
    for number, span in enumerate(spans):
        before = corpus.tokenizer.encode(span.left)[-2:]
        ids = np.concatenate(
            [np.full(2, vocabulary.eos), before, corpus.tokenizer.encode(span.text)]
        )
        rows = np.lib.stride_tricks.sliding_window_view(ids, 3)[len(before) :]
        trigrams.append(rows)
        owners += [number] * len(rows)
    grams = np.concatenate(trigrams)
    probabilities = {
        "unigram": unigram_probabilities(tokens, vocabulary.size)[grams[:, -1]],
        "Kneser-Ney trigram": kneser_ney(tokens, grams, vocabulary.size),
    }
    return {
        name: np.bincount(owners, -np.log2(of_tokens), len(spans))
        for name, of_tokens in probabilities.items()
    }


def num_bytes(spans: Sequence[Span]) -> np.ndarray:
    """Return the size of each span in UTF-8 bytes: [spans]."""
    return np.array([len(span.text.encode()) for span in spans])
