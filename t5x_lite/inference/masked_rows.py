"""Rows of masked texts, for models that see both sides of a mask: encoders, and decoders trained on
masked_next_token or masked_diffusion.
"""

from collections.abc import Sequence

import numpy as np

from t5x_lite.data.objectives.pairs import Pairs
from t5x_lite.data.ragged import Ragged
from t5x_lite.data.rows.layouts import RowShape, lay_out
from t5x_lite.errors import USAGE, UserError
from t5x_lite.model.parts.positions import position_limit
from t5x_lite.training.loaded_model import LoadedModel


def framed(loaded: LoadedModel, parts: Sequence[np.ndarray]) -> tuple[np.ndarray, int]:
    """Join parts of a text and add the special tokens that the model reads around it.

    An encoder reads the text between [CLS] and [SEP]. For a decoder, EOS follows the text: a
    decoder of masked_next_token reads all but the last id of a row.

    Returns:
        the ids, and the position of the first id of the parts.

    Raises:
        UserError: if there are more ids than the position table has rows.
    """
    vocabulary, config = loaded.tokenizer.vocabulary, loaded.model
    if config.architecture == "encoder":
        before, after = [vocabulary["[CLS]"]], [vocabulary["[SEP]"]]
    else:
        before, after = [], [vocabulary.eos]
    ids = np.concatenate([before, *parts, after]).astype(np.int32)
    if position_limit(config) is not None and len(ids) > config.max_length:
        reason = f"the text has {len(ids)} tokens, the model reads {config.max_length}"
        raise UserError(USAGE, f"{reason}; shorten it")
    return ids, len(before)


def masked_rows(
    loaded: LoadedModel, texts: Sequence[np.ndarray], length: int
) -> dict[str, np.ndarray]:
    """Lay out masked texts as rows, for a model that sees both sides of a mask.

    The hidden state at position i predicts token i of the text. A decoder of masked_next_token
    reads the text shifted right after its start token, as in training, so the same holds for it.
    """
    ids, nothing = Ragged.from_rows(texts), Ragged.empty(len(texts))
    if loaded.model.architecture == "encoder":
        pairs, shape = Pairs(ids, nothing, scored=nothing), RowShape(length, scored=1)
    else:
        pairs, shape = Pairs(nothing, ids, read=ids), RowShape(decoder=length, looks_ahead=True)
    return lay_out(pairs, shape, loaded.tokenizer.vocabulary)
