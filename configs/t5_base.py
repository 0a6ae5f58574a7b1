"""T5 1.0 base: 222,903,552 parameters (Raffel et al., 2020, §3.1.2 and the released models).
Adafactor with learning rate 1/√max(n, 10⁴): 0.01 for 10⁴ steps, then the inverse square root. It
trains for 2¹⁹ steps of 128 × 512, as in the paper's baseline. The baseline learned i.i.d.
denoising; this config has span corruption with a mean span length of 3, as in the final models
(published:t5_base has their training length). Dropout is 0.1 in this recipe; the later one
pretrains without it. Not trained to the end here.

A row reads 568 raw tokens, which give exactly 512 inputs and 114 targets, each with its EOS.

python -m t5x_lite train --config=configs/t5_base.py --config.data.source='text/*.txt' --workdir=DIR
"""

from t5x_lite.config import default


def get_config():
    config = default()
    config.objective = "span_corruption"
    config.data.update(
        source="",
        tokenizer="sentencepiece(vocab_size=32128)",
        batch_size=128,
        lengths={"inputs": 512, "targets": 114},
        workers=4,
    )
    config.model.update(
        architecture="encoder_decoder",
        num_layers=12,
        d_model=768,
        num_heads=12,
        head_dim=64,
        d_ff=3072,
        activation="relu",
        norm="rms_norm",
        bias=False,
        positions="relative",
        vocab_size=32128,
        scale_logits=True,
        scale_attention=False,
        init="fan_in",
        embedding_stddev=1.0,
        dropout=0.1,
        attention_dropout=0.1,
        ff_dropout=0.1,
        dtype="bfloat16",
        remat=True,
    )
    config.optimizer.update(
        name="adafactor",
        learning_rate=0.01,
        schedule="inverse_square_root",
        warmup_steps=10_000,
        initial_lr_ratio=1.0,
        grad_clip_norm=0.0,
    )
    config.training.update(
        steps=2**19,
        eval_every=5000,
        checkpoint_every=2000,
        z_loss=1e-4,
    )
    return config
