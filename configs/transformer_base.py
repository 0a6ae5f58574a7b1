"""The original Transformer, base size (Vaswani et al., 2017, §3 and §5): post-norm, sinusoidal
positions, one embedding table for everything, scaled by √512; Adam 0.9/0.98 with ε = 10⁻⁹, 4,000
steps of warm-up to 512^-½ · 4000^-½ and then the inverse square root, dropout 0.1, label smoothing
0.1. The paper trained it to translate; here it learns span corruption. Not trained to the end here.

python -m t5x_lite train --config=transformer_base --config.data.source='text/*.txt' --workdir=DIR
"""

from t5x_lite.config import default


def get_config():
    config = default()
    config.objective = "span_corruption"
    config.data.update(
        source="",
        tokenizer="sentencepiece(vocab_size=37000)",
        batch_size=64,
        lengths={"inputs": 512, "targets": 114},
        workers=4,
    )
    config.model.update(
        architecture="encoder_decoder",
        num_layers=6,
        d_model=512,
        num_heads=8,
        d_ff=2048,
        activation="relu",
        norm_position="post",
        positions="sinusoidal",
        scale_embeddings=True,
        embedding_stddev=512**-0.5,
        vocab_size=37000,
        dropout=0.1,
        dtype="bfloat16",
        remat=True,
    )
    config.optimizer.update(
        learning_rate=512**-0.5 * 4000**-0.5,
        schedule="inverse_square_root",
        warmup_steps=4000,
        beta2=0.98,
        epsilon=1e-9,
        grad_clip_norm=0.0,
    )
    config.training.update(
        steps=100_000,
        eval_every=5000,
        checkpoint_every=2000,
        label_smoothing=0.1,
    )
    return config
