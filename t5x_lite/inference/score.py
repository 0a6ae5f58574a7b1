"""Score how likely texts are: from left to right, behind masks, or in place of sentinels, as the
model has learned.

Shapes: B rows, D decoder positions, K scored positions, V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from t5x_lite.config import ModelDimensions
from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rows.layouts import RowShape, lay_out
from t5x_lite.errors import USAGE, UserError
from t5x_lite.inference.fill import before_sentinels, has_blank, split_at_blanks
from t5x_lite.inference.generate import encode_prompts, first_and_rest
from t5x_lite.inference.masked_rows import framed, masked_rows
from t5x_lite.model import transformer
from t5x_lite.model.heads import Params, Row, head_params, logits
from t5x_lite.model.parts.positions import position_limit
from t5x_lite.parallel.placement import to_host
from t5x_lite.training.loaded_model import LoadedModel

_POSITIONS_PER_BATCH = 4096
_ROWS_OF_LOGITS = 8


class Score(NamedTuple):
    """The likelihood of one text."""

    text: str
    # Log-probability of the text, given its context if there is one, or pseudo-log-likelihood:
    kind: Literal["log_probability", "pseudo_log_likelihood"]
    nats: float  # sum over the tokens, without EOS
    tokens: int  # number of tokens
    bits_per_byte: float  # per byte of UTF-8; not comparable if the tokenizer is lossy


def score(loaded: LoadedModel, texts: list[str], context: str = "") -> list[Score]:
    """Compute the log-probability of each text, given the context if there is one.

    How follows from what the model has learned: see `way_to_score`.

    From left to right: a decoder needs no context, other models do, and read it bidirectionally. A
    text that is longer than a row is scored in pieces, each given the context but not the pieces
    before it.

    Behind masks or in place of sentinels: without a context, this is the pseudo-log-likelihood of
    each text, each token given all others (Salazar et al., 2020). With a context, the text fills
    its only blank (___). Behind masks it is scored by the chain rule, each token given those filled
    in before it. A sentinel takes the place of the whole text; if the context has no blank, the
    sentinel comes after it.

    Raises:
        UserError: if a context is needed but missing, is too long, or has more blanks than one, or
            none where masks need one; or if a text is too long for masks or a sentinel.
    """
    loaded.check_predicts_tokens("score")
    if not texts:
        return []
    way = way_to_score(loaded, context)
    if way != "left_to_right" and not context:
        return pseudo_log_likelihoods(loaded, texts)
    targets = [loaded.tokenizer.encode(text) for text in texts]
    if way == "left_to_right":
        check_context(loaded, context)
        (context_ids,) = encode_prompts(loaded, [context])
        log_probabilities = target_log_probabilities(loaded, [context_ids] * len(texts), targets)
    else:
        before, after = ([part] * len(texts) for part in around_blank(loaded, context, way))
        fill_in = score_in_blanks if way == "masks" else score_at_sentinels
        scores = fill_in(loaded, before, after, targets)
        # Leave out the id that ends a span.
        log_probabilities = [one.nats[: len(ids)] for one, ids in zip(scores, targets, strict=True)]
    return [
        _make_score(text, "log_probability", nats)
        for text, nats in zip(texts, log_probabilities, strict=True)
    ]


Way = Literal["left_to_right", "masks", "sentinels"]


def way_to_score(loaded: LoadedModel, context: str) -> Way:
    """Return how a model scores texts.

    A model that has learned several ways goes from left to right where it can: without a context
    only a decoder can, and no model fills a blank so.
    """
    rows = loaded.rows
    sees_masks = rows.masked or rows.shape.looks_ahead > 0
    if not (sees_masks or rows.uses_sentinels):
        return "left_to_right"
    if has_blank(context):
        return "sentinels" if rows.uses_sentinels else "masks"
    if rows.continues_text and (context or loaded.model.architecture == "decoder"):
        return "left_to_right"
    if context:
        return "sentinels" if rows.uses_sentinels else "masks"
    return "masks" if sees_masks else "sentinels"


def around_blank(loaded: LoadedModel, context: str, way: Way) -> list[np.ndarray]:
    """Return the ids before and after the only blank of a context. A sentinel may come after a
    context without a blank.
    """
    if way == "sentinels" and not has_blank(context):
        return [loaded.tokenizer.encode(context), np.zeros(0, np.int32)]
    parts = split_at_blanks(loaded, context)
    if len(parts) != 2:
        reason = f"{context!r} has {len(parts) - 1} blanks, expected one, written ___"
        raise UserError(USAGE, f"score: {reason}")
    return parts


def check_context(loaded: LoadedModel, context: str) -> None:
    """Reject an empty context, unless the model is a decoder, which needs none."""
    if not context and loaded.model.architecture != "decoder":
        reason = "this model scores a text given another one"
        raise UserError(USAGE, f"score: {reason}; name that with --context")


def _make_score(text: str, kind, nats: np.ndarray) -> Score:
    """Sum the log-probabilities [tokens] of a text."""
    total = float(np.sum(nats, dtype=np.float64))
    num_bytes = max(len(text.encode(errors="surrogatepass")), 1)
    return Score(text, kind, total, len(nats), -total / math.log(2) / num_bytes)


class Piece(NamedTuple):
    """A text, or a part of it that fits a row."""

    text: int  # index of the text
    inputs: np.ndarray
    targets: np.ndarray


class TokenScores(NamedTuple):
    """The likelihood of each token of a text, given everything else that the model reads."""

    nats: np.ndarray  # log-probability of each token
    is_likeliest: np.ndarray  # True where no other token is likelier
    # If `ends` is given: log-probability that the text continues at this place, and that it ends
    goes_on_nats: np.ndarray | None = None
    ends_nats: np.ndarray | None = None


def target_log_probabilities(
    loaded: LoadedModel, inputs: list[np.ndarray], targets: list[np.ndarray]
) -> list[np.ndarray]:
    """Return log P of each target token, in nats, given the inputs and the targets before it."""
    return [scores.nats for scores in score_targets(loaded, inputs, targets)]


def score_targets(
    loaded: LoadedModel,
    inputs: list[np.ndarray],
    targets: list[np.ndarray],
    ends: Sequence[int] = (),
) -> list[TokenScores]:
    """Score each token of each target, given the inputs and the target's tokens before it.

    Args:
        ends: ids that end a text. If given, TokenScores.goes_on_nats and ends_nats are computed.

    Raises:
        UserError: if the inputs are too long.
    """
    pieces = pieces_of(loaded, inputs, targets)
    parts: list[np.ndarray] = [np.zeros(0)] * len(pieces)
    lengths = [len(piece.inputs) + len(piece.targets) for piece in pieces]
    for numbers in like_lengths(lengths):
        # All batches of one length have the same number of rows, and share a compiled program.
        rows = _score_pieces(loaded, [pieces[number] for number in numbers], ends)
        for number, row in zip(numbers, rows, strict=True):
            parts[number] = row

    # Join the pieces of each text.
    num_scores = _num_scores(ends)
    of_text: list[list[np.ndarray]] = [[np.zeros((num_scores, 0))] for _ in targets]
    for piece, part in zip(pieces, parts, strict=True):
        of_text[piece.text].append(part)
    scores = []
    for columns in of_text:
        nats, is_likeliest, *of_ends = np.concatenate(columns, 1)
        scores.append(TokenScores(nats, is_likeliest > 0, *of_ends))
    return scores


def row_length(length: int, longest: int = 1 << 30) -> int:
    """Round a length up to the positions of a row: 8, 12, 16, 24, 32, 48, and so on.

    Scoring usually covers many texts, so the lengths between powers of two are worth compiling.

    >>> [row_length(length) for length in (3, 13, 17, 25)], row_length(17, longest=20)
    ([8, 16, 24, 32], 20)
    """
    power_of_two = max(8, 1 << (length - 1).bit_length())
    three_quarters = power_of_two * 3 // 4
    rounded = three_quarters if 8 < length <= three_quarters else power_of_two
    return max(min(rounded, longest), length)


def like_lengths(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Group row indices into batches of similar length.

    All batches of a bucket have the same number of rows; the last one repeats its first row. Rows
    that are too few to fill a batch of the next longer bucket join that bucket, which costs less
    than compiling a program for them.

    >>> [len(batch) for batch in like_lengths([5, 9, 10, 30])]
    [4]
    """
    # Row length → indices, from short to long.
    buckets: dict[int, list[int]] = {}
    for number in sorted(range(len(lengths)), key=lambda number: row_length(lengths[number])):
        buckets.setdefault(row_length(lengths[number]), []).append(number)
    numbers: list[int] = []
    for bucket, longer in pairwise([*buckets, 0]):
        numbers += buckets[bucket]
        if longer and len(numbers) * longer <= _POSITIONS_PER_BATCH:
            continue
        size = max(_POSITIONS_PER_BATCH // bucket, 1)
        if len(numbers) < size:
            size = 1 << (len(numbers) - 1).bit_length()
        for start in range(0, len(numbers), size):
            batch = numbers[start : start + size]
            yield batch + batch[:1] * (size - len(batch))
        numbers = []


def pieces_of(
    loaded: LoadedModel, inputs: list[np.ndarray], targets: list[np.ndarray]
) -> list[Piece]:
    """Cut targets into pieces that fit a row, each preceded by all inputs of its target.

    Raises:
        UserError: if the inputs leave no room.
    """
    model = loaded.model
    pieces = []
    for number, (context, ids) in enumerate(zip(inputs, targets, strict=True)):
        # In a single stack, inputs and targets share the positions of a row.
        if model.is_encoder_decoder:
            room = model.max_length
            fits = position_limit(model) is None or len(context) <= model.max_length
        else:
            room = model.max_length - (len(loaded.after_start(context)) - 1)
            fits = room > 0
        if not fits:
            reason = f"the context has {len(context)} tokens, the model reads {model.max_length}"
            raise UserError(USAGE, f"score: {reason}; shorten it")
        for start in range(0, len(ids), room):
            pieces.append(Piece(number, context, ids[start : start + room]))
    return pieces


def _score_pieces(
    loaded: LoadedModel, pieces: list[Piece], ends: Sequence[int]
) -> list[np.ndarray]:
    """Return the scores of _decoder_scores for the targets of each piece: [scores, targets]."""
    row, first = decoder_rows(loaded, pieces)
    with loaded.within():
        ids = np.array(ends, np.int32)
        scores = to_host(_decoder_scores(loaded.model, loaded.params, row, ids))
    parts = zip(scores, first, pieces, strict=True)
    return [row[:, start : start + len(piece.targets)] for row, start, piece in parts]


def decoder_rows(
    loaded: LoadedModel, pieces: list[Piece]
) -> tuple[dict[str, np.ndarray], list[int]]:
    """Lay out pieces as rows of a decoder.

    Returns:
        the rows, and the position of each piece's first target.
    """
    model = loaded.model
    inputs = [piece.inputs for piece in pieces]
    starts = np.full(len(inputs), loaded.start)
    if not model.is_encoder_decoder:
        starts, inputs = first_and_rest([loaded.after_start(ids) for ids in inputs])
    # Lay out rows as in training.
    pairs = Pairs(Ragged.from_rows(inputs), Ragged.from_rows([piece.targets for piece in pieces]))

    def bucket(lengths) -> int:
        return row_length(int(max(lengths)), model.max_length)

    if model.is_encoder_decoder:
        shape = RowShape(
            encoder=bucket(pairs.inputs.lengths), decoder=bucket(pairs.targets.lengths)
        )
    else:
        both = bucket(pairs.inputs.lengths + pairs.targets.lengths)
        shape = RowShape(decoder=both, bidirectional_prefix=model.architecture == "prefix_decoder")
    row = lay_out(pairs, shape, loaded.tokenizer.vocabulary, starts=starts)
    # Where inputs and targets share a stack, the targets come after the inputs.
    first = [0 if model.is_encoder_decoder else len(ids) for ids in inputs]
    return row, first


@partial(jax.jit, static_argnums=0)
def _decoder_scores(
    model: ModelDimensions, params: Params, row: Row, ends: Int[Array, "ends"]
) -> Float[Array, "B scores D"]:
    """Return the scores of _scores_of for the target at each position."""
    hidden = transformer.apply(model, params, row, packed=False).hidden_states
    head = head_params(params)

    def of_row(hidden_and_targets):
        hidden, targets = hidden_and_targets
        return jnp.stack(_scores_of(logits(model, head, hidden), targets, ends))

    # Compute the logits of a few rows at a time, to save memory.
    return jax.lax.map(of_row, (hidden, row["decoder_targets"]), batch_size=_ROWS_OF_LOGITS)


def _scores_of(
    logits: Float[Array, "*rows V"], targets: Array, ends: Int[Array, "ends"]
) -> list[Float[Array, "*rows"]]:
    """Return log P of each target, and 1 if no token is likelier, else 0.

    If `ends` has ids, also return log P that the id is not one of them, and log P that it is.
    """
    log_probabilities = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(log_probabilities, targets[..., None], -1)[..., 0]
    is_likeliest = chosen >= log_probabilities.max(-1)
    scores = [chosen, is_likeliest.astype(chosen.dtype)]
    if ends.size:
        others = log_probabilities.at[..., ends].set(-jnp.inf)
        scores.append(jax.nn.logsumexp(others, -1))
        scores.append(jax.nn.logsumexp(log_probabilities[..., ends], -1))
    return scores


def _num_scores(ends: Sequence[int]) -> int:
    return 4 if ends else 2


def score_masked(
    loaded: LoadedModel,
    rows: list[np.ndarray],
    positions: list[int],
    answers: list[int],
    ends: Sequence[int] = (),
) -> TokenScores:
    """Score the answer at one masked position of each row of ids.

    The model sees both sides of a mask: it is an encoder, or a decoder of masked_next_token.

    Args:
        rows: the ids of each row, masks included.
        positions: the position to score in each row.
        answers: the id to score at this position.
        ends: see score_targets.
    """
    scores = np.zeros((len(rows), _num_scores(ends)))
    for numbers in like_lengths([len(row) for row in rows]):
        batch = [rows[number] for number in numbers]
        length = row_length(max(map(len, batch)), loaded.model.max_length)
        row = masked_rows(loaded, batch, length)
        at, chosen = np.array(positions)[numbers], np.array(answers)[numbers]
        with loaded.within():
            of_rows = _scores_at(
                loaded.model, loaded.params, row, at, chosen, np.array(ends, np.int32)
            )
        scores[numbers] = to_host(of_rows)
    return TokenScores(scores[:, 0], scores[:, 1] > 0, *scores.T[2:])


@partial(jax.jit, static_argnums=0)
def _scores_at(
    model: ModelDimensions,
    params: Params,
    row: Row,
    positions: Int[Array, "B"],
    answers: Int[Array, "B"],
    ends: Int[Array, "ends"],
) -> Float[Array, "B scores"]:
    """Return the scores of _scores_of for one position of each row."""
    hidden = transformer.apply(model, params, row, packed=False).hidden_states
    hidden = hidden[jnp.arange(len(hidden)), positions]
    return jnp.stack(_scores_of(logits(model, head_params(params), hidden), answers, ends), -1)


def pseudo_log_likelihoods(loaded: LoadedModel, texts: Sequence[str]) -> list[Score]:
    """Score each text by hiding each of its tokens in a separate row (Salazar et al., 2020): behind
    a mask, or in place of a sentinel if the model has learned no masks.
    """
    if not texts:
        return []
    of_texts = [loaded.tokenizer.encode(text) for text in texts]
    if loaded.rows.uses_sentinels and not loaded.rows.shape.looks_ahead:
        around = [one for ids in of_texts for one in around_each_token(ids)]
        before, spans, after = ([one[place] for one in around] for place in range(3))
        scores = score_at_sentinels(loaded, before, after, spans)
        nats = np.array([one.nats[0] for one in scores])
    else:
        nats = _score_at_masks(loaded, of_texts)
    parts = np.split(nats, np.cumsum([len(ids) for ids in of_texts])[:-1])
    return [
        _make_score(text, "pseudo_log_likelihood", part)
        for text, part in zip(texts, parts, strict=True)
    ]


def around_each_token(ids: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return for each token what is before it, the token, and what is after it.

    >>> [[part.tolist() for part in parts] for parts in around_each_token(np.array([5, 6]))]
    [[[], [5], [6]], [[5], [6], []]]
    """
    return [(ids[:i], ids[i : i + 1], ids[i + 1 :]) for i in range(len(ids))]


def _score_at_masks(loaded: LoadedModel, texts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the log-probability of each token of all texts, masked in a row of its own."""
    mask = loaded.tokenizer.vocabulary["[MASK]"]
    rows, positions, answers = [], [], []
    for ids in texts:
        text_ids, first = framed(loaded, [ids])
        for number, token in enumerate(ids.tolist(), first):
            row = text_ids.copy()
            row[number] = mask
            rows.append(row)
            positions.append(number)
            answers.append(token)
    return score_masked(loaded, rows, positions, answers).nats


def score_in_blanks(
    loaded: LoadedModel,
    before: Sequence[np.ndarray],
    after: Sequence[np.ndarray],
    spans: Sequence[np.ndarray],
    ends: Sequence[int] = (),
) -> list[TokenScores]:
    """Score each span of ids between the ids before and after it, by the chain rule with masks.

    Row k of a span holds its first k tokens, and masks for the others. For `ends` see
    score_targets.
    """
    mask = loaded.tokenizer.vocabulary["[MASK]"]
    rows, positions, answers = [], [], []
    for left, right, ids in zip(before, after, spans, strict=True):
        for known in range(len(ids)):
            filled = np.concatenate([ids[:known], np.full(len(ids) - known, mask)])
            row, first = framed(loaded, [left, filled, right])
            rows.append(row)
            positions.append(first + len(left) + known)
            answers.append(int(ids[known]))
    scores = score_masked(loaded, rows, positions, answers, ends)
    last = np.cumsum([len(ids) for ids in spans])[:-1]
    columns = (np.split(column, last) for column in scores if column is not None)
    return [TokenScores(*of_span) for of_span in zip(*columns, strict=True)]


def score_at_sentinels(
    loaded: LoadedModel,
    before: Sequence[np.ndarray],
    after: Sequence[np.ndarray],
    spans: Sequence[np.ndarray],
    ends: Sequence[int] = (),
) -> list[TokenScores]:
    """Score each span of ids between the ids before and after it, with a sentinel in its place.

    The id that ends the span (the next sentinel, or EOS) counts as its last token. For `ends` see
    score_targets.
    """
    parts = zip(before, after, spans, strict=True)
    pairs = [around_sentinel(loaded, *of_span) for of_span in parts]
    inputs, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    scores = score_targets(loaded, inputs, targets, ends)
    # Drop the first token, the sentinel: it is given.
    return [TokenScores(*(column[1:] for column in one if column is not None)) for one in scores]


def around_sentinel(
    loaded: LoadedModel, left: np.ndarray, right: np.ndarray, span: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return what a model reads for a sentinel between two texts, and what it writes if the span is
    in its place: the sentinel, the span, and the id that ends it (the next sentinel, or EOS).

    Raises:
        UserError: if these do not fit a row.
    """
    vocabulary = loaded.tokenizer.vocabulary
    first, eos = [vocabulary.sentinel(0)], [vocabulary.eos]
    inputs = np.concatenate([before_sentinels(loaded), left, first, right, eos])
    end = [vocabulary.sentinel(1)] if len(right) else eos
    targets = np.concatenate([first, span, end])
    model = loaded.model
    length, room = len(targets), model.max_length
    if not model.is_encoder_decoder:
        length += len(loaded.after_start(inputs)) - 1
    if length > room:
        reason = f"the text takes {length} positions with its context, the model's rows have {room}"
        raise UserError(USAGE, f"score: {reason}; shorten it")
    return inputs.astype(np.int32), targets.astype(np.int32)


def score_in_the_middle(
    loaded: LoadedModel,
    before: Sequence[np.ndarray],
    after: Sequence[np.ndarray],
    spans: Sequence[np.ndarray],
    ends: Sequence[int] = (),
) -> list[TokenScores]:
    """Score each span of ids between the ids before and after it, by filling in the middle.

    The model reads them in the order prefix, suffix, middle (Bavarian et al., 2022, §3). EOS, which
    ends the span, counts as its last token. For `ends` see score_targets.
    """
    vocabulary = loaded.tokenizer.vocabulary
    prefix, suffix, middle = (
        vocabulary[f"<fim_{part}>"] for part in ("prefix", "suffix", "middle")
    )
    inputs = [
        np.concatenate([[prefix], left, [suffix], right, [middle]]).astype(np.int32)
        for left, right in zip(before, after, strict=True)
    ]
    targets = [np.append(span, vocabulary.eos).astype(np.int32) for span in spans]
    return score_targets(loaded, inputs, targets, ends)
