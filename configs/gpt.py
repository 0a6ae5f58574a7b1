"""GPT: 116,534,784 parameters (Radford et al., 2018, §4.1): twelve post-norm blocks, 512 positions,
Adam 2.5e-4 after 2,000 steps of warm-up, cosine decay to 0 over 100 epochs in batches of 64 × 512,
weight decay 0.01, dropout 0.1. Not trained to the end here.

python -m t5x_lite train --config=gpt --config.data.source='text/*.txt' --workdir=DIR
"""

import t5x_lite
from t5x_lite.config import default


def get_config():
    config = t5x_lite.get_config("gpt2_small")
    config.data.update(tokenizer="sentencepiece(vocab_size=40478)", batch_size=64, epochs=100)
    config.data.lengths.sequence_length = 512
    config.model.update(
        norm_position="post", vocab_size=40478, max_length=512, depth_scaled_init=False, dropout=0.1
    )
    config.model.attention_dropout = 0.1
    config.optimizer = default().optimizer
    config.optimizer.update(
        learning_rate=2.5e-4,
        warmup_steps=2000,
        weight_decay=0.01,
    )
    config.training.steps = 10_000_000  # an upper bound: data.epochs ends the run first
    return config
