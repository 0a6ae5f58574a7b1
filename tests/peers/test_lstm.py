"""The LSTM against PyTorch's with projections, in both directions; theirs has no bias of the forget
gate, so that it is added to their parameters.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from model.proofs import QUIET, draw, small

pytest.importorskip("torch", reason="make test-peers has it")

import jax
import torch

from t5x_lite.model.blocks import StackContext
from t5x_lite.model.masks import AttentionMask
from t5x_lite.model.parts.lstm import FORGET_BIAS, LSTM

T, CELLS = 7, 9
# PyTorch's gates one after another are write, forget, new, read: ours, side by side in each cell.
FORGET = 1


def set_parameters(peer, params, suffix: str) -> None:
    """Our parameters of one direction, put into theirs."""

    def gates_in_turn(x):
        return np.moveaxis(x.reshape(*x.shape[:-1], -1, 4), -1, -2).reshape(x.shape)

    bias = gates_in_turn(params["bias"]).reshape(4, -1)
    bias[FORGET] += FORGET_BIAS
    values = {
        "weight_ih": gates_in_turn(params["inputs"]["kernel"]).T,
        "weight_hh": gates_in_turn(params["recurrent"]["kernel"]).T,
        "bias_ih": bias.ravel(),
        "bias_hh": np.zeros(bias.size),
        "weight_hr": params["projection"]["kernel"].T,
    }
    for name, value in values.items():
        getattr(peer, f"{name}_l0{suffix}").data = torch.tensor(np.ascontiguousarray(value))


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
def test_lstm(causal):
    with jax.enable_x64(True):
        config = small(mixer="lstm", positions="none", norm="none")
        segments = jnp.ones((2, T), int)
        mask = AttentionMask(segments, segments, causal=causal)
        positions = jnp.arange(T) + jnp.zeros_like(segments)
        context = StackContext(segments, positions, mask, mask.bias(), QUIET)
        x = draw(jax.ShapeDtypeStruct((2, T, config.d_model), jnp.float64), seed=1, stddev=1.0)

        def init():
            return nn.meta.unbox(LSTM(config, CELLS).init(jax.random.key(0), x, context))

        variables = draw(jax.eval_shape(init))
        found = LSTM(config, CELLS).apply(variables, x, context)[0]
    params = jax.tree.map(np.array, variables["params"])
    peer = torch.nn.LSTM(
        config.d_model,
        CELLS,
        proj_size=config.d_model,
        bidirectional=not causal,
        batch_first=True,
        dtype=torch.float64,
    )
    set_parameters(peer, params["forward"], "")
    if not causal:
        set_parameters(peer, params["backward"], "_reverse")
    with torch.no_grad():
        expected = peer(torch.tensor(np.array(x)))[0].numpy()
    # Both directions side by side; ours are added.
    expected = expected.reshape(2, T, -1, config.d_model).sum(2)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
