"""Gopher 280B (Rae et al., 2021, §3.1 and appendix C): RMSNorm, the relative positions of
Transformer-XL, a vocabulary of 32,000, Adam 4e-5 after 1,500 steps of warm-up, cosine decay to a
tenth, gradients clipped at 0.25. The paper's batch doubles from 3M to 6M tokens midway; here it is
6M from the start. The paper does not say that inputs and outputs share one table, but the printed
sizes fit nothing else. Chinchilla is published:chinchilla_70b. Not trained here.

python -m t5x_lite train --config=gopher_280b --config.data.source='text/*.txt' --workdir=DIR
"""

import t5x_lite
from t5x_lite.config import default


def get_config():
    config = t5x_lite.get_config("gpt2_small")
    config.data.update(tokenizer="sentencepiece(vocab_size=32000)", batch_size=3072)
    config.data.lengths.sequence_length = 2048
    config.model.update(
        num_layers=80, d_model=16384, num_heads=128, head_dim=128, vocab_size=32000, max_length=2048
    )
    config.model.update(norm="rms_norm", positions="transformer_xl")
    config.optimizer = default().optimizer
    config.optimizer.update(
        learning_rate=4e-5,
        initial_lr_ratio=1e-7 / 4e-5,
        warmup_steps=1500,
        final_lr_ratio=0.1,
        beta2=0.95,
        grad_clip_norm=0.25,
    )
    config.training.steps = 48_000
    return config
