"""The decoder a few tokens at a time, against the whole row at once: hidden states, whatever the
pieces. tests/inference/test_decode_loop.py has the logits of every kind of positions.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model.proofs import random_params, small

from t5x_lite.model import transformer
from t5x_lite.model.decoding import decoding_weights, initial_state, next_logits, read_tokens
from t5x_lite.model.heads import head_params, logits

TOKENS = np.random.default_rng(0).integers(0, 11, (2, 5)).astype(np.int32)
INPUTS = np.random.default_rng(1).integers(0, 11, (2, 4)).astype(np.int32)
LENGTHS = np.array([4, 2])  # of the inputs


def row_of(architecture: str, prefix: int = 0) -> dict:
    """Two rows of five tokens, and what an encoder reads of different lengths."""
    places = np.arange(5, dtype=np.int32) + np.zeros_like(TOKENS)
    row = {"tokens": TOKENS, "segments": np.ones_like(TOKENS), "positions": places}
    row = {f"decoder_{key}": value for key, value in row.items()}
    if architecture == "prefix_decoder":
        row["decoder_prefix"] = places < prefix
    if architecture == "encoder_decoder":
        inner = np.arange(4, dtype=np.int32) + np.zeros_like(INPUTS)
        is_real = (inner < LENGTHS[:, None]).astype(np.int32)
        row |= {"encoder_tokens": INPUTS, "encoder_segments": is_real}
        row["encoder_positions"] = inner * is_real
    return {key: jnp.asarray(value) for key, value in row.items()}


MODELS = {
    "decoder": {"positions": "rotary", "head_dim": 4, "num_kv_heads": 1},
    "prefix decoder": {"architecture": "prefix_decoder", "positions": "relative"},
    "encoder-decoder": {
        "architecture": "encoder_decoder",
        "positions": "relative",
        "shared_embeddings": False,
        "tie_embeddings": False,
    },
    "shared stacks": {
        "architecture": "encoder_decoder",
        "shared_stacks": True,
        "positions": "alibi",
    },
    "window": {"attention_rules": ("window(size=2)",), "positions": "learned"},
    "LSTM": {"mixer": "lstm", "positions": "none"},
    "experts": {"feed_forward": "experts(num=3, capacity=3.0)"},
    "LSTM after an encoder": {
        "architecture": "encoder_decoder",
        "mixer": "lstm(cells=5)",
        "positions": "learned",
    },
}
PIECES = [(3, 1, 1), (2, 3)]


def read_in_pieces(config, params, row, pieces):
    """Hidden states of all tokens, and logits after each piece."""
    weights = decoding_weights(config, params)
    state = initial_state(config, weights, 2, 5, row if config.is_encoder_decoder else None)
    hidden, ends, start = [], [], 0
    for size in pieces:
        piece = slice(start, start + size)
        y, state = read_tokens(
            config,
            weights,
            state,
            jnp.asarray(TOKENS[:, piece]),
            jnp.ones((2, size), jnp.int32),
            jnp.asarray(row["decoder_positions"][:, piece]),
            start,
            bidirectional=config.architecture == "prefix_decoder" and start == 0,
        )
        hidden.append(y)
        ends.append(next_logits(config, weights, y[:, -1]))
        start += size
    return jnp.concatenate(hidden, 1), jnp.stack(ends, 1)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow if kind == "LSTM after an encoder" else ())
        for kind in MODELS
    ],
)
def test_a_row_read_in_pieces_is_the_row_read_at_once(kind):
    """In float64, to its last digits; the code that decodes knows of no mixer."""
    with jax.enable_x64(True):
        config = small(**MODELS[kind], num_layers=1)
        rows = [row_of(config.architecture, prefix=pieces[0]) for pieces in PIECES]

        @jax.jit
        def compute(params):
            found, expected = [], []
            for pieces, row in zip(PIECES, rows, strict=True):
                found.append(read_in_pieces(config, params, row, pieces))
                hidden = transformer.apply(config, params, row, packed=False).hidden_states
                ends = hidden[:, np.cumsum(pieces) - 1]
                expected.append((hidden, logits(config, head_params(params), ends)))
            return found, expected

        found, expected = compute(random_params(config))
        close = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11)
        jax.tree.map(close, found, expected)
