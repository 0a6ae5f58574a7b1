"""PaLM 540B (Chowdhery et al., 2022, §2 and §5): SwiGLU, attention and feed-forward in parallel,
one K/V head, rotary positions, no biases, one table for inputs and outputs; Adafactor with 0.01 for
10⁴ steps and then the inverse square root, a log²Z loss of weight 1e-4, no dropout. Not trained
here.

The paper's batch grows from 512 to 1,024 and 2,048 rows over 255,000 steps; here it is 2,048
throughout, for the same number of tokens (776 billion). The paper's Adafactor is not factored, has
momentum 0.9, and decays weights by the squared learning rate; ours is factored and has neither
momentum nor weight decay.

python -m t5x_lite train --config=palm_540b --config.data.source='text/*.txt' --workdir=DIR
"""

from t5x_lite.config import default


def get_config():
    config = default()
    config.objective = "causal_lm"
    config.data.update(
        source="",
        tokenizer="sentencepiece(vocab_size=256000)",
        batch_size=2048,
        lengths={"sequence_length": 2048},
        workers=4,
    )
    config.model.update(
        architecture="decoder",
        num_layers=118,
        d_model=18432,
        num_heads=48,
        head_dim=256,
        num_kv_heads=1,
        activation="silu",
        feed_forward="gated_mlp",
        parallel_residual=True,
        bias=False,
        positions="rotary",
        vocab_size=256_000,
        scale_logits=True,
        init="fan_in",
        embedding_stddev=1.0,
        dtype="bfloat16",
        remat=True,
    )
    config.optimizer.update(
        name="adafactor",
        learning_rate=0.01,
        schedule="inverse_square_root",
        warmup_steps=10_000,
        initial_lr_ratio=1.0,
    )
    config.training.update(
        steps=185_000,
        eval_every=5000,
        checkpoint_every=1000,
        z_loss=1e-4,
    )
    return config
