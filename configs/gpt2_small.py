"""GPT-2 small: 124,439,808 parameters (Radford et al., 2019). The recipe comes from GPT-3's 125 M
model (Brown et al., 2020, table 2.1 and appendix B: Adam 0.9/0.95, 6e-4, cosine decay to 10 %,
375 M tokens of warm-up, weight decay 0.1, gradients clipped at 1), with half a million tokens per
step. Not trained to the end here. Give your own text with --config.data.source=….

python -m t5x_lite train --config=configs/gpt2_small.py --config.data.source='text/*.txt'
--workdir=DIR
"""

from t5x_lite.config import default


def get_config():
    config = default()
    config.objective = "causal_lm"
    config.data.update(
        source="",
        tokenizer="sentencepiece(vocab_size=50257)",
        batch_size=512,
        lengths={"sequence_length": 1024},
        workers=4,
    )
    config.model.update(
        architecture="decoder",
        num_layers=12,
        d_model=768,
        num_heads=12,
        activation="gelu_tanh",
        norm_epsilon=1e-5,
        max_length=1024,
        vocab_size=50257,
        depth_scaled_init=True,
        dtype="bfloat16",
        remat=True,
    )
    config.optimizer.update(
        learning_rate=6e-4,
        schedule_unit="tokens",
        warmup_steps=375_000_000,
        decay_steps=260_000_000_000,
        final_lr_ratio=0.1,
        beta2=0.95,
        weight_decay=0.1,
    )
    config.training.update(
        steps=570_000,
        eval_every=2000,
        checkpoint_every=1000,
    )
    return config
