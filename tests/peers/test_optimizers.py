"""Muon against PyTorch's, which has no bias correction and iterates in bfloat16: their updates
point the same way and are as large, in the first step and once the correction is over.
"""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip("torch", reason="make test-peers has it")

import torch

from t5x_lite.config import Optimizer
from t5x_lite.training.optimizer import make_optimizer

RATE, DECAY, STEPS = 0.01, 0.1, 60


@pytest.mark.parametrize("shape", [(96, 128), (128, 96), (128, 128)])
def test_muon(shape):
    rng = np.random.default_rng(0)
    ours = {"kernel": jnp.asarray(rng.normal(0, 0.02, shape), jnp.float32)}
    theirs = torch.nn.Parameter(torch.tensor(np.array(ours["kernel"])))
    peer = torch.optim.Muon(
        [theirs], lr=RATE, weight_decay=DECAY, nesterov=True, adjust_lr_fn="match_rms_adamw"
    )
    config = Optimizer(name="muon", weight_decay=DECAY, grad_clip_norm=0.0)
    rule = make_optimizer(config, lambda step: RATE, {"kernel": ("embed", "mlp")})
    state = rule.init(ours)
    for step in range(STEPS):
        gradient = rng.normal(size=shape).astype(np.float32)
        theirs.grad = torch.tensor(gradient)
        before = theirs.detach().numpy().copy()
        peer.step()
        updates, state = rule.update({"kernel": jnp.asarray(gradient)}, state, ours)
        ours = optax.apply_updates(ours, updates)
        if step in (0, STEPS - 1):
            a = np.asarray(updates["kernel"]).ravel()
            b = (theirs.detach().numpy() - before).ravel()
            assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.9998
            assert np.linalg.norm(a) == pytest.approx(np.linalg.norm(b), rel=0.003)
