"""RoBERTa large: 355 M parameters (Liu et al., 2019, §5 and table 9): BERT large with a vocabulary
of 50,265, dynamic masks and no next-sentence task; Adam 4e-4, 0.9/0.98, 30,000 steps of warm-up,
linear decay over 500,000 steps of 8,192 × 512, weight decay 0.01. Its position table begins with
two unused rows, as in the released model. Not trained to the end here.

python -m t5x_lite train --config=roberta_large --config.data.source='text/*.txt' --workdir=DIR
"""

import t5x_lite


def get_config():
    config = t5x_lite.get_config("bert_base")
    config.data.update(tokenizer="sentencepiece(vocab_size=50265)", batch_size=8192)
    config.model.update(
        num_layers=24,
        d_model=1024,
        num_heads=16,
        vocab_size=50265,
        token_types=0,
        norm_epsilon=1e-5,
    )
    config.model.positions = "learned(offset=2)"
    config.optimizer.update(learning_rate=4e-4, warmup_steps=30_000)
    config.model.init = "normal"
    config.optimizer.update(beta2=0.98, grad_clip_norm=0.0)
    config.training.steps = 500_000
    return config
