"""BabyLM's track of 10 million words (Charpentier et al., 2025): ten times the same text, a
checkpoint after every million words up to 10, and then after every 10 million up to 100. Any text
will do. Each family is exported for a backend of the challenge's evaluation: see
docs/how-to/babylm.md.

`:gpt_bert` learns causal and masked prediction in one decoder (Charpentier and Samuel, 2024), with
the parts of ModernBERT, so that it is exported for both backends. `:gpt` and `:bert` are the same
model with one of the two objectives; `:t5` has two stacks of half the depth. They have 7 to 7.7
million parameters, for a laptop or a small GPU. They were not trained on the challenge's text.

python -m t5x_lite train --config=babylm:gpt_bert --config.data.source='train_10M/*.train'
--config.data.validation_source='dev/*.dev' --workdir=DIR
"""

from t5x_lite.config import default, variant

MASKS = "choice='short_span', noise_density=linear(0.3, 0.15)"
ROW = {"sequence_length": 128}
FAMILIES = {
    "gpt_bert": ("decoder", 6, f"causal_lm + masked_next_token({MASKS})", ROW),
    "gpt": ("decoder", 6, "causal_lm", ROW),
    "bert": ("encoder", 6, f"masked_lm({MASKS})", {"sequence_length": 130}),
    "t5": ("encoder_decoder", 3, "span_corruption", {"inputs": 116, "targets": 26}),
}


def get_config(family: str = "gpt_bert"):
    """Return the config of one of FAMILIES."""
    architecture, num_layers, objective, lengths = variant(FAMILIES, family)
    config = default()
    config.objective = objective
    config.data.update(source="", epochs=10, batch_size=32, lengths=lengths)
    config.model.update(
        architecture=architecture,
        num_layers=num_layers,
        scan=False,
        d_model=256,
        num_heads=4,
        d_ff=704,
        feed_forward="gated_mlp",
        activation="gelu",
        bias=False,
        depth_scaled_init=True,
    )
    if family == "t5":
        config.model.update(activation="gelu_tanh", norm="rms_norm", positions="relative")
    else:
        config.model.update(positions="rotary", embedding_norm=True, first_norm=False)
        config.model.mlm_head = True
    config.optimizer.update(name="muon", learning_rate=1e-2, warmup_steps=100, weight_decay=0.1)
    config.training.update(
        steps=60_000,  # ten epochs end before, unless a word takes more than 2.4 tokens
        eval_every=1000,
        eval_steps=50,
        checkpoint_every=1000,
        keep_at=tuple(f"{words}M-words" for words in (*range(1, 10), *range(10, 101, 10))),
        loss_chunk=32,
    )
    return config
