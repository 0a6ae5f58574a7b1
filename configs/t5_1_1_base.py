"""T5 1.1 base: 247,577,856 parameters (from the notes on the released checkpoints: gated GELU, no
dropout in pretraining, a separate output layer; Shazeer, 2020, for the gate). The optimizer and the
schedule are as in T5 1.0; 2048 × 512 per step, 1 M steps. Not trained to the end here.

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
