"""LLaMA 7B: 6,738,415,616 parameters (Touvron et al., 2023, §2): pre-norm blocks with RMSNorm,
SwiGLU, rotary positions, no biases; AdamW 0.9/0.95, 3e-4 after 2,000 steps of warm-up, cosine decay
to a tenth, weight decay 0.1, four million tokens per step, 1 T tokens in all. Not trained here.

python -m t5x_lite train --config=llama_7b --config.data.source='text/*.txt' --workdir=DIR
"""

from t5x_lite.config import default


def get_config():
    config = default()
    config.objective = "causal_lm"
    config.data.update(
        source="",
        tokenizer="sentencepiece(vocab_size=32000)",
        batch_size=2048,
        lengths={"sequence_length": 2048},
        workers=4,
    )
    config.model.update(
        architecture="decoder",
        num_layers=32,
        d_model=4096,
        num_heads=32,
        d_ff=11008,
        activation="silu",
        feed_forward="gated_mlp",
        norm="rms_norm",
        bias=False,
        positions="rotary",
        vocab_size=32000,
        tie_embeddings=False,
        dtype="bfloat16",
        remat=True,
    )
    config.optimizer.update(
        learning_rate=3e-4,
        warmup_steps=2000,
        final_lr_ratio=0.1,
        beta2=0.95,
        weight_decay=0.1,
    )
    config.training.update(
        steps=240_000,
        eval_every=2000,
        checkpoint_every=1000,
    )
    return config
