"""GPT-2 small: 124,439,808 parameters (Radford et al., 2019). The recipe is that of GPT-3's 125 M model (Brown et al.,
2020, table 2.1 and appendix B: Adam 0.9/0.95, 6e-4, cosine to 10 %, 375 M tokens of warm-up, decay 0.1, clip 1),
half a million tokens a step. Not trained here to its end; name your text with --config.data.source=….

python -m t5x_lite train --config=configs/gpt2_small.py --config.data.source='text/*.txt' --workdir=DIR
"""

from ml_collections import ConfigDict


def get_config():
    config = ConfigDict()
    config.objective = "causal_lm"
    config.data = {
        "source": "",
        "tokenizer": "sentencepiece(vocab_size=50257)",
        "batch_size": 512,
        "lengths": {"row": 1024},
        "workers": 4,
    }
    config.model = {
        "architecture": "decoder",
        "layers": 12,
        "width": 768,
        "heads": 12,
        "activation": "gelu_tanh",
        "norm_epsilon": 1e-5,
        "max_length": 1024,
        "vocab_size": 50257,
        "depth_scaled_init": True,
        "dtype": "bfloat16",
        "remat": True,
    }
    config.optimizer = {
        "learning_rate": 6e-4,
        "unit": "tokens",
        "warmup": 375_000_000,
        "decay": 260_000_000_000,
        "final": 0.1,
        "beta2": 0.95,
        "weight_decay": 0.1,
    }
    config.training = {"steps": 570_000, "eval_every": 2000, "checkpoint_every": 1000, "loss_chunk": 128}
    return config.lock()
