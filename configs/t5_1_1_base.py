"""T5 1.1 base: 247,577,856 parameters (the released checkpoints' notes: gated GELU, no dropout in
pretraining, output layer of its own; Shazeer, 2020, for the gate). Optimizer and schedule as T5
1.0; 2048 × 512 a step, 1 M steps. Not trained here to its end.

python -m t5x_lite train --config=configs/t5_1_1_base.py --config.data.source='text/*.txt'
--workdir=DIR
"""

import t5x_lite


def get_config():
    config = t5x_lite.get_config("t5_base")
    config.data.batch_size = 2048
    config.training.steps = 1_000_000
    config.model.update(d_ff=2048, activation="gelu_tanh", tie_embeddings=False, scale_logits=False)
    config.model.update(dropout=0.0, attention_dropout=0.0, ff_dropout=0.0)
    config.model.feed_forward = "gated_mlp"
    return config
