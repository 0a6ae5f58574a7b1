"""Models of random parameters, and what they compute without keeping anything, for the tests of
inference.
"""

import functools

import jax
import numpy as np
from model.proofs import random_params

from t5x_lite.model import transformer
from t5x_lite.model.heads import head_params, logits
from t5x_lite.training.loaded_model import LoadedModel

_MODELS: dict[tuple, LoadedModel] = {}


def untrained(make, objective, architecture, **settings) -> LoadedModel:
    """A model as if it was loaded; the same one each time, since programs are compiled for it."""
    key = objective, architecture, *sorted(settings.items())
    if key not in _MODELS:
        resolved, corpus = make(objective, architecture, **settings)
        params = jax.device_put(random_params(resolved.model, seed=3))
        params["embedding"] *= 2
        _MODELS[key] = LoadedModel(
            resolved.config, resolved.rows, resolved.model, corpus.tokenizer, params, step=0
        )
    return _MODELS[key]


@functools.cache
def logits_of(model):
    """The function (params, row) → the logits at every position."""

    @jax.jit
    def compute(params, row):
        hidden = transformer.apply(model, params, row).hidden_states
        return logits(model, head_params(params), hidden)

    return compute


def full_logits(loaded: LoadedModel, stack: str, tokens, params=None) -> np.ndarray:
    """Logits at every position of rows of these tokens, nothing kept from one to the next."""
    tokens = np.array(tokens)
    row = {
        f"{stack}_tokens": tokens,
        f"{stack}_segments": np.ones_like(tokens),
        f"{stack}_positions": np.arange(tokens.shape[1]) + np.zeros_like(tokens),
    }
    return np.asarray(logits_of(loaded.model)(params or loaded.params, row))
