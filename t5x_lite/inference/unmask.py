"""Write text by unmasking it: how models of masked_diffusion continue a prompt (LLaDA: Nie et al.,
2025, §2.4; MaskGIT: Chang et al., 2022, §3.2).

Masks follow the prompt. Each step predicts all of them and keeps some of the predictions: the most
confident ones, or random ones. With as many steps as tokens, each step keeps one token. Fewer steps
are faster, but the tokens kept in one step are predicted independently of each other.

Shapes: B rows, L masks of a block, V vocabulary.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from t5x_lite.config import ModelDimensions
from t5x_lite.errors import USAGE, UserError
from t5x_lite.inference.buckets import bucket_length
from t5x_lite.inference.decode_loop import Sampling, sample
from t5x_lite.inference.masked_rows import framed, masked_rows
from t5x_lite.model import transformer
from t5x_lite.model.heads import Params, Row, head_params, logits
from t5x_lite.model.parts.positions import position_limit
from t5x_lite.parallel.placement import to_host
from t5x_lite.training.loaded_model import LoadedModel

Order = Literal["confidence", "random"]


class Unmasking(NamedTuple):
    """How masks are replaced.

    Attributes:
        steps: number of steps in which all masks are replaced; 0: one token per step.
        order: which predictions of a step are kept.
        block: number of tokens in a block. Blocks are finished one by one, from left to right; 0:
            one block of all tokens.
    """

    steps: int = 0
    order: Order = "confidence"
    block: int = 0


def kept_in_steps(tokens: int, steps: int) -> list[int]:
    """Return how many tokens each step keeps, as evenly as possible.

    >>> kept_in_steps(10, 4), kept_in_steps(3, 8)
    ([3, 3, 2, 2], [1, 1, 1])
    """
    steps = min(steps, tokens)
    return [tokens // steps + (number < tokens % steps) for number in range(steps)]


def unmask(
    loaded: LoadedModel,
    inputs: list[np.ndarray],
    max_new_tokens: int,
    sampling: Sampling,
    seed: int,
    unmasking: Unmasking,
) -> Iterator[np.ndarray]:
    """Yield the ids [B, tokens so far] written after the inputs, once per block.

    Ids that follow an EOS are not cut off yet.

    Raises:
        UserError: if an input and max_new_tokens do not fit the position table.
    """
    mask = loaded.tokenizer.vocabulary["[MASK]"]
    block = min(unmasking.block or max_new_tokens, max_new_tokens)
    steps = unmasking.steps or max_new_tokens

    # The rows that the model reads are views of one array, in which masks are replaced.
    masks = np.full(max_new_tokens, mask, np.int32)
    rows = [framed(loaded, [ids, masks]) for ids in inputs]
    ids = np.full((len(rows), max(len(row) for row, _ in rows)), mask, np.int32)
    texts = []
    for number, (row, _) in enumerate(rows):
        ids[number, : len(row)] = row
        texts.append(ids[number, : len(row)])
    length = bucket_length(ids.shape[1], position_limit(loaded.model))
    begins = np.array([first + len(of) for (_, first), of in zip(rows, inputs, strict=True)])
    by_row = np.arange(len(rows))[:, None]

    key = jax.random.key(seed)
    for start in range(0, max_new_tokens, block):
        size = min(block, max_new_tokens - start)
        places = begins[:, None] + np.arange(start, start + size)
        for kept in kept_in_steps(size, max(round(steps * size / max_new_tokens), 1)):
            key, for_ids, for_order = jax.random.split(key, 3)
            row = masked_rows(loaded, texts, length)
            with loaded.within():
                predicted, confidence = _predict(
                    loaded.model, sampling, _ids_of(loaded), loaded.params, row, places, for_ids
                )
            if unmasking.order == "random":
                confidence = jax.random.uniform(for_order, places.shape)
            # Keep the best `kept` predictions of each row; ties are broken from left to right.
            is_masked = ids[by_row, places] == mask
            priority = np.where(is_masked, to_host(confidence), -1)
            best = np.argsort(-priority, axis=1, kind="stable")[:, :kept]
            ids[by_row, places[by_row, best]] = to_host(predicted)[by_row, best]
        yield ids[by_row, begins[:, None] + np.arange(start + size)]


def _ids_of(loaded: LoadedModel) -> tuple[int, int]:
    """Return the number of ids, and the id of the mask, which is never predicted."""
    vocabulary = loaded.tokenizer.vocabulary
    return vocabulary.size, vocabulary["[MASK]"]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _predict(
    config: ModelDimensions,
    sampling: Sampling,
    ids: tuple[int, int],
    params: Params,
    row: Row,
    places: Int[Array | np.ndarray, "B L"],
    key: Any,
) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]:
    """Return a prediction for each place, and the probability that the model gives it."""
    size, mask = ids
    hidden = transformer.apply(config, params, row, packed=False).hidden_states
    hidden = jnp.take_along_axis(hidden, places[:, :, None], axis=1)
    logits_BLV = logits(config, head_params(params), hidden)
    numbers = jnp.arange(logits_BLV.shape[-1])
    logits_BLV = jnp.where((numbers < size) & (numbers != mask), logits_BLV, -jnp.inf)
    flat = logits_BLV.reshape(-1, logits_BLV.shape[-1])
    predicted = sample(flat, key, sampling).reshape(places.shape)
    probabilities = jax.nn.softmax(logits_BLV)
    confidence = jnp.take_along_axis(probabilities, predicted[..., None], axis=-1)[..., 0]
    return predicted, confidence


def check_options(loaded: LoadedModel, unmasking: Unmasking, num_beams: int) -> None:
    """Reject options of unmasking unless the model writes by unmasking, and beams if it does."""
    is_diffusion = loaded.rows.bounds_whole_text
    changed = [
        name
        for name, default in Unmasking()._asdict().items()
        if getattr(unmasking, name) != default
    ]
    if changed and not is_diffusion:
        reason = "is for models of masked_diffusion, which write by unmasking"
        raise UserError(USAGE, f"generate: unmask_{changed[0]}: {reason}; leave it out")
    if is_diffusion and num_beams > 1:
        reason = "this model writes by unmasking, which has no beams"
        raise UserError(USAGE, f"generate: num_beams: {reason}; leave it out")
